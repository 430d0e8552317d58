# SPDX-License-Identifier: GPL-2.0-only
"""A loop made before fork(), run in the child.

Servers that load the application before they fork, as gunicorn does with --preload, have a loop in
a module's global, and run it in each worker. Whether the parent never ran the loop, or ran and
stopped it: the child's copy must work, and must not affect the parent's. asyncio's loops of parent
and child share one epoll set. asyncio's side is therefore tested one process after the other,
because two concurrent processes would receive each other's events.
"""

import asyncio

import pytest
from peers import skip_on_asyncio

#: Precedes each program.
_TOOLS = """
    import concurrent.futures, contextlib, signal, subprocess
    from forking import fork, in_child, wait_for

    def run_until(loop, predicate):
        async def main():
            deadline = time.monotonic() + 8
            while not predicate():
                assert time.monotonic() < deadline, "it never came"
                await asyncio.sleep(0.001)
        loop.run_until_complete(main())

    def pair():
        left, right = socket.socketpair()
        left.setblocking(False)
        right.setblocking(False)
        return left, right

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

    async def ask(address, data):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(data)
        answer = await reader.readexactly(len(data))
        writer.close()
        await writer.wait_closed()
        return answer

    # All features of a loop, as a function that parent and child can run.
    def everything(loop):
        calls = []
        loop.call_soon(calls.append, "soon")
        loop.call_later(0.001, calls.append, "later")
        run_until(loop, lambda: len(calls) == 2)
        assert calls == ["soon", "later"]

        left, right = pair()
        got = []
        loop.add_reader(left, lambda: got.append(left.recv(10)))
        right.send(b"reader")
        run_until(loop, lambda: got)
        loop.remove_reader(left)
        writable = []
        loop.add_writer(left, writable.append, 1)
        run_until(loop, lambda: writable)
        loop.remove_writer(left)

        async def sockets():
            task = asyncio.ensure_future(loop.sock_recv(left, 10))
            await asyncio.sleep(0.001)
            await loop.sock_sendall(right, b"sock")
            assert await task == b"sock"

        loop.run_until_complete(sockets())
        left.close()
        right.close()

        async def streams():
            server = await loop.create_server(Echo, "127.0.0.1", 0)
            assert await ask(server.sockets[0].getsockname(), b"stream" * 1000) == b"stream" * 1000
            server.close()
            await server.wait_closed()

        loop.run_until_complete(streams())

        async def threads():
            # A pool of its own: the threads of one from before a fork are not in the child.
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                assert await loop.run_in_executor(pool, time.sleep, 0.01) is None
            woken = loop.create_future()
            threading.Timer(
                0.01, loop.call_soon_threadsafe, (woken.set_result, "woken")
            ).start()
            assert await woken == "woken"

        loop.run_until_complete(threads())

        async def signals():
            caught = loop.create_future()
            loop.add_signal_handler(signal.SIGUSR1, caught.set_result, "caught")
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            assert await caught == "caught"
            loop.remove_signal_handler(signal.SIGUSR1)

        loop.run_until_complete(signals())

        async def children():
            process = await asyncio.create_subprocess_exec(
                "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert (await process.communicate(b"child"))[0] == b"child"
            assert process.returncode == 0

        loop.run_until_complete(children())
"""

#: The loop's use before the fork.
BEFORE = {
    "never run": "",
    "run and stopped": "loop.run_until_complete(asyncio.sleep(0.001))",
    "run with a wait and stopped": """
    loop.call_later(0.002, loop.stop)
    loop.run_forever()""",
}


@pytest.fixture
def before():
    """Return the key of BEFORE for a test that does not parametrize it."""
    return "never run"


@pytest.fixture
def run_program(in_child, before):
    """Return a function that runs a program, which has a loop and the functions above."""
    start = _TOOLS + "\n    loop = new_loop()\n    " + BEFORE[before].strip() + "\n"
    return lambda program: in_child(start + program + "\n    loop.close()\n")


