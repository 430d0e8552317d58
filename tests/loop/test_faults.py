# SPDX-License-Identifier: GPL-2.0-only
"""A system call or an allocation that normally succeeds fails, and the loop continues.

faulty_libc.c replaces the functions of the C library that the loop uses. It is compiled here and
preloaded into a fresh interpreter. tests/faults compares the effect of such faults on programs
between the loops. The tests here cover the few places where a fault could break the loop itself.
"""

import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import support

pytestmark = pytest.mark.slow  # each test has a process with a replaced C library

#: Precedes every program. Programs wait for each other with events, never with the loop's timers,
#: which would hide a lost wake-up; `alarm()` ends a program that hangs.
PRELUDE = """\
import contextlib, ctypes, errno, faulthandler, gc
faulty = ctypes.CDLL(os.environ["FAULTY_LIBC"])
faulty.faulty_plan.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int] + [ctypes.c_long] * 3
faulty.faulty_seen.restype = faulty.faulty_failed.restype = ctypes.c_long
faulthandler.dump_traceback_later(25, exit=True)  # before support.PATIENCE is over

# Imports are done, and what happens once has happened.
new_loop().close()

def fail(call, error, *, fd=-1, skip=0, times=1, every=1):
    faulty.faulty_plan(call.encode(), error, fd, skip, times, every)

def failed(call):
    return faulty.faulty_failed(call.encode())

def seen(call):
    return faulty.faulty_seen(call.encode())

def quiet(loop):
    '''asyncio reports what mgloop mends; either is right.'''
    loop.set_exception_handler(lambda loop, context: None)
    return loop

class Threads:
    '''Threads that have started already, so that no start wakes a loop.'''
    def __init__(self):
        self.go = threading.Semaphore(0)
        self.job = None
        threading.Thread(target=self.work, daemon=True).start()
    def work(self):
        while True:
            self.go.acquire()
            time.sleep(0.05)
            self.job()
    def soon(self, job):
        self.job = job
        self.go.release()

def assert_woken(loop, times=5):
    '''Calls from a thread arrive although nothing but they end the wait.'''
    threads = Threads()
    async def wait():
        future = loop.create_future()
        threads.soon(lambda: loop.call_soon_threadsafe(future.set_result, None))
        began = time.monotonic()
        await future
        assert time.monotonic() - began < 2
    for _ in range(times):
        loop.run_until_complete(wait())
"""

under_asan = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="AddressSanitizer has allocations of its own",
)


