# SPDX-License-Identifier: GPL-2.0-only
"""A descriptor has one owner, and cannot be taken from a transport that is still working.

asyncio lets programs watch the descriptor of a transport that is closing: the transport still sends
its queued data, notifies its protocol and closes the descriptor. asyncio also refuses a second
transport for a descriptor, from the moment at which the first is made.
"""

import asyncio
import contextlib
import inspect
import os
import socket

import pytest
import support
from peers import (
    Recorder,
    open_server,
    port_of,
    skip_on_asyncio,
    skip_where_asyncio_forgets_a_transport,
)
from support import Calls, turns

#: asyncio refuses a second transport over one socket since 3.12.
REFUSES_A_SECOND = "_ensure_fd_no_transport" in inspect.getsource(
    asyncio.selector_events.BaseSelectorEventLoop._make_socket_transport
)

#: Seconds: the tests take only milliseconds, and a reader that is called repeatedly must not run
#: for long.
SOON = 5.0


def skip_where_asyncio_takes_a_second(loop_kind):
    if not REFUSES_A_SECOND:
        skip_on_asyncio(loop_kind, "lets two transports share a descriptor")
    skip_where_asyncio_forgets_a_transport(loop_kind)


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, loop):
        self.lost = loop.create_future()

    def connection_lost(self, exc):
        self.lost.set_result(exc)


# --- the descriptor of a transport that is closing -----------------------------------------------


class Closing:
    """A transport and the socket at its other end, before it is closed."""

    def __init__(self, loop, transport, protocol, sock, peer):
        self.loop = loop
        self.transport = transport
        self.protocol = protocol
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer

    def queue_data(self):
        """Write more than the kernel accepts; return the number of bytes that the peer must get."""
        if isinstance(self.protocol, Datagrams):
            count = 0
            while self.transport.get_write_buffer_size() < 1000:
                self.transport.sendto(b"x" * 100)
                count += 1
            return 100 * count
        self.transport.write(bytes(support.BIG))
        assert self.transport.get_write_buffer_size()
        return support.BIG

    async def drain(self, count):
        """Let the peer read `count` bytes, which must be all."""
        while count > 0:
            data = await asyncio.wait_for(self.loop.sock_recv(self.peer, 2**18), SOON)
            assert data, f"the stream ended {count} bytes too early"
            count -= len(data)
        assert count == 0

    async def ended(self):
        """Check that connection_lost() is called once, and that the descriptor is closed."""
        assert await asyncio.wait_for(self.protocol.lost, SOON) is None
        await turns(2)
        assert self.sock.fileno() == -1
        if isinstance(self.protocol, Recorder):
            self.peer.setblocking(True)
            self.peer.settimeout(SOON)
            assert self.peer.recv(100) == b""

    def forget(self):
        """Remove the reader and the writer, as a program that has added them must."""
        self.loop.remove_reader(self.fd)
        self.loop.remove_writer(self.fd)


@pytest.fixture(params=["TCP", "UNIX", "UDP", "UNIX datagrams"])
def closing(request, loop, run, tmp_path):
    with contextlib.ExitStack() as stack:
        if request.param == "TCP":
            ours, peer = stack.enter_context(support.nonblocking_tcp_pair())
        elif request.param == "UNIX":
            ours, peer = stack.enter_context(support.nonblocking_socketpair())
        else:
            family = socket.AF_INET if request.param == "UDP" else socket.AF_UNIX
            ours = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            peer = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            for name, sock in (("ours", ours), ("peer", peer)):
                sock.setblocking(False)
                sock.bind(str(tmp_path / name) if family == socket.AF_UNIX else ("127.0.0.1", 0))
            ours.connect(peer.getsockname())
            peer.connect(ours.getsockname())
        if ours.type == socket.SOCK_STREAM:
            protocol = Recorder(loop)
            transport, _ = run(loop.create_connection(lambda: protocol, sock=ours))
        else:
            protocol = Datagrams(loop)
            transport, _ = run(loop.create_datagram_endpoint(lambda: protocol, sock=ours))
        yield Closing(loop, transport, protocol, ours, peer)
        if not protocol.lost.done():
            transport.abort()
            support.turn(loop, 3)


queue_matters = pytest.mark.parametrize(
    "closing", ["TCP", "UNIX", "UNIX datagrams"], indirect=True
)  # UDP on the loopback interface can always be written
either_side = pytest.mark.parametrize("side", ["reader", "writer"])
either_end = pytest.mark.parametrize("end", ["close", "abort"])


