# SPDX-License-Identifier: GPL-2.0-only
"""Both ends of a connection under test.

Recorder and BufferedRecorder are protocols that record all calls of a transport, in order. They
also check the order: connection_made and connection_lost must be called once, and all other calls
must come between these two. raw_connection() makes the other end a plain socket, so that a test
can act as an ill-behaved peer: reset the connection, never read, send one byte at a time.

All of this runs in the loop's thread; a protocol lives as long as its test.
"""

import asyncio
import contextlib
import inspect
import socket
import struct
import sys
import sysconfig
import time

import pytest
import support

needs_keep_alive = pytest.mark.skipif(
    "keep_alive" not in inspect.signature(asyncio.BaseEventLoop.create_server).parameters,
    reason="create_server(keep_alive=) came with CPython 3.13",
)
needs_all_errors = pytest.mark.skipif(
    "all_errors" not in inspect.signature(asyncio.BaseEventLoop.create_connection).parameters,
    reason="create_connection(all_errors=) came with CPython 3.12",
)
needs_close_clients = pytest.mark.skipif(
    not hasattr(asyncio.Server, "close_clients"),
    reason="Server.close_clients came with CPython 3.13",
)
#: Whether Server.wait_closed really waits for the clients, as it does since 3.12.1.
WAIT_CLOSED_WAITS = "self._sockets" not in inspect.getsource(asyncio.Server.wait_closed)


def skip_on_asyncio(loop_kind, defect):
    """Skip asyncio's half of a test, which fails because of `defect` of the standard library."""
    if loop_kind == "asyncio":
        pytest.skip(f"the standard library of this version: {defect}")


def skip_where_asyncio_forgets_a_transport(loop_kind):
    """Skip asyncio's half if it closes the socket of a transport whose creation failed.

    Since 3.14.8 (gh-153133) it then still has the transport under the descriptor's number, and
    refuses the next socket with that number.
    """
    if "sock.close()" in inspect.getsource(asyncio.BaseEventLoop._create_connection_transport):
        skip_on_asyncio(loop_kind, "closes a socket and remembers its number")


def skip_if_failing_callbacks_leak(loop_kind):
    """Skip asyncio's half if its interpreter leaks memory for each callback that fails.

    3.13 without the GIL leaks 351 blocks per 800 such callbacks in a minimal program.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < (3, 14):
        skip_on_asyncio(loop_kind, "keeps some memory for each callback that fails")


def skip_if_pipes_keep_reading(loop_kind):
    """Skip asyncio's half if its reading pipes lack is_reading().

    These pipes add their reader after connection_made(), even if that has paused reading.
    """
    if "is_reading" not in vars(asyncio.unix_events._UnixReadPipeTransport):
        skip_on_asyncio(loop_kind, "a pipe is read though it was paused when it was made")


def skip_if_sockets_keep_reading(loop_kind):
    """Skip asyncio's half if a socket that is paused in connection_made() is still read.

    Since is_reading() moved into its base class, the transport checks whether it is paused.
    """
    if "is_reading" not in vars(asyncio.selector_events._SelectorTransport):
        skip_on_asyncio(loop_kind, "reads on though it was paused in connection_made()")


class _Events:
    """The base of both recorders: the log of events and the futures that tests wait for."""

    def __init__(self, loop, *, keep_open=False):
        self.loop = loop
        self.keep_open = keep_open
        self.transport = None
        self.events = []
        self.received = bytearray()
        self.paused = False
        self.made = loop.create_future()
        self.eof = loop.create_future()
        self.lost = loop.create_future()
        self._grown = asyncio.Event()

    def connection_made(self, transport):
        assert self.events == [], f"connection_made after {self.events}"
        self.events.append("made")
        self.transport = transport
        self.made.set_result(transport)

    def eof_received(self):
        self._alive("eof_received")
        self.events.append("eof")
        self.eof.set_result(None)
        self._grown.set()
        return self.keep_open

    def pause_writing(self):
        self._alive("pause_writing")
        assert not self.paused, "paused twice"
        self.paused = True
        self.events.append("pause")

    def resume_writing(self):
        assert self.paused, "resumed while not paused"
        self.paused = False
        self.events.append("resume")

    def connection_lost(self, exc):
        self._alive("connection_lost")
        self.events.append("lost")
        self.lost.set_result(exc)
        self._grown.set()

    def _alive(self, what):
        assert "made" in self.events, f"{what} before connection_made"
        assert "lost" not in self.events, f"{what} after connection_lost"

    def _took(self, data):
        assert "eof" not in self.events, "data after eof_received"
        self.received += data
        if self.events[-1] != "data":
            self.events.append("data")
        self._grown.set()

    async def got(self, count):
        """Wait until `count` bytes have arrived in total; return all received data."""
        while len(self.received) < count:
            assert not self.lost.done(), f"connection lost after {len(self.received)} bytes"
            assert not self.eof.done(), f"end of stream after {len(self.received)} bytes"
            self._grown.clear()
            await self._grown.wait()
        return bytes(self.received)


class Recorder(_Events, asyncio.Protocol):
    """A Protocol that records."""

    def data_received(self, data):
        self._alive("data_received")
        assert type(data) is bytes
        assert data, "data_received(b'')"
        self._took(data)


class BufferedRecorder(_Events, asyncio.BufferedProtocol):
    """A BufferedProtocol that records; `size` is the length of its buffer."""

    def __init__(self, loop, *, size=1024, keep_open=False):
        super().__init__(loop, keep_open=keep_open)
        self.buffer = bytearray(size)
        self.hints = []

    def get_buffer(self, sizehint):
        self._alive("get_buffer")
        self.hints.append(sizehint)
        return self.buffer

    def buffer_updated(self, nbytes):
        self._alive("buffer_updated")
        assert 0 < nbytes <= len(self.buffer)
        self._took(memoryview(self.buffer)[:nbytes])


class Echo(asyncio.Protocol):
    """Sends back the data that it receives, and counts the connections of all instances."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


