# SPDX-License-Identifier: GPL-2.0-only
"""Several loops in several threads of one process, and calls from any thread into any loop.

With the GIL or without it, loops do not affect each other: each submitted call runs once and in the
order of its thread, and data of different loops is not mixed up. MGLOOP_THREADS_CALLS sets the
number of calls of the counting tests (`make threads` makes a million).
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import gc
import os
import queue
import random
import socket
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
import weakref

import loops as loop_kinds
import pytest
import support

import mgloop
from mgloop._stdlib import has_gil
from mgloop.observe.instruments import HISTOGRAMS, INSTRUMENTS
from mgloop.observe.watchdog import Watchdog

CALLS = int(os.environ.get("MGLOOP_THREADS_CALLS", "20000"))
THREADS = 8


class LoopThread:
    """A loop that runs in its own thread until stop()."""

    def __init__(self, kind, name=None):
        self.ready = threading.Event()
        self.kind = kind
        self.failure = None
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)
        self.thread.start()
        assert self.ready.wait(support.PATIENCE)

    def _main(self):
        self.loop = loop_kinds.new_loop(self.kind)
        self.loop.set_exception_handler(self._fail)
        self.loop.call_soon(self.ready.set)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def _fail(self, loop, context):
        self.failure = context

    def run(self, coroutine):
        """Run the coroutine on the loop, from another thread; return its result."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(support.PATIENCE * 3)

    def wait_for_calls(self):
        """Wait until all calls that were submitted have run."""
        self.run(asyncio.sleep(0))

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(support.PATIENCE * 3)
        assert not self.thread.is_alive()
        assert self.failure is None


@contextlib.contextmanager
def loop_threads(kind, count):
    threads = [LoopThread(kind, f"loop {i}") for i in range(count)]
    try:
        yield threads
    finally:
        for thread in threads:
            thread.stop()


def in_threads(count, function):
    """Call function(i) in `count` threads that begin together; return their results."""
    barrier = threading.Barrier(count)

    def run(i):
        barrier.wait(support.PATIENCE)
        return function(i)

    with concurrent.futures.ThreadPoolExecutor(count) as executor:
        return list(executor.map(run, range(count)))


@pytest.mark.mgloop_only
@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="a Python that always has its GIL"
)
def test_the_gil_stays_off(loop_kind):
    """Without PYTHON_GIL=0, which would keep the GIL off regardless of a module's declaration."""
    code = "import sys, mgloop; mgloop.new_event_loop().close(); assert not sys._is_gil_enabled()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True)


# --- posting -------------------------------------------------------------------------------------


