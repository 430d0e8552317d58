# SPDX-License-Identifier: GPL-2.0-only
"""The application of test_clients.py, with a path for each feature of a client.

It is separate from the tests because other servers can serve it as well:
`uvicorn --app-dir tests/http clients_app:app` is the control.
"""

import asyncio
import gzip
import json

#: Name -> note about a request whose client has disconnected: GET /notes/NAME waits for it.
NOTES = {}


def note(name):
    """Return the future of a note."""
    return NOTES.setdefault(name, asyncio.get_running_loop().create_future())


def take_down(name, value):
    if not note(name).done():
        note(name).set_result(value)


async def answer(send, body=b"", status=200, headers=()):
    headers = [(b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def pieces(receive):
    """Yield the request's body as it arrives; ConnectionError if it is incomplete."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        yield message["body"]
        more = message["more_body"]


async def whole(receive):
    return b"".join([piece async for piece in pieces(receive)])


async def scope_of(scope, receive, send):
    """Answer with the scope that the server made for the request."""
    told = {name: scope[name] for name in ("method", "path", "http_version", "scheme", "client")}
    told["raw_path"] = scope["raw_path"].decode()
    told["query_string"] = scope["query_string"].decode()
    told["headers"] = [[name.decode(), value.decode()] for name, value in scope["headers"]]
    await answer(send, json.dumps(told).encode(), headers=[(b"content-type", b"application/json")])


async def echo(scope, receive, send):
    await answer(send, await whole(receive))


async def duplex(scope, receive, send):
    """Send each piece of the body back before receiving the next one."""
    await send({"type": "http.response.start", "status": 200})
    async for piece in pieces(receive):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})


async def refuse(scope, receive, send):
    """Answer without reading the body."""
    await answer(send, b"no", 413)


async def unpack(scope, receive, send):
    """Decompress the body, because the server leaves content codings to the application."""
    body = await whole(receive)
    if dict(scope["headers"]).get(b"content-encoding") == b"gzip":
        body = gzip.decompress(body)
    await answer(send, body)


async def pack(scope, receive, send):
    """Compress the response if the client accepts that."""
    body = b"compressible " * 10_000
    headers = [(b"vary", b"accept-encoding")]
    if b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b""):
        body = gzip.compress(body)
        headers.append((b"content-encoding", b"gzip"))
    await answer(send, body, headers=headers)


async def stream(scope, receive, send):
    """Send ten pieces."""
    await send({"type": "http.response.start", "status": 200})
    for number in range(10):
        await send({"type": "http.response.body", "body": b"%d;" % number, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body"})


async def zeros(scope, receive, send):
    """Send as many zeros as the query says."""
    await answer(send, bytes(int(scope["query_string"])))


async def for_ever(scope, receive, send):
    """Send until the client disconnects; then make the note that the query names."""
    await send({"type": "http.response.start", "status": 200})
    gone = asyncio.ensure_future(receive())
    try:
        while not gone.done() or gone.result()["type"] == "http.request":
            if gone.done():
                gone = asyncio.ensure_future(receive())
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            await asyncio.sleep(0)
    except OSError:
        pass
    take_down(scope["query_string"].decode(), (await gone)["type"])


async def swallow(scope, receive, send):
    """Read the body; make a note, named by the query, of how it ended."""
    size = 0
    name = scope["query_string"].decode()
    try:
        async for piece in pieces(receive):
            size += len(piece)
            if size:
                take_down(f"{name}-begun", "begun")
    except ConnectionError:
        take_down(name, f"cut short: {size > 0}")
        return
    take_down(name, "whole")
    await answer(send)


async def redirect(scope, receive, send):
    """Redirect to /scope and /echo, with status codes for GET and for the same method."""
    same = scope["path"].endswith("/same")
    status, to = (307, b"/echo") if same else (302, b"/scope")
    await answer(send, b"elsewhere", status, [(b"location", to)])


async def hints(scope, receive, send):
    links = [b"</style.css>; rel=preload; as=style", b"</script.js>; rel=preload; as=script"]
    if "http.response.early_hint" in scope.get("extensions", {}):
        await send({"type": "http.response.early_hint", "links": links})
    await answer(send, b"page")


async def trailers(scope, receive, send):
    wanted = "http.response.trailers" in scope.get("extensions", {})
    headers = [(b"trailer", b"x-sum")]
    await send(
        {"type": "http.response.start", "status": 200, "headers": headers, "trailers": wanted}
    )
    await send({"type": "http.response.body", "body": b"summed"})
    if wanted:
        await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"42")]})


async def notes(scope, receive, send):
    await answer(send, (await note(scope["path"].removeprefix("/notes/"))).encode())


PATHS = {
    "scope": scope_of,
    "a b": scope_of,
    "up": scope_of,
    "echo": echo,
    "duplex": duplex,
    "refuse": refuse,
    "unpack": unpack,
    "pack": pack,
    "stream": stream,
    "zeros": zeros,
    "for-ever": for_ever,
    "swallow": swallow,
    "redirect": redirect,
    "hints": hints,
    "trailers": trailers,
    "notes": notes,
}


# --- WebSocket -----------------------------------------------------------------------------------


async def accept(receive, send, **more):
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept", **more})


async def ws_echo(scope, receive, send):
    """Echo messages until the client disconnects; make a note, named by the query, of how."""
    await accept(receive, send, headers=[(b"x-served", b"yes")])
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})
    name = scope["query_string"].decode()
    take_down(name, f"{message['code']} {message.get('reason') or ''}")


async def ws_close(scope, receive, send):
    """Close with the code and reason of the query: CODE,REASON."""
    code, _, reason = scope["query_string"].decode().partition(",")
    await accept(receive, send)
    await send({"type": "websocket.close", "code": int(code), "reason": reason})


async def ws_second(scope, receive, send):
    """Accept the second of the offered subprotocols, and send its name."""
    protocol = scope["subprotocols"][1]
    await accept(receive, send, subprotocol=protocol)
    await send({"type": "websocket.send", "text": protocol})
    await receive()


async def ws_refuse(scope, receive, send):
    await receive()
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"6")]
    await send({"type": "websocket.http.response.start", "status": 401, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": b"not so"})


SESSIONS = {"echo": ws_echo, "close": ws_close, "second": ws_second, "refuse": ws_refuse}


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            event = (await receive())["type"]
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return
    first = scope["path"].split("/")[1]
    if scope["type"] == "websocket":
        await SESSIONS[first](scope, receive, send)
    elif first in PATHS:
        await PATHS[first](scope, receive, send)
    else:
        await answer(send, b"nothing here", 404)
