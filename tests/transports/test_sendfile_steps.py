# SPDX-License-Identifier: GPL-2.0-only
"""What sendfile leaves behind: the file's position, the poll loop's interest, the loop's time.

Which bytes are sent is in test_sendfile.py and test_sock_sendfile.py.
"""

import asyncio
import os
import socket
import threading

import pytest
import support
from peers import Recorder, on_loop, raw_connection, read_exactly, reset

SIZE = 8_000_000


@pytest.fixture
def file(tmp_path):
    """A file of 8 MB; more than a socket takes at once."""
    path = tmp_path / "file"
    path.write_bytes(support.pattern(SIZE))
    with path.open("rb") as opened:
        yield opened


def position(file):
    """Where the kernel's offset is, past what the file object has buffered."""
    return os.lseek(file.fileno(), 0, os.SEEK_CUR)


@on_loop
async def test_nothing_is_watched_afterwards(loop, tcp_pair, file):
    ours, peer = tcp_pair
    reading = loop.create_task(read_exactly(loop, peer, SIZE))
    assert await loop.sock_sendfile(ours, file) == SIZE
    await reading
    assert loop.remove_writer(ours) is False
    assert position(file) == SIZE


@on_loop
async def test_cancelled(loop, tcp_pair, file):
    ours, peer = tcp_pair
    sending = loop.create_task(loop.sock_sendfile(ours, file, fallback=False))
    await read_exactly(loop, peer, 1_000_000)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert loop.remove_writer(ours) is False


@pytest.mark.mgloop_only
@on_loop
async def test_the_position_tells_how_far_a_cancelled_transfer_came(loop, tcp_pair, file):
    """As the documentation of sendfile() has it for errors in general."""
    ours, peer = tcp_pair
    sending = loop.create_task(loop.sock_sendfile(ours, file, 1000, fallback=False))
    received = bytearray(await read_exactly(loop, peer, 1_000_000))
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    ours.shutdown(socket.SHUT_WR)
    while chunk := await loop.sock_recv(peer, 1 << 20):
        received += chunk
    assert position(file) == 1000 + len(received)
    assert received == support.pattern(SIZE)[1000 : position(file)]


@on_loop
async def test_reset_by_the_peer(loop, tcp_pair, file):
    ours, peer = tcp_pair
    sending = loop.create_task(loop.sock_sendfile(ours, file, fallback=False))
    await read_exactly(loop, peer, 1_000_000)
    reset(peer)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(sending, support.PATIENCE)
    assert loop.remove_writer(ours) is False
    assert 1_000_000 <= position(file) < SIZE


@on_loop
async def test_a_socket_that_cannot_be_sent_to(loop, tcp_pair, file):
    """The first call fails: the system call is of no use here."""
    ours, _ = tcp_pair
    ours.shutdown(socket.SHUT_WR)
    with pytest.raises(asyncio.SendfileNotAvailableError):
        await loop.sock_sendfile(ours, file, fallback=False)
    assert loop.remove_writer(ours) is False


@on_loop
async def test_a_file_that_grows_shorter(loop, tcp_pair, tmp_path):
    """It ends where it ends, whatever its size was at the beginning."""
    path = tmp_path / "shrinking"
    path.write_bytes(support.pattern(SIZE))
    ours, peer = tcp_pair
    with path.open("rb") as file:
        sending = loop.create_task(loop.sock_sendfile(ours, file, 0, SIZE, fallback=False))
        await support.turns(5)
        assert not sending.done()
        os.truncate(path, 5)
        ended = False

        async def discard():
            while not ended:
                await loop.sock_recv(peer, 1 << 20)

        reading = loop.create_task(discard())
        sent = await asyncio.wait_for(sending, support.PATIENCE)
        ended = True
        ours.shutdown(socket.SHUT_WR)
        await reading
    assert 5 < sent < SIZE


@on_loop
async def test_others_have_their_turn(loop, file):
    """However fast the reader, the loop goes round between two pieces."""
    rounds = 0
    protocol = Recorder(loop)
    async with raw_connection(loop, protocol) as (transport, peer):
        peer.setblocking(True)

        def receive():
            left = 4 * SIZE
            while left > 0:
                left -= len(peer.recv(min(left, 1 << 20)))

        def tick():
            nonlocal rounds
            rounds += 1
            ticking = loop.call_soon(tick)
            handles[:] = [ticking]

        handles = []
        tick()
        thread = threading.Thread(target=receive)
        thread.start()
        for _ in range(4):
            assert await loop.sendfile(transport, file, 0, SIZE, fallback=False) == SIZE
        handles[0].cancel()
        while thread.is_alive():
            await asyncio.sleep(0.001)
        thread.join()
    # At the very least once per transfer.
    assert rounds >= 4
