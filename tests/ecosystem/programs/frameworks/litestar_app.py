# SPDX-License-Identifier: GPL-2.0-only
"""A Litestar application; see ../frameworks_program.py for what each path has to do."""

import contextlib
from dataclasses import dataclass
from typing import Annotated, Any

import shared
from litestar import Litestar, MediaType, Request, Response, WebSocket, get, post, websocket
from litestar.background_tasks import BackgroundTask
from litestar.config.cors import CORSConfig
from litestar.datastructures import Cookie, State, UploadFile
from litestar.di import Provide
from litestar.enums import RequestEncodingType
from litestar.middleware.session.client_side import CookieBackendConfig
from litestar.params import Body
from litestar.response import File, Redirect, ServerSentEvent, Stream
from litestar.static_files import create_static_files_router


@dataclass
class Goods:
    name: str
    price: float


@dataclass
class Form:
    name: str
    city: str


@dataclass
class Upload:
    note: str
    file: UploadFile


@get("/items/{number:int}", name="item")
async def item(number: int, q: str | None = None, tag: list[str] | None = None) -> dict[str, Any]:
    return {"id": number, "q": q, "tags": tag or []}


@post("/validated")
async def validated(data: Goods) -> Goods:
    return data


@post("/form", status_code=200)
async def form(data: Annotated[Form, Body(media_type=RequestEncodingType.URL_ENCODED)]) -> Form:
    return data


@post("/upload", status_code=200, request_max_body_size=64 << 20)
async def upload(
    data: Annotated[Upload, Body(media_type=RequestEncodingType.MULTI_PART)],
) -> dict[str, Any]:
    return shared.described(data.note, data.file.filename, await data.file.read())


@post("/digest", status_code=200, request_max_body_size=64 << 20)
async def digest(request: Request) -> dict[str, Any]:
    digest = shared.Digest()
    async for piece in request.stream():
        await digest.take(piece)
    return digest.result()


@get("/stream")
async def stream() -> Stream:
    return Stream(shared.pieces(), media_type="application/octet-stream")


@get("/endless")
async def endless_stream() -> Stream:
    return Stream(shared.endless(), media_type="application/octet-stream")


@get("/quiet")
async def quiet_stream() -> Stream:
    return Stream(shared.quiet(), media_type="application/octet-stream")


@get("/events")
async def events() -> ServerSentEvent:
    return ServerSentEvent(shared.ticks())


@get("/file")
async def file() -> File:
    return File(shared.DATA, filename="data.bin")


@get("/cookies/set", status_code=204)
async def set_cookies() -> Response[None]:
    both = [Cookie("one", value="1", httponly=True), Cookie("two", value="zwei", max_age=600)]
    return Response(None, cookies=both)


@get("/cookies")
async def cookies(request: Request) -> dict[str, str]:
    return dict(request.cookies)


@post("/count", status_code=200)
async def count(request: Request) -> dict[str, int]:
    number = request.session.get("count", 0) + 1
    request.set_session({"count": number})
    return {"count": number}


@get("/redirect", status_code=307)
async def redirect(request: Request) -> Redirect:
    return Redirect(request.url_for("item", number=1))


async def note_background() -> None:
    shared.ledger["background"] += 1


@post("/background", status_code=202)
async def background() -> Response[dict[str, str]]:
    return Response({}, background=BackgroundTask(note_background))


async def note_order() -> None:
    shared.ledger["order done"] += 1


@post("/order", status_code=202)
async def order() -> Response[dict[str, str]]:
    await shared.wait_for_the_client_to_leave()
    return Response({}, background=BackgroundTask(note_order))


@get("/error")
async def error() -> None:
    raise RuntimeError("on purpose")


@get("/late-error")
async def late_error() -> Stream:
    return Stream(shared.broken(), headers={"content-length": "20"})


@get("/teapot")
async def teapot() -> None:
    raise shared.TeapotError


@get("/state")
async def state(state: State) -> dict[str, bool]:
    return {"started": state.started}


async def resource():
    shared.ledger["resource opened"] += 1
    try:
        yield "resource"
    finally:
        shared.ledger["resource closed"] += 1


@get("/depends", dependencies={"value": Provide(resource)})
async def depends(value: str, request: Request) -> dict[str, str]:
    return {"value": value, "user": request.headers["user-agent"]}


@get("/scope/{rest:path}")
async def scope(rest: str, request: Request) -> dict[str, Any]:
    return shared.seen(request.scope)


@get("/ledger")
async def show_ledger() -> dict[str, int]:
    return dict(shared.noted())


@get("/empty", status_code=204)
async def empty() -> None:
    return None


@websocket("/ws")
async def echo(socket: WebSocket) -> None:
    offered = socket.scope["subprotocols"]
    await socket.accept(subprotocols="b" if "b" in offered else None, headers={"x-accepted": "yes"})
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            shared.ledger[f"websocket {message['code']}"] += 1
            return
        if (text := message.get("text")) is not None:
            if text.startswith("close "):
                await socket.close(int(text[6:]), "as asked")
                return
            await socket.send_text(text)
        else:
            await socket.send_bytes(message["bytes"])


@websocket("/ws/refused")
async def refused(socket: WebSocket) -> None:
    await socket.close(1008)


@websocket("/ws/failing")
async def failing(socket: WebSocket) -> None:
    await socket.accept()
    raise RuntimeError("on purpose")


async def served_by(response: Response) -> Response:
    response.headers["x-served-by"] = "litestar"
    return response


def handle_teapot(request: Request, exc: shared.TeapotError) -> Response[dict[str, str]]:
    return Response({"error": "teapot"}, status_code=418, media_type=MediaType.JSON)


@contextlib.asynccontextmanager
async def lifespan(app: Litestar):
    app.state.started = True
    yield
    print("the application has shut down", flush=True)


app = Litestar(
    [
        item, validated, form, upload, digest, stream, endless_stream, quiet_stream, events, file,
        set_cookies, order,
        cookies, count, redirect, background, error, late_error, teapot, state, depends, scope,
        show_ledger, empty, echo, refused, failing,
        create_static_files_router(path="/static", directories=[shared.STATIC]),
    ],
    after_request=served_by,
    cors_config=CORSConfig(allow_origins=[shared.ORIGIN], allow_methods=["GET", "PUT"]),
    exception_handlers={shared.TeapotError: handle_teapot},
    lifespan=[lifespan],
    middleware=[CookieBackendConfig(secret=b"of the tests ...").middleware],
)  # fmt: skip
