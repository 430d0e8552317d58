# SPDX-License-Identifier: GPL-2.0-only
"""A server of one application for a test, and a client that sees every byte."""

import asyncio
import contextlib
import types

from mgloop.http.wire._connection import Connection
from mgloop.http.wire._site import Site
from mgloop.http.wire._wsgirequest import WsgiRunner

#: mgloop.http.Config's defaults, as far as a Site uses them, but without timeouts because a machine
#: may be slow.
DEFAULTS = {
    "root_path": "",
    "server_header": False,
    "date_header": False,
    "headers": [],
    "debug": False,
    "limit_concurrency": None,
    "limit_connections": None,
    "limit_max_requests": None,
    "limit_request_line": 8190,
    "limit_request_head": 65536,
    "limit_request_field": 8190,
    "limit_request_headers": 100,
    "limit_request_body": None,
    "sendfile": False,
    "body_buffer": 65536,
    "timeout_head": 0,
    "timeout_body": 0,
    "timeout_keep_alive": 0,
    "timeout_write": 0,
    "timeout_stream_shutdown": 0,
    "workers": 1,
    "wsgi_threads": 10,
    "wsgi_stream_input": False,
    "health_path": None,
}


class Client:
    """One connection, which uses the loop's streams."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, data, *, bytewise=False):
        """Send the data, byte by byte if it is short, otherwise in short pieces."""
        step = len(data) if not bytewise else 1 if len(data) < 2000 else 997
        if bytewise:
            await asyncio.sleep(0.01)  # the server has accepted the connection by then
        for i in range(0, len(data), step or 1):
            self.writer.write(data[i : i + step])
            for _ in range(2 if bytewise else 0):  # iterations of the loop, the server's too
                await asyncio.sleep(0)
        await self.writer.drain()

    async def head(self):
        """Return the status and the headers of the next response.

        The headers are a dict of str, whose names are in lower case.
        """
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, _ = head[0].split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in head[1:-2]]
        return int(status), {name.lower(): value for name, value in pairs}

    async def response(self, *, method="GET"):
        """Return the next response: (status, headers, body)."""
        status, headers = await self.head()
        if method == "HEAD" or status in (204, 304) or status < 200:
            body = b""
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            chunks = []
            while size := int(await self.reader.readuntil(b"\n"), 16):
                chunks.append(await self.reader.readexactly(size))
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readuntil(b"\n") == b"\r\n"
            body = b"".join(chunks)
        else:
            body = await self.reader.read()
        return status, headers, body

    async def request(self, text, *, method="GET", **how):
        await self.send(text, **how)
        return await self.response(method=method)

    async def ended(self):
        """Wait until the server closes, which must not send more data."""
        assert await self.reader.read() == b""


class Serving:
    def __init__(self, loop, app, state=None, access_log=None, proxy=None, **config):
        self.loop = loop
        settings = types.SimpleNamespace(**DEFAULTS | config)
        self.site = Site(
            loop,
            app,
            settings,
            connection=Connection,
            state=state,
            access_log=access_log,
            proxy=proxy,
        )
        if isinstance(app, WsgiRecording):
            self.site.wsgi = WsgiRunner(self.site, app, 0)
        self.clients = []

    async def __aenter__(self):
        self.server = await self.loop.create_server(self.site.connection, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def connect(self, data=b"", **options):
        """Return a client over a new connection, which has sent `data`."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, **options))
        self.clients.append(client)
        await client.send(data)
        return client

    async def one(self, text, **how):
        """Send `text` over a new connection; return the response."""
        client = await self.connect()
        return await client.request(text, **how)

    async def __aexit__(self, *exc_info):
        for client in self.clients:
            client.writer.close()
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()
        self.server.close()
        self.site.begin_shutdown()
        if exc_info[0] is not None:
            self.site.cancel_all()
        await asyncio.wait_for(self.site.wait_drained(), 20)
        self.site.cancel_all()
        await self.server.wait_closed()


@contextlib.asynccontextmanager
async def connected(loop, app, data=b"", *, limit=2**16, **config):
    """Serve `app`; yield a client, which has sent `data` and reads at most `limit` bytes ahead.

    Its attributes `serving` and `site` are the server's.
    """
    async with Serving(loop, app, **config) as serving:
        client = await serving.connect(data, limit=limit)
        client.serving, client.site = serving, serving.site
        yield client


def get(path="/", *headers, version="1.1", host="a"):
    lines = [f"GET {path} HTTP/{version}", *([f"Host: {host}"] if host else []), *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def post(length, *headers, body=b"", version="1.1"):
    """Return a POST whose body has `length` bytes, or is chunked without a length."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"POST / HTTP/{version}", "Host: a", framing, *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def answer(send, body=b"", status=200, headers=()):
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def send_often(send, message):
    """Send repeatedly, with no pause except those in send() itself."""
    for _ in range(10_000):
        await send(message)


async def read_body(receive):
    pieces = []
    while True:
        message = await receive()
        assert message["type"] == "http.request", message
        pieces.append(message["body"])
        if not message["more_body"]:
            return b"".join(pieces)


class Recording:
    """An application that records each request, and echoes its body."""

    def __init__(self):
        self.scopes = []
        self.bodies = []

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        body = await read_body(receive)
        self.bodies.append(body)
        await answer(send, body)


class WsgiRecording:
    """The same as a WSGI application, which the site runs in the loop's thread."""

    def __init__(self):
        self.scopes = []
        self.bodies = []

    def __call__(self, environ, start_response):
        scope = {
            "method": environ["REQUEST_METHOD"],
            "path": environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace"),
            "query_string": environ["QUERY_STRING"].encode("latin-1"),
        }
        self.scopes.append(scope)
        body = environ["wsgi.input"].read(-1)
        self.bodies.append(body)
        start_response("200 OK", [])
        return [body]