@either_side
@either_end
async def test_watched_after_its_end_has_begun(loop, closing, side, end):
    """No data is queued: connection_lost() is due in the next iteration, and is called."""
    getattr(closing.transport, end)()
    getattr(loop, f"add_{side}")(closing.fd, Calls())
    await closing.ended()
    closing.forget()


@either_side
async def test_watched_in_connection_lost(loop, closing, side):
    """The descriptor is still open then, and is closed nevertheless."""
    lost = closing.protocol.connection_lost

    def connection_lost(exc):
        lost(exc)
        getattr(loop, f"add_{side}")(closing.fd, Calls())

    closing.protocol.connection_lost = connection_lost
    closing.transport.close()
    await closing.ended()
    closing.forget()


@queue_matters
async def test_a_reader_while_queued_data_are_sent(loop, closing):
    """It is called as long as the descriptor exists, and does not disturb the transport."""
    count = closing.queue_data()
    closing.transport.close()
    received = []
    loop.add_reader(closing.fd, lambda: received.append(os.read(closing.fd, 100)))
    for number in range(3):
        closing.peer.send(b"to the reader %d" % number)
        await support.wait_until(lambda number=number: len(received) > number)
    assert received == [b"to the reader 0", b"to the reader 1", b"to the reader 2"]
    assert not closing.protocol.lost.done()
    closing.forget_reader = loop.remove_reader(closing.fd)
    assert closing.forget_reader is True
    assert loop.remove_reader(closing.fd) is False
    loop.add_reader(closing.fd, lambda: received.append(os.read(closing.fd, 100)))
    await closing.drain(count)
    await closing.ended()
    closing.forget()
    assert received[3:] == []


@queue_matters
async def test_a_writer_while_queued_data_are_sent(loop, loop_kind, closing):
    """It is called when the socket is writable; the transport continues to send."""
    skip_on_asyncio(loop_kind, "a writer takes the place of the transport's own")
    count = closing.queue_data()
    closing.transport.close()
    calls = Calls()
    loop.add_writer(closing.fd, calls)
    await closing.drain(count)
    await closing.ended()
    closing.forget()


@queue_matters
async def test_removing_what_was_not_added_while_queued_data_are_sent(loop, loop_kind, closing):
    """remove_reader() returns False.  (asyncio's remove_writer() removes the transport's own.)"""
    count = closing.queue_data()
    closing.transport.close()
    assert loop.remove_reader(closing.fd) is False
    if loop_kind == "mgloop":
        assert loop.remove_writer(closing.fd) is False
    await closing.drain(count)
    await closing.ended()


@queue_matters
async def test_sock_recv_while_queued_data_are_sent(loop, closing):
    count = closing.queue_data()
    closing.transport.close()
    for number in range(3):
        receiving = loop.create_task(loop.sock_recv(closing.sock, 100))
        await turns(3)
        closing.peer.send(b"message %d" % number)
        got = await asyncio.wait_for(receiving, SOON)
        assert got == b"message %d" % number
    await closing.drain(count)
    await closing.ended()


@queue_matters
async def test_sock_recv_that_waits_as_the_descriptor_is_closed(loop, closing):
    """The call waits forever, or fails; the transport ends."""
    count = closing.queue_data()
    closing.transport.close()
    receiving = loop.create_task(loop.sock_recv(closing.sock, 100))
    await turns(3)
    await closing.drain(count)
    await closing.ended()
    receiving.cancel()
    with pytest.raises((asyncio.CancelledError, OSError)):
        await receiving


@queue_matters
async def test_aborted_while_a_reader_is_beside_queued_data(loop, closing):
    closing.queue_data()
    closing.transport.close()
    loop.add_reader(closing.fd, Calls())
    await turns(3)
    closing.transport.abort()
    assert await asyncio.wait_for(closing.protocol.lost, SOON) is None
    await turns(2)
    assert closing.sock.fileno() == -1
    closing.forget()


