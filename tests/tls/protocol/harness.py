# SPDX-License-Identifier: GPL-2.0-only
"""The two sides of a TLS protocol under test, without a socket: see conftest.py."""

import asyncio
import asyncio.sslproto
import contextlib
import functools
import ssl

import pytest
import support

#: The class that proves the tests; stored before a test replaces it.
STDLIB = asyncio.sslproto.SSLProtocol


def only_mgloop(kind, why):
    """Skip a test of a deliberate difference (docs/differences.md)."""
    if kind == "asyncio":
        pytest.skip(f"asyncio.sslproto {why}")


class App(asyncio.Protocol):
    """Records its callbacks, and calls `on_data` and `on_made` in them."""

    def __init__(self, on_data=None, on_made=None):
        self.events = []
        self.chunks = []
        self.lost_with = None
        self.on_data = on_data
        self.on_made = on_made

    @property
    def data(self):
        return b"".join(self.chunks)

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")
        if self.on_made:
            self.on_made(self)

    def data_received(self, data):
        assert type(data) is bytes
        self.chunks.append(data)
        self.events.append("data")
        if self.on_data:
            self.on_data(self, data)

    def eof_received(self):
        self.events.append("eof")

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, exc):
        self.events.append("lost")
        self.lost_with = exc


class BufferedApp(asyncio.BufferedProtocol):
    """An App with a buffer of `size` bytes."""

    def __init__(self, size=1 << 18, on_data=None):
        self.buffer = memoryview(bytearray(size))
        self.events = []
        self.chunks = []
        self.on_data = on_data

    data = App.data

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        data = bytes(self.buffer[:nbytes])
        self.chunks.append(data)
        self.events.append("data")
        if self.on_data:
            self.on_data(self, data)

    def eof_received(self):
        self.events.append("eof")

    def connection_lost(self, exc):
        self.events.append("lost")
        self.lost_with = exc


class Below(asyncio.Transport):
    """The transport below: records the written data and the calls of its methods."""

    def __init__(self):
        super().__init__(extra={"peername": "somebody"})
        self.writes = []
        self.calls = []
        self.closing = False
        self.fatal = None
        self.on_write = None

    def write(self, data):
        self.writes.append(bytes(data))
        if self.on_write:
            self.on_write()

    def take(self):
        data = b"".join(self.writes)
        self.writes.clear()
        return data

    def pause_reading(self):
        self.calls.append("pause")

    def resume_reading(self):
        self.calls.append("resume")

    def is_closing(self):
        return self.closing

    def close(self):
        self.calls.append("close")
        self.closing = True

    def abort(self):
        self._force_close(None)

    def _force_close(self, exc):
        self.calls.append("force_close")
        self.closing = True
        self.fatal = exc


class Connection:
    """A protocol under test (`proto`, server unless `client`), its app, and its peer."""

    def __init__(self, loop, protocol_class, contexts, app, *, client=False, **kwargs):
        ours, theirs = contexts if client else contexts[::-1]
        self.loop = loop
        self.app = app
        self.below = Below()
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        hostname = {"server_hostname": "localhost"}
        self.peer = theirs.wrap_bio(
            self.incoming, self.outgoing, server_side=client, **({} if client else hostname)
        )
        self.proto = protocol_class(
            loop,
            app,
            ours,
            kwargs.pop("waiter", None),
            server_side=not client,
            **(hostname if client else {}),
            **kwargs,
        )

    def shake_hands(self, rounds=4):
        self.proto.connection_made(self.below)
        self.exchange(rounds)
        # The tickets that a TLS 1.3 server sends after the handshake.
        assert self.heard() == b""
        return self

    def exchange(self, rounds):
        """Pass the messages of a handshake between the two sides."""
        for _ in range(rounds):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.peer.do_handshake()
            self.arrive(self.sent_by_peer())
            self.incoming.write(self.below.take())

    def sent_by_peer(self):
        return self.outgoing.read()

    def peer_says(self, *messages):
        """Return the bytes that the peer sends for the messages, at least one record each."""
        for message in messages:
            self.peer.write(message)
        return self.sent_by_peer()

    def arrive(self, data):
        """Pass data from the socket to the protocol, as a transport does."""
        while data:
            buffer = self.proto.get_buffer(-1)
            size = min(len(data), len(buffer))
            buffer[:size] = data[:size]
            self.proto.buffer_updated(size)
            data = data[size:]

    def heard(self):
        """Return the data that the peer can decrypt from the bytes sent since the last call."""
        self.incoming.write(self.below.take())
        chunks = []
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while chunk := self.peer.read(1 << 18):
                chunks.append(chunk)
        return b"".join(chunks)

    def lose(self, exc=None):
        """Simulate the loss of the transport below."""
        self.proto.connection_lost(exc)
        support.turn(self.loop)


small_buffer = functools.partial(BufferedApp, 100)
both_apps = pytest.mark.parametrize("app_class", [App, BufferedApp])
all_apps = pytest.mark.parametrize("app_class", [App, BufferedApp, small_buffer])
