# SPDX-License-Identifier: GPL-2.0-only
"""The HTTP and WebSocket servers that wrk and the C client load, on whichever loop they are given.

This module runs in its own child process. Each server imports the framework that it needs, so that
a missing framework is reported for that server only and does not affect the others.
"""

import asyncio
import logging

from . import many
from .servers import announce, listen, port_of, tls_context

BODY = b"Hello, World!"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)


class RawHTTP(asyncio.Protocol):
    """The minimal answer to a GET: finds the end of the head and parses nothing."""

    def connection_made(self, transport):
        self.transport = transport
        self.rest = b""

    def data_received(self, data):
        data = self.rest + data if self.rest else data
        *heads, self.rest = data.split(b"\r\n\r\n")
        for _ in heads:
            self.transport.write(PLAIN)


def httptools_protocol():
    """Return a protocol that uses the httptools parser with its usual callbacks."""
    import httptools

    class ToolsHTTP(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
            self.parser = httptools.HttpRequestParser(self)
            self.headers = []

        def data_received(self, data):
            self.parser.feed_data(data)

        def on_url(self, url):
            self.url = url

        def on_header(self, name, value):
            self.headers.append((name, value))

        def on_message_complete(self):
            self.headers = []
            self.transport.write(PLAIN)
            if not self.parser.should_keep_alive():
                self.transport.close()

    return ToolsHTTP


async def serve_protocol(protocol, config, tell):
    """Serve *protocol* with create_server."""
    loop = asyncio.get_running_loop()
    sock = listen(config)
    port = port_of(sock)
    server = await loop.create_server(protocol, sock=sock, ssl=tls_context(config), backlog=4096)
    announce(port, tell)
    await loop.create_future()
    del server


async def serve_aiohttp(config, tell):
    """Serve JSON and a file with aiohttp, without an access log."""
    from aiohttp import web

    async def hello(request):
        return web.json_response({"message": "Hello, World!"})

    async def file(request):
        return web.FileResponse(config["file"])

    app = web.Application()
    app.router.add_get("/", hello)
    app.router.add_get("/file", file)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    sock = listen(config)
    port = port_of(sock)
    site = web.SockSite(runner, sock, ssl_context=tls_context(config), backlog=4096)
    await site.start()
    announce(port, tell)
    await asyncio.get_running_loop().create_future()


async def plaintext(scope, receive, send):
    """The smallest ASGI application."""
    if scope["type"] != "http":
        return
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/plain"), (b"content-length", b"13")],
        }
    )
    await send({"type": "http.response.body", "body": BODY})


async def serve_uvicorn(config, tell):
    """Serve with uvicorn and httptools, without logs and lifespan."""
    import uvicorn

    sock = listen(config)
    port = port_of(sock)
    options = uvicorn.Config(
        plaintext,
        http="httptools",
        loop="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        backlog=4096,
    )
    announce(port, tell)
    await uvicorn.Server(options).serve(sockets=[sock])


async def serve_websockets(config, tell):
    """Echo with the websockets library, without compression."""
    from websockets.asyncio.server import serve

    logging.getLogger("websockets").setLevel(logging.CRITICAL)

    async def echo(connection):
        async for message in connection:
            await connection.send(message)

    sock = listen(config)
    port = port_of(sock)
    async with serve(echo, sock=sock, compression=None, ping_interval=None):
        announce(port, tell)
        await asyncio.get_running_loop().create_future()


async def serve(config, tell):
    """Start the kind of server that *config* names."""
    kind = config["kind"]
    if kind == "raw":
        await serve_protocol(RawHTTP, config, tell)
    elif kind == "httptools":
        await serve_protocol(httptools_protocol(), config, tell)
    elif kind == "aiohttp":
        await serve_aiohttp(config, tell)
    elif kind == "uvicorn":
        await serve_uvicorn(config, tell)
    elif kind == "websockets":
        await serve_websockets(config, tell)
    else:
        raise ValueError(f"no HTTP server of the kind {kind!r}")


def main(config, factory, tell):
    """Run the child process."""
    if config.get("many"):
        many.main(serve, config, factory, tell)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(config, tell))
