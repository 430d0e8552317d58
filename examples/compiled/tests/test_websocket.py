# SPDX-License-Identifier: GPL-2.0-only
"""The WebSocket server."""

import struct

import compiled_protocols
import pytest

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10

REQUEST = (
    b"GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(opcode, payload=b"", *, final=True, mask=b"\x12\x34\x56\x78", field=None):
    """Return a frame of a client; *field* is the size of the field for a longer length."""
    size = len(payload)
    if field is None:
        field = 0 if size < 126 else 2 if size < 65536 else 8
    code = {0: size, 2: 126, 8: 127}[field]
    head = bytes([opcode | final << 7, code | bool(mask) << 7])
    head += size.to_bytes(field, "big") if field else b""
    if not mask:
        return head + payload
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def close(code):
    return bytes([0x80 | CLOSE, 2]) + struct.pack(">H", code)


async def talk(connected, *parts, end=False):
    """Open a WebSocket, send the parts, and return all data that the server sends.

    With *end*, the client ends the connection.
    """
    async with connected(compiled_protocols.EchoSocket) as (reader, writer):
        writer.write(REQUEST)
        response = await reader.readuntil(b"\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in response
        for part in parts:
            writer.write(part)
            await writer.drain()
        if end:
            writer.write_eof()
        return await reader.read()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 125, 126, 65535, 65536, 1024 * 1024])
def test_a_frame(run, connected, size):
    payload = (b"payload %d" % size * size)[:size]
    sent = frame(BINARY, payload)
    assert run(talk(connected, sent, end=True)) == frame(BINARY, payload, mask=b"")


def test_many_frames_at_once(run, connected):
    payloads = [b"x" * (number * 7 % 300) for number in range(2000)]
    got = run(talk(connected, b"".join(frame(TEXT, p) for p in payloads), end=True))
    assert got == b"".join(frame(TEXT, p, mask=b"") for p in payloads)


def test_frames_byte_by_byte(run, connected):
    frames = [(TEXT, b"first", False), (PING, b"ping", True), (0, b"x" * 200, True)]
    sent = b"".join(frame(opcode, p, final=final) for opcode, p, final in frames)
    got = run(talk(connected, *(sent[i : i + 1] for i in range(len(sent))), end=True))
    frames[1] = (PONG, b"ping", True)
    assert got == b"".join(frame(opcode, p, final=final, mask=b"") for opcode, p, final in frames)


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (b"", b"\x88\x00"),
        (struct.pack(">H", 1000) + b"reason", close(1000)),
        (struct.pack(">H", 4000), close(4000)),
        (b"x", close(1002)),
        (struct.pack(">H", 1005), close(1002)),
    ],
)
def test_close(run, connected, payload, answer):
    assert run(talk(connected, frame(CLOSE, payload))) == answer


REFUSED = {
    "not masked": (frame(BINARY, b"x", mask=b""), 1002),
    "a reserved bit": (frame(BINARY | 0x40), 1002),
    "a reserved opcode": (frame(3), 1002),
    "a reserved control opcode": (frame(11), 1002),
    "a long control frame": (frame(PING, b"x" * 126)[:8], 1002),
    "a control frame in fragments": (frame(PING, final=False), 1002),
    "a continuation of nothing": (frame(0, b"x"), 1002),
    "a message within a message": (frame(TEXT, final=False)[:6] + frame(TEXT), 1002),
    "16 bits for a short length": (frame(BINARY, b"", field=2), 1002),
    "64 bits for a short length": (frame(BINARY, b"", field=8), 1002),
    "more than 1 MiB": (b"\x82\xff" + struct.pack(">Q", 2**20 + 1) + b"mask", 1009),
    "2**63 bytes": (b"\x82\xff" + struct.pack(">Q", 2**63) + b"mask", 1009),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_frame_that_no_client_may_send(run, connected, name):
    sent, code = REFUSED[name]
    got = run(talk(connected, frame(TEXT, b"before"), sent))
    assert got.startswith(frame(TEXT, b"before", mask=b""))
    assert got.endswith(close(code))


REQUESTS = {
    "another method": (REQUEST.replace(b"GET", b"POST"), b"400"),
    "an older version of HTTP": (REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"), b"400"),
    "no host": (REQUEST.replace(b"Host: localhost\r\n", b""), b"400"),
    "a field without a name": (REQUEST.replace(b"Host", b""), b"400"),
    "no WebSocket": (REQUEST.replace(b"Upgrade: websocket\r\n", b""), b"426"),
    "another version": (REQUEST.replace(b"Version: 13", b"Version: 8"), b"426"),
    "two keys": (REQUEST.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Key: AAAA\r\n\r\n"), b"400"),
    "a short key": (REQUEST.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"AAAA"), b"400"),
    "an endless request": (b"GET /" + b"x" * 8192, b"431"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_opens_no_websocket(run, connected, name):
    async def main():
        async with connected(compiled_protocols.EchoSocket) as (reader, writer):
            writer.write(REQUESTS[name][0])
            return await reader.read()

    assert run(main()).startswith(b"HTTP/1.1 " + REQUESTS[name][1])


def test_a_request_byte_by_byte(run, connected):
    async def main():
        async with connected(compiled_protocols.EchoSocket) as (reader, writer):
            for i in range(len(REQUEST)):
                writer.write(REQUEST[i : i + 1])
                await writer.drain()
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")

    run(main())