async def test_the_number_is_used_again(loop):
    """Repeatedly: a reader on the closing transport, then another transport on the same number."""
    numbers = set()
    for _ in range(50):
        with support.nonblocking_socketpair() as (ours, peer):
            protocol = Recorder(loop)
            transport, _ = await loop.create_connection(lambda: protocol, sock=ours)  # noqa: B023
            fd = ours.fileno()
            numbers.add(fd)
            peer.send(b"data")
            assert await asyncio.wait_for(protocol.got(4), SOON) == b"data"
            lost = protocol.connection_lost

            def connection_lost(exc, lost=lost, fd=fd):
                lost(exc)
                loop.remove_reader(fd)

            protocol.connection_lost = connection_lost
            transport.close()
            loop.add_reader(fd, Calls())
            await asyncio.wait_for(protocol.lost, SOON)
            assert ours.fileno() == -1
    assert len(numbers) < 5


# --- two transports over one socket --------------------------------------------------------------


def begin(coroutine):
    """Run only the first step of `coroutine`."""
    try:
        coroutine.send(None)
    finally:
        coroutine.close()


@pytest.fixture(params=["TCP", "UDP"])
def twice(request, loop):
    """Return a connected socket, its peer, and a function that makes a transport's coroutine."""
    with contextlib.ExitStack() as stack:
        if request.param == "TCP":
            ours, peer = stack.enter_context(support.nonblocking_tcp_pair())

            def connect(protocol, sock=None):
                return loop.create_connection(lambda: protocol, sock=sock or ours)

            protocol = Recorder
        else:
            ours, peer = stack.enter_context(
                support.nonblocking_socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            )

            def connect(protocol, sock=None):
                return loop.create_datagram_endpoint(lambda: protocol, sock=sock or ours)

            protocol = Datagrams
        yield ours, peer, connect, protocol


def refused():
    return pytest.raises(RuntimeError, match="is used by transport")


async def test_a_second_transport(loop, loop_kind, twice):
    skip_where_asyncio_takes_a_second(loop_kind)
    ours, _, connect, protocol = twice
    first = protocol(loop)
    transport, _ = await connect(first)
    for _ in range(2):
        with refused():
            await connect(protocol(loop))
    assert not transport.is_closing()
    transport.close()
    await first.lost
    await turns(2)
    assert ours.fileno() == -1


async def test_a_second_transport_before_the_first_is_started(loop, loop_kind, twice):
    """The first was made, but its connection_made() has not been called yet."""
    skip_where_asyncio_takes_a_second(loop_kind)
    _, _, connect, protocol = twice
    first, second = protocol(loop), protocol(loop)
    connecting = connect(first)
    waiter = connecting.send(None)
    with refused():
        begin(connect(second))
    connecting.close()
    assert not waiter.done()
    await turns(3)
    # The coroutine was closed, and with it the transport.
    await asyncio.wait_for(first.lost, SOON)


async def test_a_second_transport_in_connection_made(loop, loop_kind, twice):
    skip_where_asyncio_takes_a_second(loop_kind)
    _, _, connect, protocol = twice
    first = protocol(loop)
    outcomes = []
    made = first.connection_made

    def connection_made(transport):
        made(transport)
        with refused():
            begin(connect(protocol(loop)))
        outcomes.append("refused")

    first.connection_made = connection_made
    transport, _ = await connect(first)
    assert outcomes == ["refused"]
    transport.close()
    await first.lost


