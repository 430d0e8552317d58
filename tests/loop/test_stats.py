# SPDX-License-Identifier: GPL-2.0-only
"""loop.stats(): the counters are exact on every path of bytes and callbacks."""

import asyncio
import collections
import collections.abc
import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import weakref

import certificates
import pytest
import support
from peers import Recorder, connected_pair, read_exactly

import mgloop
from mgloop.stats import ConnectionStats, described

pytestmark = pytest.mark.mgloop_only


def test_it_is_immutable_and_says_what_its_numbers_are(loop):
    stats = loop.stats()
    assert isinstance(stats, mgloop.LoopStats)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.polls = 0
    with pytest.raises((AttributeError, TypeError)):
        stats.unknown = 0
    assert not hasattr(stats, "__dict__")
    assert all(text for text, _ in described(mgloop.LoopStats).values())


def test_a_new_loop_has_done_nothing(loop):
    stats = loop.stats()
    for field in dataclasses.fields(stats):
        if field.name not in ("seconds", "connections"):
            assert not getattr(stats, field.name), field.name
    assert stats.cpu_seconds is None
    assert stats.events_per_poll == 0
    assert all(kind == ConnectionStats(0, 0, 0, 0)
               for kind in stats.connections.values())  # fmt: skip


def test_callbacks_timers_and_turns(loop):
    ran = []
    for number in range(100):
        loop.call_soon(ran.append, number)
    loop.call_soon(ran.append, None).cancel()
    for _ in range(10):
        loop.call_later(0, ran.append, "timer")
    cancelled = [loop.call_later(60, ran.append, None) for _ in range(7)]
    pending = [loop.call_later(60, ran.append, None) for _ in range(3)]
    for timer in cancelled:
        timer.cancel()
    assert loop.stats().ready == 101
    loop.call_later(0.01, loop.stop)
    loop.run_forever()
    stats = loop.stats()
    assert len(ran) == 110
    assert stats.callbacks == 111
    assert stats.timers == 11
    assert stats.timers_cancelled == 7
    assert stats.timers_pending == 3
    assert stats.ready == 0
    assert stats.most_ready >= 101
    assert 0 < stats.iterations <= stats.polls
    for timer in pending:
        timer.cancel()


def test_a_callback_that_raises_is_counted(loop):
    loop.set_exception_handler(lambda loop, context: None)

    def leave():
        raise SystemExit

    loop.call_soon(lambda: 1 / 0)
    loop.call_soon(leave)
    with pytest.raises(SystemExit):
        loop.run_forever()
    assert loop.stats().callbacks == 2


@pytest.mark.parametrize("debug", [False, True])
def test_debug_mode_counts_alike(loop, debug):
    loop.set_debug(debug)
    for _ in range(5):
        loop.call_soon(lambda: None)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert loop.stats().callbacks == 6


def test_a_delta_is_of_the_time_between(loop):
    earlier = loop.stats()
    for _ in range(5):
        loop.call_soon(lambda: None)
    timer = loop.call_later(60, lambda: None)
    loop.call_soon(loop.stop)
    loop.run_forever()
    middle = loop.stats()
    loop.call_soon(loop.stop)
    loop.run_forever()
    later = loop.stats()
    assert middle.delta(earlier).callbacks == 6
    assert later.delta(middle).callbacks == 1
    assert later.delta(middle).timers_pending == 1  # a level
    assert later.delta(middle).seconds == later.seconds - middle.seconds > 0
    assert later.delta(middle).connections["tcp"].opened == 0
    assert later.delta(middle).cpu_seconds is None
    with pytest.raises(TypeError, match="is not a LoopStats"):
        later.delta(None)
    timer.cancel()


def test_calls_of_other_threads_and_their_wake_ups(loop):
    count = 1000

    def post():
        for _ in range(count):
            loop.call_soon_threadsafe(int)
        loop.call_soon_threadsafe(loop.stop)

    with support.in_thread(post):
        loop.run_forever()
    loop.call_soon_threadsafe(loop.stop)  # the loop does not run at this time
    loop.run_forever()
    stats = loop.stats()
    assert stats.threadsafe_calls == count + 2
    assert stats.callbacks == count + 2
    assert stats.wakeups <= count + 1


async def test_a_wait_is_ended_by_one_wake_up(loop):
    done = loop.create_future()
    before = loop.stats()
    timer = threading.Timer(0.2, loop.call_soon_threadsafe, (done.set_result, None))
    timer.start()
    await done
    timer.join()
    assert loop.stats().delta(before).wakeups == 1


