# SPDX-License-Identifier: GPL-2.0-only
"""sock_sendfile: by the kernel if possible, otherwise by reading and writing."""

import asyncio
import io
import socket

import pytest
import support


class TestSendfile:
    @pytest.fixture
    def data(self):
        return support.pattern(1_000_000)

    @pytest.fixture
    def file(self, tmp_path, data):
        path = tmp_path / "data"
        path.write_bytes(data)
        with open(path, "rb") as file:
            yield file

    @staticmethod
    async def receive(loop, sock):
        got = bytearray()
        while chunk := await loop.sock_recv(sock, 1 << 16):
            got += chunk
        return got

    @pytest.mark.parametrize(
        ("offset", "count", "sent"),
        [
            (0, None, 1_000_000),
            (1000, None, 999_000),
            (0, 5000, 5000),
            (500_000, 100, 100),
            (999_999, 10, 1),
        ],
    )
    async def test_a_part(self, loop, ours, peer, file, data, offset, count, sent):
        receiving = loop.create_task(self.receive(loop, peer))
        assert await loop.sock_sendfile(ours, file, offset, count) == sent
        ours.shutdown(socket.SHUT_WR)
        assert await receiving == data[offset : offset + sent]
        assert file.tell() == offset + sent

    def test_an_empty_file(self, loop, run, tcp_pair, tmp_path):
        (tmp_path / "empty").touch()
        with open(tmp_path / "empty", "rb") as file:
            assert run(loop.sock_sendfile(tcp_pair[0], file)) == 0

    async def test_a_file_without_a_descriptor_is_read_and_sent(self, loop, ours, peer, data):
        receiving = loop.create_task(self.receive(loop, peer))
        assert await loop.sock_sendfile(ours, io.BytesIO(data)) == len(data)
        ours.shutdown(socket.SHUT_WR)
        assert await receiving == data

    def test_no_fall_back(self, loop, run, tcp_pair, data):
        with pytest.raises(asyncio.SendfileNotAvailableError):
            run(loop.sock_sendfile(tcp_pair[0], io.BytesIO(data), fallback=False))

    def test_a_peer_that_goes_meanwhile(self, loop, run, ours, peer, tmp_path):
        with open(tmp_path / "large", "w+b") as file:
            file.truncate(64 * 1024 * 1024)
            loop.call_later(0.01, support.reset, peer)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                run(loop.sock_sendfile(ours, file))

    async def test_cancelled(self, loop, ours, tmp_path):
        with open(tmp_path / "large", "w+b") as file:
            file.truncate(64 * 1024 * 1024)
            sending = loop.create_task(loop.sock_sendfile(ours, file))
            await asyncio.sleep(0.01)
            await support.cancel(sending)

    @pytest.mark.parametrize(
        ("arguments", "exception"),
        [
            ((0, 0), ValueError),
            ((0, -1), ValueError),
            ((-1, None), ValueError),
            ((0, "1"), TypeError),
            (("0", None), TypeError),
            ((1.5, None), TypeError),
        ],
    )
    def test_bad_arguments(self, loop, run, tcp_pair, file, arguments, exception):
        with pytest.raises(exception):
            run(loop.sock_sendfile(tcp_pair[0], file, *arguments))

    def test_a_text_file(self, loop, run, tcp_pair):
        with open(__file__, encoding="utf-8") as file:
            with pytest.raises(ValueError, match="binary mode"):
                run(loop.sock_sendfile(tcp_pair[0], file))

    def test_a_datagram_socket(self, loop, run, udp_pair, file):
        with pytest.raises(ValueError, match="SOCK_STREAM"):
            run(loop.sock_sendfile(udp_pair[0], file))