#: Both kinds of protocol, for tests that must hold for either.
either_protocol = pytest.mark.parametrize(
    "recorder", [Recorder, BufferedRecorder], ids=["Protocol", "BufferedProtocol"]
)


def reset(sock):
    """Close a TCP socket with a RST instead of a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@contextlib.asynccontextmanager
async def raw_connection(loop, protocol, *, small=False):
    """Yield a transport for `protocol` and the plain socket at its other end.

    `small` sets small kernel buffers on both sides. At the end the transport is aborted and the
    socket closed, if the test has not done it.
    """
    with support.nonblocking_tcp_pair() as (ours, peer):
        if small:
            for sock in (ours, peer):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
        try:
            yield transport, peer
        finally:
            if not protocol.lost.done():
                transport.abort()
            await support.turns(5)


@contextlib.asynccontextmanager
async def open_server(loop, factory, host="127.0.0.1", port=0, **kwargs):
    """Yield a server; close it, and wait for that, at the end."""
    server = await loop.create_server(factory, host, port, **kwargs)
    try:
        yield server
    finally:
        server.close()
        await asyncio.wait_for(server.wait_closed(), support.PATIENCE)


@contextlib.asynccontextmanager
async def connected_pair(loop, client, server, *, client_ssl=None, server_ssl=None):
    """Yield two transports on the same loop, connected over TCP, for two recorders."""
    async with open_server(loop, lambda: server, ssl=server_ssl) as listener:
        hostname = "localhost" if client_ssl else None
        await loop.create_connection(
            lambda: client, "127.0.0.1", port_of(listener), ssl=client_ssl, server_hostname=hostname
        )
        await server.made
        try:
            yield client.transport, server.transport
        finally:
            for side in (client, server):
                if not side.lost.done():
                    side.transport.abort()
            for side in (client, server):
                await asyncio.wait_for(asyncio.shield(side.lost), support.PATIENCE)


async def assert_idle(seconds=0.3):
    """Check that the process uses hardly any CPU time without events."""
    before = time.process_time()
    await asyncio.sleep(seconds)
    spent = time.process_time() - before
    assert spent < seconds / 2, f"{spent} s of CPU in {seconds} s of doing nothing"


def port_of(server):
    """Return the port that a server's first socket listens on."""
    return server.sockets[0].getsockname()[1]


async def read_exactly(loop, sock, count):
    """Read `count` bytes from a non-blocking socket, or fewer if the stream ends."""
    data = bytearray()
    while len(data) < count and (
        chunk := await loop.sock_recv(sock, min(count - len(data), 2**18))
    ):
        data += chunk
    return bytes(data)


async def read_all(loop, sock):
    """Read a non-blocking socket to its end."""
    data = bytearray()
    while chunk := await loop.sock_recv(sock, 2**18):
        data += chunk
    return bytes(data)
