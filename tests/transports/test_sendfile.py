# SPDX-License-Identifier: GPL-2.0-only
"""loop.sendfile() and loop.sock_sendfile(): the system call, the fall-back, and over TLS."""

import asyncio
import contextlib
import errno
import functools
import inspect
import io
import itertools
import os
import socket
from asyncio import selector_events

import pytest
import support
from peers import Recorder, connected_pair, raw_connection, read_all, read_exactly, reset

CONTENT = support.pattern(3_000_000)
#: Since 3.14.8 the fall-back begins at its offset even if that is 0, not at the file's position.
STRICT = "if offset" not in inspect.getsource(asyncio.BaseEventLoop._sendfile_fallback)

#: Since September 2026 (gh-157025) a cancellation while sendfile() still waits for the write buffer
#: to empty leaves the transport unchanged.
CANCELLATION_IS_UNDONE = (
    inspect.getsource(selector_events.BaseSelectorEventLoop._sendfile_native)
    .partition("_make_empty_waiter")[0]
    .count("try:")
)


@pytest.fixture(scope="session")
def file_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sendfile") / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def file(file_path):
    """A regular file of 3 MB, open for reading in binary mode."""
    with file_path.open("rb") as opened:
        yield opened


#: Offset, count, and the part of the file that they select.
parts = pytest.mark.parametrize(
    ("offset", "count", "part"),
    [
        (0, None, CONTENT),
        (1000, None, CONTENT[1000:]),
        (0, 1000, CONTENT[:1000]),
        (1234, 2_000_000, CONTENT[1234:2_001_234]),
        (2_999_999, None, CONTENT[-1:]),
        (2_999_999, 10, CONTENT[-1:]),
        (3_000_000, None, b""),
        (5_000_000, 10, b""),
    ],
)


@contextlib.asynccontextmanager
async def by_transport(loop, *, small=False):
    """Yield loop.sendfile() of a transport, and the socket at the other end."""
    protocol = Recorder(loop)
    async with raw_connection(loop, protocol, small=small) as (transport, peer):
        yield functools.partial(loop.sendfile, transport), peer
        assert transport.get_protocol() is protocol


@contextlib.asynccontextmanager
async def by_socket(loop, *, small=False):
    """Yield loop.sock_sendfile() of a socket, and the socket at the other end."""
    with support.nonblocking_tcp_pair() as (ours, peer):
        if small:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        yield functools.partial(loop.sock_sendfile, ours), peer


either_way = pytest.mark.parametrize("way", [by_transport, by_socket])


# --- both ----------------------------------------------------------------------------------------


@either_way
@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "no descriptor"])
@parts
async def test_a_part_of_a_file(loop, file, way, in_memory, offset, count, part):
    """A file without a descriptor is read and written."""
    given = io.BytesIO(CONTENT) if in_memory else file
    async with way(loop) as (send, peer):
        reading = loop.create_task(read_exactly(loop, peer, len(part)))
        assert await send(given, offset, count) == len(part)
        assert await reading == part
        if part:
            assert given.tell() == offset + len(part)


@either_way
async def test_without_fall_back_a_file_without_a_descriptor_is_refused(loop, way):
    async with way(loop) as (send, _):
        with pytest.raises(asyncio.SendfileNotAvailableError):
            await send(io.BytesIO(b"content"), fallback=False)
        assert await send(io.BytesIO(b"content")) == 7


@either_way
async def test_the_peer_goes_away(loop, file, way):
    async with way(loop, small=True) as (send, peer):
        sending = loop.create_task(send(file))
        await read_exactly(loop, peer, 100_000)
        reset(peer)
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(sending, support.PATIENCE)
        assert 100_000 <= file.tell() < len(CONTENT)


# --- loop.sendfile -------------------------------------------------------------------------------


@pytest.mark.parametrize("fallback", [True, False])
async def test_among_writes(loop, file, fallback, protocol):
    """The file keeps its place between earlier and later writes, even if the socket is full."""
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        before = support.pattern(500_000)
        transport.write(before)
        assert transport.get_write_buffer_size() > 0
        reading = loop.create_task(read_all(loop, peer))
        assert await loop.sendfile(transport, file, fallback=fallback) == len(CONTENT)
        transport.write(b"after")
        transport.write_eof()
        assert await reading == before + CONTENT + b"after"


