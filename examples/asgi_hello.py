# SPDX-License-Identifier: GPL-2.0-only
"""A plain ASGI application, without any framework, for `mgloop serve`.

    mgloop serve examples.asgi_hello:app --port 8080        # in the repository: make serve-asgi
    curl http://127.0.0.1:8080/

Routes:

    GET  /                  {"message": "Hello, World!"}
    POST /echo              the request's body, sent back as it arrives
    GET  /clock             the time every second, as server-sent events
    GET  /ws                a WebSocket that echoes text and binary messages
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
    elif scope["type"] == "websocket":
        await websocket(receive, send)
    else:
        handler = ROUTES.get((scope["method"], scope["path"]), not_found)
        await handler(scope, receive, send)


async def lifespan(scope: Message, receive: Receive, send: Send) -> None:
    await receive()  # lifespan.startup
    scope["state"]["greeting"] = "Hello, World!"  # requests get it in scope["state"]
    await send({"type": "lifespan.startup.complete"})
    await receive()  # lifespan.shutdown
    await send({"type": "lifespan.shutdown.complete"})


async def respond(send: Send, status: int, body: bytes, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def hello(scope: Message, receive: Receive, send: Send) -> None:
    body = json.dumps({"message": scope["state"]["greeting"]}).encode()
    await respond(send, 200, body, b"application/json")


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": message["body"], "more_body": more})


async def clock(scope: Message, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        while True:
            event = f"data: {time.strftime('%H:%M:%S')}\n\n".encode()
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(1)
    except OSError:
        pass  # the client has disconnected


async def not_found(scope: Message, receive: Receive, send: Send) -> None:
    await respond(send, 404, b"Not found\n", b"text/plain")


async def websocket(receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        content = {key: message[key] for key in ("text", "bytes") if message.get(key) is not None}
        await send({"type": "websocket.send", **content})


ROUTES = {("GET", "/"): hello, ("POST", "/echo"): echo, ("GET", "/clock"): clock}
