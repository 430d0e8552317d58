# SPDX-License-Identifier: GPL-2.0-only
"""The ASGI application of the soaks: a path for each way of answering.

Answers have the process id.
"""

import asyncio
import hashlib
import os

PID = b"%d" % os.getpid()
BIG = bytes(range(256)) * 4096
# The file must be nameless, because a killed worker could not delete it.
FILE = os.memfd_create("mgloop-soak")
os.write(FILE, BIG * 4)


class DeliberateError(Exception):
    pass


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "websocket":
        await on_websocket(receive, send)
    else:
        await PATHS[scope["path"]](receive, send)


async def start(send, *headers):
    headers = [(b"x-pid", PID), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def end(send, body=b""):
    await send({"type": "http.response.body", "body": body})


async def on_hello(receive, send):
    await start(send, (b"content-length", b"13"))
    await end(send, b"Hello, World!")


async def on_echo(receive, send):
    """Send back each piece of the body as it arrives."""
    await start(send)
    while (message := await receive())["type"] == "http.request":
        more = message["more_body"]
        await send({"type": "http.response.body", "body": message["body"], "more_body": more})
        if not more:
            break


async def on_digest(receive, send):
    digest = hashlib.sha256()
    while (message := await receive())["type"] == "http.request":
        digest.update(message["body"])
        if not message["more_body"]:
            await start(send)
            await end(send, digest.hexdigest().encode())
            break


async def on_big(receive, send):
    await start(send)
    await end(send, BIG)


async def on_stream(receive, send):
    await start(send)
    for _ in range(16):
        await send({"type": "http.response.body", "body": BIG[:65536], "more_body": True})
        await asyncio.sleep(0)
    await end(send)


async def on_file(receive, send):
    await start(send, (b"content-length", b"%d" % (len(BIG) * 4)))
    await send({"type": "http.response.pathsend", "path": f"/proc/self/fd/{FILE}"})


async def on_wait(receive, send):
    await asyncio.sleep(0.02)
    await on_hello(receive, send)


async def on_raise(receive, send):
    raise DeliberateError


async def on_raise_late(receive, send):
    await start(send)
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise DeliberateError


async def on_websocket(receive, send):
    await receive()
    await send({"type": "websocket.accept", "headers": [(b"x-pid", PID)]})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


PATHS = {
    "/": on_hello,
    "/echo": on_echo,
    "/digest": on_digest,
    "/big": on_big,
    "/stream": on_stream,
    "/file": on_file,
    "/wait": on_wait,
    "/raise": on_raise,
    "/raise-late": on_raise_late,
}
