# SPDX-License-Identifier: GPL-2.0-only
"""The calls of read() and drain(): awaited, dropped and cancelled as asyncio's coroutines.

Each test runs with asyncio's classes and with the compiled ones, because asyncio's show that the
test is right.
"""

import asyncio
import gc
import inspect
import sys
import warnings
from typing import NamedTuple

import pytest
import support

from mgloop import _stdlib, streams

pytestmark = pytest.mark.mgloop_only


class Kind(NamedTuple):
    """The classes of one module."""

    StreamReader: type
    StreamWriter: type
    StreamReaderProtocol: type


KINDS = {
    "asyncio": Kind(_stdlib.StreamReader, _stdlib.StreamWriter, _stdlib.StreamReaderProtocol),
    "mgloop": Kind(streams.StreamReader, streams.StreamWriter, streams.StreamReaderProtocol),
}


@pytest.fixture(params=KINDS)
def kind(request):
    """Return the three classes of asyncio, or those of mgloop."""
    return KINDS[request.param]


class Transport:
    """A transport that records what was written."""

    def __init__(self):
        self.written = []
        self.closing = False

    def write(self, data):
        self.written.append(data)

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def get_extra_info(self, name, default=None):
        return default


class Streams:
    def __init__(self, kind, loop):
        self.reader = kind.StreamReader(loop=loop)
        self.protocol = kind.StreamReaderProtocol(self.reader, loop=loop)
        self.transport = Transport()
        self.protocol.connection_made(self.transport)
        self.writer = kind.StreamWriter(self.transport, self.protocol, self.reader, loop)


@pytest.fixture
def made(kind, loop):
    """Yield a reader, a writer and their protocol over a recording transport."""
    made = Streams(kind, loop)
    yield made
    made.transport.closing = True


async def test_a_call_that_finds_data_does_not_let_the_loop_run(loop, made):
    turned = []
    made.reader.feed_data(b"one\ntwo\nthree")
    loop.call_soon(turned.append, True)
    assert await made.reader.readline() == b"one\n"
    assert await made.reader.read(2) == b"tw"
    assert await made.reader.readexactly(2) == b"o\n"
    await made.writer.drain()
    assert not turned
    await asyncio.sleep(0)
    assert turned


@pytest.mark.parametrize("name", ["read", "readline", "readuntil"])
def test_a_call_that_is_never_awaited_warns(loop, made, name):
    with pytest.warns(RuntimeWarning, match=f"coroutine 'StreamReader.{name}' was never awaited"):
        getattr(made.reader, name)()


def test_a_drain_that_is_never_awaited_warns(loop, made):
    with pytest.warns(RuntimeWarning, match="coroutine 'StreamWriter.drain' was never awaited"):
        made.writer.drain()


async def test_a_call_cannot_be_awaited_twice(loop, made):
    made.reader.feed_data(b"data")
    call = made.reader.read(1)
    await call
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await call
    assert await made.reader.read(1) == b"a"
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await call


async def test_a_call_reads_when_it_is_awaited(loop, made):
    first, second = made.reader.read(1), made.reader.read(2)
    made.reader.feed_data(b"abc")
    assert [await second, await first] == [b"ab", b"c"]


async def test_a_call_in_a_task(loop, made):
    reading = asyncio.ensure_future(made.reader.readexactly(3))
    draining = asyncio.create_task(made.writer.drain())
    await support.turns()
    assert draining.done()
    made.reader.feed_data(b"abc")
    assert await asyncio.wait_for(reading, support.PATIENCE) == b"abc"


async def test_calls_are_awaitable(loop, made):
    call = made.reader.read(1)
    assert asyncio.iscoroutine(call)
    assert inspect.isawaitable(call)
    call.close()


@pytest.mark.parametrize("cancelled", ["before the data", "after the data"])
async def test_a_cancelled_read_loses_no_data(loop, made, cancelled):
    reading = asyncio.ensure_future(made.reader.read(10))
    await support.turns()
    if cancelled == "before the data":
        reading.cancel()
    made.reader.feed_data(b"kept")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await made.reader.read(10) == b"kept"


async def test_a_second_read_at_a_time_is_refused(loop, made):
    reading = asyncio.ensure_future(made.reader.read(10))
    await support.turns()
    for call, name in ((made.reader.readline(), "readuntil"), (made.reader.read(), "read")):
        with pytest.raises(RuntimeError, match=rf"^{name}\(\) called while another coroutine is"):
            await call
    made.reader.feed_data(b"data")
    assert await reading == b"data"


def test_a_call_that_is_dropped_while_it_waits_lets_others_read(loop, made):
    call = made.reader.read(1)
    waiter = call.send(None)
    assert made.reader._waiter is waiter
    del call, waiter
    gc.collect()
    assert made.reader._waiter is None


