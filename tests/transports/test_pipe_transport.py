# SPDX-License-Identifier: GPL-2.0-only
"""Pipe transports in detail: states, failures, limits, and kinds of file that behave oddly.

test_pipes.py covers the purpose of connect_read_pipe() and connect_write_pipe(). The tests here
cover callbacks that raise, two ends that disagree about when to stop, and files with message
boundaries that a read must respect.
"""

import asyncio
import contextlib
import contextvars
import errno
import gc
import os
import random
import socket
import sys
import tty

import pytest
import support
from peers import assert_idle, skip_if_pipes_keep_reading, skip_on_asyncio
from test_pipes import MESSAGE, PipeRecorder, read_end, read_fd, write_end


class OopsError(Exception):
    pass


def polling(transport):
    """Return whether the transport is registered for polling."""
    words = repr(transport).strip("<>").split()
    assert "polling" in words or "idle" in words
    return "polling" in words


# --- states --------------------------------------------------------------------------------------


async def test_the_reading_end_tells_its_state(loop, loop_kind, reader):
    skip_if_pipes_keep_reading(loop_kind)
    transport, protocol = await read_end(loop, reader)
    assert f"fd={reader.fileno()}" in repr(transport)
    assert polling(transport)
    transport.pause_reading()
    assert not polling(transport)
    transport.resume_reading()
    assert polling(transport)
    transport.close()
    assert "closing" in repr(transport)
    await protocol.lost
    await support.turns(2)
    assert "closed" in repr(transport)
    assert transport.is_closing()
    assert not transport.is_reading()


async def test_the_writing_end_tells_its_state(loop, writer):
    transport, protocol = await write_end(loop, writer)
    assert not polling(transport)
    assert "bufsize=0" in repr(transport)
    transport.write(MESSAGE)
    assert polling(transport)
    assert f"bufsize={transport.get_write_buffer_size()}" in repr(transport)
    transport.close()
    assert "closing" in repr(transport)
    transport.abort()
    await protocol.lost
    await support.turns(2)
    assert "closed" in repr(transport)


async def test_the_writing_end_cannot_read(loop, pipe):
    transport, _ = await write_end(loop, pipe[1])
    for method in (transport.is_reading, transport.pause_reading, transport.resume_reading):
        with pytest.raises(NotImplementedError):
            method()
    transport.abort()
    await support.turns(3)


def test_when_the_loop_is_closed_first(loop_factory, reader, writer):
    loop = loop_factory()
    reading, _ = loop.run_until_complete(read_end(loop, reader))
    writing, _ = loop.run_until_complete(write_end(loop, writer))
    loop.close()
    for transport in (reading, writing):
        assert "open" in repr(transport)
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            transport.close()
        # A program must do this to avoid the warning.
        transport._pipe = None


@pytest.mark.parametrize("method", ["write", "writelines"])
def test_a_closed_loop_sends_what_the_pipe_accepts(loop_factory, reader, writer, method):
    """The rest is not queued, because nothing would ever send it."""
    loop = loop_factory()
    transport, _ = loop.run_until_complete(write_end(loop, writer))
    loop.close()

    def send(*parts):
        transport.writelines(parts) if method == "writelines" else transport.write(b"".join(parts))

    send(b"fits ", b"in")
    assert os.read(reader.fileno(), 100) == b"fits in"
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        send(MESSAGE, b"too long")
    assert transport.get_write_buffer_size() == 0
    os.set_blocking(reader.fileno(), False)
    received = b"".join(iter(lambda: reader.read(1 << 20) or b"", b""))
    assert received
    assert MESSAGE.startswith(received)
    transport._pipe = None  # avoid the warning about the unclosed transport


@pytest.mark.parametrize("end", [read_end, write_end])
def test_a_transport_that_is_never_closed_warns(loop_factory, pipe, end):
    loop = loop_factory()
    file = pipe[0] if end is read_end else pipe[1]
    loop.run_until_complete(end(loop, file))
    loop.close()
    with pytest.warns(ResourceWarning, match="unclosed transport"):
        gc.collect()
    assert file.closed


async def test_nothing_more_happens_after_the_end(loop, loop_kind, reader, writer):
    skip_if_pipes_keep_reading(loop_kind)
    reading, received = await read_end(loop, reader)
    writing, sent = await write_end(loop, writer)
    writing.close()
    await sent.lost
    await received.lost
    await support.turns(2)
    reading.pause_reading()
    reading.resume_reading()
    reading.close()
    writing.write(b"late")
    writing.writelines([b"late"])
    writing.write_eof()
    writing.close()
    assert writing.get_write_buffer_size() == 0
    assert not reading.is_reading()
    assert writing.is_closing()
    await support.turns(2)
    assert sent.events == ["made", "lost"]
    assert received.events == ["made", "eof", "lost"]