class TestPosting:
    def test_every_call_arrives_in_its_threads_order(self, loop_kind):
        """Several threads call several loops, some of them asleep and some busy."""
        each = CALLS // (THREADS * THREADS)
        arrived = [[[] for _ in range(THREADS)] for _ in range(THREADS)]
        with loop_threads(loop_kind, THREADS) as threads:

            def spin(loop):
                if loop in busy:
                    loop.call_soon(spin, loop)

            busy = {thread.loop for thread in threads[::4]}
            for loop in list(busy):
                loop.call_soon_threadsafe(spin, loop)

            def post(i):
                for n in range(each):
                    for j, thread in enumerate(threads):
                        thread.loop.call_soon_threadsafe(arrived[j][i].append, n)
                    if n % 50 == i:
                        time.sleep(0.001)  # so that the loops fall asleep

            in_threads(THREADS, post)
            busy.clear()

            for thread in threads:
                thread.wait_for_calls()
        wanted = list(range(each))
        assert all(got == wanted for per_loop in arrived for got in per_loop)

    def test_a_call_wakes_a_sleeping_loop_at_once(self, loop_kind):
        with loop_threads(loop_kind, 1) as [thread]:
            longest = 0.0
            for _ in range(300):
                came = threading.Event()
                time.sleep(0.0005 * random.random())
                began = time.monotonic()
                thread.loop.call_soon_threadsafe(came.set)
                assert came.wait(support.PATIENCE), "lost"
                longest = max(longest, time.monotonic() - began)
            assert longest < support.PATIENCE / 2

    def test_while_the_loop_is_being_closed(self, loop_kind):
        """Each call runs, or raises RuntimeError."""
        if loop_kind == "asyncio":
            pytest.skip("asyncio drops what comes after the last iteration, before close() ends")
        rounds = max(5, CALLS // 2000)
        for _ in range(rounds):
            ran = [0] * THREADS
            loop = loop_kinds.new_loop(loop_kind)

            def post(i, loop=loop, ran=ran):
                def count():
                    ran[i] += 1

                accepted, complaint = 0, None
                while complaint is None:
                    try:
                        loop.call_soon_threadsafe(count)
                        accepted += 1
                        if accepted % 50 == 0:
                            time.sleep(0.0005)  # the loop must be able to keep up
                    except RuntimeError as exc:
                        complaint = str(exc)
                return accepted, complaint

            with concurrent.futures.ThreadPoolExecutor(THREADS) as executor:
                posts = [executor.submit(post, i) for i in range(4)]
                loop.call_later(0.002 * random.random(), loop.stop)
                loop.run_forever()
                loop.close()
                accepted = [future.result(support.PATIENCE) for future in posts]
            assert accepted == [(n, "Event loop is closed") for n in ran[:4]]

    def test_it_keeps_its_place_among_the_loops_own(self, loop):
        """Calls that another thread has submitted earlier run earlier."""
        order = []

        def act():
            loop.call_soon(order.append, 1)
            with support.in_thread(lambda: loop.call_soon_threadsafe(order.append, 2)):
                pass
            loop.call_soon(order.append, 3)
            loop.call_soon_threadsafe(order.append, 4)
            with support.in_thread(lambda: loop.call_soon_threadsafe(order.append, 5)):
                pass
            loop.call_soon_threadsafe(order.append, 6)
            loop.call_soon(order.append, 7)
            loop.call_soon(loop.call_soon, loop.stop)

        loop.call_soon(act)
        loop.run_forever()
        assert order == [1, 2, 3, 4, 5, 6, 7]

    def test_before_the_loop_runs(self, loop):
        order = []
        loop.call_soon(order.append, 1)
        loop.call_soon_threadsafe(order.append, 2)
        loop.call_soon(order.append, 3)
        loop.call_soon_threadsafe(order.append, 4)
        loop.call_soon_threadsafe(loop.stop)
        loop.run_forever()
        assert order == [1, 2, 3, 4]

    def test_a_context_of_the_caller(self, loop_kind):
        variable = contextvars.ContextVar("variable", default=None)
        seen = []
        with loop_threads(loop_kind, 2) as threads:

            def post(i):
                variable.set(i)
                for thread in threads:
                    for _ in range(200):
                        thread.loop.call_soon_threadsafe(lambda: seen.append(variable.get()))

            in_threads(4, post)

            for thread in threads:
                thread.wait_for_calls()
        assert sorted(seen) == sorted([0, 1, 2, 3] * 400)

    def test_executors(self, loop_kind):
        async def main():
            loop = asyncio.get_running_loop()
            return sum(
                await asyncio.gather(
                    *(loop.run_in_executor(None, lambda n=n: n) for n in range(300))
                )
            )

        with loop_threads(loop_kind, 4) as threads:
            results = in_threads(4, lambda i: threads[i].run(main()))
            for thread in threads:
                asyncio.run_coroutine_threadsafe(
                    thread.loop.shutdown_default_executor(), thread.loop
                ).result(support.PATIENCE)
        assert results == [sum(range(300))] * 4

    def test_futures_across_loops(self, loop_kind):
        """A coroutine of one loop awaits one of another, back and forth."""

        async def ask(threads, depth):
            if depth == 0:
                return 1
            other = threads[depth % len(threads)]
            future = asyncio.run_coroutine_threadsafe(ask(threads, depth - 1), other.loop)
            return 1 + await asyncio.wrap_future(future)

        with loop_threads(loop_kind, 3) as threads:
            assert in_threads(3, lambda i: threads[i].run(ask(threads, 60))) == [61] * 3


class TestCancelling:
    @pytest.fixture
    def handles_of_any_thread(self, loop_kind):
        if loop_kind == "asyncio" and sys.version_info < (3, 14):
            pytest.skip("asyncio's handles belong to the loop's thread before 3.14")

    def test_either_it_runs_or_it_was_cancelled(self, loop_kind, handles_of_any_thread):
        """Either the loop's thread or the cancelling thread is first."""
        with loop_threads(loop_kind, 1) as [thread]:
            ran = []
            handles = []
            for n in range(3000):
                handle = thread.loop.call_soon_threadsafe(ran.append, n)
                handles.append(handle)
                if n % 3:
                    time.sleep(0) if n % 7 else None
                handle.cancel()

            thread.wait_for_calls()
            assert len(ran) == len(set(ran))
            assert ran == sorted(ran)
            assert all(handle.cancelled() for handle in handles)

    def test_callback_and_arguments_are_released(self, loop_kind, handles_of_any_thread):
        class Thing:
            def __call__(self, *args):
                pass

        with loop_threads(loop_kind, 1) as [thread]:
            references = []
            for n in range(500):
                thing = Thing()
                references.append(weakref.ref(thing))
                handle = thread.loop.call_soon_threadsafe(thing, Thing())
                if n % 2:
                    handle.cancel()
                del handle, thing

            thread.wait_for_calls()
            gc.collect()
            assert not any(reference() for reference in references)

    def test_while_the_loop_is_closed(self, loop_kind):
        """Calls from the loop's own thread are cancelled; only one thread drops their arguments."""

        class Argument:
            pass

        for _ in range(20):
            loop = loop_kinds.new_loop(loop_kind)
            handles = []
            references = []

            def call(loop=loop, handles=handles, references=references):
                for _ in range(1000):
                    argument = Argument()
                    references.append(weakref.ref(argument))
                    handles.append(loop.call_soon_threadsafe(int, argument))
                loop.stop()

            loop.call_soon(call)
            loop.run_forever()
            barrier = threading.Barrier(2)

            def cancel(handles=handles, barrier=barrier):
                barrier.wait(support.PATIENCE)
                for handle in reversed(handles):
                    handle.cancel()

            with support.in_thread(cancel):
                barrier.wait(support.PATIENCE)
                loop.close()
            assert all(handle.cancelled() for handle in handles)
            del handles, call, cancel
            gc.collect()
            assert not any(reference() for reference in references)

    @pytest.mark.parametrize("debug", [False, True])
    def test_looked_at_by_who_has_called(self, loop_kind, debug):
        """The handle is read while the loop runs it, and afterwards."""

        def callback(argument):
            pass

        with loop_threads(loop_kind, 1) as (thread,):
            thread.loop.set_debug(debug)

            def look(i):
                context = contextvars.copy_context()
                for _ in range(CALLS // 20):
                    argument = object()
                    handle = thread.loop.call_soon_threadsafe(callback, argument, context=context)
                    for _ in range(3):
                        assert "Handle" in repr(handle)
                        assert handle._args in ((argument,), (), None)
                        assert handle._callback in (callback, None)
                        assert handle._loop in (thread.loop, None)
                        assert handle._context in (context, None)

            in_threads(2, look)

    def test_several_cancel_the_same(self, loop_kind, handles_of_any_thread):
        with loop_threads(loop_kind, 1) as [thread]:
            ran = []
            for n in range(200):
                handle = thread.loop.call_soon_threadsafe(ran.append, n)
                in_threads(3, lambda i, handle=handle: handle.cancel())
                assert handle.cancelled()


# --- loops side by side --------------------------------------------------------------------------


async def tcp_echo(seed, rounds=60, *, server_context=None, client_context=None):
    """Use streams to a server on the same loop, with sizes that cover every path of a read."""

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100_000):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def client(number):
        chosen = random.Random(seed * 100 + number)
        reader, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname(),
            ssl=client_context,
            server_hostname="localhost" if client_context else None,
        )
        for _ in range(rounds):
            data = chosen.randbytes(chosen.choice([1, 100, 3000, 20_000, 150_000]))
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context)
    await asyncio.gather(*(client(number) for number in range(4)))
    server.close()
    return True