async def test_executor_jobs(loop):
    before = loop.stats()
    for _ in range(3):
        await loop.run_in_executor(None, int)
    assert loop.stats().delta(before).executor_jobs == 3


async def test_children(loop):
    before = loop.stats()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(input())", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert await process.communicate(b"hello\n") == (b"hello\n", None)
    delta = loop.stats().delta(before)
    assert delta.children == 1
    assert delta.connections["pipe"].opened == delta.connections["pipe"].closed == 2
    assert delta.bytes_sent == delta.bytes_received == len(b"hello\n")


async def exchange(connect, listener_kind, kind, loop):
    """Return the counters of a connection, an echo of 1,000 bytes and the end, for both ends."""
    before = loop.stats()
    reader, writer = await connect()
    writer.write(b"x" * 1000)
    assert await reader.readexactly(1000)
    assert loop.stats().connections[kind].open - before.connections[kind].open == 2
    await support.close(writer)
    await support.wait_until(
        lambda: loop.stats().connections[kind].open == before.connections[kind].open
    )
    delta = loop.stats().delta(before)
    connections = delta.connections[kind]
    assert (connections.accepted, connections.opened, connections.closed) == (1, 2, 2)
    assert delta.connections[listener_kind].accepted == 1
    return delta


async def echo(reader, writer):
    writer.write(await reader.readexactly(1000))
    await reader.read()
    writer.close()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_stream_connections_and_their_bytes(loop, tmp_path, kind):
    if kind == "tcp":
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        delta = await exchange(lambda: asyncio.open_connection(*address), kind, kind, loop)
    else:
        path = str(tmp_path / "s")
        server = await asyncio.start_unix_server(echo, path)
        delta = await exchange(lambda: asyncio.open_unix_connection(path), kind, kind, loop)
    assert delta.bytes_sent == delta.bytes_received == 2000
    assert delta.writes == 2
    assert delta.reads == 3  # one read meets the end; the client has closed before it could
    assert delta.reads_blocked == delta.writes_blocked == delta.pauses == 0
    server.close()


async def test_tls_lies_on_tcp(loop):
    if not certificates.available:
        pytest.skip(certificates.SKIPPED)
    server_tls, client_tls = certificates.contexts()
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server_tls)
    port = server.sockets[0].getsockname()[1]
    delta = await exchange(
        lambda: asyncio.open_connection("localhost", port, ssl=client_tls), "tcp", "tls", loop
    )
    assert delta.handshakes == 2
    assert delta.handshakes_failed == 0
    assert delta.bytes_sent > 2000
    await support.wait_until(lambda: loop.stats().connections["tcp"].open == 0)
    before = loop.stats()
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(
            "localhost", port, ssl=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
    await support.wait_until(lambda: loop.stats().delta(before).handshakes_failed == 2)
    assert loop.stats().delta(before).connections["tls"].opened == 0
    server.close()


async def test_datagrams(loop):
    received = []

    class Receiver(asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            received.append(data)

    one, _ = await loop.create_datagram_endpoint(Receiver, local_addr=("127.0.0.1", 0))
    two, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=one.get_extra_info("sockname")
    )
    before = loop.stats()
    for size in (0, 1, 1000):
        two.sendto(b"x" * size)
    await support.wait_until(lambda: len(received) == 3)
    delta = loop.stats().delta(before)
    assert delta.bytes_sent == delta.bytes_received == 1001
    assert delta.writes == 3
    assert 1 <= delta.reads <= 4
    assert loop.stats().connections["datagram"].open == 2
    one.close()
    two.close()
    await support.wait_until(lambda: loop.stats().connections["datagram"].closed == 2)


async def test_the_methods_for_sockets(loop):
    with support.nonblocking_socketpair() as (one, two):
        before = loop.stats()
        receiving = loop.create_task(loop.sock_recv(two, 100))
        await asyncio.sleep(0)
        await loop.sock_sendall(one, b"hello")
        assert await receiving == b"hello"
        delta = loop.stats().delta(before)
        assert (delta.bytes_sent, delta.bytes_received) == (5, 5)
        assert (delta.writes, delta.reads, delta.reads_blocked) == (1, 2, 1)


async def test_a_peer_that_does_not_read(loop):
    with support.nonblocking_socketpair() as (one, _):
        before = loop.stats()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=one)
        transport.write(b"x" * support.BIG)
        delta = loop.stats().delta(before)
        assert delta.writes_blocked == 1
        assert delta.pauses == 1
        assert 0 < delta.bytes_sent < support.BIG
        transport.abort()
        await support.turns()


