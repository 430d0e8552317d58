# SPDX-License-Identifier: GPL-2.0-only
"""The peer of a connection: its addresses in ASGI's form, pending data, and disconnecting it.

The functions run once or twice per connection, or for slow clients, and are therefore Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import re
import socket
import ssl
import struct
import sys
import termios
from collections.abc import Iterable
from typing import Any

Address = tuple[str, int] | tuple[str, None] | None

#: ASGI identifies TLS versions by the numbers of the TLS protocol.
_TLS_VERSIONS = {"TLSv1": 0x0301, "TLSv1.1": 0x0302, "TLSv1.2": 0x0303, "TLSv1.3": 0x0304}

#: Offset of tcpi_bytes_acked in struct tcp_info (linux/tcp.h), and the size up to and including it.
_BYTES_ACKED, _TCP_INFO_SIZE = 120, 128

#: Short attribute names of RFC 4514, by OpenSSL's long names.
_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


def describe(transport: asyncio.BaseTransport) -> tuple[Address, Address, dict[str, Any] | None]:
    """Return the ASGI scope's `client` and `server`, and its `tls` extension (None without TLS)."""
    return *addresses(transport), _tls(transport.get_extra_info("ssl_object"))


def addresses(transport: asyncio.BaseTransport) -> tuple[Address, Address]:
    """Return the addresses of the client and of the server, in the form of the ASGI scope."""
    # Do not ask the socket for its family: the transport would have to create a Python socket.
    client = _host_and_port(transport.get_extra_info("peername"))
    sockname = transport.get_extra_info("sockname")
    server: Address = _host_and_port(sockname)
    if isinstance(sockname, str) and sockname:
        server = (sockname, None)
    return client, server


def remote(client: Address) -> tuple[str, str]:
    """Return REMOTE_ADDR and REMOTE_PORT of the WSGI environ, which are "" if they are unknown."""
    if client is None:  # a UNIX socket
        return "", ""
    return client[0], str(client[1]) if client[1] else ""


def host_of(text: str) -> tuple[str, str]:
    """Return the host and the port ("" without one) of a Host header, which has been checked."""
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, ""
    return host.strip("[]") or "localhost", port


def waiting(transport: asyncio.WriteTransport) -> int:
    """Return the number of written bytes that the peer has not acknowledged.

    That is the write buffer of the transport plus the send queue of the kernel.
    """
    return transport.get_write_buffer_size() + _queued(transport, termios.TIOCOUTQ)


def unread(transport: asyncio.BaseTransport) -> int:
    """Return the number of received bytes that have not been read.

    If there are any, close() makes the kernel reset the connection and discard unsent data.
    """
    return _queued(transport, termios.FIONREAD)


def taken(transport: asyncio.WriteTransport) -> int:
    """Return a number that changes when the peer's side acknowledges data."""
    sock = transport.get_extra_info("socket")
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
        acknowledged: int = struct.unpack_from("=Q", info, _BYTES_ACKED)[0]
    except (AttributeError, OSError, struct.error):  # not TCP, or closed
        return -waiting(transport)
    return acknowledged


def _queued(transport: asyncio.BaseTransport, way: int) -> int:
    sock = transport.get_extra_info("socket")
    try:
        queued = fcntl.ioctl(sock.fileno(), way, bytes(4))
    except (AttributeError, OSError, ValueError):  # no socket, or a closed one
        return 0
    return int.from_bytes(queued, sys.byteorder)


def reset(transport: asyncio.WriteTransport) -> None:
    """Reset the connection. If all data has been sent, abort() alone looks like a normal close."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(AttributeError, OSError):  # no socket, or a closed one
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def end_writing(transport: asyncio.WriteTransport) -> None:
    """Call write_eof(), or abort() if the client has already reset the connection."""
    try:
        transport.write_eof()
    except OSError:
        transport.abort()


def _host_and_port(address: Any) -> Address:
    if isinstance(address, tuple) and len(address) >= 2:
        return address if len(address) == 2 else address[:2]
    return None


def _tls(tls: ssl.SSLObject | None) -> dict[str, Any] | None:
    """Return the ASGI extension `tls`. Values that the ssl module does not provide are None."""
    if tls is None:
        return None
    certificate = tls.getpeercert(binary_form=True)
    names: Any = (tls.getpeercert() or {}).get("subject", ())
    cipher = tls.cipher()
    return {
        "server_cert": None,
        "client_cert_chain": [ssl.DER_cert_to_PEM_cert(certificate)] if certificate else [],
        "client_cert_name": distinguished_name(names) or None,
        "client_cert_error": None,
        "tls_version": _TLS_VERSIONS.get(tls.version() or ""),
        "cipher_suite": _cipher_number(tls, cipher[0]) if cipher else None,
    }


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Return a distinguished name of getpeercert() as an RFC 4514 string.

    The most specific part comes first, and separators inside a part are escaped.
    """
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(text)}" for kind, text in part)
        for part in reversed(tuple(subject))
    )


def _escaped(text: str) -> str:
    return re.sub(r'[,+"\\<>;]|^[# ]| $', r"\\\g<0>", text).replace("\0", r"\00")


def _cipher_number(tls: ssl.SSLObject, name: str) -> int | None:
    for cipher in tls.context.get_ciphers():
        if cipher["name"] == name:
            return cipher["id"] & 0xFFFF
    return None
