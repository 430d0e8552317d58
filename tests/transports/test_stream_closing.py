# SPDX-License-Identifier: GPL-2.0-only
"""The ways a stream transport ends: end of stream in both directions, close, abort, errors.

connection_lost is called once, later, and with the right exception; data written before a close
arrives; exceptions that the protocol's own methods raise are reported. Reading is in
test_stream_transport.py, writing in test_stream_writing.py.
"""

import asyncio
import errno
import os
import socket

import pytest
import support
from peers import (
    BufferedRecorder,
    Recorder,
    assert_idle,
    connected_pair,
    either_protocol,
    raw_connection,
    read_all,
    read_exactly,
    reset,
)

# --- end of stream -------------------------------------------------------------------------------


@either_protocol
async def test_eof_received_true_keeps_the_other_direction_open(loop, recorder):
    protocol = recorder(loop, keep_open=True)
    async with raw_connection(loop, protocol) as (transport, peer):
        peer.send(b"request")
        peer.shutdown(socket.SHUT_WR)
        await protocol.eof
        assert protocol.received == b"request"
        assert not transport.is_closing()
        for part in (b"a", b"b" * 100_000, b"c"):
            transport.write(part)
            await support.turns(3)
        answer = await read_exactly(loop, peer, 100_002)
        assert answer == b"a" + b"b" * 100_000 + b"c"
        transport.close()
        assert await read_all(loop, peer) == b""
        assert await protocol.lost is None
    assert protocol.events == ["made", "data", "eof", "lost"]


async def test_a_half_closed_connection_does_not_keep_the_loop_busy(loop):
    protocol = Recorder(loop, keep_open=True)
    async with raw_connection(loop, protocol) as (_, peer):
        peer.shutdown(socket.SHUT_WR)
        await protocol.eof
        await assert_idle()


@either_protocol
async def test_eof_received_false_closes_after_flushing(loop, recorder):
    answer = support.pattern(3_000_000)

    class Answering(recorder):
        def eof_received(self):
            self.transport.write(answer)
            return super().eof_received()

    protocol = Answering(loop)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        peer.shutdown(socket.SHUT_WR)
        await protocol.eof
        assert transport.is_closing()
        assert not protocol.lost.done()
        assert await read_all(loop, peer) == answer
        assert await protocol.lost is None


