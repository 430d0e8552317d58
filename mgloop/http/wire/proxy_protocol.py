# SPDX-License-Identifier: GPL-2.0-only
"""The PROXY protocol, versions 1 and 2: the client's address, sent by a load balancer.

The header precedes all other bytes of a connection, including TLS. Connections from other peers
than trusted proxies are rejected, because the header would be trusted. HAProxy's
doc/proxy-protocol.txt is the specification. The module is Python because it runs once per
connection.
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

from ..proxy import TrustedProxies
from ._peer import Address

logger = logging.getLogger("mgloop.http")

#: (client, server) of the ASGI scope. None: the header names no client (LOCAL, UNKNOWN or
#: AF_UNSPEC), and the scope has the addresses of the connection itself. Because the client is
#: unknown, its forwarded headers are ignored although a trusted proxy opened the connection.
Ends = tuple[Address, Address] | None

_LONGEST_LINE = 107
_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_TCP = re.compile(
    rb"PROXY TCP([46]) ([0-9A-Fa-f.:]+) ([0-9A-Fa-f.:]+) (0|[1-9][0-9]{0,4}) (0|[1-9][0-9]{0,4})"
)
#: struct format of the addresses, by the byte of address family and transport.
_ADDRESSES = {0x11: "!4s4sHH", 0x21: "!16s16sHH", 0x31: "!108s108s"}


class MalformedError(ValueError):
    """The data is not a valid PROXY protocol header."""


def parse(data: bytes | bytearray) -> tuple[Ends, int] | None:
    """Parse the header at the beginning of `data`; return its contents and its length in bytes.

    Returns None if the header is incomplete. Raises MalformedError.
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
    # LOCAL: a health check by the load balancer itself. The fields after the addresses are ignored.
    if command == 0x20 or packed is None:
        return None, 16 + length
    fields = struct.unpack_from(packed, data, 16)
    if kind == 0x31:
        path = fields[1].rstrip(b"\0").decode("utf-8", "surrogateescape")
        return (None, (path, None) if path else None), 16 + length
    client, server = (str(ipaddress.ip_address(packed_host)) for packed_host in fields[:2])
    return ((client, fields[2]), (server, fields[3])), 16 + length


class Front(asyncio.Protocol):
    """Receive the PROXY header of a connection, and then pass the connection on to `site`.

    trusted: the peers that may connect. context: the SSL context of a TLS connection, which starts
    after the header, or None. timeout: seconds for the header, and for the TLS handshake; 0 or
    None: no limit.
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
        """Reject the peer if it is not trusted; otherwise wait for the header."""
        self.transport = transport
        self.site.attach(self)
        peer = transport.get_extra_info("peername")
        limit = self.site.config.limit_connections or math.inf
        if not self.trusted.trusts_peer(peer if isinstance(peer, tuple) else None):
            logger.warning("Rejected connection from %s: not a trusted proxy.", peer)
            transport.abort()
        elif len(self.site.members) > limit + 1:
            # One connection above the limit is accepted, to be answered with 503.
            transport.abort()
        elif self.timeout:
            self.timer = self.site.loop.call_later(self.timeout, self.cancel)

    def data_received(self, data: bytes) -> None:
        """Collect the header or, during the switch to TLS, bytes that follow the header."""
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
            self._become_connection(self.transport)
        else:
            # The task must not start eagerly. _hand_on() has to run after start_tls() has replaced
            # the protocol, and before the transport reads again.
            self.handshake = asyncio.Task(self._start_tls(), loop=self.site.loop)
            self.site.loop.call_soon(self.site.loop.call_soon, self._hand_on)

    async def _start_tls(self) -> None:
        loop = self.site.loop
        options = {"ssl_handshake_timeout": self.timeout} if self.timeout else {}
        try:
            transport = await loop.start_tls(
                self.transport, self, self.context, server_side=True, **options
            )
        except OSError as exc:  # includes SSLError and TimeoutError
            logger.debug("SSL handshake failed: %s", exc)
            self.transport.abort()
            self._forget()
        else:
            self._become_connection(transport)

    def _hand_on(self) -> None:
        """Pass the bytes after the header to the TLS protocol, which has replaced this one."""
        data, self.received = memoryview(self.received), bytearray()
        protocol = self.transport.get_protocol()
        while data and protocol is not self:
            buffer = protocol.get_buffer(len(data))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            protocol.buffer_updated(count)
            data = data[count:]

    def _become_connection(self, transport: Any) -> None:
        """Replace this protocol with an HTTP connection of the site."""
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
        """Release the connection, which was lost before the end of the header."""
        self._forget()

    def begin_shutdown(self) -> None:
        """Close the connection, which has no request yet."""
        self.cancel()

    def cancel(self) -> None:
        """Close the connection immediately."""
        self.transport.abort()