each_before = pytest.mark.parametrize("before", BEFORE)


class TestOneAfterTheOther:
    @each_before
    def test_everything(self, run_program, before):
        """It runs in the child, in another child, and in the parent after both."""
        run_program("""
    in_child(everything, loop)
    in_child(everything, loop)
    everything(loop)
""")

    @each_before
    def test_a_childs_child(self, run_program, before):
        run_program("""
    def child():
        everything(loop)
        in_child(everything, loop)
        everything(loop)

    in_child(child)
    everything(loop)
""")

    @each_before
    def test_many_requests(self, run_program, before):
        """A synchronous worker runs the loop once per request."""
        run_program("""
    async def handle(number):
        await asyncio.sleep(0)
        return number * 2

    def worker():
        for number in range(200):
            assert loop.run_until_complete(handle(number)) == number * 2

    for _ in range(3):
        in_child(worker)
    worker()
""")

    @each_before
    def test_callbacks_that_were_scheduled_before_the_fork(self, run_program, before):
        """Callbacks, timers and tasks exist in the child, and still in the parent."""
        run_program("""
    calls = []

    async def work():
        await asyncio.sleep(0.005)
        calls.append("task")

    loop.call_soon(calls.append, "soon")
    loop.call_later(0.002, calls.append, "timer")
    task = loop.create_task(work())

    def finish():
        run_until(loop, lambda: len(calls) == 3)
        assert calls == ["soon", "timer", "task"], calls

    in_child(finish)
    assert calls == []
    finish()
""")

    @each_before
    def test_descriptors_that_were_watched_before(self, run_program, before):
        run_program("""
    pairs = [pair() for _ in range(5)]
    got = []
    for left, _ in pairs:
        loop.add_reader(left, lambda left=left: got.append(left.recv(10)))
    writable = []
    writer, _ = pair()
    loop.add_writer(writer, writable.append, 1)

    def use(name):
        run_until(loop, lambda: writable)
        for _, right in pairs:
            right.send(name)
        run_until(loop, lambda: len(got) == 5)
        assert got == [name] * 5

    # asyncio's child must not remove any: the set is the parent's, too.
    in_child(use, b"child")
    use(b"parent")
    loop.remove_writer(writer)
    for left, _ in pairs:
        loop.remove_reader(left)
""")

    @each_before
    def test_a_descriptor_that_was_closed_before(self, run_program, before):
        """Registering the descriptors again in the child must tolerate one that was closed."""
        run_program("""
    left, right = pair()
    gone, _ = pair()
    got = []
    loop.add_reader(left, lambda: got.append(left.recv(10)))
    loop.add_reader(gone, print)
    number = gone.fileno()
    gone.close()

    def use(name):
        right.send(name)
        run_until(loop, lambda: got)
        assert got == [name]

    in_child(use, b"child")
    use(b"parent")
    loop.remove_reader(left)
    loop.remove_reader(number)
""")

    def test_a_listening_server(self, run_program):
        """A server made before the fork: parent and children accept from the same socket."""
        run_program("""
    server = loop.run_until_complete(loop.create_server(Echo, "127.0.0.1", 0))
    address = server.sockets[0].getsockname()

    def serve(name):
        for _ in range(5):
            assert loop.run_until_complete(ask(address, name)) == name

    in_child(serve, b"one")
    in_child(serve, b"two")
    serve(b"parent")
    server.close()
    loop.run_until_complete(server.wait_closed())
""")

    def test_a_listening_socket_of_the_servers_own(self, run_program):
        """The worker makes its server in the child, from the socket that it has inherited."""
        run_program("""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()

    def serve():
        async def main():
            server = await loop.create_server(Echo, sock=listener)
            assert await ask(address, b"data") == b"data"
            server.close()
            await server.wait_closed()
        loop.run_until_complete(main())

    in_child(serve)
    in_child(serve)
    serve()
""")

    def test_a_connection(self, run_program):
        """A transport from before the fork works in the child, and then in the parent."""
        run_program("""
    left, right = pair()
    transport, protocol = loop.run_until_complete(
        loop.create_connection(Echo, sock=left))
    reading = os.fdopen(os.dup(right.fileno()), "rb", 0)

    def talk(name):
        right.send(name)
        answer = []

        def read():
            with contextlib.suppress(BlockingIOError):
                answer.append(right.recv(100))
            return answer

        run_until(loop, read)
        assert answer == [name]

    in_child(talk, b"child")
    talk(b"parent")
    reading.close()
    transport.close()
    turn(loop, 3)
    right.close()
""")

    def test_a_datagram_endpoint_and_a_pipe(self, run_program):
        run_program("""
    class Got(asyncio.DatagramProtocol):
        def __init__(self):
            self.data = []

        def datagram_received(self, data, address):
            self.data.append(data)

        def data_received(self, data):
            self.data.append(data)

        def eof_received(self):
            pass

    endpoint, datagrams = loop.run_until_complete(
        loop.create_datagram_endpoint(Got, ("127.0.0.1", 0)))
    read_end, write_end = os.pipe()
    pipe, piped = loop.run_until_complete(
        loop.connect_read_pipe(Got, os.fdopen(read_end, "rb", 0)))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def receive(name):
        for _ in range(3):
            sender.sendto(name, endpoint.get_extra_info("sockname"))
        os.write(write_end, name)
        run_until(loop, lambda: len(datagrams.data) == 3 and piped.data)
        assert datagrams.data == [name] * 3
        assert piped.data == [name]

    in_child(receive, b"child")
    receive(b"parent")
    sender.close()
    endpoint.close()
    pipe.close()
    turn(loop, 3)
    os.close(write_end)
""")

    # asyncio's child removes the descriptor from the set that it shares with its parent.
    @pytest.mark.mgloop_only
    def test_a_sock_recv_that_waits(self, run_program):
        run_program("""
    left, right = pair()
    task = loop.create_task(loop.sock_recv(left, 10))
    turn(loop, 3)

    def receive(name):
        right.send(name)
        assert loop.run_until_complete(task) == name

    in_child(receive, b"child")
    receive(b"parent")
    left.close()
    right.close()
""")

    def test_signal_handlers_from_before(self, loop_kind, run_program):
        if hasattr(asyncio.events, "on_fork"):
            skip_on_asyncio(loop_kind, "a fork takes the wake-up descriptor of signals away")
        run_program("""
    caught = []
    loop.add_signal_handler(signal.SIGUSR1, caught.append, 1)

    def catch():
        # The child has the default action until the loop runs.
        timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1))
        loop.call_soon(timer.start)
        run_until(loop, lambda: caught)

    in_child(catch)
    assert not caught
    catch()
    loop.remove_signal_handler(signal.SIGUSR1)
""")

    # asyncio's child removes the wake-up socket from the shared set.
    @pytest.mark.mgloop_only
    @each_before
    @pytest.mark.parametrize("used", [False, True], ids=["at once", "after use"])
    def test_closed_in_the_child(self, run_program, before, used):
        """The parent's descriptors stay registered, and the child can run another loop."""
        run_program(f"""
    left, right = pair()
    got = []
    loop.add_reader(left, lambda: got.append(left.recv(10)))

    def child():
        if {used}:
            everything(loop)
            loop.remove_reader(left)
        loop.close()
        assert loop.is_closed()
        run(asyncio.sleep(0.001))

    in_child(child)
    right.send(b"parent")
    run_until(loop, lambda: got)
    assert got == [b"parent"]
    loop.remove_reader(left)
    everything(loop)
""")

    def test_while_another_loop_runs_in_the_parent(self, run_program):
        """As in multiprocessing: a process is forked inside a running loop, and the child runs
        another, idle loop of the parent's."""
        run_program("""
    other = new_loop()

    async def main():
        pid = fork(child)
        while True:
            await asyncio.sleep(0.01)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
        assert os.waitstatus_to_exitcode(status) == 42

    def child():
        # The interpreter knows by itself that no loop runs in this process's thread.
        everything(loop)

    other.run_until_complete(main())
    everything(loop)
    other.close()
""")


