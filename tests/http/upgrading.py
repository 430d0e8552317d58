# SPDX-License-Identifier: GPL-2.0-only
"""Replacements for an HTTP server and a conforming client in the tests of WebSockets.

Site records the access log. Upgrade is a protocol that reads
one upgrade request and hands the connection over. frame() and read_frame() are a second, simple
implementation of framing, because no client library sends invalid frames.
"""

import asyncio
import contextlib
import socket
import types

import support
from sites import DEFAULTS

from mgloop.http.wire import _site
from mgloop.http.wire._connection import Connection
from mgloop.http.wire._websocket import WebSocket

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Site(_site.Site):
    """The state that the connections of a loop share; `answers` are the statuses in its log."""

    def __init__(self, loop, app, **options):
        config = DEFAULTS | {
            "server_header": True,
            "ws_max_size": 16 * 1024 * 1024,
            "ws_max_queue": 32,
            "ws_ping_interval": None,
            "ws_ping_timeout": None,
            "ws_per_message_deflate": True,
            "timeout_write": 60.0,
        }
        self.answers = []
        super().__init__(
            loop,
            app,
            types.SimpleNamespace(**config | options),
            connection=Connection,
            access_log=self._log,
        )

    @property
    def members(self):
        return list(super().members)

    def _log(self, scope, status, nbytes, seconds):
        assert scope["type"] == "websocket"
        assert seconds >= 0
        self.answers.append(status)


class Upgrade(asyncio.Protocol):
    """Parses the lines of an upgrade request, without checking that it is one."""

    def __init__(self, site):
        self.site = site
        self.received = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        head, end, rest = self.received.partition(b"\r\n\r\n")
        if not end:
            return
        lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        headers = [(name.lower(), value.strip()) for name, _, value in lines]
        protocols = [value for name, value in headers if name == b"sec-websocket-protocol"]
        protocols = [part.strip() for part in b",".join(protocols).decode().split(",") if part]
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.5"},
            "scheme": "ws",
            "path": "/",
            "headers": headers,
            "subprotocols": protocols,
            "extensions": {"websocket.http.response": {}},
        }
        session = WebSocket(
            self.site,
            self.transport,
            scope,
            dict(headers)[b"sec-websocket-key"],
            [value for name, value in headers if name == b"sec-websocket-extensions"],
            protocols,
        )
        self.transport.set_protocol(session)
        session.start(rest)


@contextlib.asynccontextmanager
async def serving(loop, app, *, ssl=None, **options):
    """Yield a Site with a server; at the end every session must end or is cut off."""
    site = Site(loop, app, **options)
    server = await loop.create_server(lambda: Upgrade(site), "127.0.0.1", 0, ssl=ssl)
    site.address = server.sockets[0].getsockname()
    site.url = f"{'wss' if ssl else 'ws'}://localhost:{site.address[1]}/"
    try:
        yield site
        await support.wait_until(lambda: not site.members)
    finally:
        server.close()
        for member in site.members:
            member.cancel()
        await support.wait_until(lambda: not site.members)
        await server.wait_closed()


def frame(opcode, payload=b"", *, fin=True, rsv=0, mask=b"\x12\x34\x56\x78", length=None):
    """Return a frame as a client sends it; `length` is the length in its header."""
    size = len(payload) if length is None else length
    head = bytes([fin << 7 | rsv << 4 | opcode])
    masked = 0x80 if mask else 0
    if size < 126:
        head += bytes([masked | size])
    elif size < 65536:
        head += bytes([masked | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([masked | 127]) + size.to_bytes(8, "big")
    if mask:
        payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
        head += mask
    return head + payload


def closing(code, reason=b""):
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


class Peer:
    """The client's end of a connection, without a WebSocket library."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def send(self, data):
        self.writer.write(data)

    async def read_frame(self):
        """Read an unmasked frame; return (the first byte, the payload)."""
        first, size = await self.reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await self.reader.readexactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await self.reader.readexactly(8), "big")
        return first, await self.reader.readexactly(size)

    async def read_close(self):
        """Read the next frame, which must be a close frame; return its code and reason."""
        first, payload = await self.read_frame()
        assert first == 0x80 | CLOSE, (first, payload)
        return int.from_bytes(payload[:2], "big") if payload else 1005, payload[2:].decode()

    async def read_head(self):
        """Read the answer to the handshake; return (status line, headers)."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        return lines[0], [tuple(line.split(b": ", 1)) for line in lines[1:-2]]


def request(*headers):
    """Return an upgrade request."""
    lines = [
        b"GET / HTTP/1.1",
        b"Host: localhost",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + KEY,
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


@contextlib.asynccontextmanager
async def bare(site, *headers, behind=b"", shake=True, small=False):
    """Yield a Peer whose handshake was accepted, or only sent if `shake` is false.

    `behind` follows the request directly.
    """
    sock = socket.socket()
    sock.setblocking(False)
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    await site.loop.sock_connect(sock, site.address)
    # `limit` bounds the data that a peer accepts although it does not read.
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    peer = Peer(reader, writer)
    try:
        peer.send(request(*headers) + behind)
        if shake:
            status, _ = await peer.read_head()
            assert status.startswith(b"HTTP/1.1 101 ")
        yield peer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
