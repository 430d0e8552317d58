# SPDX-License-Identifier: GPL-2.0-only
"""websockets: server and clients in one loop, plain and TLS, fragments, ping, close codes."""

import asyncio
import os
import ssl

import trustme
import websockets
from common import expect, run, say
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve


async def echo(connection) -> None:
    """Send back each message."""
    async for message in connection:
        await connection.send(message)


async def talk(uri: str, tls: ssl.SSLContext | None) -> None:
    """1,000 small messages, one of 4 MiB in fragments, a ping."""
    async with connect(uri, ssl=tls, max_size=None) as connection:
        for number in range(1000):
            await connection.send(str(number))
            expect(await connection.recv() == str(number), "the echo is what was sent")
        parts = [os.urandom(1 << 18) for _ in range(16)]
        sending = asyncio.ensure_future(connection.send(iter(parts)))
        expect(await connection.recv() == b"".join(parts), "4 MiB in 16 fragments came back")
        await sending
        await asyncio.wait_for(await connection.ping(), 30)


async def main() -> None:
    """Plain, TLS, 200 clients at a time, and how connections end."""
    say(f"websockets {websockets.__version__}")
    authority = trustme.CA()
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_tls)
    client_tls = ssl.create_default_context()
    authority.configure_trust(client_tls)

    for scheme, tls in (("ws", None), ("wss", client_tls)):
        async with serve(
            echo, "127.0.0.1", 0, ssl=server_tls if tls else None, max_size=None
        ) as server:
            port = server.sockets[0].getsockname()[1]
            await talk(f"{scheme}://localhost:{port}", tls)
            say(f"{scheme}: 1,000 messages, 4 MiB in fragments, a ping")

            async def one(
                number: int,
                scheme: str = scheme,
                port: int = port,
                tls: ssl.SSLContext | None = tls,
            ) -> None:
                async with connect(f"{scheme}://localhost:{port}", ssl=tls) as connection:
                    for turn in range(10):
                        await connection.send(f"{number}/{turn}")
                        expect(
                            await connection.recv() == f"{number}/{turn}", "each client has its own"
                        )

            await asyncio.gather(*(one(number) for number in range(200)))
            say(f"{scheme}: 200 clients at a time")

    async def leave(connection) -> None:
        await connection.close(4001, "bye")

    async with serve(leave, "127.0.0.1", 0) as server:
        async with connect(f"ws://localhost:{server.sockets[0].getsockname()[1]}") as connection:
            try:
                await connection.recv()
            except websockets.ConnectionClosed as exc:
                expect(exc.rcvd is not None and exc.rcvd.code == 4001, "the close code arrives")
            else:
                expect(False, "a closed connection says so")
        say("the close code arrives")


run(main())