async def test_attributes_of_the_instance_come_first(loop, reader, writer):
    """Programs and tests replace methods of a transport instance."""
    transport, protocol = await write_end(loop, writer)
    calls = support.Calls()
    transport.write = calls
    transport.write(b"x")
    assert calls.args == [(b"x",)]
    transport.colour = "blue"
    assert transport.colour == "blue"
    del transport.write
    transport.write(b"y")
    transport.close()
    await protocol.lost
    assert reader.read() == b"y"


# --- where callbacks go wrong --------------------------------------------------------------------


async def test_data_received_raises(loop, reader, writer, reported):
    """The exception is reported, and the pipe continues."""

    class Failing(PipeRecorder):
        def data_received(self, data):
            super().data_received(data)
            if data == b"bad":
                raise OopsError

    transport, protocol = await read_end(loop, reader, Failing(loop))
    writer.write(b"bad")
    await protocol.got(3)
    assert not transport.is_closing()
    writer.write(b"good")
    await protocol.got(7)
    reported.pop(OopsError)
    transport.close()
    assert await protocol.lost is None


@pytest.mark.parametrize("connect", ["connect_read_pipe", "connect_write_pipe"])
async def test_connection_made_raises(loop, pipe, reported, connect):
    class Failing(PipeRecorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            raise OopsError

    protocol = Failing(loop)
    file = pipe["write" in connect]
    transport, _ = await getattr(loop, connect)(lambda: protocol, file)
    reported.pop(OopsError)
    assert not transport.is_closing()
    transport.close()
    assert await protocol.lost is None


@pytest.mark.parametrize("call", ["pause_writing", "resume_writing"])
async def test_flow_control_raises(loop, reader, writer, reported, call):
    def fail():
        raise OopsError

    def succeed():
        pass

    transport, protocol = await write_end(loop, writer)
    protocol.pause_writing = fail if call == "pause_writing" else succeed
    protocol.resume_writing = fail if call == "resume_writing" else succeed
    transport.write(MESSAGE)
    os.set_blocking(reader.fileno(), False)
    assert await read_fd(reader.fileno(), len(MESSAGE)) == MESSAGE
    transport.close()
    assert await protocol.lost is None
    assert call in reported.pop(OopsError)["message"]


@pytest.mark.parametrize("connect", ["connect_read_pipe", "connect_write_pipe"])
async def test_closing_while_being_made(loop, loop_kind, pipe, connect):
    skip_if_pipes_keep_reading(loop_kind)

    class Closing(PipeRecorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.close()

    loop.set_debug(False)  # asyncio's log message about it would need the open file
    pipe[1].write(b"never read")
    file = pipe["write" in connect]
    protocol = Closing(loop)
    await getattr(loop, connect)(lambda: protocol, file)
    assert await protocol.lost is None
    await support.turns(2)
    assert file.closed
    assert protocol.events == ["made", "lost"]


async def test_closing_while_being_given_data(loop, reader, writer):
    class Closing(PipeRecorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.close()

    _, protocol = await read_end(loop, reader, Closing(loop))
    writer.write(b"first")
    assert await protocol.lost is None
    assert protocol.received == b"first"
    assert protocol.events == ["made", "data", "lost"]


async def test_a_new_protocol(loop, reader, writer):
    transport, first = await read_end(loop, reader)
    writer.write(b"one")
    await first.got(3)
    second = PipeRecorder(loop)
    second.connection_made(transport)
    transport.set_protocol(second)
    assert transport.get_protocol() is second
    writer.write(b"two")
    assert await second.got(3) == b"two"
    writer.close()
    assert await second.lost is None
    assert first.events == ["made", "data"]


async def test_callbacks_run_in_the_context_of_the_creator(loop, reader, writer):
    variable = contextvars.ContextVar("variable", default="outside")
    seen = []

    class Looking(PipeRecorder):
        def connection_made(self, transport):
            seen.append(variable.get())
            super().connection_made(transport)

        def data_received(self, data):
            seen.append(variable.get())
            super().data_received(data)

        def connection_lost(self, exc):
            seen.append(variable.get())
            super().connection_lost(exc)

    protocol = Looking(loop)

    async def create():
        variable.set("inside")
        await read_end(loop, reader, protocol)

    await loop.create_task(create())
    writer.write(b"x")
    await protocol.got(1)
    writer.close()
    await protocol.lost
    assert seen == ["inside"] * 3


# --- reading -------------------------------------------------------------------------------------


async def test_paused_before_the_first_read(loop, loop_kind, reader, writer):
    skip_if_pipes_keep_reading(loop_kind)

    class Pausing(PipeRecorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()

    writer.write(b"waiting")
    transport, protocol = await read_end(loop, reader, Pausing(loop))
    await support.turns(5)
    assert protocol.events == ["made"]
    transport.resume_reading()
    assert await protocol.got(7) == b"waiting"
    transport.close()


@pytest.mark.parametrize("then", ["data", "end"])
async def test_a_paused_pipe_costs_nothing(loop, reader, writer, then):
    """Neither data nor the end of the writer may make the loop spin."""
    transport, protocol = await read_end(loop, reader)
    transport.pause_reading()
    writer.write(b"data")
    if then == "end":
        writer.close()
    await support.turns(3)
    await assert_idle()
    assert protocol.events == ["made"]
    transport.resume_reading()
    assert await protocol.got(4) == b"data"
    transport.close()
    await protocol.lost


async def test_paused_and_resumed_around_each_message(loop, reader, writer):
    class Sipping(PipeRecorder):
        def data_received(self, data):
            self.transport.pause_reading()
            super().data_received(data)
            self.loop.call_soon(self.transport.resume_reading)

    _, protocol = await read_end(loop, reader, Sipping(loop))
    for number in range(100):
        writer.write(b"%02d" % number)
        await protocol.got(2 * number + 2)
    writer.close()
    assert await protocol.lost is None
    assert protocol.received == b"".join(b"%02d" % number for number in range(100))


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="packet pipes are Linux's")
async def test_packets_are_not_forgotten(loop):
    """A read of a packet pipe returns one packet, and does not report that more are queued."""
    read_fileno, write_fileno = os.pipe2(os.O_DIRECT)
    packets = [bytes([number]) * (1 + 40 * number) for number in range(10)]
    with os.fdopen(read_fileno, "rb", 0) as reader, os.fdopen(write_fileno, "wb", 0) as writer:
        for packet in packets:
            writer.write(packet)
        transport, protocol = await read_end(loop, reader)
        assert await protocol.got(sum(map(len, packets))) == b"".join(packets)
        transport.close()
        await protocol.lost


async def test_lines_are_not_forgotten(loop):
    """A read of a terminal in line mode returns one line."""
    parent, child = os.openpty()
    with os.fdopen(parent, "r+b", 0) as ours, os.fdopen(child, "r+b", 0) as theirs:
        ours.write(b"one\ntwo\nthree\n")
        transport, protocol = await read_end(loop, theirs)
        assert await protocol.got(14) == b"one\ntwo\nthree\n"
        transport.close()
        await protocol.lost


async def test_datagrams_come_whole(loop):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
        sizes = []

        class Sizes(PipeRecorder):
            def data_received(self, data):
                super().data_received(data)
                sizes.append(len(data))

        transport, protocol = await read_end(loop, ours, Sizes(loop))
        expected = [1, 5000, 100_000, 10, 150_000]
        for size in expected:
            theirs.send(bytes(size))
        await protocol.got(sum(expected))
        assert sizes == expected
        transport.close()
        await protocol.lost


async def test_a_pipe_that_holds_more(loop, reader, writer):
    fcntl = pytest.importorskip("fcntl")
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        pytest.skip("the size of a pipe can be set since CPython 3.10")
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    except PermissionError:
        pytest.skip("pipes of 1 MiB are not permitted here")
    _, protocol = await read_end(loop, reader)
    assert writer.write(MESSAGE) == len(MESSAGE)
    writer.close()
    assert await protocol.lost is None
    assert protocol.received == MESSAGE


async def test_a_device_that_cannot_be_polled(loop, reported):
    """asyncio's attempt to watch it fails after connection_made()."""
    transport, protocol = await read_end(
        loop, os.fdopen(os.open("/dev/zero", os.O_RDONLY), "rb", 0)
    )
    assert reported.pop(PermissionError)["exception"].errno == errno.EPERM
    transport.close()
    assert await protocol.lost is None
    assert protocol.received == b""


async def test_a_read_error(loop, reported):
    """A datagram socket whose peer's port is closed reports ECONNREFUSED."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
            gone.bind(("127.0.0.1", 0))
            sock.connect(gone.getsockname())
        transport, protocol = await read_end(loop, sock)
        sock.send(b"x")
        assert isinstance(await protocol.lost, ConnectionRefusedError)
        assert "Fatal read error" in reported.pop(ConnectionRefusedError)["message"]
        assert transport.is_closing()


# --- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "result"),
    [
        ({}, (16384, 65536)),
        ({"high": 1000}, (250, 1000)),
        ({"low": 1000}, (1000, 4000)),
        ({"high": 1000, "low": 1000}, (1000, 1000)),
        ({"high": 0}, (0, 0)),
        ({"high": 10**40, "low": 5}, None),
    ],
)
async def test_write_limits(loop, writer, limits, result):
    transport, protocol = await write_end(loop, writer)
    transport.set_write_buffer_limits(**limits)
    low, high = transport.get_write_buffer_limits()
    if result is not None:
        assert (low, high) == result
    else:
        assert low == 5
        assert high >= sys.maxsize
    transport.close()
    await protocol.lost


@pytest.mark.parametrize("limits", [{"high": 1, "low": 2}, {"high": -1}, {"low": -1}])
async def test_limits_that_make_no_sense(loop, writer, limits):
    transport, protocol = await write_end(loop, writer)
    with pytest.raises(ValueError, match="must be >="):
        transport.set_write_buffer_limits(**limits)
    assert transport.get_write_buffer_limits() == (16384, 65536)
    transport.close()
    await protocol.lost


@pytest.mark.mgloop_only
async def test_a_negative_limit_that_compares_as_positive(loop, writer):
    """The value of the limit decides, not its comparison operators."""
    transport, protocol = await write_end(loop, writer)
    with pytest.raises(ValueError, match="must be >="):
        transport.set_write_buffer_limits(support.UntruthfulInt(-5), 0)
    assert transport.get_write_buffer_limits() == (16384, 65536)
    transport.close()
    await protocol.lost


async def test_limits_apply_to_what_is_queued_already(loop, reader, writer):
    transport, protocol = await write_end(loop, writer)
    transport.set_write_buffer_limits(high=10 * len(MESSAGE))
    transport.write(MESSAGE)
    assert transport.get_write_buffer_size() > 0
    assert not protocol.paused
    transport.set_write_buffer_limits(high=1)
    assert protocol.paused
    os.set_blocking(reader.fileno(), False)
    await read_fd(reader.fileno(), len(MESSAGE))
    await support.wait_until(lambda: not protocol.paused)
    transport.close()
    await protocol.lost


async def test_writelines(loop, reader, writer):
    transport, protocol = await write_end(loop, writer)
    os.set_blocking(reader.fileno(), False)
    transport.writelines([])
    transport.writelines([b"", b""])
    parts = [MESSAGE[i : i + 5000] for i in range(0, len(MESSAGE), 5000)]
    transport.writelines(iter(parts))
    mutable = bytearray(b"mutable")
    transport.writelines([mutable, memoryview(b"view"), b"", bytearray(b"end")])
    mutable[:] = b"CHANGED"
    assert transport.get_write_buffer_size() > 0
    transport.close()
    assert await read_fd(reader.fileno(), 2 * len(MESSAGE)) == MESSAGE + b"mutableviewend"
    assert await protocol.lost is None


async def test_ended_by_the_reader_while_closing(loop, reader, writer):
    """Data still queued when the reader closes is lost, and the loss is reported."""
    transport, protocol = await write_end(loop, writer)
    transport.write(MESSAGE)
    transport.close()
    await support.turns(3)
    assert not protocol.lost.done()
    reader.close()
    assert isinstance(await protocol.lost, BrokenPipeError)
    await support.turns(2)
    assert writer.closed


async def test_a_write_that_fails_at_once(loop, reader, writer, caplog):
    """The reader is closed before the loop could notice it."""
    transport, protocol = await write_end(loop, writer)
    reader.close()
    transport.write(b"x")
    assert transport.is_closing()
    assert transport.get_write_buffer_size() == 0
    transport.write(b"y")
    assert isinstance(await protocol.lost, BrokenPipeError)
    assert protocol.events == ["made", "lost"]


async def test_abort_after_close(loop, writer):
    transport, protocol = await write_end(loop, writer)
    transport.write(MESSAGE)
    transport.close()
    transport.abort()
    assert transport.get_write_buffer_size() == 0
    assert await protocol.lost is None
    await support.turns(3)
    assert protocol.events == ["made", "pause", "lost"]


async def test_data_for_a_writing_socket_ends_it(loop, left, right):
    """asyncio treats any readability of the socket as the end of its reader."""
    transport, protocol = await write_end(loop, left)
    transport.write(b"hello")
    assert right.recv(10) == b"hello"
    right.send(b"unwanted")
    assert await protocol.lost is None


async def test_a_terminal_that_is_full(loop, terminal):
    ours, theirs = terminal
    transport, protocol = await write_end(loop, theirs)
    transport.write(MESSAGE[:200_000])
    assert transport.get_write_buffer_size() > 0
    os.set_blocking(ours.fileno(), False)
    assert await read_fd(ours.fileno(), 200_000) == MESSAGE[:200_000]
    await support.wait_until(lambda: transport.get_write_buffer_size() == 0)
    assert not polling(transport)
    transport.close()
    assert await protocol.lost is None


async def test_both_directions_on_one_descriptor(loop, terminal):
    ours, theirs = terminal
    reading, received = await read_end(loop, ours)
    again = os.fdopen(ours.fileno(), "wb", 0, closefd=False)
    writing, sent = await write_end(loop, again)
    writing.write(MESSAGE[:100_000])
    assert writing.get_write_buffer_size() > 0
    os.set_blocking(theirs.fileno(), False)
    theirs.write(b"while the other direction is blocked")
    await received.got(36)
    assert await read_fd(theirs.fileno(), 100_000) == MESSAGE[:100_000]
    theirs.write(b"!")
    await received.got(37)
    writing.close()
    await sent.lost
    reading.close()
    await received.lost


@pytest.mark.parametrize("seed", range(4))
async def test_any_sequence_of_writes_arrives_unchanged(loop, reader, writer, seed):
    dice = random.Random(seed)
    reading, received = await read_end(loop, reader)
    writing, sent = await write_end(loop, writer)
    expected = bytearray()
    for _ in range(300):
        size = dice.choice([0, 1, 100, 4096, 5000, 65536, 100_000])
        data = dice.randbytes(size)
        kind = dice.choice([bytes, bytearray, memoryview, list])
        if kind is list:
            cut = dice.randrange(size + 1)
            writing.writelines([data[:cut], bytearray(data[cut:])])
        else:
            writing.write(kind(data))
        expected += data
        action = dice.randrange(8)
        if action == 0:
            reading.pause_reading()
        elif action == 1:
            reading.resume_reading()
        elif action < 5:
            await asyncio.sleep(0)
    reading.resume_reading()
    writing.close()
    assert await sent.lost is None
    assert await received.lost is None
    assert received.received == expected


# --- what cannot be a pipe -----------------------------------------------------------------------


@pytest.mark.parametrize("connect", ["connect_read_pipe", "connect_write_pipe"])
async def test_a_file_that_is_closed(loop, loop_kind, reader, writer, connect):
    skip_on_asyncio(loop_kind, "leaves a half-made transport, whose destructor raises")
    reader.close()
    writer.close()
    protocol = PipeRecorder(loop)
    with pytest.raises(ValueError, match="closed file"):
        await getattr(loop, connect)(lambda: protocol, reader)
    assert protocol.events == []


@pytest.mark.parametrize("connect", ["connect_read_pipe", "connect_write_pipe"])
async def test_a_number_that_is_no_descriptor(loop, loop_kind, connect):
    skip_on_asyncio(loop_kind, "leaves a half-made transport, which warns")

    class Wrong:
        def fileno(self):
            return 1_000_000

    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        await getattr(loop, connect)(asyncio.Protocol, Wrong())
    assert caught.value.errno == errno.EBADF


async def test_a_directory_is_refused(loop, tmp_path):
    with contextlib.ExitStack() as stack:
        fd = os.open(tmp_path, os.O_RDONLY)
        stack.callback(os.close, fd)

        class Directory:
            def fileno(self):
                return fd

        with pytest.raises(ValueError, match="Pipe transport is"):
            await loop.connect_read_pipe(asyncio.Protocol, Directory())


def test_raw_mode_is_what_the_terminal_fixture_promises(terminal):
    """Otherwise the tests above would count newlines that the terminal has translated."""
    _, theirs = terminal
    assert not tty.tcgetattr(theirs)[1] & tty.OPOST
