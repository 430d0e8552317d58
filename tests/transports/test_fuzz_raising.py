# SPDX-License-Identifier: GPL-2.0-only
"""A callback that raises any exception ends at most its own connection, and never the loop.

Hypothesis generates a history: which call of which callback acts on its transport, and which
exception it raises. KeyboardInterrupt and SystemExit leave run_forever(), which is then called
again. The history also determines the activity of the connections. In every case the loop
continues: callbacks run, and the same server serves the next connection. Every connection whose
connection_made() was called gets connection_lost() once, and no call before or after these. No
descriptor leaks, the loop can be closed, and nothing takes long.

`make fuzz` uses more examples than `make test`.
"""

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import struct
import time
from typing import NamedTuple

import pytest
import support
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peers import skip_where_asyncio_forgets_a_transport
from support import turns

EXAMPLES = int(os.environ.get("MGLOOP_FUZZ_EXAMPLES", "30"))

#: How long a history may wait for one condition: so many seconds, and so many checks of it. On a
#: busy machine a process may get little time, and makes few checks in these seconds.
SOON = 5.0
CHECKS = 200

LARGE = 400_000


class OopsError(Exception):
    pass


class NoProtocol:
    """The result of a factory that makes no protocol."""


ENOUGH = (KeyboardInterrupt, SystemExit)
raised = st.sampled_from([OopsError, OopsError, *ENOUGH, None])
#: A callback's actions on its transport: a method, or a reset, which only TCP supports.
deeds = st.sampled_from([None] * 4 + ["write", "write_eof", "close", "abort", "reset"])

SIDES = ["server", "client"]
#: The callbacks of a protocol between its creation and its end.
IN_THE_MIDDLE = (
    "connection_made",
    "received",
    "get_buffer",
    "eof_received",
    "pause_writing",
    "resume_writing",
)
STREAM_EVENTS = [
    f"{side} {event}" for side in SIDES for event in ("factory", *IN_THE_MIDDLE, "connection_lost")
]
DATAGRAM_EVENTS = [
    f"{side} {event}"
    for side in SIDES
    for event in (
        "factory",
        "connection_made",
        "received",
        "error_received",
        "pause_writing",
        "resume_writing",
        "connection_lost",
    )
]
OTHER_EVENTS = [
    "reader",
    "reader that closes",
    "writer",
    "timer",
    "call_soon",
    "threadsafe",
    "done callback",
    "task",
]


class Mishap(NamedTuple):
    """A fault in one call of a callback."""

    event: str
    number: int  # the index of the call
    late: bool  # after its work
    deed: str | None
    exception: type[BaseException] | None


def mishaps(events):
    one = st.builds(
        Mishap,
        event=st.sampled_from(events + OTHER_EVENTS),
        number=st.sampled_from([0, 0, 0, 1, 2, 3]),
        late=st.booleans(),
        deed=deeds,
        exception=raised,
    )
    return st.lists(one, min_size=1, max_size=10)


#: The activity of the connections.
courses = st.fixed_dictionaries(
    {
        "clients": st.integers(1, 3),
        "size": st.sampled_from([1, 3000, LARGE]),
        "buffered": st.booleans(),
        "UNIX datagrams": st.booleans(),
        "busy": st.booleans(),
        "reader": st.sampled_from(["quick", "slow", "stopped"]),
        "keep open": st.booleans(),
        "debug": st.sampled_from([False, False, False, True]),
        "turns": st.sampled_from([0, 1, 3, 8, 300]),
        "end": st.lists(
            st.tuples(
                st.sampled_from(SIDES),
                st.sampled_from(["close", "abort", "write_eof", "reset", "leave"]),
            ),
            min_size=2,
            max_size=2,
        ),
    }
)


