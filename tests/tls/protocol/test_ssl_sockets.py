# SPDX-License-Identifier: GPL-2.0-only
"""Tests that need sockets or count leaked objects."""

import asyncio
import contextlib
import gc
import ssl
import tracemalloc
import weakref

import pytest
import support
from harness import Connection, both_apps, only_mgloop


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def tls_version(request):
    return request.param


# --- memory ---------------------------------------------------------------------------------------


@both_apps
@pytest.mark.parametrize("way", ["closed", "aborted", "lost"])
def test_nothing_is_left_behind(loop, protocol_class, contexts, app_class, way):
    app = app_class()
    connection = Connection(loop, protocol_class, contexts, app).shake_hands()
    proto, transport = connection.proto, app.transport
    connection.arrive(connection.peer_says(b"data"))
    transport.write(b"data")
    if way == "closed":
        transport.close()
    elif way == "aborted":
        transport.abort()
    connection.lose(connection.below.fatal)
    support.turn(loop, 3)
    gc.collect()
    gc.disable()
    try:
        # Without the collector: no remaining cycle needs it.
        refs = [weakref.ref(thing) for thing in (proto, transport, connection.below, app)]
        del app.transport, proto, transport, app, connection
        assert [ref() for ref in refs] == [None] * 4
    finally:
        gc.enable()


def test_idle_connections_share_their_read_buffer(protocol_class, contexts, kind):
    only_mgloop(kind, "has 256 KiB for each")

    async def main():
        server, port = await start_echo(loop, contexts)
        writers = []
        for _ in range(5):
            # The first connection allocates the memory that all share.
            if len(writers) == 1:
                tracemalloc.start()
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=contexts[0], server_hostname="localhost"
            )
            writers.append(writer)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for writer in writers:
            await hang_up(writer)
        await support.close(server)
        return grown

    with contextlib.closing(support.new_loop("mgloop")) as loop:
        assert loop.run_until_complete(main()) < 256 * 1024


# --- over sockets ---------------------------------------------------------------------------------


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


async def hang_up(writer):
    """Close; it is fine if the other side was faster."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def start_echo(loop, contexts):
    server = await loop.create_server(Echo, "127.0.0.1", 0, ssl=contexts[1])
    return server, server.sockets[0].getsockname()[1]


def test_there_and_back_over_tcp(loop, contexts):
    message = support.pattern(3_000_000)

    async def main():
        server, port = await start_echo(loop, contexts)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=contexts[0], server_hostname="localhost"
        )
        writer.write(message)
        writer.writelines([message[:100], message[100:70_000], message[70_000:]])
        assert await reader.readexactly(len(message)) == message
        assert await reader.readexactly(len(message)) == message
        await hang_up(writer)
        await support.close(server)

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE))


def test_back_pressure_over_tcp(loop, contexts):
    """A sender that respects drain() does not accumulate data that a slow reader has not read."""
    sizes = []
    total = 8_000_000

    async def send(reader, writer):
        for _ in range(total // 100_000):
            writer.write(support.pattern(100_000))
            await writer.drain()
            sizes.append(writer.transport.get_write_buffer_size())
        await hang_up(writer)

    async def main():
        server = await asyncio.start_server(send, "127.0.0.1", 0, ssl=contexts[1])
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=contexts[0], server_hostname="localhost", limit=10_000
        )
        received = 0
        while data := await reader.read(50_000):
            received += len(data)
            await asyncio.sleep(0)
        assert received == total
        await hang_up(writer)
        await support.close(server)

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE))
    assert max(sizes) < 700_000


def test_tls_in_tls(loop, contexts):
    """start_tls() over a TLS transport: two protocols share one loop's buffers."""
    message = support.pattern(500_000)

    class Upgrading(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            assert data == b"upgrade"
            self.transport.write(b"go")
            tasks.append(loop.create_task(self.upgrade()))

        async def upgrade(self):
            echo = Echo()
            inner = await loop.start_tls(self.transport, echo, contexts[1], server_side=True)
            echo.connection_made(inner)
            inner.write(b"ready")
            await done
            inner.abort()

    tasks = []
    done = loop.create_future()

    async def main():
        server = await loop.create_server(Upgrading, "127.0.0.1", 0, ssl=contexts[1])
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=contexts[0], server_hostname="localhost"
        )
        writer.write(b"upgrade")
        assert await reader.readexactly(2) == b"go"
        await writer.start_tls(contexts[0], server_hostname="localhost")
        assert await reader.readexactly(5) == b"ready"
        writer.write(message)
        assert await reader.readexactly(len(message)) == message
        done.set_result(None)
        await asyncio.gather(*tasks)
        writer.transport.abort()
        await support.close(server)

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE))


def test_sendfile_falls_back(loop, contexts, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(support.pattern(300_000))

    async def serve(reader, writer):
        with path.open("rb") as file:
            await loop.sendfile(writer.transport, file)
        await hang_up(writer)

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=contexts[1])
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=contexts[0], server_hostname="localhost"
        )
        assert await reader.read() == support.pattern(300_000)
        await hang_up(writer)
        await support.close(server)

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE))


def test_many_connections_come_and_go(loop, contexts):
    async def talk(port, number):
        message = b"%d" % number * 500
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=contexts[0], server_hostname="localhost"
        )
        writer.write(message)
        assert await reader.readexactly(len(message)) == message
        if number % 3:
            await hang_up(writer)
        else:
            writer.transport.abort()

    async def main():
        server, port = await start_echo(loop, contexts)
        for _ in range(5):
            await asyncio.gather(*(talk(port, number) for number in range(20)))
        await support.close(server)
        # The server's side notices the last aborts a little later.
        await support.wait_until(lambda: not server._waiters and not sockets_open())

    before = len(support.open_fds())

    def sockets_open():
        return len(support.open_fds()) > before + 3

    loop.run_until_complete(asyncio.wait_for(main(), support.PATIENCE))