async def test_writes_that_leave_together(loop):
    def write(transport):
        transport.write(b"head")
        transport.write(b"body")

    async with contextlib.AsyncExitStack() as stack:
        pairs = [
            await stack.enter_async_context(connected_pair(loop, Recorder(loop), Recorder(loop)))
            for _ in range(8)
        ]
        before = loop.stats()
        for transport, _ in pairs:
            loop.call_soon(write, transport)
        await support.turns(5)
        delta = loop.stats().delta(before)
        assert delta.deferred_writes == 16
        assert delta.deferred_sends == delta.writes == 8


async def test_long_writes_that_gather(loop):
    async with connected_pair(loop, Recorder(loop), Recorder(loop)) as (transport, _):
        before = loop.stats()

        def write():
            for _ in range(8):
                transport.write(bytes(16_000))

        loop.call_soon(write)
        await support.turns(5)
        delta = loop.stats().delta(before)
        # Three writes: the first chunk, then five at the high-water mark of 64 KiB, then the rest.
        assert (delta.deferred_writes, delta.deferred_sends, delta.writes) == (7, 2, 3)


async def test_sendfile_is_sent(loop, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    with open(path, "rb") as file, support.nonblocking_tcp_pair() as (one, two):
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=one)
        before = loop.stats()
        reading = loop.create_task(read_exactly(loop, two, 100_000))
        assert await loop.sendfile(transport, file) == 100_000
        await reading
        assert loop.stats().delta(before).bytes_sent == 100_000
        transport.abort()
        await support.turns()


def test_the_cpu_time_is_that_of_the_loops_thread():
    loop = mgloop.new_event_loop()
    started = threading.Event()

    def work():
        loop.call_soon(started.set)
        loop.run_forever()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(support.PATIENCE)
    before = loop.stats()
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        pass
    idle = loop.stats().delta(before)
    assert idle.cpu_seconds < 0.1

    def burn():
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        started.set()

    started.clear()
    before = loop.stats()
    loop.call_soon_threadsafe(burn)
    started.wait(support.PATIENCE)
    assert loop.stats().delta(before).cpu_seconds >= 0.19
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    assert loop.stats().cpu_seconds is None
    loop.close()


def test_of_a_closed_loop(loop):
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert loop.stats().callbacks == 1


def test_each_loop_has_its_own():
    loops = [mgloop.new_event_loop() for _ in range(2)]
    for number, loop in enumerate(loops):
        for _ in range(number + 1):
            loop.call_soon(int)
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert [loop.stats().callbacks for loop in loops] == [2, 3]
    for loop in loops:
        loop.close()


# --- the truth, by strace ------------------------------------------------------------------------

LOAD = """
import asyncio, json, os, socket, sys
import mgloop


async def echo(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


async def talk(reader, writer, sizes=(1, 1000, 100_000)):
    for size in sizes:
        writer.write(b"x" * size)
        await reader.readexactly(size)
    writer.close()
    await writer.wait_closed()


class Sink(asyncio.DatagramProtocol):
    count = 0

    def datagram_received(self, data, address):
        self.count += 1


async def load(loop):
    tcp = await asyncio.start_server(echo, "127.0.0.1", 0)
    path = sys.argv[1]
    unix = await asyncio.start_unix_server(echo, path)
    address = tcp.sockets[0].getsockname()
    await asyncio.gather(*[talk(*await asyncio.open_connection(*address)) for _ in range(5)])
    await asyncio.gather(*[talk(*await asyncio.open_unix_connection(path)) for _ in range(5)])
    udp, sink = await loop.create_datagram_endpoint(Sink, local_addr=("127.0.0.1", 0))
    sender, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=udp.get_extra_info("sockname")
    )
    for _ in range(40):
        sender.sendto(b"datagram")
    while sink.count < 40:
        await asyncio.sleep(0.001)
    out, into = os.pipe()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), open(out, "rb", 0)
    )
    pipe, _ = await loop.connect_write_pipe(asyncio.Protocol, open(into, "wb", 0))
    for _ in range(20):
        pipe.write(b"x" * 10_000)
        await reader.readexactly(10_000)
    one, two = socket.socketpair()
    one.setblocking(False)
    two.setblocking(False)
    await asyncio.gather(loop.sock_sendall(one, b"y" * 5000), loop.sock_recv(two, 5000))


def mark(name):
    try:
        os.stat(name)
    except OSError:
        pass


async def main():
    loop = asyncio.get_running_loop()
    loop.stats()    # imports mgloop.stats, which reads files
    mark("/begin-mark")
    before = loop.stats()
    await load(loop)
    delta = loop.stats().delta(before)
    mark("/end-mark")
    print(json.dumps([delta.polls, delta.reads, delta.writes]))
    sys.stdout.flush()
    os._exit(0)


mgloop.run(main())
"""