class World:
    """A loop, a history, and its outcome."""

    def __init__(self, kind, course, plan):
        self.loop = support.new_loop(kind)
        self.loop.set_debug(course["debug"])
        self.loop.set_exception_handler(lambda loop, context: None)
        # Debug mode must not report slow callbacks.
        self.loop.slow_callback_duration = 1000
        self.course = course
        self.plan = {(mishap.event, mishap.number): mishap for mishap in plan}
        self.counts = {}
        self.protocols = []
        self.closed = {}
        self.left = 0

    def next_mishap(self, event):
        """Return the fault of the next call of a callback, or None."""
        number = self.counts.get(event, 0)
        self.counts[event] = number + 1
        return self.plan.get((event, number))

    @contextlib.contextmanager
    def mishap(self, event, transport=None):
        """Surround the work of a callback: the fault of the history happens before or after it."""
        mishap = self.next_mishap(event)
        if mishap is not None and not mishap.late:
            self.happen(mishap, transport)
        yield
        if mishap is not None and mishap.late:
            self.happen(mishap, transport)

    def happen(self, mishap, transport):
        if mishap.deed is not None and transport is not None:
            self.act(transport, mishap.deed)
        if mishap.exception is not None:
            raise mishap.exception(mishap.event)

    def act(self, transport, deed):
        """Do `deed` to a transport, if it supports it."""
        if deed == "reset":
            sock = transport.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0 and sock.type == socket.SOCK_STREAM:
                linger = struct.pack("ii", 1, 0)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            deed = "abort"
        if deed == "close":
            # asyncio's TLS transport ignores abort() after a second close().
            if id(transport) in self.closed:
                return
            self.closed[id(transport)] = transport
        arguments = [b"more"] if deed == "write" else []
        # write() raises after write_eof(), and write_eof() raises for a reset connection.
        with contextlib.suppress(NotImplementedError, AttributeError, RuntimeError, OSError):
            getattr(transport, deed)(*arguments)

    def run(self, coroutine):
        """Run the coroutine to its end; run the loop again whenever an exception leaves it."""
        task = self.loop.create_task(coroutine)
        while not task.done():
            try:
                self.loop.run_until_complete(task)
            except ENOUGH:
                self.left += 1
                assert self.left < 1000, "the same exception again and again"
        return task.result()

    def calm_down(self):
        """Disable all faults: the next connection must be served normally."""
        self.plan.clear()
        self.course = {**self.course, "keep open": False}

    def soon(self, event, action):
        """Run `action` in a callback, because a protocol may make it raise."""

        def act():
            with self.mishap(event):
                action()

        self.loop.call_soon(act)


class Talker(asyncio.BaseProtocol):
    """One end of a connection: answers, or counts answers, and checks its callbacks."""

    def __init__(self, world, side):
        self.world = world
        self.side = side
        self.state = "new"
        self.transport = None
        self.received = 0
        world.protocols.append(self)

    def event(self, name):
        return self.world.mishap(f"{self.side} {name}", self.transport)

    def alive(self):
        assert self.state == "made", f"called while {self.state}"

    def connection_made(self, transport):
        assert self.state == "new"
        self.state = "made"
        self.transport = transport
        self.make_tight()
        with self.event("connection_made"):
            pass

    def make_tight(self):
        """Set small buffers, so that writing is paused and resumed."""
        with contextlib.suppress(AttributeError):  # a read pipe
            self.transport.set_write_buffer_limits(2000)
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)

    def pause_writing(self):
        self.alive()
        with self.event("pause_writing"):
            pass

    def resume_writing(self):
        self.alive()
        with self.event("resume_writing"):
            pass

    def connection_lost(self, exc):
        self.alive()
        self.state = "lost"
        with self.event("connection_lost"):
            pass

    def eof_received(self):
        self.alive()
        with self.event("eof_received"):
            return self.world.course["keep open"]

    def took(self, count):
        self.alive()
        with self.event("received"):
            self.received += count
            if self.side == "server" and not self.transport.is_closing():
                self.answer(count)

    def answer(self, count):
        with contextlib.suppress(RuntimeError):  # after write_eof()
            self.transport.write(bytes(count))


class PlainTalker(Talker, asyncio.Protocol):
    def data_received(self, data):
        self.took(len(data))


class BufferedTalker(Talker, asyncio.BufferedProtocol):
    buffer = bytearray(20_000)

    def get_buffer(self, sizehint):
        self.alive()
        with self.event("get_buffer"):
            return self.buffer

    def buffer_updated(self, nbytes):
        self.took(nbytes)


class DatagramTalker(Talker, asyncio.DatagramProtocol):
    def datagram_received(self, data, address):
        self.address = address
        self.took(len(data))

    def answer(self, count):
        if not self.transport.is_closing():
            self.transport.sendto(bytes(count), self.address)

    def error_received(self, exc):
        with self.event("error_received"):
            pass


def factory(world, side, kind):
    event = f"{side} factory"

    def make():
        mishap = world.next_mishap(event)
        if mishap is not None and mishap.deed is not None:
            return NoProtocol() if mishap.late else None
        if mishap is not None and mishap.exception is not None:
            raise mishap.exception(event)
        return kind(world, side)

    return make


# --- other work of the loop ----------------------------------------------------------------------


