# SPDX-License-Identifier: GPL-2.0-only
"""Answer the HTTP request that opens a WebSocket (RFC 6455, section 4.2).

This runs once per connection, so it is Python.
"""

import base64
import binascii
import hashlib

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class RefusedError(Exception):
    """The request does not open a WebSocket; the argument is the response."""


def refuse(status, *fields):
    """Raise RefusedError with a response that has the status and the header fields."""
    head = [f"HTTP/1.1 {status}", *fields, "Connection: close", "Content-Length: 0", "", ""]
    raise RefusedError("\r\n".join(head).encode())


def accept(head):
    """Return the response to a request, or raise RefusedError.

    *head* is the request line and the header fields, as bytes.
    """
    request, *lines = head.decode("latin-1").split("\r\n")
    fields = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            refuse("400 Bad Request")
        name, value = name.lower(), value.strip()
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    parts = request.split(" ")
    if len(parts) != 3 or parts[0] != "GET" or parts[2] != "HTTP/1.1" or "host" not in fields:
        refuse("400 Bad Request")
    upgrade, connection = tokens(fields, "upgrade"), tokens(fields, "connection")
    if "websocket" not in upgrade or "upgrade" not in connection:
        refuse("426 Upgrade Required", "Upgrade: websocket")
    if fields.get("sec-websocket-version") != "13":
        refuse("426 Upgrade Required", "Sec-WebSocket-Version: 13")
    key = fields.get("sec-websocket-key", "").encode("latin-1")
    try:
        decoded = base64.b64decode(key, validate=True)
    except binascii.Error:
        decoded = b""
    if len(decoded) != 16:
        refuse("400 Bad Request")
    proof = base64.b64encode(hashlib.sha1(key + GUID).digest()).decode()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {proof}\r\n\r\n"
    ).encode()


def tokens(fields, name):
    """Return the elements of a list in a header field, in lower case."""
    return [token.strip() for token in fields.get(name, "").lower().split(",")]