async def udp_echo(seed, rounds=300):
    loop = asyncio.get_running_loop()

    class Server(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, addr):
            self.transport.sendto(data, addr)

    class Client(asyncio.DatagramProtocol):
        def __init__(self):
            self.queue = asyncio.Queue()

        def datagram_received(self, data, addr):
            assert addr == address
            self.queue.put_nowait(data)

    server, _ = await loop.create_datagram_endpoint(Server, local_addr=("127.0.0.1", 0))
    address = server.get_extra_info("sockname")
    client, protocol = await loop.create_datagram_endpoint(Client, remote_addr=address)
    chosen = random.Random(seed)
    for _ in range(rounds):
        sent = [chosen.randbytes(chosen.choice([1, 100, 9000])) for _ in range(5)]
        for data in sent:
            client.sendto(data)
        for data in sent:
            assert await asyncio.wait_for(protocol.queue.get(), support.PATIENCE) == data
    client.close()
    server.close()
    return True


async def sock_echo(seed, rounds=200):
    loop = asyncio.get_running_loop()
    chosen = random.Random(seed)
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        for _ in range(rounds):
            data = chosen.randbytes(chosen.choice([1, 5000, 60_000]))
            sending = loop.create_task(loop.sock_sendall(left, data))
            got = b""
            while len(got) < len(data):
                got += await loop.sock_recv(right, 65536)
            assert got == data
            await sending
    return True