class Bystanders:
    """A reader, a writer, timers, callbacks, futures and tasks, all of which may raise."""

    def __init__(self, world):
        self.world = world
        self.loop = world.loop
        self.calls, self.socks = [], []
        self.left, self.right = socket.socketpair()
        for sock in (self.left, self.right):
            sock.setblocking(False)
        self.loop.add_reader(self.left, self.read)

    def read(self):
        # Drain first: otherwise a reader that raises would be called forever.
        support.drain(self.left)
        with self.world.mishap("reader"):
            pass

    def close_while_a_call_waits(self):
        """Add a reader that closes its socket, for which a sock_recv() waits."""
        left, right = socket.socketpair()
        self.socks += [left, right]
        left.setblocking(False)
        self.calls.append(self.loop.create_task(self.loop.sock_recv(left, 100)))

        def read():
            number = left.fileno()
            left.close()
            self.loop.remove_reader(number)
            with self.world.mishap("reader that closes"):
                pass

        def watch():
            if not self.calls[-1].done():
                self.loop.add_reader(left, read)
                right.send(b"x")

        self.loop.call_soon(self.loop.call_soon, watch)

    def write(self):
        self.loop.remove_writer(self.right)
        with self.world.mishap("writer"):
            self.right.send(b"x")

    def call(self, event):
        with self.world.mishap(event):
            pass

    async def work(self):
        await asyncio.sleep(0)
        with self.world.mishap("task"):
            pass

    def stir(self):
        self.close_while_a_call_waits()
        self.loop.add_writer(self.right, self.write)
        self.loop.call_later(0, self.call, "timer")
        self.loop.call_soon(self.call, "call_soon")
        self.loop.call_soon_threadsafe(self.call, "threadsafe")
        future = self.loop.create_future()
        future.add_done_callback(lambda future: self.call("done callback"))
        future.set_result(None)
        # Retrieve the task's exception, because its report is not under test here.
        self.loop.create_task(self.work()).add_done_callback(lambda task: task.exception())
        if self.world.course["busy"]:
            for _ in range(6):
                self.loop.call_soon(int)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        for task in self.calls:
            task.cancel()
        self.loop.remove_reader(self.left)
        self.loop.remove_writer(self.right)
        for sock in (self.left, self.right, *self.socks):
            if sock.fileno() >= 0:
                self.loop.remove_reader(sock)
            sock.close()


# --- courses -------------------------------------------------------------------------------------


async def until(predicate, what):
    """Wait until `predicate()` is true; collect garbage, which may keep connections open."""
    deadline = time.monotonic() + SOON
    for number in itertools.count():
        if predicate():
            break
        await asyncio.sleep(0.001)
        gc.collect(1)
        if time.monotonic() > deadline - SOON + 0.05:
            gc.collect()
        assert time.monotonic() < deadline or number < CHECKS, f"{what} takes too long"


async def settled(tasks):
    """Wait for tasks that may fail, and discard their exceptions."""
    tasks = list(tasks)
    await until(lambda: all(task.done() for task in tasks), "connecting")
    for task in tasks:
        task.cancelled() or task.exception()


def end(protocol, how):
    if protocol.transport is not None and how != "leave":
        protocol.world.act(protocol.transport, how)


async def wind_down(world):
    """End the open connections, first as the history says; each gets its connection_lost()."""
    for side, how in world.course["end"]:
        for protocol in world.protocols:
            if protocol.side == side and protocol.state == "made":
                world.soon("call_soon", lambda protocol=protocol, how=how: end(protocol, how))
        await turns(world.course["turns"])
    await turns(3)
    for protocol in world.protocols:
        if protocol.state == "made":
            world.soon("call_soon", lambda protocol=protocol: end(protocol, "close"))
    await turns(3)
    # Do not wait for data that the peer does not read.
    for how in ("abort", "close"):
        for protocol in world.protocols:
            if protocol.state == "made":
                world.soon("an end", lambda protocol=protocol, how=how: end(protocol, how))
    await until(
        lambda: all(protocol.state != "made" for protocol in world.protocols),
        "connection_lost()",
    )


