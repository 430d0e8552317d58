# SPDX-License-Identifier: GPL-2.0-only
"""The latency of a ready descriptor, counted in iterations of the loop.

Programs wait "two or three sleep(0)" for the other end of a connection on the same loop, or rely on
the order in which two descriptors' events come through. asyncio polls once per iteration. Whatever
another loop leaves out must not be seen: each way for something to arrive is measured here on
asyncio's own loop and on the loop under test, under the same circumstances, and may not take more
iterations than there.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import time

import certificates
import pytest
import support

pytestmark = pytest.mark.slow  # hundreds of combinations

#: The number of other callbacks that are ready when data is sent.
CROWDS = [0, 1, 4, 100]
#: Iterations in which nothing happened, before it is sent.
IDLE = (0, 1, 2, 6)
#: Callbacks that schedule themselves again, for as long as it is measured.
CHAINS = [1, 2, 4, 10]

#: More iterations than this and it is not coming.
NEVER = 60


# --- the ways ------------------------------------------------------------------------------------
#
# Each is an asynchronous context manager: way(loop) gives (send, arrived). send() sends something,
# arrived() is true once everything that was sent has been delivered.


def way(function):
    """Turn function(loop, *args) into function(*args), whose result is a way."""
    manager = contextlib.asynccontextmanager(function)
    return lambda *args, **kwargs: lambda loop: manager(loop, *args, **kwargs)


class Count(asyncio.Protocol):
    """Counts bytes, datagrams' bytes included, ends and losses."""

    def __init__(self):
        self.bytes = 0
        self.eofs = 0
        self.losses = 0

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.bytes += len(data)

    def datagram_received(self, data, addr):
        self.bytes += len(data)

    def pipe_data_received(self, fd, data):
        self.bytes += len(data)

    def eof_received(self):
        self.eofs += 1
        return True

    def connection_lost(self, exc):
        self.losses += 1


class BufferedCount(asyncio.BufferedProtocol):
    """The same for protocols that lend a buffer."""

    def __init__(self):
        self.buffer = bytearray(100)
        self.bytes = 0

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.bytes += nbytes


class Sender:
    """send() by a function of one argument, and arrived() by a count of bytes."""

    def __init__(self, write, count, message=b"x"):
        self.write = write
        self.count = count
        self.message = message
        self.sent = 0

    def send(self):
        self.write(self.message)
        self.sent += len(self.message)

    def arrived(self):
        return self.count() == self.sent

    def __iter__(self):
        return iter((self.send, self.arrived))


@contextlib.contextmanager
def tcp_pair():
    with support.nonblocking_tcp_pair() as pair:
        yield pair


def sockets_of(family):
    return tcp_pair() if family == "TCP" else support.nonblocking_socketpair()


async def transport_over(loop, sock, protocol):
    transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
    return transport


@way
async def transport_to_transport(loop, family, receiver=Count, message=b"x"):
    with sockets_of(family) as (left, right):
        protocol = receiver()
        sender = await transport_over(loop, left, Count())
        transport = await transport_over(loop, right, protocol)
        yield Sender(sender.write, lambda: protocol.bytes, message)
        sender.abort()
        transport.abort()
        await support.turns(5)


@way
async def socket_to_transport(loop, family):
    with sockets_of(family) as (left, right):
        protocol = Count()
        transport = await transport_over(loop, right, protocol)
        yield Sender(left.send, lambda: protocol.bytes)
        transport.abort()
        await support.turns(5)


@way
async def to_reader(loop, family, by_transport):
    with sockets_of(family) as (left, right):
        got = bytearray()
        loop.add_reader(right, lambda: got.extend(right.recv(100)))
        if by_transport:
            transport = await transport_over(loop, left, Count())
            yield Sender(transport.write, lambda: len(got))
            transport.abort()
            await support.turns(5)
        else:
            yield Sender(left.send, lambda: len(got))
        loop.remove_reader(right)


