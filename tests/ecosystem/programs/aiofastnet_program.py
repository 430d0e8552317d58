# SPDX-License-Identifier: GPL-2.0-only
"""aiofastnet: its transports, plain and TLS, over the loop; and aiohttp on them."""

import asyncio
import os
import ssl
import tempfile
from importlib.metadata import version
from pathlib import Path

import aiofastnet
import aiohttp
import trustme
from aiohttp import web
from common import expect, run, say

SIZES = (1, 1000, 16_384, 16_385, 1_000_000, 5_000_000)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back the received data, up to the end."""
    while data := await reader.read(100_000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def echoes(server_tls: ssl.SSLContext | None, client_tls: ssl.SSLContext | None) -> None:
    """A hundred clients at a time, each sending all sizes, one of them larger than any buffer."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_tls)
    port = server.sockets[0].getsockname()[1]
    name = "localhost" if client_tls else None

    async def client(sizes: tuple[int, ...]) -> None:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client_tls, server_hostname=name
        )
        expect(
            type(writer.transport).__module__.startswith("aiofastnet"),
            f"the transport is aiofastnet's, not {type(writer.transport)}",
        )
        for size in sizes:
            sent = os.urandom(size)
            writer.write(sent)
            expect(await reader.readexactly(size) == sent, f"{size} bytes came back")
        if writer.can_write_eof():
            writer.write_eof()
            expect(await reader.read() == b"", "the end came")
        writer.close()
        await writer.wait_closed()

    async with server:
        await client(SIZES)
        await asyncio.gather(*(client(SIZES[:4]) for _ in range(100)))


async def upgraded(server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
    """start_tls() on both sides of a connection that has carried bytes already."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        expect(await reader.readline() == b"STARTTLS\n", "the client asks for TLS")
        writer.write(b"GO\n")
        await writer.drain()
        await writer.start_tls(server_tls)
        await answer(reader, writer)

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"STARTTLS\n")
        expect(await reader.readline() == b"GO\n", "the server agrees")
        await writer.start_tls(client_tls, server_hostname="localhost")
        writer.write(b"secret" * 10_000)
        expect(await reader.readexactly(60_000) == b"secret" * 10_000, "60 kB over TLS")
        writer.close()
        await writer.wait_closed()


async def files(server_tls: ssl.SSLContext | None, client_tls: ssl.SSLContext | None) -> None:
    """aiohttp with a FileResponse, a POST and JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        path.write_bytes(os.urandom(3_000_000))

        async def get(request: web.Request) -> web.FileResponse:
            return web.FileResponse(path)

        async def post(request: web.Request) -> web.Response:
            return web.Response(body=await request.read())

        application = web.Application(client_max_size=10_000_000)
        application.add_routes([web.get("/file", get), web.post("/", post)])
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_tls)
        await site.start()
        scheme = "https" if server_tls else "http"
        url = f"{scheme}://localhost:{runner.addresses[0][1]}"
        connector = aiohttp.TCPConnector(ssl=client_tls or True)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def one() -> None:
                async with session.get(f"{url}/file") as response:
                    expect(await response.read() == path.read_bytes(), "the file came whole")
                body = os.urandom(700_000)
                async with session.post(url, data=body) as response:
                    expect(await response.read() == body, "the body came back")

            await asyncio.gather(*(one() for _ in range(20)))
        await runner.cleanup()


async def main() -> None:
    """Everything plain and over TLS, with aiofastnet's methods in place of the loop's."""
    say(f"aiofastnet {version('aiofastnet')}, aiohttp {aiohttp.__version__}")
    aiofastnet.patch_loop(asyncio.get_running_loop())
    authority = trustme.CA()
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_tls)
    client_tls = ssl.create_default_context()
    authority.configure_trust(client_tls)
    await echoes(None, None)
    await echoes(server_tls, client_tls)
    say(f"100 clients, up to {SIZES[-1]} bytes, plain and TLS")
    await upgraded(server_tls, client_tls)
    say("start_tls()")
    await files(None, None)
    await files(server_tls, client_tls)
    say("aiohttp: 20 clients, FileResponse, POST, plain and TLS")


run(main())
