# SPDX-License-Identifier: GPL-2.0-only
"""The upgrade of an HTTP connection to a WebSocket, with a real server and websockets."""

import asyncio
import base64
import contextlib

import pytest
import websockets
from sites import Client

from mgloop.http import Config, Server

KEY = base64.b64encode(bytes(16)).decode()


async def echo(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"http"})
        return
    assert scope["type"] == "websocket"
    echo.scope = scope
    assert await receive() == {"type": "websocket.connect"}
    await send({"type": "websocket.accept", "subprotocol": (scope["subprotocols"] or [None])[0]})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message.get("text")})


def config(**options):
    return Config(app=echo, port=0, lifespan="off", log_level="critical", **options)


async def test_echo(loop):
    async with Server(config()) as server:
        url = server.url.replace("http", "ws") + "/a%20b?c"
        async with websockets.connect(url, subprotocols=["x", "y"]) as websocket:
            for size in (0, 5, 1000, 100_000):
                await websocket.send("x" * size)
                assert await websocket.recv() == "x" * size
            assert websocket.subprotocol == "x"
    scope = echo.scope
    assert "method" not in scope
    assert scope["asgi"] == {"version": "3.0", "spec_version": "2.5"}
    assert (scope["scheme"], scope["path"], scope["query_string"]) == ("ws", "/a b", b"c")
    assert scope["subprotocols"] == ["x", "y"]
    assert scope["extensions"] == {"websocket.http.response": {}}


async def test_encrypted(loop, server_ssl_context, client_ssl_context, monkeypatch):
    from mgloop.http import tls

    monkeypatch.setattr(tls, "make_context", lambda config: server_ssl_context)
    async with Server(config()) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"wss://127.0.0.1:{port}/"
        async with websockets.connect(
            url, ssl=client_ssl_context, server_hostname="localhost"
        ) as websocket:
            await websocket.send("hello")
            assert await websocket.recv() == "hello"
    assert echo.scope["scheme"] == "wss"
    assert "tls_version" in echo.scope["extensions"]["tls"]


def handshake(*but, **changes):
    headers = {
        "Host": "a",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
    }
    headers |= {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [f"{name}: {value}" for name, value in headers.items() if name not in but]
    return "\r\n".join(["GET / HTTP/1.1", *lines, "", ""]).encode()


@contextlib.asynccontextmanager
async def client_of(server):
    client = Client(*await asyncio.open_connection(*server.sockets[0].getsockname()))
    yield client
    client.writer.close()
    await client.writer.wait_closed()


@pytest.mark.parametrize(
    ("request_head", "expected"),
    [
        (handshake(Sec_WebSocket_Version="8"), 426),
        (handshake(Sec_WebSocket_Version="13, 13"), 426),
        (handshake("Sec-WebSocket-Version"), 426),
        (handshake("Sec-WebSocket-Key"), 400),
        (handshake(Sec_WebSocket_Key="short"), 400),
        (handshake(Sec_WebSocket_Protocol="a," * 99 + "a"), 101),
        (handshake(Sec_WebSocket_Protocol="a," * 100 + "a"), 400),
        (handshake(Sec_WebSocket_Extensions="a," * 100 + "permessage-deflate"), 400),
        (handshake(Upgrade="h2c"), 200),
        (handshake("Upgrade"), 200),
        (handshake("Connection"), 200),
        (handshake().replace(b"GET", b"POST"), 200),
        (handshake().replace(b"HTTP/1.1", b"HTTP/1.0"), 200),
        (handshake(), 101),
    ],
)
async def test_handshakes(loop, request_head, expected):
    async with Server(config()) as server, client_of(server) as client:
        await client.send(request_head)
        status, headers = await client.head()
        assert status == expected
        if expected == 426:
            wanted = {"connection": "close, upgrade", "upgrade": "websocket"}
            assert headers.items() >= {**wanted, "sec-websocket-version": "13"}.items()


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["", "request"])
async def test_a_handshake_with_a_frame_behind_it_and_a_request_before(loop, before):
    async with Server(config()) as server, client_of(server) as client:
        hello = bytes([0x81, 0x85, 0, 0, 0, 0]) + b"hello"
        await client.send(before + handshake() + hello)
        if before:
            assert (await client.response())[2] == b"http"
        assert (await client.head())[0] == 101
        assert await client.reader.readexactly(7) == b"\x81\x05hello"


async def test_a_server_that_ends_begins_none(loop):
    """The new session would not receive the close frame of the shutdown."""
    async with Server(config(timeout_keep_alive=600)) as server:
        server.site.begin_shutdown()
        async with client_of(server) as client:
            status, headers, _ = await client.request(handshake())
            assert (status, headers["connection"]) == (503, "close")
        await asyncio.wait_for(server.site.wait_drained(), 5)


async def test_one_that_outlasts_the_deadline_is_counted_as_cut(loop, caplog):
    async def app(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        await asyncio.Event().wait()

    options = {"lifespan": "off", "timeout_graceful_shutdown": 0.01}
    async with Server(Config(app=app, port=0, **options)) as server:
        client = Client(*await asyncio.open_connection(*server.sockets[0].getsockname()))
        await client.send(handshake())
        assert (await client.head())[0] == 101
    told = (
        "Cancelling 0 request(s) and closing 1 connection(s), timeout graceful shutdown exceeded."
    )
    assert told in caplog.messages
    client.writer.close()
    await client.writer.wait_closed()
