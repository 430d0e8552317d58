# SPDX-License-Identifier: GPL-2.0-only
"""connect_read_pipe() and connect_write_pipe(): pipes, FIFOs, terminals, sockets, devices.

Any file that can be polled can be a pipe; regular files are refused.
"""

import asyncio
import contextlib
import errno
import logging
import os

import pytest
import support
from peers import Recorder, assert_idle, skip_if_pipes_keep_reading

try:
    import _testcapi
except ImportError:
    _testcapi = None

#: More bytes than a pipe holds.
MESSAGE = support.pattern(1_000_000)


class PipeRecorder(Recorder):
    """A Recorder that also serves as the protocol of a writing end, which receives nothing."""


async def read_end(loop, file, recorder=None):
    recorder = recorder or PipeRecorder(loop)
    transport, protocol = await loop.connect_read_pipe(lambda: recorder, file)
    assert protocol is recorder
    return transport, recorder


async def write_end(loop, file):
    recorder = PipeRecorder(loop)
    transport, protocol = await loop.connect_write_pipe(lambda: recorder, file)
    assert protocol is recorder
    return transport, recorder


async def read_fd(fd, count):
    """Read `count` bytes from a non-blocking descriptor, or fewer if it ends."""
    data = bytearray()
    while len(data) < count:
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            await asyncio.sleep(0.001)
            continue
        if not chunk:
            break
        data += chunk
    return bytes(data)


# --- reading -------------------------------------------------------------------------------------


async def test_read(loop, reader, writer):
    transport, protocol = await read_end(loop, reader)
    assert isinstance(transport, asyncio.ReadTransport)
    assert transport.get_extra_info("pipe") is reader
    assert transport.get_extra_info("nothing") is None
    assert transport.get_extra_info("nothing", 5) == 5
    assert transport.get_protocol() is protocol
    assert not os.get_blocking(reader.fileno())
    writer.write(b"hello")
    assert await protocol.got(5) == b"hello"
    writer.close()
    assert await protocol.lost is None
    await support.turns(2)
    assert reader.closed
    assert protocol.events == ["made", "data", "eof", "lost"]


class Keeps(asyncio.Protocol):
    """Keep the pieces that are received in a set, which has room for some without an allocation."""

    def __init__(self, loop):
        self.pieces = set()
        self.data_received = self.pieces.add
        self.lost = loop.create_future()

    def connection_lost(self, exc):
        self.lost.set_result(exc)


@pytest.mark.mgloop_only  # os.read() itself may fail after it has read
@pytest.mark.skipif(_testcapi is None, reason="this interpreter cannot let allocations fail")
def test_no_byte_is_lost_in_silence_when_memory_runs_out(loop, reported):
    """Whichever allocation fails, all bytes arrive, or connection_lost() gets the error."""
    for number in range(25):
        read_fd, write_fd = os.pipe()
        _, protocol = loop.run_until_complete(
            loop.connect_read_pipe(lambda: Keeps(loop), os.fdopen(read_fd, "rb", 0))
        )
        os.write(write_fd, b"all")
        loop.call_soon(_testcapi.set_nomemory, number, number + 1)
        loop.call_later(0.01, _testcapi.remove_mem_hooks)  # run_forever() needs memory to end
        stop = loop.call_later(0.02, loop.stop)
        with contextlib.suppress(MemoryError):
            loop.run_forever()
        stop.cancel()
        os.close(write_fd)
        lost = loop.run_until_complete(asyncio.wait_for(protocol.lost, 10))
        reported.pop_all()
        assert protocol.pieces == {b"all"} or isinstance(lost, MemoryError), number


async def test_pause_and_resume_reading(loop, loop_kind, reader, writer):
    skip_if_pipes_keep_reading(loop_kind)
    transport, protocol = await read_end(loop, reader)
    assert transport.is_reading()
    transport.pause_reading()
    transport.pause_reading()
    assert not transport.is_reading()
    writer.write(b"waiting")
    writer.close()
    await asyncio.sleep(0.03)
    assert protocol.received == b""
    transport.resume_reading()
    transport.resume_reading()
    assert await protocol.lost is None
    assert protocol.received == b"waiting"