async def talk(world, bystanders):
    """Let the clients send to slow readers while the bystanders work."""

    def send(protocol):
        size = world.course["size"]
        if isinstance(protocol, DatagramTalker):
            for _ in range(12):
                protocol.transport.sendto(bytes(min(size, 1000)))
        else:
            protocol.transport.write(bytes(size))

    def pause(protocol, resume=False):
        transport = protocol.transport
        with contextlib.suppress(NotImplementedError, AttributeError):
            transport.resume_reading() if resume else transport.pause_reading()

    def connected(side=None):
        return [
            protocol
            for protocol in world.protocols
            if protocol.state == "made" and side in (None, protocol.side)
        ]

    if world.course["reader"] != "quick":
        for protocol in connected():
            world.soon("call_soon", lambda protocol=protocol: pause(protocol))
    bystanders.stir()
    for protocol in connected("client"):
        world.soon("call_soon", lambda protocol=protocol: send(protocol))
    await turns(5)
    if world.course["reader"] == "slow":
        for protocol in connected():
            world.soon("call_soon", lambda protocol=protocol: pause(protocol, resume=True))
    bystanders.stir()
    for protocol in connected("client"):
        world.soon("call_soon", lambda protocol=protocol: send(protocol))
    await turns(world.course["turns"])


@contextlib.asynccontextmanager
async def serving(starting):
    server = await starting
    try:
        yield server
    finally:
        server.close()
        await asyncio.wait_for(server.wait_closed(), SOON)


async def stream_history(world, bystanders, start, connect):
    """Run a server, made by `start(factory)`, and clients, made by `connect(factory, server)`."""
    kind = BufferedTalker if world.course["buffered"] else PlainTalker
    async with serving(start(factory(world, "server", kind))) as server:
        bystanders.stir()
        await settled(
            world.loop.create_task(connect(factory(world, "client", PlainTalker), server))
            for _ in range(world.course["clients"])
        )
        await talk(world, bystanders)
        await wind_down(world)

        world.calm_down()
        before = len(world.protocols)
        _, client = await asyncio.wait_for(
            connect(lambda: PlainTalker(world, "client"), server), SOON
        )
        client.transport.write(b"ping")
        await until(lambda: client.received == 4, "the next connection")
        client.transport.close()
        await until(
            lambda: all(protocol.state == "lost" for protocol in world.protocols[before:]),
            "the end of the next connection",
        )


def port_of(server):
    return server.sockets[0].getsockname()[1]


async def tcp(world, bystanders):
    loop = world.loop
    await stream_history(
        world,
        bystanders,
        lambda make: loop.create_server(make, "127.0.0.1", 0),
        lambda make, server: loop.create_connection(make, "127.0.0.1", port_of(server)),
    )


async def unix(world, bystanders):
    loop = world.loop
    path = f"\0mgloop fuzz {os.getpid()}"
    await stream_history(
        world,
        bystanders,
        lambda make: loop.create_unix_server(make, path),
        lambda make, server: loop.create_unix_connection(make, path),
    )


async def tls(world, bystanders, server_ssl_context, client_ssl_context):
    loop = world.loop
    secure = {"ssl": client_ssl_context, "server_hostname": "localhost"}
    await stream_history(
        world,
        bystanders,
        lambda make: loop.create_server(make, "127.0.0.1", 0, ssl=server_ssl_context),
        lambda make, server: loop.create_connection(make, "127.0.0.1", port_of(server), **secure),
    )


numbers = itertools.count()


async def udp(world, bystanders):
    """Run a server, clients, and one client whose server does not exist; also with UNIX datagrams,
    of which the kernel queues only a few for a peer that does not read."""
    loop = world.loop
    unix = world.course["UNIX datagrams"]

    def name():
        if unix:
            # An example that fails may leave its sockets open, so no other one has their names.
            return f"\0mgloop fuzz {os.getpid()} {next(numbers)}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reserved:
            reserved.bind(("127.0.0.1", 0))
            return reserved.getsockname()

    def endpoint(side, make=None, **where):
        make = make or factory(world, side, DatagramTalker)
        if unix:
            where["family"] = socket.AF_UNIX
        return loop.create_task(loop.create_datagram_endpoint(make, **where))

    def client(address):
        # A UNIX socket without a name could not be answered.
        own = {"local_addr": name()} if unix else {}
        return endpoint("client", remote_addr=address, **own)

    there, nowhere = name(), name()
    if unix:
        # connect() needs an existing socket, which is closed afterwards.
        nobody = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        nobody.bind(nowhere)
    bystanders.stir()
    await settled([endpoint("server", local_addr=there)])
    await settled(client(there) for _ in range(world.course["clients"]))
    await settled([client(nowhere)])
    if unix:
        nobody.close()
    await talk(world, bystanders)
    await wind_down(world)

    world.calm_down()
    there = name()
    _, server = await endpoint("server", local_addr=there)
    _, last = await client(there)
    last.transport.sendto(b"ping")
    await until(lambda: last.received == 4, "the next datagram")
    for protocol in (last, server):
        protocol.transport.close()
    await until(lambda: last.state == server.state == "lost", "the next end")


