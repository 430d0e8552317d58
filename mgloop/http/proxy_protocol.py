# SPDX-License-Identifier: GPL-2.0-only
"""The PROXY protocol, versions 1 and 2: a load balancer's word on who has connected.

A header stands before the first byte of the connection, of TLS as well. Who is not a trusted proxy
is not let in at all: what it writes there would be believed. The specification is HAProxy's
(doc/proxy-protocol.txt). Once per connection, hence Python.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import re
import ssl
import struct
from typing import Any

from ._peer import Address
from .proxy import TrustedProxies

logger = logging.getLogger("mgloop.http")

#: (client, server) of ASGI's scope. None: the header names no client (LOCAL, UNKNOWN or AF_UNSPEC),
#: so the scope has the ends of the connection itself. The client may be anyone, hence its forwarded
#: headers are not believed, although the connection comes from a trusted proxy.
Ends = tuple[Address, Address] | None

_LONGEST_LINE = 107
_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_TCP = re.compile(
    rb"PROXY TCP([46]) ([0-9A-Fa-f.:]+) ([0-9A-Fa-f.:]+) (0|[1-9][0-9]{0,4}) (0|[1-9][0-9]{0,4})"
)
#: By the byte of family and transport: how the addresses are packed.
_ADDRESSES = {0x11: "!4s4sHH", 0x21: "!16s16sHH", 0x31: "!108s108s"}


class MalformedError(ValueError):
    """It is not a header of the PROXY protocol."""


def parse(data: bytes | bytearray) -> tuple[Ends, int] | None:
    """What the header at the beginning of `data` says, and its length; None if it goes on.

    Raises MalformedError.
    """
    if data[:1] == _SIGNATURE[:1]:
        return _parse_binary(data)
    return _parse_line(data)


def _parse_line(data: bytes | bytearray) -> tuple[Ends, int] | None:
    line, end, _ = data[:_LONGEST_LINE].partition(b"\r\n")
    if not b"PROXY ".startswith(line[:6]):
        raise MalformedError("does not begin with PROXY")
    if not end:
        if len(data) >= _LONGEST_LINE:
            raise MalformedError("line too long")
        return None
    used = len(line) + 2
    if re.match(rb"PROXY UNKNOWN(\s|$)", line):
        return None, used
    match = _TCP.fullmatch(line)
    if match is None:
        raise MalformedError("malformed line")
    version = int(match[1])
    hosts = [_host(match[i].decode(), version) for i in (2, 3)]
    ports = [int(match[i]) for i in (4, 5)]
    if max(ports) > 0xFFFF:
        raise MalformedError("port out of range")
    return ((hosts[0], ports[0]), (hosts[1], ports[1])), used


def _host(text: str, version: int) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = None
    if address is None or address.version != version:
        raise MalformedError(f"not an IPv{version} address")
    return str(address)


def _parse_binary(data: bytes | bytearray) -> tuple[Ends, int] | None:
    if not _SIGNATURE.startswith(data[: len(_SIGNATURE)]):
        raise MalformedError("invalid signature")
    if len(data) < 16:
        return None
    command, kind, length = struct.unpack_from("!BBH", data, 12)
    if command not in (0x20, 0x21):
        raise MalformedError("unknown version or command")
    packed = _ADDRESSES.get(kind)
    if command == 0x21 and kind != 0 and (packed is None or struct.calcsize(packed) > length):
        raise MalformedError("unknown address family, or truncated addresses")
    if len(data) < 16 + length:
        return None
    # LOCAL: the balancer itself, to see whether anybody is there. What follows the addresses is
    # of no concern here.
    if command == 0x20 or packed is None:
        return None, 16 + length
    fields = struct.unpack_from(packed, data, 16)
    if kind == 0x31:
        path = fields[1].rstrip(b"\0").decode("utf-8", "surrogateescape")
        return (None, (path, None) if path else None), 16 + length
    client, server = (str(ipaddress.ip_address(packed_host)) for packed_host in fields[:2])
    return ((client, fields[2]), (server, fields[3])), 16 + length


class Front(asyncio.Protocol):
    """Has a connection's first bytes, until it is known whose it is; then `site` has it.

    trusted: who may connect. context: of TLS that begins behind the header, or None. timeout:
    seconds for the header, and for TLS's handshake; 0 or None: no limit.
    """

    def __init__(
        self,
        site: Any,
        trusted: TrustedProxies,
        context: ssl.SSLContext | None,
        timeout: float | None,
    ) -> None:
        self.site = site
        self.trusted = trusted
        self.context = context
        self.timeout = timeout
        self.received = bytearray()
        self.ends: Ends = None
        self.known = False
        self.timer: asyncio.TimerHandle | None = None
        self.handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        """The transport is ready."""
        self.transport = transport
        self.site.attach(self)
        peer = transport.get_extra_info("peername")
        limit = self.site.config.limit_connections or math.inf
        if not self.trusted.trusts_peer(peer if isinstance(peer, tuple) else None):
            logger.warning("Rejected connection from %s: not a trusted proxy.", peer)
            transport.abort()
        elif len(self.site.members) > limit + 1:
            # One more than the limit is let in, to be answered with a 503.
            transport.abort()
        elif self.timeout:
            self.timer = self.site.loop.call_later(self.timeout, self.cancel)

    def data_received(self, data: bytes) -> None:
        """The header, or, while TLS is being set up, what came behind its handshake."""
        self.received += data
        if self.known:
            return
        try:
            found = parse(self.received)
        except MalformedError as exc:
            logger.warning("Invalid PROXY protocol header received: %s", exc)
            self.transport.abort()
            return
        if found is None:
            return
        self.known = True
        self.ends, used = found
        del self.received[:used]
        if self.context is None:
            self._give_way(self.transport)
        else:
            # Never eager: _hand_on() has its turn when start_tls() has put TLS in its place, and
            # before that reads anything.
            self.handshake = asyncio.Task(self._start_tls(), loop=self.site.loop)
            self.site.loop.call_soon(self.site.loop.call_soon, self._hand_on)

    async def _start_tls(self) -> None:
        loop = self.site.loop
        options = {"ssl_handshake_timeout": self.timeout} if self.timeout else {}
        try:
            transport = await loop.start_tls(
                self.transport, self, self.context, server_side=True, **options
            )
        except OSError as exc:  # so are SSLError and TimeoutError
            logger.debug("SSL handshake failed: %s", exc)
            self.transport.abort()
            self._forget()
        else:
            self._give_way(transport)

    def _hand_on(self) -> None:
        """What came behind the header is TLS's, which has taken this protocol's place by now."""
        data, self.received = memoryview(self.received), bytearray()
        layer = self.transport.get_protocol()
        while data and layer is not self:
            room = layer.get_buffer(len(data))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            layer.buffer_updated(count)
            data = data[count:]

    def _give_way(self, transport: Any) -> None:
        """To the connection of the site."""
        self._forget()
        if transport.is_closing():
            transport.close()
            return
        connection = self.site.connection()
        connection.ends = self.ends
        connection.unnamed = self.ends is None
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if self.received:
            connection.data_received(bytes(self.received))

    def _forget(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.site.detach(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Before it was known whose it is."""
        self._forget()

    def begin_shutdown(self) -> None:
        """No request has come yet."""
        self.cancel()

    def cancel(self) -> None:
        """Close at once."""
        self.transport.abort()
