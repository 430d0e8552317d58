# SPDX-License-Identifier: GPL-2.0-only
"""The upgrade of an HTTP request to a WebSocket. Python, because it runs once per WebSocket."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Any

from ._site import Site

# Limit for the subprotocols and for the extensions that a client may offer. Applications iterate
# over the subprotocols.
_MOST_OFFERS = 100


def _values(scope: dict[str, Any], wanted: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == wanted]


def check(scope: dict[str, Any]) -> tuple[int, str] | None:
    """Check a handshake against RFC 6455; return None, or (status, reason) of an error response."""
    if _values(scope, b"sec-websocket-version") != [b"13"]:
        return 426, "expected exactly one Sec-WebSocket-Version header, with the value 13"
    for name in (b"sec-websocket-protocol", b"sec-websocket-extensions"):
        if sum(value.count(b",") + 1 for value in _values(scope, name)) > _MOST_OFFERS:
            return 400, f"more than {_MOST_OFFERS} values in {name.decode()}"
    keys = _values(scope, b"sec-websocket-key")
    try:
        valid = len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == 16
    except (binascii.Error, ValueError):
        valid = False
    return (
        None
        if valid
        else (400, "expected exactly one Sec-WebSocket-Key header, with 16 bytes in base64")
    )


def hand_over(
    site: Site, transport: asyncio.Transport, scope: dict[str, Any], data: bytes, paused: bool
) -> None:
    """Replace the protocol of `transport` with a WebSocket.

    data: bytes that arrived after the head of the request. paused: whether the transport has
    called pause_writing().
    """
    from ._websocket import WebSocket

    protocols = [
        name.strip().decode("latin-1")
        for value in _values(scope, b"sec-websocket-protocol")
        for name in value.split(b",")
    ]
    del scope["method"]
    scope |= {
        "type": "websocket",
        "asgi": {**scope["asgi"], "spec_version": "2.5"},  # send() raises after the end
        "scheme": "wss" if scope["scheme"] == "https" else "ws",
        "subprotocols": [name for name in protocols if name],
        "extensions": {"websocket.http.response": {}}
        | {name: value for name, value in scope["extensions"].items() if name == "tls"},
    }
    websocket: Any = WebSocket(  # a protocol by its methods
        site,
        transport,
        scope,
        _values(scope, b"sec-websocket-key")[0],
        _values(scope, b"sec-websocket-extensions"),
        scope["subprotocols"],
    )
    transport.set_protocol(websocket)
    if paused:
        websocket.pause_writing()
    websocket.start(data)