@way
async def to_sock_recv(loop, family, into, by_sendall=False):
    got = []

    async def receive(sock):
        buffer = bytearray(100)
        while True:
            if into:
                got.append(await loop.sock_recv_into(sock, buffer))
            else:
                got.append(len(await loop.sock_recv(sock, 100)))

    tasks = []

    def sendall(data):
        tasks.append(loop.create_task(loop.sock_sendall(left, data)))

    with sockets_of(family) as (left, right):
        task = loop.create_task(receive(right))
        await support.turns(5)
        yield Sender(sendall if by_sendall else left.send, lambda: sum(got))
        task.cancel()
        await asyncio.gather(task, *tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def to_sock_recvfrom(loop):
    got = []

    async def receive(sock):
        while True:
            got.append(len((await loop.sock_recvfrom(sock, 100))[0]))

    with support.nonblocking_socketpair(kind=socket.SOCK_DGRAM) as (left, right):
        task = loop.create_task(receive(right))
        await support.turns(5)
        yield Sender(left.send, lambda: sum(got))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@way
async def to_read_pipe(loop, by_transport):
    read_end, write_end = os.pipe()
    reader, writer = os.fdopen(read_end, "rb", 0), os.fdopen(write_end, "wb", 0)
    protocol = Count()
    transport, _ = await loop.connect_read_pipe(lambda: protocol, reader)
    if by_transport:
        other, _ = await loop.connect_write_pipe(asyncio.Protocol, writer)
        yield Sender(other.write, lambda: protocol.bytes)
        other.abort()
    else:
        yield Sender(writer.write, lambda: protocol.bytes)
        writer.close()
    transport.close()
    await support.turns(5)


@contextlib.asynccontextmanager
async def pipe_to_reader(loop):
    read_end, write_end = os.pipe()
    got = []
    loop.add_reader(read_end, lambda: got.append(len(os.read(read_end, 100))))
    yield Sender(lambda data: os.write(write_end, data), lambda: sum(got))
    loop.remove_reader(read_end)
    os.close(read_end)
    os.close(write_end)


@way
async def datagrams(loop, family, by_transport):
    kind = socket.AF_INET if family == "UDP" else socket.AF_UNIX
    left, right = (socket.socket(kind, socket.SOCK_DGRAM) for _ in range(2))
    for sock in (left, right):
        # An empty name is one that the kernel chooses.
        sock.bind(("127.0.0.1", 0) if family == "UDP" else "")
    left.connect(right.getsockname())
    right.connect(left.getsockname())
    left.setblocking(False)
    right.setblocking(False)
    protocol = Count()
    transport, _ = await loop.create_datagram_endpoint(lambda: protocol, sock=right)
    if by_transport:
        other, _ = await loop.create_datagram_endpoint(Count, sock=left)
        yield Sender(other.sendto, lambda: protocol.bytes)
        other.close()
    else:
        yield Sender(left.send, lambda: protocol.bytes)
        left.close()
    transport.close()
    await support.turns(5)


@way
async def streams(loop, family, method):
    got = []

    async def receive(reader):
        while chunk := await (reader.readline() if method == "readline" else reader.read(100)):
            got.append(len(chunk))

    with sockets_of(family) as (left, right):
        _, writer = await asyncio.open_connection(sock=left)
        reader, other = await asyncio.open_connection(sock=right)
        task = loop.create_task(receive(reader))
        await support.turns(3)
        yield Sender(writer.write, lambda: sum(got), b"a line\n")
        writer.close()
        await task
        other.close()
        await writer.wait_closed()
        await other.wait_closed()


class Certificates:
    """TLS contexts for both sides, made once."""

    _contexts = None

    @classmethod
    def contexts(cls):
        if cls._contexts is None:
            if not certificates.available:
                pytest.skip(certificates.SKIPPED)
            cls._contexts = certificates.contexts()
        return cls._contexts


@way
async def tls(loop, direction):
    server_context, client_context = Certificates.contexts()
    served = Count()
    made = loop.create_future()
    served.connection_made = made.set_result
    server = await loop.create_server(lambda: served, "127.0.0.1", 0, ssl=server_context)
    client = Count()
    transport, _ = await loop.create_connection(
        lambda: client, *server.sockets[0].getsockname(), ssl=client_context,
        server_hostname="localhost",
    )  # fmt: skip
    other = await made
    await asyncio.sleep(0.01)  # tickets
    if direction == "to the server":
        yield Sender(transport.write, lambda: served.bytes)
    else:
        yield Sender(other.write, lambda: client.bytes)
    transport.abort()
    other.abort()
    await support.close(server)
    await asyncio.sleep(0.01)


def each_once(make, event):
    """A way of something that happens once per connection: many are made beforehand.

    make(loop, stack) gives (do, done): do() causes the event, done() returns whether it occurred.
    """

    @contextlib.asynccontextmanager
    async def way(loop):
        async with contextlib.AsyncExitStack() as stack:
            prepared = [await make(loop, stack, event) for _ in range(len(IDLE) + 3)]
            pending = list(prepared)
            used = []

            def send():
                used.append(pending.pop())
                used[-1][0]()

            yield send, lambda: all(done() for _, done in used)

    return way


def abort(transport):
    """End a transport that may have ended by itself."""
    if not transport.is_closing():
        transport.abort()


async def connection(loop, stack, event):
    """A connection of two transports of which one ends."""
    family, by, what = event
    left, right = stack.enter_context(sockets_of(family))
    protocol = Count()
    if what == "lost":
        protocol.eof_received = lambda: None
    transport = await transport_over(loop, right, protocol)
    stack.push_async_callback(support.turns, 5)
    stack.callback(abort, transport)
    if by == "socket":
        do = left.close if what == "lost" else lambda: left.shutdown(socket.SHUT_WR)
    else:
        other = await transport_over(loop, left, Count())
        stack.callback(abort, other)
        do = {"lost": other.close, "aborted": other.abort, "eof": other.write_eof}[what]
    if what == "eof":
        return do, lambda: protocol.eofs == 1
    if what == "aborted":
        return do, lambda: protocol.eofs == 1 or protocol.losses == 1
    return do, lambda: protocol.losses == 1


async def last_words(loop, stack, event):
    """Data that the end follows directly."""
    family = event
    left, right = stack.enter_context(sockets_of(family))
    protocol = Count()
    protocol.eof_received = lambda: None
    transport = await transport_over(loop, right, protocol)
    stack.push_async_callback(support.turns, 5)
    stack.callback(abort, transport)
    other = await transport_over(loop, left, Count())
    stack.callback(abort, other)

    def do():
        other.write(b"bye")
        other.close()

    return do, lambda: (protocol.bytes, protocol.losses) == (3, 1)


async def pipe_end(loop, stack, event):
    """A pipe whose writing end is closed."""
    read_end, write_end = os.pipe()
    reader, writer = os.fdopen(read_end, "rb", 0), os.fdopen(write_end, "wb", 0)
    protocol = Count()
    transport, _ = await loop.connect_read_pipe(lambda: protocol, reader)
    stack.push_async_callback(support.turns, 5)
    stack.callback(transport.close)
    stack.callback(writer.close)
    if event == "lost":
        return writer.close, lambda: protocol.losses == 1
    return writer.close, lambda: protocol.eofs == 1


async def reader_gone(loop, stack, event):
    """A pipe whose reading end is closed, which the writing transport detects."""
    read_end, write_end = os.pipe()
    reader, writer = os.fdopen(read_end, "rb", 0), os.fdopen(write_end, "wb", 0)
    protocol = Count()
    transport, _ = await loop.connect_write_pipe(lambda: protocol, writer)
    stack.push_async_callback(support.turns, 5)
    stack.callback(abort, transport)
    stack.callback(reader.close)
    return reader.close, lambda: protocol.losses == 1


@way
async def accepting(loop, family):
    made = []

    class Accepted(Count):
        def connection_made(self, transport):
            made.append(transport)

    path = f"\0mgloop-polls-{os.getpid()}-{id(made)}"
    if family == "TCP":
        server = await loop.create_server(Accepted, "127.0.0.1", 0)
        kind, address = socket.AF_INET, server.sockets[0].getsockname()
    else:
        server = await loop.create_unix_server(Accepted, path)
        kind, address = socket.AF_UNIX, path
    clients = []

    def connect():
        clients.append(socket.socket(kind, socket.SOCK_STREAM))
        clients[-1].connect(address)

    yield connect, lambda: len(made) == len(clients)
    for transport in made:
        transport.abort()
    for sock in clients:
        sock.close()
    await support.close(server)
    await support.turns(5)


@contextlib.asynccontextmanager
async def connecting(loop):
    """sock_connect() to a listening socket, to which TCP on loopback connects immediately."""
    tasks = []
    with support.listening_socket() as listener, contextlib.ExitStack() as stack:

        def connect():
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            tasks.append(loop.create_task(loop.sock_connect(sock, listener.getsockname())))

        yield connect, lambda: all(task.done() for task in tasks)
        await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def room(loop):
    """A writer that is called when the peer has taken something off."""
    with support.nonblocking_socketpair() as (left, right):
        for sock in (left, right):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        calls = []

        def writable():
            calls.append(None)
            support.fill(left)

        support.fill(left)
        loop.add_writer(left, writable)
        await support.turns(3)
        before = []

        def send():
            before.append(len(calls))
            support.drain(right)

        yield send, lambda: not before or len(calls) > before[-1]
        loop.remove_writer(left)


@contextlib.asynccontextmanager
async def room_for_a_transport(loop):
    """What a transport has queued leaves after the peer has taken everything off."""
    with support.nonblocking_socketpair() as (left, right):
        protocol = asyncio.Protocol()
        transport = await transport_over(loop, left, protocol)
        block = b"x" * 65536

        def send():
            while transport.get_write_buffer_size() == 0:
                transport.write(block)
            support.drain(right)

        yield send, lambda: transport.get_write_buffer_size() == 0
        transport.abort()
        await support.turns(5)


@way
async def signals(loop, number):
    calls = []
    sent = []
    loop.add_signal_handler(number, calls.append, None)

    def send():
        sent.append(None)
        os.kill(os.getpid(), number)

    yield send, lambda: len(calls) == len(sent)
    loop.remove_signal_handler(number)


@way
async def callback(loop, schedule, *args):
    """schedule(loop, callback, *args) lets the loop call the callback once."""
    calls = []
    sent = []

    def send():
        sent.append(None)
        schedule(loop, lambda: calls.append(None), *args)

    yield send, lambda: len(calls) == len(sent)


def threadsafe_here(loop, callback):
    loop.call_soon_threadsafe(callback)


def threadsafe_from_a_thread(loop, callback):
    with support.in_thread(loop.call_soon_threadsafe, callback):
        pass


def timer(loop, callback, delay, sleep):
    """Set a timer that becomes due while a callback sleeps."""
    loop.call_later(delay, callback)
    time.sleep(sleep)


@contextlib.asynccontextmanager
async def child(loop):
    """The output of a child; send() waits until it is in the pipe."""

    class Output(Count, asyncio.SubprocessProtocol):
        def __init__(self):
            super().__init__()
            self.over = loop.create_future()

        def connection_lost(self, exc):
            self.over.set_result(exc)

    transport, protocol = await loop.subprocess_exec(Output, "cat")
    stdin = transport.get_pipe_transport(0)
    stdout = transport.get_pipe_transport(1).get_extra_info("pipe").fileno()

    def write(data):
        stdin.write(data)
        assert select.select([stdout], [], [], support.PATIENCE)[0]

    yield Sender(write, lambda: protocol.bytes)
    stdin.close()
    await protocol.over
    transport.close()


WAYS = {
    "TCP transport to transport": transport_to_transport("TCP"),
    "TCP transport to BufferedProtocol": transport_to_transport("TCP", BufferedCount),
    "TCP transport, much": transport_to_transport("TCP", message=b"x" * 8192),
    "UNIX transport to transport": transport_to_transport("UNIX"),
    "TCP socket to transport": socket_to_transport("TCP"),
    "UNIX socket to transport": socket_to_transport("UNIX"),
    "TCP transport to reader": to_reader("TCP", by_transport=True),
    "UNIX transport to reader": to_reader("UNIX", by_transport=True),
    "TCP socket to reader": to_reader("TCP", by_transport=False),
    "UNIX socket to reader": to_reader("UNIX", by_transport=False),
    "TCP socket to sock_recv": to_sock_recv("TCP", into=False),
    "UNIX socket to sock_recv": to_sock_recv("UNIX", into=False),
    "UNIX socket to sock_recv_into": to_sock_recv("UNIX", into=True),
    "TCP sock_sendall to sock_recv": to_sock_recv("TCP", into=False, by_sendall=True),
    "socket to sock_recvfrom": to_sock_recvfrom,
    "os.write to read pipe": to_read_pipe(by_transport=False),
    "write pipe to read pipe": to_read_pipe(by_transport=True),
    "os.write to reader": pipe_to_reader,
    "UDP socket to endpoint": datagrams("UDP", by_transport=False),
    "UDP endpoint to endpoint": datagrams("UDP", by_transport=True),
    "UNIX datagram socket to endpoint": datagrams("UNIX", by_transport=False),
    "UNIX datagram endpoint to endpoint": datagrams("UNIX", by_transport=True),
    "TCP streams, read": streams("TCP", "read"),
    "TCP streams, readline": streams("TCP", "readline"),
    "UNIX streams, read": streams("UNIX", "read"),
    "TLS to the server": tls("to the server"),
    "TLS to the client": tls("to the client"),
    "TCP transport closed": each_once(connection, ("TCP", "transport", "lost")),
    "UNIX transport closed": each_once(connection, ("UNIX", "transport", "lost")),
    "TCP socket closed": each_once(connection, ("TCP", "socket", "lost")),
    "UNIX socket closed": each_once(connection, ("UNIX", "socket", "lost")),
    "TCP transport aborted": each_once(connection, ("TCP", "transport", "aborted")),
    "TCP write_eof": each_once(connection, ("TCP", "transport", "eof")),
    "UNIX write_eof": each_once(connection, ("UNIX", "transport", "eof")),
    "TCP socket shut down": each_once(connection, ("TCP", "socket", "eof")),
    "TCP data and the end": each_once(last_words, "TCP"),
    "UNIX data and the end": each_once(last_words, "UNIX"),
    "the end of a pipe": each_once(pipe_end, "eof"),
    "a pipe lost": each_once(pipe_end, "lost"),
    "a pipe's reader gone": each_once(reader_gone, None),
    "TCP accept": accepting("TCP"),
    "UNIX accept": accepting("UNIX"),
    "sock_connect": connecting,
    "room for a writer": room,
    "room for a transport": room_for_a_transport,
    "a signal": signals(signal.SIGUSR1),
    "call_soon_threadsafe": callback(threadsafe_here),
    "call_soon_threadsafe from a thread": callback(threadsafe_from_a_thread),
    "a timer": callback(timer, 0.0005, 0.002),
    "a timer of now": callback(timer, 0, 0.0001),
    "the output of a child": child,
}


# --- the circumstances ---------------------------------------------------------------------------


def chain(loop, alive):
    """A callback that schedules itself again until `alive` is empty."""

    def link():
        if alive:
            loop.call_soon(link)

    loop.call_soon(link)


async def from_a_task(loop, send, arrived):
    """How many sleep(0) it takes."""
    send()
    for count in range(NEVER):
        if arrived():
            return count
        await asyncio.sleep(0)
    return NEVER


async def from_callbacks(loop, send, arrived):
    """The same, with nothing but call_soon()."""
    result = loop.create_future()

    def step(count):
        if arrived() or count == NEVER:
            result.set_result(count)
        else:
            loop.call_soon(step, count + 1)

    def start():
        send()
        step(0)

    loop.call_soon(start)
    return await result


async def from_timers(loop, send, arrived):
    """The same, from a timer's callback."""
    result = loop.create_future()

    async def measured():
        result.set_result(await from_a_task(loop, send, arrived))

    tasks = []
    loop.call_later(0.001, lambda: tasks.append(loop.create_task(measured())))
    return await result


async def settled(arrived):
    """Wait until everything is in, however long it takes, and the loop has slept once."""
    await support.wait_until(arrived)
    await asyncio.sleep(0.001)


async def beside_ready_callbacks(loop, send, arrived, count, number):
    await settled(arrived)
    for _ in range(number):
        loop.call_soon(int)
    return await count(loop, send, arrived)


async def behind_ready_callbacks(loop, send, arrived, count, number):
    def crowded():
        send()
        for _ in range(number):
            loop.call_soon(int)

    await settled(arrived)
    return await count(loop, crowded, arrived)


async def after_idle_iterations(loop, send, arrived, count, number):
    await settled(arrived)
    await support.turns(number)
    return await count(loop, send, arrived)


async def after_busy_iterations(loop, send, arrived, count, number):
    """As many iterations with five callbacks each."""
    await settled(arrived)
    for _ in range(number):
        for _ in range(5):
            loop.call_soon(int)
        await asyncio.sleep(0)
    return await count(loop, send, arrived)


async def amid_chains(loop, send, arrived, count, number):
    await settled(arrived)
    alive = [True]
    try:
        for _ in range(number):
            chain(loop, alive)
        await support.turns(number)
        return await count(loop, send, arrived)
    finally:
        alive.clear()


async def amid_traffic(loop, send, arrived, count, number):
    """Another descriptor is ready in every iteration."""
    with support.nonblocking_socketpair() as (left, right):

        def read():
            left.recv(1)
            right.send(b"x")

        loop.add_reader(left, read)
        right.send(b"x")
        try:
            await settled(arrived)
            await support.turns(number)
            return await count(loop, send, arrived)
        finally:
            loop.remove_reader(left)


async def beside_a_listener(loop, send, arrived, count, number):
    """Something is registered that never becomes ready."""
    with support.nonblocking_socketpair() as (left, _):
        loop.add_reader(left, pytest.fail)
        try:
            await settled(arrived)
            await support.turns(number)
            return await count(loop, send, arrived)
        finally:
            loop.remove_reader(left)


CIRCUMSTANCES = {
    "beside ready callbacks": (beside_ready_callbacks, CROWDS),
    "with callbacks behind": (behind_ready_callbacks, CROWDS),
    "after idle iterations": (after_idle_iterations, IDLE),
    "after busy iterations": (after_busy_iterations, IDLE),
    "amid chains": (amid_chains, CHAINS),
    "amid traffic": (amid_traffic, IDLE),
    "beside what is never ready": (beside_a_listener, IDLE),
}

STARTS = {"task": from_a_task, "callback": from_callbacks, "timer": from_timers}


def measure(loop, way, circumstance, numbers, count):
    """The iterations that it takes on this loop: {number: iterations}."""

    async def main():
        result = {}
        async with way(loop) as (send, arrived):
            await settled(lambda: True)
            for number in numbers:
                result[number] = await circumstance(loop, send, arrived, count, number)
        return result

    return loop.run_until_complete(asyncio.wait_for(main(), 2 * support.PATIENCE))


def compare(loop, way, circumstance, numbers, count):
    """Those that take more iterations than on asyncio's loop: {number: (there, here)}."""
    reference = support.new_loop("asyncio")
    try:
        there = measure(reference, way, circumstance, numbers, count)
    finally:
        support.finish(reference)
    here = measure(loop, way, circumstance, numbers, count)
    assert max(there.values()) < NEVER
    return {number: (there[number], here[number]) for number in numbers
            if here[number] > there[number]}  # fmt: skip


# The comparison measures asyncio's loop too, so there is nothing that asyncio's half would prove.
@pytest.mark.mgloop_only
@pytest.mark.without_debug
@pytest.mark.parametrize("way", WAYS)
def test_no_more_iterations_than_asyncio(loop, way):
    later = {}
    for name, (circumstance, numbers) in CIRCUMSTANCES.items():
        for start, count in STARTS.items():
            if worse := compare(loop, WAYS[way], circumstance, numbers, count):
                later[f"{name}, from a {start}"] = worse
    assert not later, f"{{number: (iterations on asyncio, here)}}: {later}"


# --- order ---------------------------------------------------------------------------------------
#
# Programs order the events of two descriptors by iterations, most often without knowing it.


class Named(asyncio.Protocol):
    """Writes its name and what happens to it into a list that several share."""

    def __init__(self, name, events):
        self.name = name
        self.events = events

    def connection_made(self, transport):
        self.transport = transport
        self.events.append(f"{self.name} made")

    def data_received(self, data):
        self.events.append(f"{self.name} data")

    def eof_received(self):
        self.events.append(f"{self.name} eof")

    def connection_lost(self, exc):
        self.events.append(f"{self.name} lost")


@contextlib.asynccontextmanager
async def two_pipes(loop, events):
    """(reading transport, writing end) of a pipe, and a function that connects another."""
    with contextlib.ExitStack() as stack:

        async def connect(name, data=b"", end=False):
            read_end, write_end = os.pipe()
            writer = stack.enter_context(os.fdopen(write_end, "wb", 0))
            if data:
                writer.write(data)
            if end:
                writer.close()
            transport, _ = await loop.connect_read_pipe(
                lambda: Named(name, events), os.fdopen(read_end, "rb", 0)
            )
            stack.callback(transport.close)
            return transport, writer

        yield connect
    await support.turns(5)


@contextlib.asynccontextmanager
async def two_sockets(loop, events, family):
    """The same for transports over sockets."""
    transports = []
    with contextlib.ExitStack() as stack:

        async def connect(name, data=b"", end=False):
            left, right = stack.enter_context(sockets_of(family))
            if data:
                right.send(data)
            if end:
                right.close()
            transport, _ = await loop.create_connection(lambda: Named(name, events), sock=left)
            transports.append(transport)
            return transport, right

        yield connect
        # Before the sockets are closed by the stack.
        for transport in transports:
            abort(transport)
        await support.turns(5)


CONNECTIONS = {
    "pipes": two_pipes,
    "TCP": lambda loop, events: two_sockets(loop, events, "TCP"),
    "UNIX": lambda loop, events: two_sockets(loop, events, "UNIX"),
}


async def new_with_data_then_old_closed(connect):
    """As asyncssh redirects a stream: the new pipe's data must arrive before the old pipe ends."""
    old, _ = await connect("old")
    yield
    await connect("new", b"data")
    old.close()
    yield


async def new_with_data_and_end_then_old_closed(connect):
    old, _ = await connect("old")
    yield
    await connect("new", b"data", end=True)
    old.close()
    yield


async def old_closed_while_new_connects(connect):
    old, _ = await connect("old")
    yield
    old.close()
    await connect("new", b"data")
    yield


async def old_ends_while_new_connects(connect):
    _, peer = await connect("old")
    yield
    peer.close()
    await connect("new", b"data")
    yield


async def old_has_data_while_new_connects(connect):
    old, peer = await connect("old")
    yield
    os.write(peer.fileno(), b"data")
    await connect("new", b"data")
    old.close()
    yield


async def a_turn_between(connect):
    old, _ = await connect("old")
    yield
    await connect("new", b"data")
    await asyncio.sleep(0)
    old.close()
    yield


async def two_turns_between(connect):
    old, _ = await connect("old")
    yield
    await connect("new", b"data")
    await support.turns(2)
    old.close()
    yield


SCENES = [
    new_with_data_then_old_closed,
    new_with_data_and_end_then_old_closed,
    old_closed_while_new_connects,
    old_ends_while_new_connects,
    old_has_data_while_new_connects,
    a_turn_between,
    two_turns_between,
]


def play(loop, connections, scene, idle, crowd):
    """The events of a scene, whose second half begins after `idle` idle iterations."""
    events = []

    async def main():
        async with connections(loop, events) as connect:
            script = scene(connect)
            await anext(script)
            await asyncio.sleep(0.001)
            await support.turns(idle)
            for _ in range(crowd):
                loop.call_soon(int)
            await anext(script)
            result = None
            # Until nothing has happened for as long as any loop takes.
            while result != events:
                result = list(events)
                await asyncio.sleep(0.005)
            await script.aclose()
        return result

    return loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE))


@pytest.mark.mgloop_only
@pytest.mark.without_debug
@pytest.mark.parametrize("scene", SCENES, ids=[scene.__name__ for scene in SCENES])
@pytest.mark.parametrize("connections", CONNECTIONS)
def test_the_order_of_two_descriptors(loop, connections, scene):
    moments = [(idle, crowd) for idle in IDLE for crowd in (0, 3, 10)]
    reference = support.new_loop("asyncio")
    try:
        there = {at: play(reference, CONNECTIONS[connections], scene, *at) for at in moments}
    finally:
        support.finish(reference)
    here = {at: play(loop, CONNECTIONS[connections], scene, *at) for at in moments}
    differ = {at: (there[at], here[at]) for at in moments if there[at] != here[at]}
    assert not differ, f"{{(idle, crowd): (order on asyncio, here)}}: {differ}"