async def pipe_echo(seed, rounds=200):
    loop = asyncio.get_running_loop()
    chosen = random.Random(seed)
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as sink:
        read, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        write, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sink)
        for _ in range(rounds):
            data = chosen.randbytes(chosen.choice([1, 5000, 60_000]))
            write.write(data)
            assert await reader.readexactly(len(data)) == data
        write.close()
        assert await reader.read() == b""
        read.close()
    return True


async def timers_and_tasks(seed, rounds=300):
    loop = asyncio.get_running_loop()
    for n in range(rounds):
        handles = [loop.call_later(1000, int) for _ in range(20)]
        assert await asyncio.gather(*(asyncio.sleep(0, i) for i in range(20))) == list(range(20))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(loop.create_future(), 0.0001 if n % 20 == 0 else 0)
        for handle in handles:
            handle.cancel()
    return True


class TestSideBySide:
    @pytest.mark.parametrize(
        "work", [tcp_echo, udp_echo, sock_echo, pipe_echo, timers_and_tasks],
        ids=lambda work: work.__name__,
    )  # fmt: skip
    def test_each_reads_its_own(self, loop_kind, work):
        with loop_threads(loop_kind, 4) as threads:
            assert all(in_threads(4, lambda i: threads[i].run(work(i))))

    def test_tls(self, loop_kind, server_ssl_context, client_ssl_context):
        with loop_threads(loop_kind, 4) as threads:
            assert all(
                in_threads(
                    4,
                    lambda i: threads[i].run(
                        tcp_echo(
                            i,
                            20,
                            server_context=server_ssl_context,
                            client_context=client_ssl_context,
                        )
                    ),
                )
            )

    def test_all_at_once_with_the_collector(self, loop_kind):
        works = [tcp_echo, udp_echo, sock_echo, pipe_echo, timers_and_tasks]
        over = threading.Event()

        def collect():
            while not over.wait(0.002):
                gc.collect()

        with support.in_thread(collect), loop_threads(loop_kind, 5) as threads:
            try:
                assert all(in_threads(5, lambda i: threads[i].run(works[i](i, 40))))
            finally:
                over.set()

    def test_loops_made_and_closed(self, loop_kind):
        def cycle(i):
            for n in range(15):
                loop = loop_kinds.new_loop(loop_kind)
                assert loop.run_until_complete(asyncio.sleep(0, n)) == n
                loop.close()
            return True

        assert all(in_threads(THREADS, cycle))

    def test_one_that_another_thread_lets_go_of(self, loop_kind):
        """The loop is made and run in one thread, and collected in another."""

        class Holder:
            pass

        def make():
            holder = Holder()
            holder.loop = loop_kinds.new_loop(loop_kind)
            holder.task = holder.loop.create_task(asyncio.sleep(3600))
            holder.loop.run_until_complete(asyncio.sleep(0))
            holder.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                holder.loop.run_until_complete(holder.task)
            holder.loop.close()
            return holder

        holders = [make() for _ in range(20)]
        references = [weakref.ref(holder.loop) for holder in holders]
        with support.in_thread(lambda: (holders.clear(), gc.collect())):
            pass
        gc.collect()
        assert not any(reference() for reference in references)


# --- statistics from other threads ---------------------------------------------------------------


def counts(loop):
    """Yield the loop's counters that never decrease, by name."""
    for name, spent in loop.callback_times().items():
        yield (name, "times"), spent.times
        yield (name, "seconds"), spent.seconds
    stats = loop.stats()
    for instrument in INSTRUMENTS:
        if not instrument.level:
            for attributes, value in instrument.samples(stats):
                yield (instrument.name, *attributes), value
    for field, _ in HISTOGRAMS:
        histogram = getattr(stats, field)
        yield (field,), histogram.seconds
        for bucket, count in enumerate(histogram.counts):
            yield (field, bucket), count


async def transfer(size):
    """Send `size` bytes over TCP, with both ends on this loop."""
    over = asyncio.get_running_loop().create_future()

    async def serve(reader, writer):
        over.set_result(len(await reader.read(-1)))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(bytes(size))
        await support.close(writer)
        return await over


