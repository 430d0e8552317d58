# SPDX-License-Identifier: GPL-2.0-only
"""A BlackSheep application; see ../frameworks_program.py for what each path has to do."""

import asyncio
from dataclasses import dataclass

import shared
from blacksheep import (
    Application,
    Cookie,
    FromHeader,
    FromJSON,
    Request,
    Response,
    StreamedContent,
    WebSocket,
    WebSocketDisconnectError,
    json,
    redirect,
)
from blacksheep.server.responses import file as send_file
from blacksheep.server.sse import ServerSentEventsResponse, TextServerSentEvent

app = Application()
app.use_sessions(shared.SECRET)
app.use_cors(allow_origins=shared.ORIGIN, allow_methods="GET PUT")
app.serve_files(shared.STATIC, root_path="/static", extensions={".bin", ".html"})
get, post, ws = app.router.get, app.router.post, app.router.ws


@app.lifespan
async def lifespan():
    app.started = True
    yield
    print("the application has shut down", flush=True)


async def served_by(request: Request, handler):
    response = await handler(request)
    response.headers[b"x-served-by"] = b"blacksheep"
    return response


app.middlewares.append(served_by)


@app.exception_handler(shared.TeapotError)
async def handle_teapot(self, request, exc):
    return json({"error": "teapot"}, 418)


@dataclass
class Goods:
    name: str
    price: float


@get("/items/{int:number}")
async def item(number: int, request: Request):
    query = request.query
    return json({"id": number, "q": query.get("q", [None])[0], "tags": query.get("tag", [])})


@post("/validated")
async def validated(data: FromJSON[Goods]):
    return json({"name": data.value.name, "price": float(data.value.price)}, 201)


@post("/form")
async def form(request: Request):
    return json(await request.form())


@post("/upload")
async def upload(request: Request):
    fields = await request.form()
    (file,) = fields["file"]
    content = file.data if isinstance(file.data, bytes) else file.file.read()
    name = file.file_name.decode() if isinstance(file.file_name, bytes) else file.file_name
    return json(shared.described(fields["note"], name, content))


@post("/digest")
async def digest(request: Request):
    digest = shared.Digest()
    async for piece in request.stream():
        await digest.take(piece)
    return json(digest.result())


@get("/stream")
async def stream():
    return Response(200, content=StreamedContent(b"application/octet-stream", shared.pieces))


@get("/endless")
async def endless_stream():
    return Response(200, content=StreamedContent(b"application/octet-stream", shared.endless))


@get("/events")
async def events():
    async def provider():
        async for number in shared.ticks():
            yield TextServerSentEvent(str(number))

    return ServerSentEventsResponse(provider)


@get("/file")
async def file():
    return send_file(str(shared.DATA), "application/octet-stream", file_name="data.bin")


@get("/cookies/set")
async def set_cookies():
    response = Response(204)
    response.set_cookie(Cookie("one", "1", http_only=True))
    response.set_cookie(Cookie("two", "zwei", path="/", max_age=600))
    return response


@get("/cookies")
async def cookies(request: Request):
    return json(request.cookies)


@post("/count")
async def count(request: Request):
    number = request.session.get("count", 0) + 1
    request.session["count"] = number
    return json({"count": number})


@get("/redirect")
async def redirected():
    return redirect("/items/1")


@get("/error")
async def error():
    raise RuntimeError("on purpose")


@get("/late-error")
async def late_error():
    return Response(200, content=StreamedContent(b"text/plain", shared.broken, 20))


@get("/teapot")
async def teapot():
    raise shared.TeapotError


@get("/state")
async def state():
    return json({"started": app.started})


class Agent(FromHeader[str]):
    name = "User-Agent"


class Resource:
    pass


app.services.add_scoped(Resource)


@get("/depends")
async def depends(value: Resource, user: Agent):
    return json({"value": type(value).__name__.lower(), "user": user.value})


@get("/scope/*")
async def scope(request: Request):
    return json(shared.seen(request.scope))


@get("/waiting")
async def wait_for_nothing(request: Request):
    shared.ledger["waiting begun"] += 1
    while not await request.is_disconnected():
        await asyncio.sleep(0.01)
    shared.ledger["waiting ended"] += 1
    return Response(204)


@get("/ledger")
async def show_ledger():
    return json(shared.noted())


@get("/empty")
async def empty():
    return Response(204)


@ws("/ws")
async def echo(websocket: WebSocket):
    offered = websocket.scope["subprotocols"]
    await websocket.accept([(b"x-accepted", b"yes")], "b" if "b" in offered else None)
    try:
        while True:
            message = await websocket.receive()
            if (received := message.get("text")) is not None:
                if received.startswith("close "):
                    await websocket.close(int(received[6:]), "as asked")
                    return
                await websocket.send_text(received)
            else:
                await websocket.send_bytes(message["bytes"])
    except WebSocketDisconnectError as exc:
        shared.ledger[f"websocket {exc.code}"] += 1


@ws("/ws/refused")
async def refused(websocket: WebSocket):
    await websocket.close(1008)


@ws("/ws/failing")
async def failing(websocket: WebSocket):
    await websocket.accept()
    raise RuntimeError("on purpose")