class PipeReader(PlainTalker):
    def answer(self, count):
        pass


async def pipes(world, bystanders):
    """Run socket pairs and FIFOs: "client" is the writing end, "server" the reading one."""
    loop = world.loop

    def ends(number):
        if number % 2:
            return socket.socketpair()
        reading, writing = os.pipe()
        return open(reading, "rb", 0), open(writing, "wb", 0)

    async def connect(connecting, file):
        try:
            return await connecting(file)
        except BaseException:
            file.close()  # the factory has raised, so the file is still ours
            raise

    def connections(number):
        reading, writing = ends(number)
        make_reader = factory(world, "server", PipeReader)
        make_writer = factory(world, "client", PlainTalker)
        return [
            loop.create_task(
                connect(lambda file: loop.connect_read_pipe(make_reader, file), reading)
            ),
            loop.create_task(
                connect(lambda file: loop.connect_write_pipe(make_writer, file), writing)
            ),
        ]

    bystanders.stir()
    await settled(task for number in range(world.course["clients"]) for task in connections(number))
    await talk(world, bystanders)
    await wind_down(world)

    world.calm_down()
    (_, reader), (_, writer) = await asyncio.gather(*connections(0))
    writer.transport.write(b"ping")
    await until(lambda: reader.received == 4, "the next pipe")
    writer.transport.close()
    await until(lambda: writer.state == reader.state == "lost", "the next end")


# --- the test ------------------------------------------------------------------------------------


def is_beyond_asyncio(course, mishap):
    """Return whether asyncio violates the properties under test in this case."""
    if course != "tls":
        return False
    if mishap.event.endswith("factory"):
        # Without a connection_lost() to call, sslproto does not wake the waiter of the handshake.
        return mishap.deed is not None
    # sslproto does not resume its own work after a KeyboardInterrupt or SystemExit in the middle
    # of it: a handshake hangs, and create_connection() waits.
    return mishap.event.endswith(IN_THE_MIDDLE) and mishap.exception in ENOUGH


def check(loop_kind, history, course, plan, contexts):
    if loop_kind == "asyncio":
        plan = [mishap for mishap in plan if not is_beyond_asyncio(history.__name__, mishap)]
    before = support.open_fds()
    world = World(loop_kind, course, plan)
    try:
        with Bystanders(world) as bystanders:
            world.run(history(world, bystanders, **contexts))
        # The tasks of accepted connections end when the other end does, which may be garbage.
        world.run(until(lambda: len(asyncio.all_tasks()) == 1, "the end of the last task"))
        called = []
        world.loop.call_soon(called.append, 1)
        support.turn(world.loop, 3)
        assert called == [1]
        assert asyncio.all_tasks(world.loop) == set()
    finally:
        support.finish(world.loop)
    assert [protocol for protocol in world.protocols if protocol.state == "made"] == []
    del world
    leaked = support.fds_opened_since(before)
    assert not leaked, f"descriptors leaked: {leaked}"


fuzz = settings(
    database=None,
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=list(HealthCheck),
)
# asyncio leaves connections whose accepting failed to the garbage collector, which warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.without_debug,
]


@fuzz
@given(course=courses, plan=mishaps(STREAM_EVENTS))
def test_tcp(loop_kind, course, plan):
    skip_where_asyncio_forgets_a_transport(loop_kind)
    check(loop_kind, tcp, course, plan, {})


@fuzz
@given(course=courses, plan=mishaps(STREAM_EVENTS))
def test_unix(loop_kind, course, plan):
    skip_where_asyncio_forgets_a_transport(loop_kind)
    check(loop_kind, unix, course, plan, {})


@fuzz
@given(course=courses, plan=mishaps(STREAM_EVENTS))
def test_tls(loop_kind, server_ssl_context, client_ssl_context, course, plan):
    skip_where_asyncio_forgets_a_transport(loop_kind)
    contexts = {"server_ssl_context": server_ssl_context, "client_ssl_context": client_ssl_context}
    check(loop_kind, tls, course, plan, contexts)


@fuzz
@given(course=courses, plan=mishaps(DATAGRAM_EVENTS))
def test_udp(loop_kind, course, plan):
    check(loop_kind, udp, course, plan, {})


@fuzz
@given(course=courses, plan=mishaps(STREAM_EVENTS))
def test_pipes(loop_kind, course, plan):
    check(loop_kind, pipes, course, plan, {})