@pytest.mark.parametrize("pauses", [False, True])
async def test_read_much_and_pause_in_data_received(loop, reader, writer, pauses):
    class Sipping(PipeRecorder):
        def data_received(self, data):
            super().data_received(data)
            if pauses:
                self.transport.pause_reading()
                self.loop.call_later(0.001, self.transport.resume_reading)

    def write():
        view = memoryview(MESSAGE)
        while view:
            view = view[writer.write(view) :]
        writer.close()

    _, protocol = await read_end(loop, reader, Sipping(loop))
    with support.in_thread(write):
        assert await protocol.lost is None
    assert protocol.received == MESSAGE


async def test_close_the_reading_end(loop, reader, writer):
    transport, protocol = await read_end(loop, reader)
    writer.write(b"unread")
    transport.close()
    transport.close()
    assert transport.is_closing()
    assert protocol.events == ["made"]
    assert await protocol.lost is None
    await support.turns(2)
    assert reader.closed
    assert protocol.events == ["made", "lost"]
    with pytest.raises(BrokenPipeError):
        writer.write(b"x")


async def test_a_callback_that_raises_ends_the_pipe(loop, reader, writer, reported):
    class OopsError(Exception):
        pass

    class Failing(PipeRecorder):
        def connection_lost(self, exc):
            super().connection_lost(exc)
            raise OopsError

    _, protocol = await read_end(loop, reader, Failing(loop))
    writer.close()
    await protocol.lost
    await support.turns(2)
    reported.pop(OopsError)
    assert reader.closed


async def test_an_idle_pipe_costs_nothing(loop, reader, writer):
    transport, protocol = await read_end(loop, reader)
    _, writing_protocol = await write_end(loop, writer)
    await assert_idle()
    transport.close()
    await protocol.lost
    await writing_protocol.lost


# --- writing -------------------------------------------------------------------------------------


async def test_write(loop, reader, writer):
    transport, protocol = await write_end(loop, writer)
    assert isinstance(transport, asyncio.WriteTransport)
    assert transport.get_extra_info("pipe") is writer
    assert transport.can_write_eof()
    transport.write(b"one ")
    transport.write(bytearray(b"two "))
    transport.write(memoryview(b"three "))
    transport.write(b"")
    transport.writelines([b"four ", bytearray(b"five")])
    transport.write_eof()
    assert transport.is_closing()
    assert await protocol.lost is None
    assert reader.read() == b"one two three four five"
    await support.turns(2)
    assert writer.closed


async def test_write_much(loop, reader, writer):
    transport, protocol = await write_end(loop, writer)
    os.set_blocking(reader.fileno(), False)
    transport.write(MESSAGE)
    assert protocol.paused
    size = transport.get_write_buffer_size()
    assert 0 < size < len(MESSAGE)
    transport.write(b"end")
    assert transport.get_write_buffer_size() == size + 3
    assert await read_fd(reader.fileno(), len(MESSAGE) + 3) == MESSAGE + b"end"
    await support.wait_until(lambda: not protocol.paused)
    assert transport.get_write_buffer_size() == 0
    transport.close()
    assert await protocol.lost is None
    assert protocol.events == ["made", "pause", "resume", "lost"]


async def test_a_mutable_buffer_may_change_after_the_call(loop, reader, writer):
    transport, protocol = await write_end(loop, writer)
    os.set_blocking(reader.fileno(), False)
    buffer = bytearray(MESSAGE)
    transport.write(buffer)
    buffer[:] = bytes(len(buffer))
    buffer.clear()
    assert await read_fd(reader.fileno(), len(MESSAGE)) == MESSAGE
    transport.close()
    await protocol.lost


@pytest.mark.parametrize("end", ["close", "write_eof"])
async def test_close_flushes(loop, reader, writer, end):
    transport, protocol = await write_end(loop, writer)
    os.set_blocking(reader.fileno(), False)
    transport.write(MESSAGE)
    getattr(transport, end)()
    assert transport.is_closing()
    await support.turns(3)
    assert not protocol.lost.done()
    assert await read_fd(reader.fileno(), len(MESSAGE) + 1) == MESSAGE
    assert await protocol.lost is None


async def test_abort_drops(loop, reader, writer):
    transport, protocol = await write_end(loop, writer)
    transport.write(MESSAGE)
    transport.abort()
    assert "lost" not in protocol.events
    assert await protocol.lost is None
    os.set_blocking(reader.fileno(), False)
    assert len(await read_fd(reader.fileno(), len(MESSAGE))) < len(MESSAGE)


async def test_the_reader_goes_away(loop, reader, writer):
    transport, protocol = await write_end(loop, writer)
    reader.close()
    exc = await protocol.lost
    assert exc is None or isinstance(exc, BrokenPipeError)
    transport.write(b"dropped")
    assert protocol.events == ["made", "lost"]