@pytest.mark.mgloop_only
class TestObserving:
    def test_the_figures_of_each_loop(self, loop_kind, monkeypatch):
        """They are the loop's own, and no count decreases, which would look like a restart."""
        monkeypatch.setenv("MGLOOP_TIMING", "1")
        over = threading.Event()
        fallen = []

        def look():
            seen = {}
            while not over.is_set():
                for i, thread in enumerate(threads):
                    for name, value in counts(thread.loop):
                        if value < seen.setdefault((i, *name), value):
                            fallen.append((i, name, seen[i, *name], value))
                        seen[i, *name] = value

        async def work(i):
            await timers_and_tasks(i)
            return await transfer(100_000 * (i + 1))

        with loop_threads(loop_kind, 4) as threads:
            with support.in_thread(look), support.in_thread(look):
                try:
                    sizes = in_threads(4, lambda i: threads[i].run(work(i)))
                    time.sleep(0.05)  # and while they all wait
                finally:
                    over.set()
            accounts = [thread.loop.stats() for thread in threads]
        assert fallen == []
        assert [stats.bytes_sent for stats in accounts] == sizes
        assert [stats.bytes_received for stats in accounts] == sizes
        assert [stats.connections["tcp"].closed for stats in accounts] == [2, 2, 2, 2]

    def test_loops_come_and_go_under_a_watchdog(self, loop_kind):
        """The watchdog stalls no loop, and releases each."""
        stalls = []
        first = mgloop.new_event_loop()

        def cycle(i):
            for _ in range(30):
                loop = mgloop.new_event_loop()
                with watchdog.watching(loop):
                    loop.run_until_complete(timers_and_tasks(i, 5))
                    loop.close()
            return True

        with Watchdog(support.PATIENCE, loops=[first], callback=stalls.append) as watchdog:
            assert all(in_threads(4, cycle))
        first.close()
        assert stalls == []


# --- misuse --------------------------------------------------------------------------------------


class TestMisuse:
    def test_run_by_two_threads_at_once(self, loop_kind):
        if loop_kind == "asyncio" and not has_gil():
            pytest.skip("asyncio looks at it without a lock")
        for _ in range(20):
            loop = loop_kinds.new_loop(loop_kind)
            refusals = queue.SimpleQueue()

            def run(i, loop=loop, refusals=refusals):
                try:
                    loop.run_forever()
                except RuntimeError as exc:
                    refusals.put(exc)
                    if refusals.qsize() == 2:
                        loop.call_soon_threadsafe(loop.stop)
                    return str(exc)
                return None

            outcomes = in_threads(3, run)
            loop.close()
            refused = ["This event loop is already running"] * 2
            assert sorted(map(str, outcomes)) == ["None", *refused]

    def test_closed_by_another_thread(self, loop_kind):
        with loop_threads(loop_kind, 1) as [thread]:
            with pytest.raises(RuntimeError, match="Cannot close a running event loop"):
                thread.loop.close()

            async def still():
                return 5

            assert thread.run(still()) == 5

    @pytest.mark.mgloop_only
    def test_closed_by_two_threads_at_once(self, loop_kind):
        """asyncio closes its sockets twice."""
        for _ in range(30):
            loop = loop_kinds.new_loop(loop_kind)
            loop.run_until_complete(asyncio.sleep(0))
            in_threads(3, lambda i, loop=loop: loop.close())
            assert loop.is_closed()

    @pytest.mark.mgloop_only
    def test_closed_by_one_and_run_by_another(self, loop_kind):
        """One thread succeeds, and the other gets an error; asyncio does not check."""

        def outcome(action):
            try:
                action()
            except RuntimeError as exc:
                return str(exc)
            return None

        closed, run = "Cannot close a running event loop", "Event loop is closed"
        for _ in range(60):
            loop = loop_kinds.new_loop(loop_kind)
            loop.call_soon(loop.stop)
            actions = [loop.close, loop.run_forever]
            outcomes = in_threads(2, lambda i, actions=actions: outcome(actions[i]))
            assert outcomes[0] in (None, closed)
            assert outcomes[1] in (None, run)
            loop.close()
            assert loop.is_closed()

    def test_forked_while_other_threads_run_loops(self, in_child):
        """The child makes its own loop; the threads of the other loops do not exist there."""
        if not hasattr(os, "fork"):
            pytest.skip("no fork()")
        in_child("""
            import contextlib
            warnings.simplefilter("ignore")

            def spin(loop):
                if not over.is_set():
                    loop.call_soon(spin, loop)

            over = threading.Event()
            several = [new_loop() for _ in range(4)]
            threads = [threading.Thread(target=loop.run_forever) for loop in several]
            for loop, thread in zip(several, threads):
                loop.call_soon(spin, loop) if several.index(loop) % 2 else None
                thread.start()
            for _ in range(10):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(20)
                    for loop in several:
                        with contextlib.suppress(RuntimeError):
                            loop.call_soon_threadsafe(int)
                    own = new_loop()
                    own.run_until_complete(asyncio.sleep(0.001))
                    own.close()
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            over.set()
            for loop, thread in zip(several, threads):
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()
        """)