POLLS = {"epoll_wait", "epoll_pwait"}
READS = {"recvfrom", "recvmsg", "recvmmsg", "read"}
WRITES = {"sendto", "sendmsg", "write", "writev"}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_strace_sees_as_many_system_calls(tmp_path):
    log = tmp_path / "strace.log"
    traced = ",".join(sorted(POLLS | READS | WRITES | {"stat", "newfstatat"}))
    command = ["strace", "-o", str(log), "-e", f"trace={traced}", sys.executable, "-c", LOAD]
    command.append(str(tmp_path / "socket"))
    done = support.finished(command, timeout=50, env=os.environ | {"PYTHONPATH": ""})
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    text = log.read_text()
    window = text[text.index("/begin-mark") : text.index("/end-mark")]
    seen = collections.Counter(re.findall(r"^(\w+)\(", window, re.MULTILINE))
    # Python's other reads in this window are those of files.
    truth = [sum(seen[name] for name in names) for names in (POLLS, READS, WRITES)]
    assert json.loads(done.stdout) == truth


# --- timing --------------------------------------------------------------------------------------


@pytest.fixture
def timed():
    loop = mgloop.new_event_loop(timing=True)
    yield loop
    loop.close()


def run_for(loop, seconds):
    loop.call_later(seconds, loop.stop)
    loop.run_forever()


def test_without_timing_nothing_is_said_of_time(loop):
    stats = loop.stats()
    assert stats.seconds_running is stats.seconds_waiting is stats.lag is stats.durations is None
    assert stats.busy is None


def test_timing_by_the_environment(monkeypatch):
    for value, timed in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("MGLOOP_TIMING", value)
        loop = mgloop.new_event_loop()
        assert (loop.stats().lag is not None) == timed
        loop.close()
    monkeypatch.setenv("MGLOOP_TIMING", "1")
    loop = mgloop.new_event_loop(timing=False)
    assert loop.stats().lag is None
    loop.close()


@pytest.mark.parametrize("when", [-math.inf, -1e300, -1e12, 0.0, math.nan])
def test_a_timer_for_a_time_before_the_loop_has_no_lag_of_that_length(timed, when):
    timed.call_at(when, int)
    run_for(timed, 0.01)
    assert 0 <= timed.stats().lag.seconds < support.PATIENCE


def test_time_waited_and_run(timed):
    timed.call_soon(time.sleep, 0.2)
    run_for(timed, 0.4)
    stats = timed.stats()
    assert stats.seconds_running >= 0.2
    assert stats.seconds_waiting > 0.1
    assert stats.seconds_running + stats.seconds_waiting <= stats.seconds
    assert stats.busy == stats.seconds_running / (stats.seconds_running + stats.seconds_waiting)


def test_how_long_callbacks_take(timed):
    for _ in range(50):
        timed.call_soon(int)
    timed.call_soon(time.sleep, 0.1)
    run_for(timed, 0.15)
    durations = timed.stats().durations
    assert durations.count == 52
    assert durations.seconds >= 0.1
    assert durations.quantile(1) >= 2**17 * 1e-6  # 0.131 s, the bound above 0.1 s
    assert durations.quantile(0.5) < 0.1
    with pytest.raises(ValueError, match="between 0 and 1"):
        durations.quantile(2)


def test_how_late_a_timer_is(timed):
    timed.call_later(0.05, int)
    timed.call_soon(time.sleep, 0.2)
    run_for(timed, 0.25)
    lag = timed.stats().lag
    assert lag.seconds >= 0.15
    assert lag.quantile(1) >= 2**18 * 1e-6


def test_how_late_the_others_of_a_batch_are(timed):
    timed.call_soon(time.sleep, 0.1)
    for _ in range(3):
        timed.call_soon(int)
    run_for(timed, 0.15)
    assert timed.stats().lag.seconds >= 0.3


def test_a_callback_scheduled_by_a_slow_one_has_no_lag(timed):
    def slow():
        time.sleep(1)
        timed.call_soon(int)

    timed.call_soon(slow)
    run_for(timed, 1.1)
    assert timed.stats().lag.seconds < 0.8


