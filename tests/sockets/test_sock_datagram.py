# SPDX-License-Identifier: GPL-2.0-only
"""sock_recvfrom, sock_recvfrom_into and sock_sendto: datagrams over UDP and AF_UNIX."""

import asyncio
import errno
import socket

import pytest
import support


class TestDatagrams:
    async def test_sendto_and_recvfrom(self, loop, one, two):
        assert await loop.sock_sendto(one, b"first", two.getsockname()) == 5
        assert await loop.sock_recvfrom(two, 100) == (b"first", one.getsockname())
        receiving = loop.create_task(loop.sock_recvfrom(two, 100))
        await support.turns(3)
        await loop.sock_sendto(one, b"second", two.getsockname())
        assert await receiving == (b"second", one.getsockname())

    async def test_empty_and_large_datagrams(self, loop, one, two):
        for data in (b"", b"x", support.pattern(60_000)):
            await loop.sock_sendto(one, data, two.getsockname())
            assert await loop.sock_recvfrom(two, 65536) == (data, one.getsockname())

    async def test_truncation(self, loop, one, two):
        await loop.sock_sendto(one, b"0123456789", two.getsockname())
        await loop.sock_sendto(one, b"next", two.getsockname())
        assert (await loop.sock_recvfrom(two, 4))[0] == b"0123"
        assert (await loop.sock_recvfrom(two, 4))[0] == b"next"

    async def test_recvfrom_into(self, loop, one, two):
        buffer = bytearray(10)
        await loop.sock_sendto(one, b"data", two.getsockname())
        assert await loop.sock_recvfrom_into(two, buffer) == (4, one.getsockname())
        assert buffer[:4] == b"data"
        receiving = loop.create_task(loop.sock_recvfrom_into(two, buffer, 2))
        await support.turns(3)
        await loop.sock_sendto(one, b"more", two.getsockname())
        assert await receiving == (2, one.getsockname())
        assert buffer[:4] == b"mota"

    def test_recvfrom_into_asks_for_more_than_the_buffer_holds(self, loop, run, udp_pair):
        with pytest.raises(ValueError):
            run(loop.sock_recvfrom_into(udp_pair[0], bytearray(10), 20))

    async def test_recv_into_and_recv_on_datagrams(self, loop, one, two):
        one.connect(two.getsockname())
        await loop.sock_sendall(one, b"first")
        assert await loop.sock_recv(two, 100) == b"first"
        buffer = bytearray(10)
        await loop.sock_sendall(one, b"second")
        assert await loop.sock_recv_into(two, buffer) == 6

    def test_too_large(self, loop, run, one, two):
        with pytest.raises(OSError) as info:
            run(loop.sock_sendto(one, bytes(70_000), two.getsockname()))
        assert info.value.errno == errno.EMSGSIZE

    async def test_a_refusal_is_an_error_of_the_next_call(self, loop, one):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            address = sock.getsockname()
        one.connect(address)
        await loop.sock_sendall(one, b"x")
        with pytest.raises(ConnectionRefusedError):
            await loop.sock_recv(one, 10)

    async def test_sendto_waits_for_room(self, loop, short_path):
        """A full AF_UNIX receiver makes the sender wait; UDP would drop the datagram."""
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        ):
            sender.setblocking(False)
            receiver.setblocking(False)
            receiver.bind(short_path)
            sent = 0
            while True:
                sending = loop.create_task(loop.sock_sendto(sender, b"x", short_path))
                done, _ = await asyncio.wait({sending}, timeout=0.02)
                if not done:
                    break
                sent += 1
            # One is enough if the receiver's queue (10 messages) was full. If that queue is
            # long (512 under systemd), the sender's buffer was full, and needs more.
            received = 0
            while not sending.done():
                assert (await loop.sock_recvfrom(receiver, 10))[0] == b"x"
                received += 1
                await asyncio.wait({sending}, timeout=0.02)
            assert await sending == 1
            for _ in range(sent + 1 - received):
                assert (await loop.sock_recvfrom(receiver, 10))[0] == b"x"

    async def test_unix_addresses(self, loop, short_path):
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as two,
        ):
            for sock, name in ((one, "1"), (two, "2")):
                sock.setblocking(False)
                sock.bind(short_path + name)
            await loop.sock_sendto(one, b"data", short_path + "2")
            assert await loop.sock_recvfrom(two, 10) == (b"data", short_path + "1")

    @support.needs_ipv6
    async def test_ipv6_addresses(self, loop):
        with (
            socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as one,
            socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as two,
        ):
            for sock in (one, two):
                sock.bind(("::1", 0))
                sock.setblocking(False)
            await loop.sock_sendto(one, b"data", two.getsockname())
            assert await loop.sock_recvfrom(two, 10) == (b"data", one.getsockname())

    async def test_cancelled_recvfrom_takes_nothing(self, loop, one, two):
        receiving = loop.create_task(loop.sock_recvfrom(two, 100))
        await support.turns(3)
        one.sendto(b"kept", two.getsockname())
        await support.cancel(receiving)
        assert await loop.sock_recvfrom(two, 100) == (b"kept", one.getsockname())

    def test_a_bad_address(self, loop, run, udp_pair):
        with pytest.raises((TypeError, OSError)):
            run(loop.sock_sendto(udp_pair[0], b"x", "no tuple"))
