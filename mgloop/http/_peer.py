# SPDX-License-Identifier: GPL-2.0-only
"""Who is at the ends of a connection, in ASGI's words, how much waits for the other one, and how to
part from it.

Once or twice per connection, or for who is slow: hence Python.
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

#: ASGI's numbers of the versions of TLS are those of the protocol.
_TLS_VERSIONS = {"TLSv1": 0x0301, "TLSv1.1": 0x0302, "TLSv1.2": 0x0303, "TLSv1.3": 0x0304}

#: Where linux/tcp.h's struct tcp_info has tcpi_bytes_acked, and its size up to there.
_BYTES_ACKED, _TCP_INFO_SIZE = 120, 128

#: RFC 4514's names of what OpenSSL calls otherwise.
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
    """The scope's `client` and `server`, and the extension `tls`, None without TLS."""
    # Not by the socket's family: a transport makes a Python socket when it is asked for that.
    client = _host_and_port(transport.get_extra_info("peername"))
    sockname = transport.get_extra_info("sockname")
    server: Address = _host_and_port(sockname)
    if isinstance(sockname, str) and sockname:
        server = (sockname, None)
    return client, server, _tls(transport.get_extra_info("ssl_object"))


def waiting(transport: asyncio.WriteTransport) -> int:
    """Bytes written that the peer's side has not acknowledged: the transport's and the kernel's."""
    return transport.get_write_buffer_size() + _queued(transport, termios.TIOCOUTQ)


def unread(transport: asyncio.BaseTransport) -> int:
    """Bytes that have come and that nobody has read. A close() would be a reset by the kernel,
    which throws away what it has not sent yet."""
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
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        return 0
    return int.from_bytes(queued, sys.byteorder)


def reset(transport: asyncio.WriteTransport) -> None:
    """Abort so that the peer notices: abort() alone looks like a close(), all having been sent."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(AttributeError, OSError):  # there is none, or it is closed
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def end_writing(transport: asyncio.WriteTransport) -> None:
    """write_eof() to a client that may have reset the connection."""
    try:
        transport.write_eof()
    except OSError:
        transport.abort()


def _host_and_port(address: Any) -> Address:
    if isinstance(address, tuple) and len(address) >= 2:
        return address if len(address) == 2 else address[:2]
    return None


def _tls(tls: ssl.SSLObject | None) -> dict[str, Any] | None:
    """As the extension's specification has it; what Python's ssl does not tell is None."""
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
    """A name as getpeercert() has it, in the form of RFC 4514: its most special part first, and
    with what separates parts escaped, for a part may have it in its text."""
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