@pytest.fixture(scope="session")
def faulty_server(tmp_path_factory):
    """Compile faulty_libc.c; yield a `support.ForkServer` in which it is preloaded."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("without gcc there is nothing to preload")
    library = tmp_path_factory.mktemp("faults") / "faulty_libc.so"
    source = Path(__file__).with_name("faulty_libc.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    preload = " ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(library)]))
    server = support.ForkServer({"LD_PRELOAD": preload, "FAULTY_LIBC": str(library)})
    yield server
    server.close()


@pytest.fixture
def run_faulty(faulty_server, loop_kind):
    """Return a function that runs a program with faulty_libc.c in a process of its own."""

    def run(code):
        program = PRELUDE + textwrap.dedent(code)
        return support.run_python(loop_kind, program, server=faulty_server)

    return run


@pytest.fixture
def run_streams(run_faulty):
    """Return the same for a program that has the functions of ECHO."""
    return lambda code: run_faulty(ECHO + textwrap.dedent(code))


class TestConstructor:
    @pytest.mark.parametrize(
        ("call", "error"),
        [
            ("epoll_create1", "EMFILE"),
            ("epoll_ctl", "ENOMEM"),
            ("epoll_ctl", "ENOSPC"),
            ("socketpair", "EMFILE"),
            ("timerfd_create", "EMFILE"),
        ],
    )
    def test_makes_a_loop_that_works_or_raises(self, run_faulty, call, error):
        """The constructor never returns a broken loop, and leaks no descriptor."""
        run_faulty(f"""
            warnings.simplefilter("ignore")
            before = len(os.listdir("/proc/self/fd"))
            for skip in range(4):
                fail("{call}", errno.{error}, skip=skip)
                try:
                    loop = new_loop()
                except OSError:
                    continue
                finally:
                    fail("{call}", 0)
                assert_woken(loop, times=2)
                loop.close()
            gc.collect()
            assert len(os.listdir("/proc/self/fd")) == before
        """)

    @pytest.mark.mgloop_only
    def test_wakeup_that_cannot_be_watched(self, run_faulty):
        """Each failing epoll_ctl() of the constructor raises OSError: no failure is ignored."""
        run_faulty("""
            fail("epoll_ctl", 0)
            loop = new_loop()
            needed = seen("epoll_ctl")
            loop.close()
            assert needed >= 2
            for skip in range(needed):
                fail("epoll_ctl", errno.ENOMEM, skip=skip)
                raised(OSError, new_loop)
        """)

    @pytest.mark.mgloop_only
    def test_loop_that_was_not_made_is_collected_in_silence(self, run_faulty):
        _, errors = run_faulty("""
            for call in "epoll_create1", "epoll_ctl", "timerfd_create":
                fail(call, errno.ENOMEM)
                with contextlib.suppress(OSError):
                    new_loop()
                assert failed(call) == 1
            gc.collect()
        """)
        assert not errors

    @under_asan
    @pytest.mark.mgloop_only
    def test_out_of_memory(self, run_faulty):
        """Whichever allocation fails, the constructor raises MemoryError or does without it."""
        run_faulty("""
            for call in "calloc", "realloc":
                for skip in range(80):
                    fail(call, errno.ENOMEM, skip=skip)
                    try:
                        loop = new_loop()
                    except (MemoryError, OSError):
                        fail(call, 0)
                    else:
                        fail(call, 0)
                        assert_woken(loop, times=1) if skip % 20 == 0 else None
                        loop.close()
        """)


class TestWakeUp:
    @pytest.mark.parametrize("error", ["ECONNRESET", "ENOMEM", "ENOBUFS", "EINTR", "EAGAIN"])
    @pytest.mark.parametrize("times", [1, 3])
    def test_its_recv_fails(self, run_faulty, error, times):
        run_faulty(f"""
            loop = quiet(new_loop())
            assert_woken(loop, times=1)
            fail("recv", errno.{error}, times={times})
            assert_woken(loop, times=6)
            assert failed("recv") == {times}
            loop.close()
        """)

    def test_its_recv_fails_again_and_again(self, run_faulty):
        """Every second call fails, and the replaced descriptors are all closed."""
        run_faulty("""
            loop = quiet(new_loop())
            assert_woken(loop, times=1)
            before = len(os.listdir("/proc/self/fd"))
            fail("recv", errno.ECONNRESET, times=-1, every=2)
            assert_woken(loop, times=20)
            fail("recv", 0)
            assert len(os.listdir("/proc/self/fd")) <= before
            loop.close()
            gc.collect()
            assert len(os.listdir("/proc/self/fd")) < before
        """)

    def test_executor_jobs_end_in_time(self, run_faulty):
        run_faulty("""
            loop = quiet(new_loop())
            async def main():
                for _ in range(5):
                    await loop.run_in_executor(None, time.sleep, 0.01)
                fail("recv", errno.ECONNRESET, times=2)
                for _ in range(5):
                    began = time.monotonic()
                    await loop.run_in_executor(None, time.sleep, 0.05)
                    assert time.monotonic() - began < 2
                await loop.shutdown_default_executor()
            loop.run_until_complete(main())
            assert failed("recv") == 2
            loop.close()
        """)

    @under_asan
    @pytest.mark.parametrize("call", ["calloc", "realloc"])
    def test_no_memory_at_the_first(self, run_faulty, call):
        run_faulty(f"""
            loop = quiet(new_loop())
            threads = Threads()
            future = loop.create_future()
            # This runs last before the wait, in which the allocations of the loop fail.
            loop.call_later(0.05, lambda: (
                threads.soon(lambda: loop.call_soon_threadsafe(future.set_result, None)),
                fail("{call}", errno.ENOMEM)))
            began = time.monotonic()
            loop.run_until_complete(future)
            fail("{call}", 0)
            assert time.monotonic() - began < 2
            assert_woken(loop)
            loop.close()
        """)

    def test_its_send_is_interrupted(self, run_faulty):
        """EINTR means that nothing was sent: the call is repeated."""
        run_faulty("""
            loop = quiet(new_loop())
            assert_woken(loop, times=1)
            fail("send", errno.EINTR)
            assert_woken(loop)
            loop.close()
        """)

    @pytest.mark.parametrize("error", ["ENOBUFS", "ENOMEM"])
    def test_its_send_fails(self, run_faulty, error):
        """That wake-up may be lost, as with asyncio, but the next one must not be."""
        run_faulty(f"""
            loop = quiet(new_loop())
            assert_woken(loop, times=1)
            threads = Threads()
            arrived = []
            future = loop.create_future()
            def calls():
                fail("send", errno.{error})
                loop.call_soon_threadsafe(arrived.append, 1)
                time.sleep(0.1)
                loop.call_soon_threadsafe(future.set_result, 2)
            threads.soon(calls)
            began = time.monotonic()
            loop.run_until_complete(future)
            assert time.monotonic() - began < 2
            assert arrived == [1]
            assert_woken(loop)
            loop.close()
        """)

    def test_loop_is_closed_after_a_fault(self, run_faulty):
        """Closing immediately after the fault, before the loop runs, is safe as well."""
        run_faulty("""
            loop = quiet(new_loop())
            fail("recv", errno.ECONNRESET)
            assert_woken(loop, times=1)
            loop.close()
            loop = quiet(new_loop())
            assert_woken(loop, times=2)
            loop.close()
        """)


@under_asan
@pytest.mark.mgloop_only
class TestPosting:
    """Calls from another thread while an allocation fails."""

    PRELUDE = '''
        def thread(job):
            thread = threading.Thread(target=job)
            thread.start()
            thread.join()

        class Arrivals:
            """Room for all of them beforehand: to note one takes no memory."""
            def __init__(self):
                self.room, self.n = [None] * 1001, 0
            def note(self, i):
                self.room[self.n] = i
                self.n += 1
            def all(self):
                return self.room[:self.n]

        def post(loop):
            for i in range(1000):
                loop.call_soon_threadsafe(arrived.note, i)
    '''

    @pytest.fixture
    def run_posting(self, run_faulty):
        return lambda code: run_faulty(textwrap.dedent(self.PRELUDE) + textwrap.dedent(code))

    def test_none_to_take_them(self, run_posting):
        """The loop may raise MemoryError, but loses no call: it continues where it was."""
        run_posting("""
            raised = 0
            for skip in range(24):
                loop = new_loop()
                arrived = Arrivals()
                thread(lambda: post(loop))
                loop.call_soon_threadsafe(loop.stop)
                if skip % 2:
                    loop.call_soon(int)  # an empty queue needs no room for them
                fail("malloc", errno.ENOMEM, skip=skip // 2)
                try:
                    loop.run_forever()
                except MemoryError:
                    raised += 1
                    fail("malloc", 0)
                    thread(lambda: loop.call_soon_threadsafe(arrived.note, 1000))
                    loop.run_forever()
                    turn(loop)
                fail("malloc", 0)
                assert arrived.all()[:1000] == list(range(1000)), (skip, arrived.n)
                loop.close()
            assert raised > 1
        """)

    def test_none_to_post_them(self, run_posting):
        """The calls that were accepted run, in order."""
        run_posting("""
            def post_what_is_accepted(loop, skip):
                fail("malloc", errno.ENOMEM, skip=skip)
                for i in range(1000):
                    try:
                        loop.call_soon_threadsafe(arrived.note, i)
                    except MemoryError:
                        continue
                    accepted.note(i)
                fail("malloc", 0)

            for skip in range(12):
                loop, arrived, accepted = new_loop(), Arrivals(), Arrivals()
                thread(lambda: post_what_is_accepted(loop, skip))
                loop.call_soon(loop.stop)
                loop.run_forever()
                assert arrived.all() == accepted.all() and accepted.n >= 999, skip
                loop.close()
        """)

    def test_none_when_the_loop_is_closed(self, run_posting):
        """close() may raise MemoryError; a second call closes the loop, and the calls run."""
        run_posting("""
            for skip in range(12):
                loop = new_loop()
                arrived = Arrivals()
                thread(lambda: post(loop))
                fail("malloc", errno.ENOMEM, skip=skip)
                try:
                    loop.close()
                except MemoryError:
                    fail("malloc", 0)
                    loop.close()
                fail("malloc", 0)
                assert arrived.all() == list(range(1000)), (skip, arrived.n)
                assert loop.is_closed()
        """)


class TestTimers:
    @pytest.mark.parametrize("error", ["EPERM", "ENOMEM"])
    @pytest.mark.parametrize("every", [1, 2])
    def test_alarm_that_cannot_be_set(self, run_faulty, error, every):
        """Timers are on time, and waiting for them uses no processor time."""
        run_faulty(f"""
            loop = new_loop()
            fail("timerfd_settime", errno.{error}, times=-1, every={every})
            delays = [0.05 * number for number in range(1, 11)]
            late = []
            start = loop.time()
            for delay in delays:
                loop.call_at(start + delay, lambda delay=delay: late.append(
                    loop.time() - start - delay))
            loop.call_at(start + 0.6, loop.stop)
            fail("epoll_wait", 0)
            used = time.process_time()
            loop.run_forever()
            used = time.process_time() - used
            assert seen("epoll_wait") < 100, seen("epoll_wait")
            assert used < 0.2, used
            assert len(late) == len(delays)
            assert min(late) > -0.001, late
            # Half of them; a busy machine may delay some.
            assert sorted(late)[5] < 0.01, late
            loop.close()
        """)

    def test_without_an_alarm_other_events_still_end_the_wait(self, run_faulty):
        run_faulty("""
            loop = new_loop()
            fail("timerfd_settime", errno.EPERM, times=-1)
            timer = loop.call_later(30, loop.stop)
            assert_woken(loop)
            left, right = socket.socketpair()
            with left, right:
                left.setblocking(False)
                future = loop.create_future()
                loop.add_reader(left, lambda: future.done() or future.set_result(None))
                threads = Threads()
                threads.soon(lambda: right.send(b"x"))
                loop.run_until_complete(future)
                loop.remove_reader(left)
            timer.cancel()
            loop.close()
        """)

    @pytest.mark.parametrize(
        "arm", ["call_later(0, step)", "call_at(loop.time(), step)", "call_later(1e-6, step)"]
    )
    def test_a_timer_that_is_due_does_not_wait_for_the_next_wake_up(self, run_faulty, arm):
        """Timers close to each other share a wake-up, except timers that are due earlier."""
        run_faulty(f"""
            loop = new_loop()
            left = 200
            def step():
                global left
                left -= 1
                loop.{arm} if left else loop.stop()
            fail("timerfd_settime", 0)
            loop.{arm}
            loop.run_forever()
            assert seen("timerfd_settime") <= 1, seen("timerfd_settime")
            loop.close()
        """)


#: A transport, and a peer in a thread that echoes all data until the end of the stream.
ECHO = """\
class Collector(asyncio.Protocol):
    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.data = bytearray()
        self.enough = None
        self.lost = self.loop.create_future()
    def connection_made(self, transport):
        self.transport = transport
        self.fd = transport.get_extra_info("socket").fileno()
    def data_received(self, data):
        self.data += data
        if self.enough is not None and len(self.data) >= self.wanted:
            self.enough.set_result(None)
    async def received(self, count):
        if len(self.data) < count:
            self.wanted, self.enough = count, self.loop.create_future()
            await self.enough
        self.enough = None
        data = bytes(self.data[:count])
        del self.data[:count]
        return data
    def connection_lost(self, exc):
        self.lost.set_result(exc)

def echo(sock):
    with sock:
        while data := sock.recv(65536):
            time.sleep(0.001)
            sock.sendall(data)

def sink(sock):
    with sock:
        count = 0
        while count < 500_000:
            count += len(sock.recv(20_000))
            time.sleep(0.001)
        sock.sendall(b"thanks")

async def connect(family, peer=echo):
    loop = asyncio.get_running_loop()
    if family == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
    else:
        ours, theirs = socket.socketpair()
    # Filled soon, so that transports write in parts.
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    threading.Thread(target=peer, args=(theirs,), daemon=True).start()
    ours.setblocking(False)
    _, protocol = await loop.create_connection(Collector, sock=ours)
    return protocol
"""


class TestTransports:
    """Stream transports: an EAGAIN that the kernel would not return, and interruptions."""

    @pytest.mark.parametrize("family", ["tcp", "unix"])
    @pytest.mark.parametrize("calls", [("recv", "recvmsg"), ("send", "sendmsg")], ids="_".join)
    @pytest.mark.parametrize(
        ("sizes", "how_often"),
        [([250], {}), ([12_500_000], {}), ([10] * 60 + [300_000], {"times": -1, "every": 10})],
        ids=["once", "once, a large write", "every tenth"],
    )
    @pytest.mark.parametrize("error", ["EAGAIN", "EINTR"])
    def test_call_fails(self, run_streams, family, calls, sizes, how_often, error):
        run_streams(f"""
            async def main():
                protocol = await connect("{family}")
                protocol.transport.write(b"first")
                assert await protocol.received(5) == b"first"
                for call in {calls}:
                    fail(call, errno.{error}, fd=protocol.fd, **{how_often})
                for size in {sizes}:
                    wanted = os.urandom(size)
                    protocol.transport.write(wanted)
                    assert await protocol.received(size) == wanted
                assert sum(map(failed, {calls})) >= 1
                protocol.transport.write_eof()
                assert await protocol.lost is None
            run(main())
        """)

    @pytest.mark.parametrize("family", ["tcp", "unix"])
    @pytest.mark.parametrize("skip", range(4))
    def test_nothing_comes_back_meanwhile(self, run_streams, family, skip):
        """The peer sends no data that would make the poll check the connection again."""
        run_streams(f"""
            async def main():
                protocol = await connect("{family}", sink)
                fail("send", errno.EAGAIN, fd=protocol.fd, skip={skip})
                fail("sendmsg", errno.EAGAIN, fd=protocol.fd, skip={skip})
                for _ in range(5):
                    protocol.transport.write(bytes(100_000))
                assert await protocol.received(6) == b"thanks"
                assert failed("send") + failed("sendmsg") >= 1
                await protocol.lost
            run(main())
        """)

    @pytest.mark.parametrize("error", ["EAGAIN", "EINTR"])
    def test_the_end_of_the_stream(self, run_streams, error):
        """No more data will arrive to wake a transport that has missed the end."""
        run_streams(f"""
            async def main():
                protocol = await connect("tcp")
                protocol.transport.write(b"first")
                assert await protocol.received(5) == b"first"
                fail("recv", errno.{error}, fd=protocol.fd)
                protocol.transport.write_eof()
                assert await protocol.lost is None
                assert failed("recv") == 1
            run(main())
        """)

    @pytest.mark.parametrize("family", ["tcp", "unix"])
    @pytest.mark.parametrize("error", ["EAGAIN", "EINTR"])
    def test_data_and_the_end_at_once(self, run_streams, family, error):
        """Reading the data at the second attempt must not hide the end of the stream."""
        run_streams(f"""
            def talk(sock):
                with sock:
                    sock.sendall(b"hello")
                    sock.recv(10)
                    sock.sendall(b"goodbye")
                left.set()
            left = threading.Event()
            async def main():
                protocol = await connect("{family}", talk)
                assert await protocol.received(5) == b"hello"
                for call in "recv", "recvmsg":
                    fail(call, errno.{error}, fd=protocol.fd)
                protocol.transport.write(b"go")
                protocol.transport.get_write_buffer_size()
                assert left.wait(5)     # the loop stands still until both are there
                await protocol.lost
                assert protocol.data == b"goodbye"
                assert failed("recv") + failed("recvmsg") == 1
            run(main())
        """)

    @pytest.mark.parametrize("family", ["tcp", "unix"])
    @pytest.mark.parametrize("skip", range(6))
    def test_the_peer_waits_for_room(self, run_streams, family, skip):
        """The fault may be anywhere in the stream: the peer cannot send more before it is read."""
        run_streams(f"""
            def talk(sock):
                with sock:
                    sock.sendall(b"hello")
                    sock.sendall(bytes(4_000_000))
            async def main():
                protocol = await connect("{family}", talk)
                for call in "recv", "recvmsg":
                    fail(call, errno.EAGAIN, fd=protocol.fd, skip={skip})
                await protocol.lost
                assert len(protocol.data) == 4_000_005
                assert failed("recv") + failed("recvmsg") == 1
            run(main())
        """)

    @pytest.mark.parametrize("error", ["EAGAIN", "EINTR"])
    def test_datagrams(self, run_faulty, error):
        run_faulty(f"""
            class Collector(asyncio.DatagramProtocol):
                def datagram_received(self, data, address):
                    received.append(data)
                    if len(received) in awaited:
                        awaited[len(received)].set_result(None)
            async def main():
                loop = asyncio.get_running_loop()
                transport, _ = await loop.create_datagram_endpoint(
                    Collector, local_addr=("127.0.0.1", 0))
                fd = transport.get_extra_info("socket").fileno()
                address = transport.get_extra_info("sockname")
                awaited[1] = loop.create_future()
                awaited[4] = loop.create_future()
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                    for call in "recvfrom", "recvmmsg":
                        fail(call, errno.{error}, fd=fd)
                    sender.sendto(b"0", address)
                    await awaited[1]
                    for call in "send", "sendto":
                        fail(call, errno.{error}, fd=fd)
                    for number in b"1", b"2", b"3":
                        transport.sendto(number, address)
                    await awaited[4]
                assert sorted(received) == [b"0", b"1", b"2", b"3"]
                transport.close()
                await asyncio.sleep(0)
            received, awaited = [], {{}}
            run(main())
        """)


class TestAccepting:
    @pytest.mark.parametrize("error", ["EMFILE", "ENOMEM", "ENOBUFS", "EAGAIN", "EINTR"])
    def test_fails_once(self, run_faulty, error):
        """The waiting connection is accepted a little later, and so are others."""
        run_faulty(f"""
            async def serve(reader, writer):
                writer.write(await reader.readexactly(2))
                writer.close()
                await writer.wait_closed()
            def client(address, number, results):
                with socket.create_connection(address) as sock:
                    sock.sendall(b"%02d" % number)
                    results.append(sock.recv(10))
            async def main():
                loop = asyncio.get_running_loop()
                quiet(loop)
                server = await asyncio.start_server(serve, "127.0.0.1", 0)
                address = server.sockets[0].getsockname()
                results = []
                fail("accept4", errno.{error})
                for number in range(3):
                    await loop.run_in_executor(None, client, address, number, results)
                assert failed("accept4") == 1
                assert results == [b"00", b"01", b"02"]
                server.close()
                await server.wait_closed()
            run(main())
        """)


class TestRegistration:
    @pytest.mark.mgloop_only  # asyncio forgets the reader, and can no longer register the file
    @pytest.mark.parametrize("error", ["ENOMEM", "ENOSPC"])
    def test_writer_that_cannot_be_added(self, run_faulty, error):
        """The existing reader is not affected, and the writer can be added later."""
        run_faulty(f"""
            loop = new_loop()
            left, right = socket.socketpair()
            left.setblocking(False)
            got = []
            def read():
                got.append(left.recv(10))
                loop.stop()
            loop.add_reader(left, read)
            fail("epoll_ctl", errno.{error}, fd=left.fileno())
            exception = raised(OSError, loop.add_writer, left, got.append, "writer")
            assert exception.errno == errno.{error}
            right.send(b"reader")
            loop.run_forever()
            assert got == [b"reader"], got
            loop.add_writer(left, lambda: (got.append("writer"), loop.stop()))
            loop.run_forever()
            assert got == [b"reader", "writer"], got
            assert loop.remove_writer(left) and loop.remove_reader(left)
            left.close()
            right.close()
            loop.close()
        """)

    @pytest.mark.parametrize("error", ["ENOMEM", "ENOSPC"])
    def test_reader_that_cannot_be_added(self, run_faulty, error):
        """The call raises OSError and leaves no state, and the next attempt succeeds."""
        run_faulty(f"""
            loop = new_loop()
            left, right = socket.socketpair()
            left.setblocking(False)
            fail("epoll_ctl", errno.{error}, fd=left.fileno())
            exception = raised(OSError, loop.add_reader, left, print, "not registered")
            assert exception.errno == errno.{error}
            assert not loop.remove_reader(left)
            got = []
            loop.add_reader(left, lambda: (got.append(left.recv(10)), loop.stop()))
            right.send(b"reader")
            loop.run_forever()
            assert got == [b"reader"]
            loop.remove_reader(left)
            left.close()
            right.close()
            loop.close()
        """)

    @pytest.mark.mgloop_only  # asyncio's loop reports it, and leaves the connection unread
    @pytest.mark.parametrize("error", ["ENOMEM", "ENOSPC"])
    def test_connection_that_cannot_be_watched(self, run_faulty, error):
        """That connection is lost; the server accepts the next."""
        run_faulty(f"""
            async def serve(reader, writer):
                writer.write(await reader.readexactly(2))
                writer.close()
                await writer.wait_closed()
            def client(address, results):
                with socket.create_connection(address, timeout=1) as sock:
                    sock.sendall(b"hi")
                    try:
                        results.append(sock.recv(10))
                    except (ConnectionError, TimeoutError):
                        results.append(b"")     # asyncio forgets to close it
            async def main():
                loop = asyncio.get_running_loop()
                quiet(loop)
                server = await asyncio.start_server(serve, "127.0.0.1", 0)
                address = server.sockets[0].getsockname()
                results = []
                fail("epoll_ctl", errno.{error})
                await loop.run_in_executor(None, client, address, results)
                assert failed("epoll_ctl") == 1
                await loop.run_in_executor(None, client, address, results)
                assert results == [b"", b"hi"], results
                server.close()
                await server.wait_closed()
            run(main())
        """)


class TestInterruptions:
    def test_every_wait(self, run_faulty):
        """Timers run although every wait fails."""
        run_faulty("""
            loop = new_loop()
            loop.call_later(0.05, loop.stop)
            fail("epoll_wait", errno.EINTR, times=-1)
            began = time.monotonic()
            loop.run_forever()
            assert 0.04 < time.monotonic() - began < 2
            fail("epoll_wait", 0)
            loop.close()
        """)

    def test_every_tenth_call(self, run_streams):
        """A busy server, in which every kind of call is occasionally interrupted."""
        run_streams("""
            async def serve(reader, writer):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
                writer.close()
                await writer.wait_closed()
            def client(address):
                with socket.create_connection(address) as sock:
                    for _ in range(30):
                        sock.sendall(b"x" * 100)
                        got = 0
                        while got < 100:
                            got += len(sock.recv(100))
                return True
            async def main():
                loop = asyncio.get_running_loop()
                server = await asyncio.start_server(serve, "127.0.0.1", 0)
                address = server.sockets[0].getsockname()
                for call in "recv", "send", "sendmsg", "accept4", "epoll_wait":
                    fail(call, errno.EINTR, times=-1, every=10)
                jobs = [loop.run_in_executor(None, client, address) for _ in range(5)]
                assert all(await asyncio.gather(*jobs))
                server.close()
                await server.wait_closed()
            run(main())
        """)
