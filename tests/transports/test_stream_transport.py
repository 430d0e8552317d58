# SPDX-License-Identifier: GPL-2.0-only
"""The reading half of a stream transport.

The calls of a protocol's methods, their order and their number: both kinds of protocol, a protocol
replaced in mid-stream, reading paused at every critical moment. Writing is in
test_stream_writing.py, the end in test_stream_closing.py, volume in test_stream_load.py.
"""

import asyncio
import contextvars
import gc
import socket

import pytest
import support
from peers import (
    BufferedRecorder,
    Recorder,
    assert_idle,
    either_protocol,
    raw_connection,
    read_exactly,
    skip_if_sockets_keep_reading,
)

# --- delivery ------------------------------------------------------------------------------------


@either_protocol
async def test_callbacks_come_in_order(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        assert protocol.events == ["made"]
        assert protocol.transport is transport
        peer.send(b"hello")
        assert await protocol.got(5) == b"hello"
        peer.close()
        assert await protocol.lost is None
    assert protocol.events == ["made", "data", "eof", "lost"]


@either_protocol
async def test_data_sent_before_the_transport_exists_is_delivered(loop, ours, peer, protocol):
    peer.send(b"early")
    peer.close()
    await loop.create_connection(lambda: protocol, sock=ours)
    assert await protocol.lost is None
    assert protocol.received == b"early"
    assert protocol.events == ["made", "data", "eof", "lost"]


@either_protocol
async def test_one_byte_at_a_time(loop, protocol):
    message = support.pattern(300)
    async with raw_connection(loop, protocol) as (_, peer):
        for index in range(len(message)):
            peer.send(message[index : index + 1])
            await support.turns(1)
        assert await protocol.got(len(message)) == message


async def test_private_state_that_programs_look_at(loop, protocol):
    def state():
        return transport._paused, transport._closing, bool(transport._conn_lost)

    async with raw_connection(loop, protocol) as (transport, _):
        assert state() == (False, False, False)
        transport.pause_reading()
        assert state() == (True, False, False)
        assert transport._protocol is protocol
        assert transport._loop is loop
        assert transport._sock_fd == transport._sock.fileno()
        assert not transport._protocol_paused
        transport.abort()
        assert state() == (True, True, True)


async def test_a_method_is_replaced_on_one_transport(loop):
    def write():
        transport.write(b"x")

    written = []
    async with raw_connection(loop, Recorder(loop)) as (transport, peer):
        for _ in range(100):  # CPython specialises the call
            write()
        transport.write = written.append
        write()
        assert written == [b"x"]
        del transport.write
        write()
        assert await read_exactly(loop, peer, 101) == b"x" * 101


@pytest.mark.mgloop_only
async def test_a_transport_has_no_dict_until_an_attribute_is_set(loop):
    async with raw_connection(loop, Recorder(loop)) as (transport, _):
        assert {} not in gc.get_referents(transport)
        transport.attribute = 1
        assert {"attribute": 1} in gc.get_referents(transport)
        assert vars(transport) == {"attribute": 1}


@pytest.mark.parametrize("size", [1, 2, 1000, 65536])
async def test_a_small_buffer_gets_everything(loop, size):
    protocol = BufferedRecorder(loop, size=size)
    message = support.pattern(min(200_000, 3000 * size))
    async with raw_connection(loop, protocol) as (_, peer):
        await loop.sock_sendall(peer, message)
        assert await protocol.got(len(message)) == message
    assert all(hint == -1 for hint in protocol.hints)


async def test_get_buffer_may_lend_a_memoryview(loop):
    class Slices(BufferedRecorder):
        def get_buffer(self, sizehint):
            return memoryview(self.buffer)[:3]

    protocol = Slices(loop)
    async with raw_connection(loop, protocol) as (_, peer):
        peer.send(b"0123456789")
        assert await protocol.got(10) == b"0123456789"


async def test_received_bytes_are_never_overwritten(loop):
    """Later reads may reuse buffers, but not those passed to data_received."""
    kept = []

    class Keeper(Recorder):
        def data_received(self, data):
            kept.append(data)
            super().data_received(data)

    protocol = Keeper(loop)
    message = support.pattern(2_000_000)
    async with raw_connection(loop, protocol) as (_, peer):
        sizes = [1, 100, 5000, 40_000, 300_000]
        start = 0
        while start < len(message):
            size = sizes[start % len(sizes)]
            await loop.sock_sendall(peer, message[start : start + size])
            start += size
        await protocol.got(len(message))
    assert b"".join(kept) == message


async def test_callbacks_run_in_the_context_of_the_connection(loop):
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    class Witness(Recorder):
        def connection_made(self, transport):
            seen.append(("made", variable.get()))
            super().connection_made(transport)

        def data_received(self, data):
            seen.append(("data", variable.get()))
            super().data_received(data)

        def eof_received(self):
            seen.append(("eof", variable.get()))
            return super().eof_received()

        def connection_lost(self, exc):
            seen.append(("lost", variable.get()))
            super().connection_lost(exc)

    variable.set("client")
    protocol = Witness(loop)
    async with raw_connection(loop, protocol) as (_, peer):
        variable.set("changed")
        peer.send(b"x")
        await protocol.got(1)
        peer.close()
        await protocol.lost
    assert seen == [(event, "client") for event in ("made", "data", "eof", "lost")]


async def test_a_context_variable_set_in_a_callback_does_not_leak_into_the_caller(loop):
    variable = contextvars.ContextVar("variable", default="unset")

    class Setter(Recorder):
        def data_received(self, data):
            variable.set("set by data_received")
            super().data_received(data)

    protocol = Setter(loop)
    async with raw_connection(loop, protocol) as (_, peer):
        peer.send(b"x")
        await protocol.got(1)
        assert variable.get() == "unset"


# --- where a read stops early --------------------------------------------------------------------


@either_protocol
@pytest.mark.parametrize("inline", [0, 1], ids=["aside", "inline"])
async def test_data_after_urgent_data_is_received(loop, inline, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, inline)
        for _ in range(3):
            start = len(protocol.received)
            peer.send(b"ab")
            peer.send(b"U", socket.MSG_OOB)
            peer.send(b"cd")
            expected = b"abUcd" if inline else b"abcd"
            received = await asyncio.wait_for(protocol.got(start + len(expected)), support.PATIENCE)
            assert received[start:] == expected


async def test_an_urgent_byte_is_left_to_who_asks_for_it(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        with transport.get_extra_info("socket").dup() as sock:
            peer.send(b"ab")
            peer.send(b"U", socket.MSG_OOB)
            assert await protocol.got(2) == b"ab"
            await support.turns()
            assert sock.recv(1, socket.MSG_OOB) == b"U"
        peer.send(b"cd")
        assert await protocol.got(4) == b"abcd"


@either_protocol
async def test_data_after_descriptors_is_received(loop, left, right, protocol):
    transport, _ = await loop.create_unix_connection(lambda: protocol, sock=left)
    socket.send_fds(right, [b"with one"], [right.fileno()])
    socket.send_fds(right, [b"another"], [right.fileno()])
    right.send(b"without")
    received = await asyncio.wait_for(protocol.got(22), support.PATIENCE)
    assert received == b"with oneanotherwithout"
    transport.abort()
    await protocol.lost


# --- set_protocol --------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [Recorder, BufferedRecorder])
@pytest.mark.parametrize("second", [Recorder, BufferedRecorder])
async def test_set_protocol_in_mid_stream(loop, first, second):
    old, new = first(loop), second(loop)
    async with raw_connection(loop, old) as (transport, peer):
        peer.send(b"old")
        await old.got(3)
        assert transport.get_protocol() is old
        transport.set_protocol(new)
        new.connection_made(transport)
        assert transport.get_protocol() is new
        peer.send(b"new")
        assert await new.got(3) == b"new"
        peer.close()
        assert await new.lost is None
    assert old.events == ["made", "data"]
    assert old.received == b"old"
    assert new.events == ["made", "data", "eof", "lost"]


@pytest.mark.parametrize("first", [Recorder, BufferedRecorder])
@pytest.mark.parametrize("second", [Recorder, BufferedRecorder])
async def test_set_protocol_while_data_is_being_received(loop, first, second):
    """The data that follows in the socket, already readable, belongs to the new protocol."""
    message = support.pattern(600_000)
    new = second(loop)

    class Switching(first):
        def _took(self, data):
            super()._took(data)
            self.transport.set_protocol(new)
            new.connection_made(self.transport)

    old = Switching(loop)
    async with raw_connection(loop, old) as (_, peer):
        sending = asyncio.ensure_future(loop.sock_sendall(peer, message))
        await old.got(1)
        await new.got(len(message) - len(old.received))
        await sending
    assert bytes(old.received + new.received) == message
    assert old.events == ["made", "data"]


# --- pause_reading and resume_reading ------------------------------------------------------------


@either_protocol
async def test_pause_in_connection_made(loop, loop_kind, ours, peer, recorder):
    skip_if_sockets_keep_reading(loop_kind)

    class Shy(recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            assert transport.is_reading()
            transport.pause_reading()
            assert not transport.is_reading()

    peer.send(b"waiting")
    protocol = Shy(loop)
    transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
    await asyncio.sleep(0.05)
    assert protocol.received == b""
    transport.resume_reading()
    assert transport.is_reading()
    assert await protocol.got(7) == b"waiting"
    transport.abort()
    await protocol.lost


@either_protocol
async def test_pause_in_data_received_holds_the_rest_back(loop, recorder):
    """Edge-triggered polling reports readable data once: resuming must not depend on new data."""
    message = support.pattern(400_000)
    calls = []

    class Sipping(recorder):
        def _took(self, data):
            super()._took(data)
            assert self.transport.is_reading()
            self.transport.pause_reading()
            calls.append(len(data))

    protocol = Sipping(loop)
    async with raw_connection(loop, protocol) as (transport, peer):
        sent = 0
        while sent < len(message):
            try:
                sent += peer.send(message[sent:])
            except BlockingIOError:
                transport.resume_reading()
                await asyncio.sleep(0)
        await support.turns(5)
        while len(protocol.received) < len(message):
            before = len(calls)
            await support.turns(3)
            assert len(calls) == before, "data_received while paused"
            transport.resume_reading()
            await support.wait_until(lambda count=before: len(calls) > count)
    assert protocol.received == message


@either_protocol
async def test_pause_and_resume_inside_one_callback(loop, recorder):
    class Wavering(recorder):
        def _took(self, data):
            super()._took(data)
            for _ in range(3):
                self.transport.pause_reading()
                self.transport.resume_reading()

    protocol = Wavering(loop)
    message = support.pattern(300_000)
    async with raw_connection(loop, protocol) as (_, peer):
        await loop.sock_sendall(peer, message)
        assert await protocol.got(len(message)) == message


async def test_pause_and_resume_are_idempotent(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.resume_reading()
        assert transport.is_reading()
        transport.pause_reading()
        transport.pause_reading()
        assert not transport.is_reading()
        peer.send(b"abc")
        await support.turns(5)
        transport.resume_reading()
        transport.resume_reading()
        assert await protocol.got(3) == b"abc"


@either_protocol
async def test_end_of_stream_waits_while_paused(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.pause_reading()
        peer.send(b"last words")
        peer.close()
        await asyncio.sleep(0.05)
        assert protocol.events == ["made"]
        transport.resume_reading()
        assert await protocol.lost is None
    assert protocol.received == b"last words"
    assert protocol.events == ["made", "data", "eof", "lost"]


async def test_a_paused_transport_does_not_keep_the_loop_busy(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.pause_reading()
        peer.send(b"x" * 10_000)
        peer.close()
        await assert_idle()
        transport.resume_reading()
        await protocol.lost


async def test_pause_and_resume_on_a_closing_transport_do_nothing(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        peer.send(b"unread")
        transport.close()
        assert not transport.is_reading()
        transport.pause_reading()
        transport.resume_reading()
        assert not transport.is_reading()
        assert await protocol.lost is None
    assert protocol.events == ["made", "lost"]


async def test_pause_stops_a_stream_in_full_flow(loop, protocol):
    """A pause from outside the protocol's callbacks takes effect immediately."""
    async with raw_connection(loop, protocol) as (transport, peer):
        sending = asyncio.ensure_future(loop.sock_sendall(peer, bytes(8_000_000)))
        for _ in range(20):
            transport.pause_reading()
            before = len(protocol.received)
            await support.turns(4)
            assert len(protocol.received) == before
            transport.resume_reading()
            await support.turns(2)
        await protocol.got(8_000_000)
        await sending
