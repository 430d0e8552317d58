# SPDX-License-Identifier: GPL-2.0-only
"""The writing half of a stream transport.

Flow control, the types that write() and writelines() accept, the caller's ownership of a buffer
as soon as the call returns, and writing after the end.
"""

import array
import asyncio
import contextvars
import inspect
import logging
import sys

import pytest
import support
from peers import (
    Recorder,
    assert_idle,
    connected_pair,
    open_server,
    port_of,
    raw_connection,
    read_all,
    read_exactly,
    skip_on_asyncio,
)

#: Whether the standard library's write buffer is a queue of views, as since CPython 3.12.
GATHERS = hasattr(asyncio.selector_events._SelectorSocketTransport, "_write_sendmsg")
WRITELINES = inspect.getsource(asyncio.selector_events._SelectorSocketTransport.writelines)

# --- types of data -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memoryview"),
        memoryview(bytearray(b"xxslicexx"))[2:-2],
        memoryview(array.array("I", [1, 2, 3])),
    ],
    ids=["bytes", "bytearray", "memoryview", "slice", "items"],
)
async def test_write_takes_bytes_like_objects(loop, data, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        assert transport.write(data) is None
        transport.write_eof()
        assert await read_all(loop, peer) == bytes(data)


def skip_where_writelines_keeps_a_part(loop_kind):
    if sys.version_info >= (3, 15):
        skip_on_asyncio(loop_kind, "writelines() buffers the pieces before a wrong one for ever")


WRONG_DATA = ["text", None, 5, [b"list"], array.array("B", b"array"), object()]
WRONG_LINES = [[b"good", "bad"], [b"good", 3], 7]


@pytest.mark.parametrize(
    ("method", "data"),
    [*(("write", data) for data in WRONG_DATA), *(("writelines", data) for data in WRONG_LINES)],
)
async def test_wrong_types_are_refused_as_a_whole(loop, loop_kind, method, data, protocol):
    if method == "writelines":
        skip_where_writelines_keeps_a_part(loop_kind)
    async with raw_connection(loop, protocol) as (transport, peer):
        with pytest.raises(TypeError, match="data" if method == "write" else None):
            getattr(transport, method)(data)
        transport.write(b"unharmed")
        transport.close()
        assert await read_all(loop, peer) == b"unharmed"


async def test_write_refuses_a_released_memoryview(loop, loop_kind, protocol):
    skip_where_writelines_keeps_a_part(loop_kind)
    async with raw_connection(loop, protocol) as (transport, peer):
        view = memoryview(b"gone")
        view.release()
        with pytest.raises(ValueError, match="released"):
            transport.write(view)
        # TypeError where writelines() joins its pieces.
        with pytest.raises((ValueError, TypeError)):
            transport.writelines([b"not even this", view])
        transport.close()
        assert await read_all(loop, peer) == b""


async def test_a_large_memoryview_of_wide_items(loop, loop_kind, protocol):
    skip_on_asyncio(loop_kind, "counts the bytes it sent as items of the view")
    numbers = array.array("Q", range(500_000))
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(memoryview(numbers))
        transport.write_eof()
        assert await read_all(loop, peer) == numbers.tobytes()


@pytest.mark.parametrize("empty", [b"", bytearray(), memoryview(b"")])
async def test_empty_writes_do_nothing(loop, empty, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.write(empty)
        assert transport.get_write_buffer_size() == 0
        transport.write(b"x")
        transport.write(empty)
        transport.write_eof()
        assert await read_all(loop, peer) == b"x"


def pieces():
    return [b"one ", bytearray(b"two "), memoryview(b"three "), b"", b"four"]


@pytest.mark.parametrize(
    "lines",
    [
        lambda: pieces(),
        lambda: tuple(pieces()),
        lambda: iter(pieces()),
        lambda: (piece for piece in pieces()),
        lambda: dict.fromkeys(map(bytes, pieces())),
    ],
    ids=["list", "tuple", "iterator", "generator", "dict"],
)
async def test_writelines_takes_any_iterable(loop, lines, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        assert transport.writelines(lines()) is None
        transport.write_eof()
        assert await read_all(loop, peer) == b"one two three four"


@pytest.mark.parametrize(
    "lines",
    [[], (), iter([]), [b""], [b"", bytearray()]],
    ids=["list", "tuple", "iterator", "of-one-empty", "of-empties"],
)
async def test_writelines_of_nothing(loop, loop_kind, lines, protocol):
    if GATHERS and "if data" not in WRITELINES:
        skip_on_asyncio(loop_kind, "an empty write waits for ever, or is an AssertionError")
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.writelines(lines)
        assert transport.get_write_buffer_size() == 0
        transport.write(b"x")
        transport.write_eof()
        assert await read_all(loop, peer) == b"x"


async def test_writelines_of_more_pieces_than_one_system_call_takes(loop, protocol):
    lines = [number.to_bytes(4, "big") for number in range(5000)]
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.writelines(lines)
        transport.write(b"end")
        transport.write_eof()
        assert await read_all(loop, peer) == b"".join(lines) + b"end"


async def test_writelines_into_a_full_socket(loop, protocol):
    lines = [bytes([number % 256]) * 1000 for number in range(3000)]
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(b"first" * 100_000)
        transport.writelines(lines)
        assert transport.get_write_buffer_size() > 0
        transport.write(b"last")
        transport.write_eof()
        assert await read_all(loop, peer) == b"first" * 100_000 + b"".join(lines) + b"last"


async def test_writes_of_every_size_arrive_in_order(loop, protocol):
    message = support.pattern(1_500_000)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        reading = asyncio.ensure_future(read_all(loop, peer))
        start, turn = 0, 0
        sizes = [1, 10, 4096, 4097, 1000, 65536, 3, 200_000]
        while start < len(message):
            size = sizes[turn % len(sizes)]
            if turn % 5 == 4:
                half = start + size // 2
                transport.writelines([message[start:half], message[half : start + size]])
            else:
                transport.write(message[start : start + size])
            start, turn = start + size, turn + 1
            if turn % 7 == 0:
                await support.turns(1)
        transport.write_eof()
        assert await reading == message


# --- whose buffer it is --------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["write", "write_view", "writelines"])
async def test_a_mutable_buffer_may_change_after_the_call(loop, loop_kind, call, protocol):
    """Data that could not be sent immediately must not be read from the caller's buffer later."""
    if GATHERS:
        skip_on_asyncio(loop_kind, "keeps a view of the caller's buffer")
    original = support.pattern(3_000_000)
    buffer = bytearray(original)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        if call == "write":
            transport.write(buffer)
        elif call == "write_view":
            transport.write(memoryview(buffer))
        else:
            transport.writelines([buffer[:10], memoryview(buffer)[10:]])
        assert transport.get_write_buffer_size() > 0
        buffer[:] = bytes(len(buffer))
        # Raises BufferError if an export still exists.
        buffer.clear()
        transport.write_eof()
        assert await read_all(loop, peer) == original


@pytest.mark.parametrize("wrap", [bytearray, lambda data: memoryview(bytearray(data))])
@pytest.mark.parametrize("gather", [False, True])
async def test_small_writes_of_a_reused_buffer(loop, wrap, gather):
    """Many connections answer in one iteration from one scratch buffer, each with its own data."""
    scratch = wrap(bytes(64))
    count = 64

    class Answering(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            scratch[: len(data)] = data
            if gather:
                self.transport.writelines([b"<", scratch, b">"])
            else:
                self.transport.write(scratch)
            scratch[:] = b"#" * 64

    async with open_server(loop, Answering, backlog=count) as server:
        clients = [Recorder(loop) for _ in range(count)]
        for client in clients:
            await loop.create_connection(lambda client=client: client, "127.0.0.1", port_of(server))
        for round_number in range(5):
            for number, client in enumerate(clients):
                client.transport.write(b"%6d" % (number * 10 + round_number) + bytes(58))
            size = (66 if gather else 64) * (round_number + 1)
            for number, client in enumerate(clients):
                expected = b"%6d" % (number * 10 + round_number) + bytes(58)
                answer = (await client.got(size))[-66 if gather else -64 :]
                assert answer == (b"<" + expected + b">" if gather else expected)
        for client in clients:
            client.transport.close()
        await asyncio.gather(*(client.lost for client in clients))


# --- flow control --------------------------------------------------------------------------------


async def test_write_buffer_limits(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, _):
        assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        transport.set_write_buffer_limits(high=1000)
        assert transport.get_write_buffer_limits() == (250, 1000)
        transport.set_write_buffer_limits(low=1000)
        assert transport.get_write_buffer_limits() == (1000, 4000)
        transport.set_write_buffer_limits(high=10, low=10)
        assert transport.get_write_buffer_limits() == (10, 10)
        transport.set_write_buffer_limits(high=0)
        assert transport.get_write_buffer_limits() == (0, 0)
        for wrong in ({"high": 1, "low": 2}, {"high": -1}, {"low": -1}, {"high": 5, "low": -5}):
            with pytest.raises(ValueError, match="high"):
                transport.set_write_buffer_limits(**wrong)
        assert transport.get_write_buffer_limits() == (0, 0)
        transport.set_write_buffer_limits()
        assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)


async def test_pause_writing_and_resume_writing(loop, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        total = 0
        while not protocol.paused:
            transport.write(bytes(20_000))
            total += 20_000
            assert total < 50_000_000
            assert protocol.paused == (transport.get_write_buffer_size() > 64 * 1024)
        size = transport.get_write_buffer_size()
        assert 64 * 1024 < size <= total
        transport.write(bytes(20_000))
        total += 20_000
        assert transport.get_write_buffer_size() == size + 20_000

        received = 0
        while protocol.paused:
            received += len(await read_exactly(loop, peer, 1000))
            await support.turns(1)
        assert transport.get_write_buffer_size() <= 16 * 1024
        received += len(await read_exactly(loop, peer, total - received))
        assert received == total
        assert transport.get_write_buffer_size() == 0
    assert protocol.events == ["made", "pause", "resume", "lost"]


async def test_a_high_water_of_zero_pauses_at_the_first_buffered_byte(loop, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.set_write_buffer_limits(high=0)
        transport.write(b"x")
        await support.turns(3)
        assert await read_exactly(loop, peer, 1) == b"x"
        assert not protocol.paused
        transport.write(bytes(1_000_000))
        assert protocol.paused
        await read_exactly(loop, peer, 1_000_000)
        await support.wait_until(lambda: not protocol.paused)
        assert transport.get_write_buffer_size() == 0


async def test_writelines_pauses_too(loop, loop_kind, protocol):
    if GATHERS and "_maybe_pause_protocol" not in WRITELINES:
        skip_on_asyncio(loop_kind, "writelines() never pauses the protocol (CVE-2024-12254)")
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.writelines([bytes(100_000)] * 20)
        assert protocol.paused
        await read_exactly(loop, peer, 2_000_000)
        await support.wait_until(lambda: not protocol.paused)


async def test_resume_writing_may_write(loop):
    """A protocol fills the buffer again at each call of resume_writing()."""
    rounds = 5
    size = 1_000_000

    class Filling(Recorder):
        left = rounds

        def resume_writing(self):
            super().resume_writing()
            if self.left:
                self.left -= 1
                self.transport.write(support.pattern(size))

    protocol = Filling(loop)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(support.pattern(size))
        received = await read_exactly(loop, peer, size * (rounds + 1))
        assert received == support.pattern(size) * (rounds + 1)
        assert protocol.left == 0
        await support.wait_until(lambda: not protocol.paused)
    assert protocol.events == ["made"] + ["pause", "resume"] * (rounds + 1) + ["lost"]


async def test_pause_writing_may_close(loop):
    class Closing(Recorder):
        def pause_writing(self):
            super().pause_writing()
            self.transport.close()

    protocol = Closing(loop)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(support.pattern(1_000_000))
        assert transport.is_closing()
        assert await read_all(loop, peer) == support.pattern(1_000_000)
        assert await protocol.lost is None


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_resume_writing_may_end_the_connection(loop, loop_kind, end):
    skip_on_asyncio(loop_kind, "connection_lost() is called twice")

    class Ending(Recorder):
        def resume_writing(self):
            super().resume_writing()
            getattr(self.transport, end)()

    protocol = Ending(loop)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(bytes(1_000_000))
        received = await read_all(loop, peer)
        assert await protocol.lost is None
        assert len(received) == 1_000_000 if end == "close" else len(received) <= 1_000_000


@pytest.mark.parametrize("method", ["pause_writing", "resume_writing"])
async def test_flow_control_that_raises_is_reported_and_nothing_else(loop, reported, method):
    class OopsError(Exception):
        pass

    class Failing(Recorder):
        def pause_writing(self):
            if method == "pause_writing":
                raise OopsError

        def resume_writing(self):
            if method == "resume_writing":
                raise OopsError

    protocol = Failing(loop)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(bytes(1_000_000))
        await read_exactly(loop, peer, 1_000_000)
        await support.wait_until(lambda: reported.contexts)
        context = reported.pop(OopsError)
        assert context["message"] == f"protocol.{method}() failed"
        assert context["transport"] is transport
        assert context["protocol"] is protocol
        await support.turns(3)
        transport.write(b"goes on")
        assert await read_exactly(loop, peer, 7) == b"goes on"


async def test_lowering_the_limit_pauses(loop, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.set_write_buffer_limits(high=10_000_000)
        transport.write(bytes(1_000_000))
        assert not protocol.paused
        transport.set_write_buffer_limits(high=1000)
        assert protocol.paused
        await read_exactly(loop, peer, 1_000_000)
        await support.wait_until(lambda: not protocol.paused)


async def test_resume_writing_runs_in_the_context_of_the_connection(loop):
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    class Witness(Recorder):
        def resume_writing(self):
            super().resume_writing()
            seen.append(variable.get())

    variable.set("connection")
    protocol = Witness(loop)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(bytes(1_000_000))
        variable.set("later")
        await read_exactly(loop, peer, 1_000_000)
        await support.wait_until(lambda: seen)
    assert seen == ["connection"]


async def test_a_peer_that_never_reads_costs_nothing(loop, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, _):
        transport.write(bytes(1_000_000))
        await asyncio.sleep(0.3)
        await assert_idle()
        assert transport.get_write_buffer_size() > 0


async def test_a_peer_that_reads_one_byte_at_a_time(loop, protocol):
    message = support.pattern(400_000)
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        transport.write(message)
        transport.write_eof()
        slowly = b"".join([await loop.sock_recv(peer, 1) for _ in range(500)])
        assert slowly + await read_all(loop, peer) == message


# --- after the end -------------------------------------------------------------------------------


async def test_write_after_close_is_dropped_with_a_warning(loop, caplog, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.write(b"before")
        transport.close()
        with caplog.at_level(logging.WARNING, logger="asyncio"):
            for _ in range(10):
                transport.write(b"after")
        assert "socket.send() raised exception." in caplog.messages
        assert all(record.levelno == logging.WARNING for record in caplog.records)
        assert await read_all(loop, peer) == b"before"
        assert await protocol.lost is None
    assert protocol.events == ["made", "lost"]


async def test_write_in_and_after_connection_lost_is_dropped(loop):
    class Late(Recorder):
        def connection_lost(self, exc):
            self.transport.write(b"late")
            super().connection_lost(exc)

    protocol = Late(loop)
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.abort()
        await protocol.lost
        transport.write(b"later")
        assert await read_all(loop, peer) == b""


async def test_writelines_after_close_is_dropped(loop, loop_kind, protocol):
    if GATHERS and "_conn_lost" not in WRITELINES:
        skip_on_asyncio(loop_kind, "writelines() after close() is a TypeError")
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.close()
        transport.writelines([b"after", b"close"])
        assert await read_all(loop, peer) == b""
        assert await protocol.lost is None


@pytest.mark.parametrize("write", [lambda t: t.write(b"x"), lambda t: t.writelines([b"x"])])
async def test_write_after_write_eof_raises(loop, write, protocol):
    async with raw_connection(loop, protocol) as (transport, peer):
        transport.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            write(transport)
        assert await read_all(loop, peer) == b""


async def test_wrong_types_are_refused_after_close_too(loop, protocol):
    async with raw_connection(loop, protocol) as (transport, _):
        transport.close()
        with pytest.raises(TypeError):
            transport.write("text")
        await protocol.lost


async def test_two_transports_write_at_each_other(loop, client, server):
    """Both buffers fill; neither side waits for the other to stop writing before it reads."""
    message = support.pattern(5_000_000)
    async with connected_pair(loop, client, server) as (ours, theirs):
        ours.write(message)
        theirs.write(message)
        assert await client.got(len(message)) == message
        assert await server.got(len(message)) == message