# With asyncio the epoll set is shared, so either process may receive an event.
@pytest.mark.mgloop_only
class TestAtTheSameTime:
    @each_before
    def test_workers(self, run_program, before):
        """Several children and the parent run their copies concurrently."""
        run_program("""
    pids = [fork(everything, loop) for _ in range(3)]
    everything(loop)
    for pid in pids:
        wait_for(pid)
""")

    @each_before
    def test_descriptors_of_the_same_number(self, run_program, before):
        """After the fork both open files, which get the same descriptor numbers."""
        run_program("""
    def talk(name):
        pairs = [pair() for _ in range(10)]
        got = []
        for left, _ in pairs:
            loop.add_reader(left, lambda left=left: got.append(left.recv(10)))
        for turns in range(100):
            for _, right in pairs:
                right.send(name)
            run_until(loop, lambda: len(got) == 10)
            assert got == [name] * 10, got
            got.clear()
        for left, _ in pairs:
            loop.remove_reader(left)

    pids = [fork(talk, b"%d" % number) for number in range(2)]
    talk(b"parent")
    for pid in pids:
        wait_for(pid)
""")

    @each_before
    def test_a_wake_up_does_not_reach_the_other_process(self, run_program, before):
        """The child's wake-ups, signals and timers do not end the parent's wait, and no event is
        lost: each process gets its own."""
        run_program("""
    left, right = pair()
    got = []
    loop.add_reader(left, lambda: got.append(left.recv(10)))

    def child():
        # Both processes have the pair; only the parent reads from it now.
        loop.remove_reader(left)
        for _ in range(50):
            woken = loop.create_future()
            threading.Timer(
                0.001, loop.call_soon_threadsafe, (woken.set_result, None)).start()
            loop.run_until_complete(asyncio.wait_for(woken, 5))

    pid = fork(child)
    for number in range(50):
        right.send(b"%d" % number)
        run_until(loop, lambda: len(got) == number + 1)
        woken = loop.create_future()
        threading.Timer(0.001, loop.call_soon_threadsafe, (woken.set_result, None)).start()
        loop.run_until_complete(asyncio.wait_for(woken, 5))
    assert got == [b"%d" % number for number in range(50)]
    wait_for(pid)
    loop.remove_reader(left)
""")

    def test_a_listening_server(self, run_program):
        """Each connection is accepted and answered by one of the processes."""
        run_program("""
    server = loop.run_until_complete(loop.create_server(Echo, "127.0.0.1", 0))
    address = server.sockets[0].getsockname()

    def serve():
        loop.call_later(3, loop.stop)
        loop.run_forever()

    pids = [fork(serve) for _ in range(3)]
    clients = []
    for number in range(60):
        with socket.create_connection(address) as sock:
            sock.settimeout(5)
            sock.sendall(b"%d" % number)
            assert sock.recv(10) == b"%d" % number
    for pid in pids:
        wait_for(pid)
    assert loop.run_until_complete(ask(address, b"parent")) == b"parent"
    server.close()
    loop.run_until_complete(server.wait_closed())
""")

    @pytest.mark.parametrize("before", ["run and stopped"])
    def test_no_descriptor_is_left(self, run_program):
        """A child that uses the loop has its own epoll set, and closes the shared descriptors."""
        run_program("""
    def child():
        before = len(os.listdir("/proc/self/fd"))
        loop.run_until_complete(asyncio.sleep(0.001))
        after = len(os.listdir("/proc/self/fd"))
        assert after <= before + 1, (before, after)
        inherited = before
        loop.close()
        assert len(os.listdir("/proc/self/fd")) < inherited

    in_child(child)
""")
