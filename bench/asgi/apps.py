# SPDX-License-Identifier: GPL-2.0-only
"""The plain ASGI application of the suite, imported by every server: one handler per path.

It uses no framework, so that the figures measure the server. Beyond the protocol, a handler does
only the work of any application, such as encoding JSON for each request.
"""

import json
import os

HELLO = b"Hello, World!"
DOCUMENT = {
    "page": 1,
    "items": [
        {"id": n, "name": f"item {n}", "price": n * 1.5, "tags": ["new", "offer"], "stock": n % 7}
        for n in range(12)
    ],
}
CHUNKS = [(b"data: event %d " % n).ljust(98, b".") + b"\n\n" for n in range(10)]
BLOCK = 64 * 1024


def start(content_type, length=None):
    """Return the event that begins a response, which is chunked without a *length*."""
    headers = [(b"content-type", content_type)]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": 200, "headers": headers}


async def answer(send, content_type, body):
    await send(start(content_type, len(body)))
    await send({"type": "http.response.body", "body": body})


async def hello(scope, receive, send):
    await answer(send, b"text/plain", HELLO)


async def document(scope, receive, send):
    await answer(send, b"application/json", json.dumps(DOCUMENT).encode())


async def echo(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await answer(send, b"application/json", body)


async def upload(scope, receive, send):
    """Read a body without storing it, and answer with its length."""
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    await answer(send, b"text/plain", str(length).encode())


async def stream(scope, receive, send):
    await send(start(b"text/event-stream"))
    for chunk in CHUNKS:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def download(scope, receive, send):
    """Send a file: by pathsend if the server supports it, otherwise in blocks, as frameworks do."""
    path = os.environ["BENCH_FILE"]
    await send(start(b"application/octet-stream", os.stat(path).st_size))
    if "http.response.pathsend" in scope.get("extensions", ()):
        await send({"type": "http.response.pathsend", "path": path})
        return
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK):
            await send({"type": "http.response.body", "body": block, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


HANDLERS = {
    "/": hello,
    "/json": document,
    "/echo": echo,
    "/upload": upload,
    "/stream": stream,
    "/download": download,
}


async def websocket(receive, send):
    """Echo messages."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "bytes": message["bytes"]})


async def lifespan(receive, send):
    for state in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{state}.complete"})


async def app(scope, receive, send):
    if scope["type"] == "http":
        await HANDLERS[scope["path"]](scope, receive, send)
    elif scope["type"] == "websocket":
        await websocket(receive, send)
    else:
        await lifespan(receive, send)