async def test_write_eof_half_closes_and_reading_goes_on(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        assert transport.can_write_eof()
        transport.write(b"question")
        transport.write_eof()
        assert not transport.is_closing()
        assert await read_all(loop, peer) == b"question"
        await loop.sock_sendall(peer, b"answer")
        assert await protocol.got(6) == b"answer"
        peer.close()
        assert await protocol.lost is None
    assert protocol.events == ["made", "data", "eof", "lost"]


async def test_write_eof_waits_for_the_buffer(loop, protocol):
    message = support.pattern(2_000_000)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(message)
        assert transport.get_write_buffer_size() > 0
        transport.write_eof()
        transport.write_eof()
        assert await read_all(loop, peer) == message
        assert not transport.is_closing()


async def test_write_eof_on_a_closing_transport_does_nothing(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, _):
        transport.close()
        transport.write_eof()
        assert await protocol.lost is None


async def test_both_ends_half_close(loop):
    client, server = Recorder(loop, keep_open=True), Recorder(loop, keep_open=True)
    async with connected_pair(loop, client, server) as (ours, theirs):
        ours.write(b"ping")
        ours.write_eof()
        await server.eof
        assert server.received == b"ping"
        theirs.write(b"pong")
        theirs.write_eof()
        await client.eof
        assert client.received == b"pong"
        assert not client.lost.done()
        assert not server.lost.done()
        ours.close()
        theirs.close()
        assert await client.lost is None
        assert await server.lost is None


# --- close and abort -----------------------------------------------------------------------------


@either_protocol
async def test_connection_lost_is_called_later_and_once(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.close()
        transport.close()
        transport.abort()
        assert transport.is_closing()
        assert protocol.events == ["made"], "connection_lost must not be called by close()"
        assert await protocol.lost is None
        transport.close()
        transport.abort()
        await support.turns(5)
        assert await read_all(loop, peer) == b""
    assert protocol.events == ["made", "lost"]


@either_protocol
async def test_close_flushes_what_was_written(loop, protocol):
    message = support.pattern(2_000_000)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(message)
        transport.close()
        await support.turns(10)
        assert not protocol.lost.done()
        assert await read_all(loop, peer) == message
        assert await protocol.lost is None


@either_protocol
async def test_nothing_is_delivered_after_close(loop, protocol):
    """Even while written data is still being sent."""
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        peer.send(b"too early to see")
        transport.write(bytes(2_000_000))
        transport.close()
        peer.send(b"too late")
        await support.turns(10)
        assert protocol.events[-1] != "lost"
        reset(peer)
        assert isinstance(await protocol.lost, ConnectionError)
    assert protocol.received == b""


async def test_abort_drops_what_was_written(loop, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(bytes(2_000_000))
        assert transport.get_write_buffer_size() > 0
        transport.abort()
        assert transport.is_closing()
        assert transport.get_write_buffer_size() == 0
        assert "lost" not in protocol.events
        assert await protocol.lost is None
        try:
            arrived = await read_all(loop, peer)
        except ConnectionResetError:
            arrived = b""
        assert len(arrived) < 2_000_000


async def test_abort_after_close_stops_the_flush(loop, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, _):
        transport.write(bytes(2_000_000))
        transport.close()
        await support.turns(5)
        assert not protocol.lost.done()
        transport.abort()
        assert await protocol.lost is None


@pytest.mark.parametrize("method", ["close", "abort"])
@either_protocol
async def test_closing_in_connection_made(loop, ours, peer, recorder, method):
    class Leaving(recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            getattr(transport, method)()

    peer.send(b"data")
    protocol = Leaving(loop)
    await loop.create_connection(lambda: protocol, sock=ours)
    assert await protocol.lost is None
    assert protocol.events == ["made", "lost"]
    await support.turns(3)
    assert ours.fileno() == -1


@pytest.mark.parametrize("method", ["close", "abort"])
@either_protocol
async def test_closing_in_data_received_ends_delivery(loop, recorder, method):
    calls = []

    class Leaving(recorder):
        def _took(self, data):
            super()._took(data)
            calls.append(len(data))
            getattr(self.transport, method)()

    protocol = Leaving(loop)
    async with raw_connection(loop, protocol) as (_, peer):
        peer.send(bytes(1_000_000))
        assert await protocol.lost is None
        await support.turns(5)
    assert len(calls) == 1
    assert protocol.events == ["made", "data", "lost"]


async def test_a_transport_may_be_asked_anything_after_its_end(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, _):
        transport.close()
        await protocol.lost
        await support.turns(3)
        transport.close()
        transport.abort()
        transport.pause_reading()
        transport.resume_reading()
        transport.write(b"nobody listens")
        transport.write_eof()
        assert transport.is_closing()
        assert not transport.is_reading()
        assert transport.get_write_buffer_size() == 0
        assert transport.get_extra_info("peername")[0] == "127.0.0.1"
        assert "closed" in repr(transport)


async def test_a_closed_transport_has_released_its_descriptor(loop, ours, peer, protocol):
    transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
    assert ours.fileno() >= 0
    transport.close()
    await protocol.lost
    await support.turns(2)
    assert ours.fileno() == -1
    assert await read_all(loop, peer) == b""


# --- errors of the connection --------------------------------------------------------------------


@either_protocol
async def test_a_reset_is_reported_as_such(loop, protocol):
    async with raw_connection(loop, protocol) as (_, peer):
        reset(peer)
        exc = await protocol.lost
        assert isinstance(exc, ConnectionResetError)
        assert exc.errno == errno.ECONNRESET
    assert protocol.events == ["made", "lost"]


@either_protocol
async def test_bytes_before_a_reset_are_delivered(loop, protocol):
    async with raw_connection(loop, protocol) as (_, peer):
        peer.send(b"last words")
        reset(peer)
        assert isinstance(await protocol.lost, ConnectionResetError)
    assert protocol.received == b"last words"
    assert protocol.events == ["made", "data", "lost"]


@either_protocol
async def test_a_reset_while_paused_is_reported_after_resuming(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.pause_reading()
        reset(peer)
        await support.turns(5)
        transport.resume_reading()
        assert isinstance(await protocol.lost, ConnectionResetError)
    assert protocol.events == ["made", "lost"]


async def test_a_reset_while_the_peer_owes_reading(loop, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(bytes(2_000_000))
        await support.turns(3)
        reset(peer)
        assert isinstance(await protocol.lost, ConnectionError)
        assert transport.is_closing()
        assert transport.get_write_buffer_size() == 0


async def test_writing_to_a_peer_that_has_gone(loop):
    """The first write after the peer's close provokes a RST, the second fails with EPIPE."""
    protocol = Recorder(loop, keep_open=True)
    async with raw_connection(loop, protocol) as (transport, peer):
        peer.close()
        await protocol.eof
        for _ in range(100):
            transport.write(b"x")
            await asyncio.sleep(0.001)
            if protocol.lost.done():
                break
        assert isinstance(await protocol.lost, (BrokenPipeError, ConnectionResetError))
    assert protocol.events == ["made", "eof", "lost"]


# asyncio fails half-way, and leaves the transport and the server unchanged.
@pytest.mark.mgloop_only
def test_the_end_of_a_connection_whose_descriptor_somebody_has_closed(loop, run, reported):
    """connection_lost() is called, and the server's count of connections decreases, although the
    address can no longer be queried."""
    protocol = support.RecordingProtocol(loop)
    server = run(loop.create_server(lambda: protocol, "0.0.0.0", 0))
    port = server.sockets[0].getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        transport = run(protocol.made)
        support.turn(loop, 3)
        # Do not request the socket, because that would query its address.
        os.close(transport._sock_fd)
        transport.abort()
        assert run(asyncio.wait_for(protocol.lost, support.PATIENCE)) is None
        support.turn(loop, 3)
        for context in reported.pop_all():
            assert context["exception"].errno == errno.EBADF
        server.close()
        run(asyncio.wait_for(server.wait_closed(), support.PATIENCE))
    support.turn(loop, 2)


# --- exceptions raised by the protocol -----------------------------------------------------------


class OopsError(Exception):
    pass


@pytest.mark.parametrize(
    ("recorder", "method"),
    [
        (Recorder, "data_received"),
        (BufferedRecorder, "get_buffer"),
        (BufferedRecorder, "buffer_updated"),
        (Recorder, "eof_received"),
        (BufferedRecorder, "eof_received"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_callback_that_raises_ends_the_connection(loop, reported, method, protocol):
    def fail(*args):
        raise OopsError(method)

    setattr(protocol, method, fail)
    async with raw_connection(loop, protocol) as (transport, peer):
        peer.send(b"x")
        peer.shutdown(socket.SHUT_WR)
        exc = await protocol.lost
        assert isinstance(exc, OopsError)
        context = reported.pop(OopsError)
        assert context["exception"] is exc
        assert context["transport"] is transport
        assert context["protocol"] is protocol
        assert context["message"] == f"Fatal error: protocol.{method}() call failed."


@pytest.mark.parametrize(
    ("lent", "expected"),
    [
        (bytearray(), RuntimeError),
        (None, TypeError),
        (b"read-only", (TypeError, BufferError)),
        (5, TypeError),
        ("text", TypeError),
    ],
    ids=["empty", "None", "read-only", "int", "str"],
)
async def test_get_buffer_must_lend_something_writable(loop, reported, lent, expected):
    protocol = BufferedRecorder(loop)
    protocol.get_buffer = lambda sizehint: lent
    async with raw_connection(loop, protocol) as (_, peer):
        peer.send(b"x")
        assert isinstance(await protocol.lost, expected)
        reported.pop(expected)


@pytest.mark.parametrize("base", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("method", ["data_received", "connection_made"])
def test_an_exit_raised_in_a_callback_leaves_run_forever(loop, ours, peer, method, base, protocol):
    original = getattr(protocol, method)

    def leave(*args):
        original(*args)
        raise base

    setattr(protocol, method, leave)
    peer.send(b"x")
    connecting = loop.create_task(loop.create_connection(lambda: protocol, sock=ours))
    with pytest.raises(base):
        loop.run_until_complete(protocol.lost)
    transport, _ = loop.run_until_complete(connecting)
    transport.abort()
    loop.run_until_complete(protocol.lost)


async def test_connection_made_that_raises_leaves_the_connection_open(loop, reported):
    class Failing(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            raise OopsError

    protocol = Failing(loop)
    async with raw_connection(loop, protocol) as (transport, peer):
        reported.pop(OopsError)
        assert not transport.is_closing()
        peer.send(b"still here")
        assert await protocol.got(10) == b"still here"


async def test_connection_lost_that_raises_still_releases_the_socket(loop, reported, tcp_pair):
    class Failing(Recorder):
        def connection_lost(self, exc):
            super().connection_lost(exc)
            raise OopsError

    ours, _ = tcp_pair
    protocol = Failing(loop)
    transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
    transport.close()
    await protocol.lost
    await support.turns(2)
    reported.pop(OopsError)
    assert ours.fileno() == -1


async def test_debug_mode_changes_nothing(loop):
    loop.set_debug(True)
    client, server = Recorder(loop), BufferedRecorder(loop)
    message = support.pattern(500_000)
    async with connected_pair(loop, client, server) as (ours, theirs):
        ours.write(message)
        assert await server.got(len(message)) == message
        theirs.pause_reading()
        theirs.resume_reading()
        theirs.write(message)
        assert await client.got(len(message)) == message
        ours.close()
        assert await client.lost is None
        assert await server.lost is None