async def test_the_reader_goes_away_with_data_pending(loop, reader, writer):
    transport, protocol = await write_end(loop, writer)
    transport.write(MESSAGE)
    reader.close()
    assert isinstance(await protocol.lost, BrokenPipeError)


async def test_write_after_close_is_dropped_with_a_warning(loop, reader, writer, caplog):
    transport, protocol = await write_end(loop, writer)
    transport.close()
    with caplog.at_level(logging.WARNING, logger="asyncio"):
        for _ in range(10):
            transport.write(b"late")
    assert any("pipe closed by peer or os.write" in message for message in caplog.messages)
    assert await protocol.lost is None
    assert reader.read() == b""


@pytest.mark.parametrize("method", ["write", "writelines"])
@pytest.mark.parametrize("data", ["text", None, 5])
async def test_write_refuses_what_is_not_bytes(loop, reader, writer, method, data):
    transport, protocol = await write_end(loop, writer)
    if method == "write":
        with pytest.raises((TypeError, AssertionError)):
            transport.write(data)
    else:
        with pytest.raises(TypeError):
            transport.writelines([b"good", data])
    transport.write(b"unharmed")
    transport.close()
    await protocol.lost
    assert reader.read() == b"unharmed"


# --- both ends -----------------------------------------------------------------------------------


@pytest.fixture
def both_ends(request, tmp_path):
    """Yield (file to read from, file to write to) of the kind that the test's parameter names."""
    if request.param == "fifo":
        os.mkfifo(path := tmp_path / "fifo")
        reader = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0)
        return reader, os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb", 0)
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("both_ends", ["pipe", "fifo", "socketpair"], indirect=True)
async def test_both_ends(loop, both_ends):
    reader, writer = both_ends
    _, received = await read_end(loop, reader)
    transport, protocol = await write_end(loop, writer)
    transport.write(MESSAGE)
    transport.close()
    await protocol.lost
    assert await received.lost is None
    assert received.received == MESSAGE


async def test_streams_over_a_pipe(loop, reader, writer):
    stream = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), reader)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(), writer
    )
    output = asyncio.StreamWriter(transport, protocol, None, loop)
    for number in range(2000):
        output.write(b"line %d\n" % number)
        await output.drain()
        assert await stream.readline() == b"line %d\n" % number
    transport.close()
    assert await stream.read() == b""
    await support.turns(3)


# --- what else is a pipe -------------------------------------------------------------------------


async def test_a_terminal(loop, terminal):
    ours, theirs = terminal
    _, protocol = await read_end(loop, ours)
    writing, writing_protocol = await write_end(loop, theirs)
    writing.write(b"hello")
    assert await protocol.got(5) == b"hello"
    writing.close()
    assert await writing_protocol.lost is None
    exc = await protocol.lost
    # When the last process closes a terminal, reads from its other end fail with EIO on Linux.
    assert isinstance(exc, OSError)
    assert exc.errno == errno.EIO


async def test_both_directions_of_a_terminal(loop, terminal):
    ours, theirs = terminal
    second = os.fdopen(os.dup(ours.fileno()), "wb", 0)
    reading, protocol = await read_end(loop, ours)
    writing, writing_protocol = await write_end(loop, second)
    for number in range(20):
        writing.write(b"%02d" % number)
        assert theirs.read(2) == b"%02d" % number
        theirs.write(b"%02d" % number)
        assert (await protocol.got(2 * number + 2))[-2:] == b"%02d" % number
    for transport in (writing, reading):
        transport.close()
    await protocol.lost
    await writing_protocol.lost


async def test_a_character_device_can_be_written(loop):
    """/dev/null is always ready, and epoll does not support it."""
    transport, protocol = await write_end(
        loop, os.fdopen(os.open("/dev/null", os.O_WRONLY), "wb", 0)
    )
    for _ in range(100):
        transport.write(bytes(100_000))
    assert transport.get_write_buffer_size() == 0
    transport.close()
    assert await protocol.lost is None


@pytest.mark.parametrize("direction", ["read", "write"])
async def test_a_regular_file_is_refused(loop, tmp_path, direction):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    connect = getattr(loop, f"connect_{direction}_pipe")
    with path.open("r+b", 0) as file:
        with pytest.raises(ValueError, match=r"transport is (only )?for"):
            await connect(asyncio.Protocol, file)
