# SPDX-License-Identifier: GPL-2.0-only
"""Who is at the ends of a connection, in ASGI's words. Once per connection, hence Python."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

Address = tuple[str, int] | tuple[str, None] | None

#: ASGI's numbers of the versions of TLS are those of the protocol.
_TLS_VERSIONS = {"TLSv1": 0x0301, "TLSv1.1": 0x0302, "TLSv1.2": 0x0303, "TLSv1.3": 0x0304}


def describe(transport: asyncio.BaseTransport) -> tuple[Address, Address, dict[str, Any] | None]:
    """The scope's `client` and `server`, and the extension `tls`, None without TLS."""
    # Not by the socket's family: a transport makes a Python socket when it is asked for that.
    client = _host_and_port(transport.get_extra_info("peername"))
    sockname = transport.get_extra_info("sockname")
    server: Address = _host_and_port(sockname)
    if isinstance(sockname, str) and sockname:
        server = (sockname, None)
    return client, server, _tls(transport.get_extra_info("ssl_object"))


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
        "client_cert_name": ",".join(f"{key}={value}" for part in names for key, value in part)
        or None,
        "client_cert_error": None,
        "tls_version": _TLS_VERSIONS.get(tls.version() or ""),
        "cipher_suite": _cipher_number(tls, cipher[0]) if cipher else None,
    }


def _cipher_number(tls: ssl.SSLObject, name: str) -> int | None:
    for cipher in tls.context.get_ciphers():
        if cipher["name"] == name:
            return cipher["id"] & 0xFFFF
    return None