def test_descriptors_are_measured_too(timed):
    with support.nonblocking_socketpair() as (one, two):
        timed.add_reader(two, lambda: (two.recv(10), time.sleep(0.1)))
        one.send(b"x")
        run_for(timed, 0.2)
        timed.remove_reader(two)
    assert timed.stats().durations.seconds >= 0.1


def test_a_wait_that_goes_on_is_counted(timed):
    thread = threading.Thread(target=timed.run_forever)
    thread.start()
    support.eventually(lambda: timed.stats().seconds_waiting > 0.2)
    stats = timed.stats()
    assert stats.seconds_running < stats.seconds_waiting
    timed.call_soon_threadsafe(timed.stop)
    thread.join()


def test_a_slow_callback_is_logged_without_debug_mode(timed, caplog):
    timed.slow_callback_duration = 0.05

    def slow_one():
        time.sleep(0.06)

    timed.call_soon(slow_one)
    run_for(timed, 0.1)
    (record,) = caplog.records
    assert re.match(r"Executing <Handle .*slow_one.* took 0\.\d+ seconds", record.getMessage())


def test_timing_lets_go_of_callbacks(timed):
    class Thing:
        def __call__(self):
            pass

    thing = Thing()
    gone = weakref.ref(thing)
    handle = timed.call_soon(thing)
    del thing
    run_for(timed, 0)
    assert gone() is None
    assert handle.get_context() is None


def test_many_stretches_of_the_queue(timed):
    """There are more callbacks than are recorded separately: the totals stay exact."""
    left = 5000

    def more():
        nonlocal left
        left -= 1
        if left > 0:
            timed.call_soon(more)
            timed.call_soon(more)

    timed.call_soon(more)
    run_for(timed, 0.2)
    stats = timed.stats()
    assert stats.lag.count == stats.durations.count == stats.callbacks


class Proxy:
    """A proxy of a missing object: every access to an attribute fails."""

    def __call__(self):
        pass

    def __getattr__(self, name):
        raise LookupError(name)

    @property
    def __class__(self):
        raise LookupError("class")


def test_the_time_is_attributed_to_its_owner(timed):
    async def work():
        time.sleep(0.1)
        await asyncio.sleep(0)
        with support.nonblocking_socketpair() as (one, two):
            transport, _ = await timed.create_connection(asyncio.Protocol, sock=two)
            one.send(b"x")
            await asyncio.sleep(0.05)
            transport.close()

    timed.call_soon(functools.partial(functools.partial(time.sleep), 0.01))
    timed.call_soon(Proxy())
    handle = timed.call_soon(lambda: handle.cancel())
    timed.run_until_complete(work())
    times = timed.callback_times()
    assert times["test_the_time_is_attributed_to_its_owner.<locals>.work"].times == 4
    assert times["test_the_time_is_attributed_to_its_owner.<locals>.work"].seconds >= 0.1
    assert times["sleep"].times == 1
    assert times["sleep"].seconds >= 0.01
    assert times["Proxy"].times == 1
    assert times["test_the_time_is_attributed_to_its_owner.<locals>.<lambda>"].times == 1
    assert times["turns of Protocol"].times == 1
    durations = timed.stats().durations
    assert sum(spent.times for spent in times.values()) == durations.count
    assert sum(spent.seconds for spent in times.values()) == pytest.approx(durations.seconds)


def test_a_thousand_names_are_distinguished(timed):
    for number in range(1500):
        timed.call_soon(type(f"Name{number}", (), {"__call__": int})())
    run_for(timed, 0.01)
    times = timed.callback_times()
    assert len(times) == 1001
    assert times["others"].times >= 500


def test_names_that_fail(timed):
    """A coroutine may be an object of any class."""

    class Odd(collections.abc.Coroutine):
        def send(self, value):
            raise StopIteration(3)

        def throw(self, *args):
            raise NotImplementedError

        __await__ = close = throw

        def __getattr__(self, name):
            raise LookupError(name)

    assert timed.run_until_complete(Odd()) == 3
    assert timed.callback_times()["test_names_that_fail.<locals>.Odd"].times == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with CPython 3.12")
def test_a_task_that_was_done_at_once(timed):
    """A finished task has released its coroutine: get_coro() crashes CPython before 3.12.5."""

    async def at_once():
        pass

    async def main():
        task = asyncio.Task(at_once(), loop=timed, eager_start=True)
        timed.call_soon(task.cancel)
        await asyncio.sleep(0)

    timed.run_until_complete(main())
    assert timed.callback_times()["Task.cancel"].times == 1


def test_without_timing_no_callback_is_named(loop):
    loop.call_soon(int)
    run_for(loop, 0.001)
    assert loop.callback_times() == {}