async def test_drain_waits_while_the_protocol_is_paused(loop, made):
    made.protocol.pause_writing()
    draining = [asyncio.create_task(made.writer.drain()) for _ in range(3)]
    await support.turns()
    draining[0].cancel()
    await support.turns()
    assert not draining[1].done()
    made.protocol.resume_writing()
    await asyncio.gather(*draining[1:])
    assert draining[0].cancelled()
    assert not made.protocol._drain_waiters


async def test_drain_raises_the_exception_that_ended_the_connection(loop, made):
    made.protocol.pause_writing()
    draining = asyncio.create_task(made.writer.drain())
    await support.turns()
    made.protocol.connection_lost(OSError(5, "broken"))
    with pytest.raises(OSError, match="broken"):
        await draining
    with pytest.raises(OSError, match="broken"):
        await made.writer.drain()


async def test_drain_after_the_end_of_the_connection(loop, made):
    made.protocol.connection_lost(None)
    with pytest.raises(ConnectionResetError, match=r"^Connection lost$"):
        await made.writer.drain()


async def test_drain_lets_the_loop_run_if_the_transport_is_closing(loop, made):
    turned = []
    made.transport.close()
    loop.call_soon(turned.append, True)
    await made.writer.drain()
    assert turned


async def test_methods_that_a_subclass_overrides_are_called(loop, kind):
    class Counting(kind.StreamReader):
        waits = 0

        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.fed = []

        def feed_data(self, data):
            self.fed.append(data)
            super().feed_data(data.upper())

        async def readuntil(self, separator=b"\n"):
            return b"<" + await super().readuntil(separator) + b">"

        async def _wait_for_data(self, name):
            self.waits += 1
            await super()._wait_for_data(name)

    reader = Counting(loop=loop)
    protocol = kind.StreamReaderProtocol(reader, loop=loop)
    reading = asyncio.ensure_future(reader.readline())
    await support.turns()
    protocol.data_received(b"ab")
    await support.turns()
    protocol.data_received(b"c\nd")
    assert await reading == b"<ABC\n>"
    assert reader.fed == [b"ab", b"c\nd"]
    assert reader.waits == 2
    assert await reader.read(1) == b"D"


async def test_a_method_that_a_program_replaces_on_a_transport_is_called(loop, kind):
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    replaced = kind.StreamWriter(writer.transport, writer._protocol, reader, loop)
    written = []
    writer.transport.write = written.append
    replaced.write(b"data")
    assert written == [b"data"]
    await support.close(writer)
    await support.close(server)


async def test_data_for_a_reader_that_the_program_has_dropped_is_discarded(loop, made):
    del made.reader, made.writer._reader
    gc.collect()
    made.protocol.data_received(b"data")
    made.writer._reader = None


async def test_a_transport_that_cannot_pause_is_left_alone(loop, kind):
    reader = kind.StreamReader(limit=1, loop=loop)
    reader.set_transport(Transport())  # without pause_reading()
    with pytest.raises(AttributeError):
        reader.feed_data(b"abc")


async def test_the_buffer_is_a_bytearray_that_programs_may_change(loop, made):
    made.reader.feed_data(b"abc")
    buffer = made.reader._buffer
    del buffer[:2]
    made.reader.feed_data(b"de\n")
    assert buffer == b"cde\n"
    assert await made.reader.readline() == b"cde\n"
    assert buffer == b""
    made.reader.feed_data(b"f")
    assert buffer == b"f"
    made.reader._buffer = bytearray(b"other")
    made.reader.feed_eof()
    assert not made.reader.at_eof()
    assert await made.reader.read() == b"other"
    assert made.reader.at_eof()


def test_debug_mode_keeps_the_place_where_a_reader_was_made(loop, kind):
    loop.set_debug(True)
    reader = kind.StreamReader(loop=loop)
    assert (
        reader._source_traceback[-1].name
        == "test_debug_mode_keeps_the_place_where_a_reader_was_made"
    )


def test_a_writer_that_is_dropped_is_closed(loop, made):
    if not hasattr(made.writer, "__del__"):
        pytest.skip("asyncio's writers of this version do not close")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del made.writer
        gc.collect()
    assert made.transport.closing
    if sys.version_info >= (3, 13):
        assert "unclosed <StreamWriter" in str(caught[0].message)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_must_be_positive(loop, kind, limit):
    with pytest.raises(ValueError, match=r"^Limit cannot be <= 0$"):
        kind.StreamReader(limit=limit, loop=loop)


async def test_limits_of_any_size_and_type(loop, kind):
    for limit in (10**30, float("inf"), 2.5, True):
        reader = kind.StreamReader(limit=limit, loop=loop)
        assert reader._limit == limit
        reader.feed_data(b"a\n")
        assert await reader.readline() == b"a\n"