@pytest.mark.parametrize("family", ["TCP", "UNIX"])
@pytest.mark.parametrize("when", ["in connection_made", "later"])
async def test_a_second_transport_for_an_accepted_connection(
    loop, loop_kind, tmp_path, family, when
):
    skip_where_asyncio_takes_a_second(loop_kind)
    outcomes = []
    made = loop.create_future()

    def second(transport):
        # The same number; the socket object itself is the first transport's.
        sock = socket.socket(fileno=transport.get_extra_info("socket").fileno())
        try:
            with refused():
                begin(loop.create_connection(lambda: Recorder(loop), sock=sock))
            outcomes.append("refused")
        finally:
            sock.detach()

    class Accepted(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            if when == "in connection_made":
                second(transport)
            made.set_result(self)

    def factory():
        return Accepted(loop)

    if family == "TCP":
        server = await loop.create_server(factory, "127.0.0.1", 0)
    else:
        server = await loop.create_unix_server(factory, str(tmp_path / "socket"))
    with socket.socket(server.sockets[0].family) as peer:
        peer.connect(server.sockets[0].getsockname())
        protocol = await asyncio.wait_for(made, SOON)
        if when == "later":
            second(protocol.transport)
        assert outcomes == ["refused"]
        peer.send(b"data")
        assert await asyncio.wait_for(protocol.got(4), SOON) == b"data"
    await asyncio.wait_for(protocol.lost, SOON)
    await support.close(server)


@pytest.mark.parametrize("started", [False, True], ids=["not started", "started"])
@pytest.mark.parametrize("order", ["stream, then datagram", "datagram, then stream"])
async def test_a_stream_and_a_datagram_transport(loop, loop_kind, order, started):
    """The public methods check the type of the socket first; their hooks do not."""
    skip_where_asyncio_takes_a_second(loop_kind)
    makers = [
        lambda sock, protocol: loop._make_socket_transport(sock, protocol),
        lambda sock, protocol: loop._make_datagram_transport(sock, protocol),
    ]
    protocols = [Recorder(loop), Datagrams(loop)]
    if order.startswith("datagram"):
        makers.reverse()
        protocols.reverse()
    kind = socket.SOCK_STREAM if order.startswith("stream") else socket.SOCK_DGRAM
    with support.nonblocking_socketpair(socket.AF_UNIX, kind) as (ours, _):
        transport = makers[0](ours, protocols[0])
        if started:
            await turns(3)
        with refused():
            makers[1](ours, protocols[1])
        with refused():
            loop.add_reader(ours, Calls())
        await turns(3)
        transport.close()
        await asyncio.wait_for(protocols[0].lost, SOON)
        assert ours.fileno() == -1


async def test_a_reader_before_the_transport_is_started(loop, loop_kind, twice):
    """add_reader(), add_writer() and their removals refuse from the same moment."""
    ours, _, connect, protocol = twice
    first = protocol(loop)
    outcomes = []
    made = first.connection_made

    def attempt():
        for method in (loop.add_reader, loop.add_writer):
            with refused():
                method(ours, Calls())
        for method in (loop.remove_reader, loop.remove_writer):
            with refused():
                method(ours)
        outcomes.append("refused")

    def connection_made(transport):
        made(transport)
        attempt()

    first.connection_made = connection_made
    connecting = connect(first)
    connecting.send(None)
    attempt()
    await turns(3)
    assert outcomes == ["refused"] * 2
    connecting.close()
    await asyncio.wait_for(first.lost, SOON)


async def test_a_second_transport_while_the_first_is_closing(loop, loop_kind, ours, peer):
    """Refused or not: the first sends its queued data, calls connection_lost(), and closes."""
    first, second = Recorder(loop), Recorder(loop)
    transport, _ = await loop.create_connection(lambda: first, sock=ours)
    transport.write(bytes(support.BIG))
    transport.close()
    other = None
    with contextlib.suppress(RuntimeError):
        other, _ = await loop.create_connection(lambda: second, sock=ours)
    closing = Closing(loop, transport, first, ours, peer)
    await closing.drain(support.BIG)
    assert await asyncio.wait_for(first.lost, SOON) is None
    assert ours.fileno() == -1
    if other is not None:
        other.abort()
        await asyncio.wait_for(second.lost, SOON)


async def test_a_pipe_transport_over_a_transports_socket(loop, reported, ours, peer):
    """With asyncio it takes the data; mgloop refuses. Both protocols get connection_lost()."""
    first, second = Recorder(loop), Recorder(loop)
    transport, _ = await loop.create_connection(lambda: first, sock=ours)
    pipe = None
    with contextlib.suppress(RuntimeError):
        pipe, _ = await loop.connect_read_pipe(lambda: second, ours)
        peer.send(b"data")
        await support.wait_until(lambda: first.received + second.received == b"data")
    for context in reported.pop_all():
        assert type(context["exception"]) is RuntimeError
        assert "is used by transport" in str(context["exception"])
    transport.close()
    await asyncio.wait_for(first.lost, SOON)
    if pipe is not None:
        pipe.close()
        await asyncio.wait_for(second.lost, SOON)
    assert ours.fileno() == -1


async def test_a_second_server_over_a_listening_socket(loop, loop_kind):
    """asyncio's second server replaces the first; whatever happens, both can be closed."""
    first = await loop.create_server(lambda: Recorder(loop), "127.0.0.1", 0)
    sock = socket.socket(fileno=os.dup(first.sockets[0].fileno()))
    async with open_server(loop, lambda: Recorder(loop)) as second:
        assert port_of(first) != port_of(second)
    third = await loop.create_server(lambda: Recorder(loop), sock=sock)
    for server in (first, third):
        with socket.create_connection(("127.0.0.1", port_of(server))):
            await turns(3)
        await support.close(server)
    assert sock.fileno() == -1