async def test_nothing_can_be_written_meanwhile(loop, file, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        sending = loop.create_task(loop.sendfile(transport, file, fallback=False))
        await support.turns(5)
        assert not sending.done()
        with pytest.raises(RuntimeError, match="sendfile is in progress"):
            transport.write(b"in between")
        with pytest.raises(RuntimeError, match="sendfile is in progress"):
            transport.writelines([b"in", b"between"])
        assert await read_exactly(loop, peer, len(CONTENT)) == CONTENT
        assert await sending == len(CONTENT)
        transport.write(b"after")
        assert await read_exactly(loop, peer, 5) == b"after"


async def test_reading_is_paused_meanwhile_and_goes_on_afterwards(loop, file, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        peer.send(b"question")
        sending = loop.create_task(loop.sendfile(transport, file))
        assert await read_exactly(loop, peer, len(CONTENT)) == CONTENT
        await sending
        assert await protocol.got(8) == b"question"
        assert transport.is_reading()


@contextlib.asynccontextmanager
async def over_tls(loop, contexts):
    """Yield the client's protocol and the server's transport, which supports only write()."""
    client, server = Recorder(loop), Recorder(loop)
    async with connected_pair(loop, client, server, **contexts) as (_, theirs):
        yield client, theirs
        assert theirs.is_closing() or theirs.get_protocol() is server


async def test_over_tls(loop, file, contexts):
    async with over_tls(loop, contexts) as (client, theirs):
        before = theirs.get_protocol()
        with pytest.raises(RuntimeError, match="fallback is disabled"):
            await loop.sendfile(theirs, file, fallback=False)
        assert await loop.sendfile(theirs, file, 1000, 2_000_000) == 2_000_000
        assert await client.got(2_000_000) == CONTENT[1000:2_001_000]
        theirs.write(b"after")
        assert (await client.got(2_000_005))[-5:] == b"after"
        assert theirs.get_protocol() is before


def buffered(path):
    return path.open("rb")


def unbuffered(path):
    return path.open("rb", buffering=0)


@contextlib.contextmanager
def begun(path):
    """Yield an open file whose buffer holds more data than has been read."""
    with path.open("rb") as file:
        assert file.read(100) == CONTENT[:100]
        yield file


@contextlib.contextmanager
def written(path):
    """Yield an open file with buffered data that is not in the file yet."""
    with path.open("r+b") as file:
        file.write(b"new")
        file.seek(0)
        yield file


def in_memory(path):
    return io.BytesIO(path.read_bytes())


class Decoded(io.FileIO):
    """A file whose content differs from the data that its descriptor reads."""

    def readinto(self, buffer):
        size = super().readinto(buffer)
        buffer[:size] = bytes(buffer[:size]).translate(bytes(range(255, -1, -1)))
        return size


@pytest.mark.parametrize("opened", [buffered, unbuffered, begun, written, in_memory, Decoded])
@pytest.mark.parametrize(
    ("offset", "count"), [(0, None), (0, 70_000), (1000, 70_000), (99_999, 10)]
)
async def test_over_tls_as_if_read(loop, tmp_path, contexts, opened, offset, count):
    """The peer receives the data of the file's own readinto()."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT[:100_000])
    with opened(path) as file:
        if offset or STRICT:
            file.seek(offset)
        wanted = bytearray(count or 200_000)
        del wanted[file.readinto(wanted) :]
    with opened(path) as file:
        async with over_tls(loop, contexts) as (client, transport):
            sent = await loop.sendfile(transport, file, offset, count)
            assert sent == len(wanted)
            assert await client.got(sent) == wanted
            # asyncio's way to compute the final position, whether or not sending has begun.
            assert file.tell() == offset + sent


@pytest.mark.parametrize("answer", [errno.EAGAIN, errno.EOPNOTSUPP, "now and then"])
async def test_over_tls_what_is_not_in_the_page_cache(loop, file, contexts, monkeypatch, answer):
    """A read would wait for the disk, or the file system does not support RWF_NOWAIT."""
    read, calls = os.preadv, itertools.count()

    def preadv(fd, buffers, offset, flags=0):
        if answer != "now and then":
            raise OSError(answer, os.strerror(answer))
        if next(calls) % 3:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return read(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    async with over_tls(loop, contexts) as (client, transport):
        assert await loop.sendfile(transport, file, 1000) == len(CONTENT) - 1000
        assert await client.got(len(CONTENT) - 1000) == CONTENT[1000:]
        assert file.tell() == len(CONTENT)


@pytest.mark.mgloop_only
async def test_over_tls_what_is_there_needs_no_thread(loop, file, contexts):
    async with over_tls(loop, contexts) as (client, transport):
        before = loop.stats().executor_jobs
        assert await loop.sendfile(transport, file) == len(CONTENT)
        assert loop.stats().executor_jobs == before
        assert await client.got(len(CONTENT)) == CONTENT


async def test_over_tls_others_are_served_meanwhile(loop, file, contexts):
    turns = 0

    async def others():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with over_tls(loop, contexts) as (client, transport):
        counting = loop.create_task(others())
        assert await loop.sendfile(transport, file) == len(CONTENT)
        assert turns >= len(CONTENT) // 100_000
        counting.cancel()
        assert await client.got(len(CONTENT)) == CONTENT


@pytest.mark.parametrize("end", ["cancelled", "closed"])
async def test_over_tls_ended_early(loop, file, contexts, end):
    async with over_tls(loop, contexts) as (client, transport):
        for side, size in (client.transport, socket.SO_RCVBUF), (transport, socket.SO_SNDBUF):
            side.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, size, 65_536)
        client.transport.pause_reading()
        sending = loop.create_task(loop.sendfile(transport, file))
        await support.wait_until(lambda: transport.get_write_buffer_size())
        if end == "cancelled":
            await support.cancel(sending)
        else:
            transport.abort()
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(sending, support.PATIENCE)
        assert 0 < file.tell() < len(CONTENT)
        transport.abort()
        client.transport.resume_reading()


async def test_over_unix_sockets(loop, left, right, file, protocol):
    transport, _ = await loop.create_unix_connection(lambda: protocol, sock=left)
    reading = loop.create_task(read_exactly(loop, right, len(CONTENT)))
    assert await loop.sendfile(transport, file, fallback=False) == len(CONTENT)
    assert await reading == CONTENT
    transport.close()
    await protocol.lost


async def test_an_empty_file(loop, tmp_path, protocol):
    path = tmp_path / "empty"
    path.touch()
    async with raw_connection(loop, protocol) as (transport, _):
        with path.open("rb") as file:
            assert await loop.sendfile(transport, file) == 0


async def test_cancelled(loop, file, protocol):
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        sending = loop.create_task(loop.sendfile(transport, file))
        await read_exactly(loop, peer, 100_000)
        await support.cancel(sending)
        transport.abort()
        await protocol.lost


@pytest.mark.parametrize("reading", [True, False])
async def test_cancelled_before_the_write_buffer_is_empty(loop, file, reading, protocol):
    """The transport continues to write, and to read if it has read before."""
    if support.kind_of(loop) == "asyncio" and not CANCELLATION_IS_UNDONE:
        pytest.skip("this asyncio leaves the transport closed to write() and paused")
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        if not reading:
            transport.pause_reading()
        transport.write(CONTENT)
        sending = loop.create_task(loop.sendfile(transport, file))
        await support.turns(3)
        await support.cancel(sending)
        assert transport.is_reading() == reading
        assert file.tell() == 0
        transport.write(b"more")
        again = loop.create_task(loop.sendfile(transport, file, 0, 1000))
        expected = CONTENT + b"more" + CONTENT[:1000]
        assert await read_exactly(loop, peer, len(expected)) == expected
        assert await again == 1000
        assert transport.is_reading() == reading
        transport.abort()
        await protocol.lost


async def test_a_closing_transport_is_refused(loop, file, protocol):
    async with raw_connection(loop, protocol) as (transport, _):
        transport.close()
        with pytest.raises(RuntimeError, match="Transport is closing"):
            await loop.sendfile(transport, file)
        await protocol.lost


async def test_a_transport_of_another_kind_is_refused(loop, file):
    class Other(asyncio.Transport):
        def is_closing(self):
            return False

    with pytest.raises(RuntimeError, match="sendfile is not supported for transport"):
        await loop.sendfile(Other(), file)


# --- loop.sock_sendfile --------------------------------------------------------------------------


@pytest.mark.parametrize("fallback", [True, False])
async def test_sock_whole_file(loop, ours, peer, file, fallback):
    reading = loop.create_task(read_exactly(loop, peer, len(CONTENT)))
    assert await loop.sock_sendfile(ours, file, fallback=fallback) == len(CONTENT)
    assert await reading == CONTENT
    # The descriptor is free for other uses again.
    await loop.sock_sendall(ours, b"after")
    assert await loop.sock_recv(peer, 10) == b"after"


async def test_sock_cancelled(loop, ours, peer, file):
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sending = loop.create_task(loop.sock_sendfile(ours, file))
    await read_exactly(loop, peer, 100_000)
    await support.cancel(sending)
    await support.turns(3)
    # No state is left: the socket can be written by other means.
    received = 100_000 + len(support.drain(peer))
    support.drain(peer)
    assert received < len(CONTENT)
    await loop.sock_sendall(ours, b"after")


@pytest.mark.parametrize(
    ("offset", "count", "exception", "message"),
    [
        (-1, None, ValueError, "offset must be a non-negative integer"),
        (1.5, None, TypeError, "offset must be a non-negative integer"),
        (0, 0, ValueError, "count must be a positive integer"),
        (0, -1, ValueError, "count must be a positive integer"),
        (0, 1.5, TypeError, "count must be a positive integer"),
    ],
)
async def test_sock_refuses_offsets_and_counts(loop, ours, file, offset, count, exception, message):
    with pytest.raises(exception, match=message):
        await loop.sock_sendfile(ours, file, offset, count)


async def test_sock_refuses_files_and_sockets(loop, ours, file_path):
    with file_path.open("r") as text:
        with pytest.raises(ValueError, match="binary mode"):
            await loop.sock_sendfile(ours, text)
    with socket.socket(type=socket.SOCK_DGRAM) as datagram, file_path.open("rb") as file:
        datagram.setblocking(False)
        with pytest.raises(ValueError, match="only SOCK_STREAM"):
            await loop.sock_sendfile(datagram, file)


async def test_sock_blocking_in_debug_mode(loop, ours, file):
    loop.set_debug(True)
    ours.setblocking(True)
    with pytest.raises(ValueError, match="the socket must be non-blocking"):
        await loop.sock_sendfile(ours, file)
