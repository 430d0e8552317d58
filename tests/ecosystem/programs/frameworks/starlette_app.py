# SPDX-License-Identifier: GPL-2.0-only
"""A Starlette application; see ../frameworks_program.py for what each path has to do."""

import contextlib
import json

import shared
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates
from starlette.websockets import WebSocketDisconnect

templates = Jinja2Templates(shared.FOLDER / "templates")


async def item(request):
    query = request.query_params
    return JSONResponse(
        {"id": request.path_params["number"], "q": query.get("q"), "tags": query.getlist("tag")}
    )


async def validated(request):
    try:
        body = json.loads(await request.body())
        answer = {"name": str(body["name"]), "price": float(body["price"])}
    except (ValueError, KeyError) as exc:
        raise HTTPException(400, f"{type(exc).__name__}") from exc
    return JSONResponse(answer, 201)


async def form(request):
    async with request.form() as fields:
        return JSONResponse(dict(fields))


async def upload(request):
    async with request.form() as fields:
        file = fields["file"]
        return JSONResponse(shared.described(fields["note"], file.filename, await file.read()))


async def digest(request):
    digest = shared.Digest()
    async for piece in request.stream():
        await digest.take(piece)
    return JSONResponse(digest.result())


async def stream(request):
    return StreamingResponse(shared.pieces(), media_type="application/octet-stream")


async def endless_stream(request):
    return StreamingResponse(shared.endless(), media_type="application/octet-stream")


async def quiet_stream(request):
    return StreamingResponse(shared.quiet(), media_type="application/octet-stream")


async def events(request):
    async def lines():
        async for number in shared.ticks():
            yield f"data: {number}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


async def file(request):
    return FileResponse(shared.DATA, filename="data.bin")


async def page(request):
    return templates.TemplateResponse(request, "page.html", {"name": "<mgloop>"})


async def set_cookies(request):
    response = Response(status_code=204)
    response.set_cookie("one", "1", httponly=True)
    response.set_cookie("two", "zwei", path="/", max_age=600)
    return response


async def cookies(request):
    return JSONResponse(request.cookies)


async def count(request):
    request.session["count"] = request.session.get("count", 0) + 1
    return JSONResponse({"count": request.session["count"]})


async def redirect(request):
    return RedirectResponse(request.url_for("item", number=1))


def blocking():
    shared.ledger["background"] += 1


async def background(request):
    return JSONResponse({}, 202, background=BackgroundTask(blocking))


async def order(request):
    await shared.wait_for_the_client_to_leave()
    return JSONResponse({}, 202, background=BackgroundTask(shared.ledger.update, ["order done"]))


async def error(request):
    raise RuntimeError("on purpose")


async def late_error(request):
    return StreamingResponse(shared.broken(), headers={"content-length": "20"})


async def teapot(request):
    raise shared.TeapotError


async def state(request):
    return JSONResponse({"started": request.state.started})


async def scope(request):
    return JSONResponse(shared.seen(request.scope))


async def wait_for_nothing(request):
    shared.ledger["waiting begun"] += 1
    while (await request.receive())["type"] != "http.disconnect":
        pass
    shared.ledger["waiting ended"] += 1
    return Response()


async def show_ledger(request):
    return JSONResponse(shared.noted())


async def empty(request):
    return Response(status_code=204)


async def echo(websocket):
    offered = websocket.scope["subprotocols"]
    await websocket.accept("b" if "b" in offered else None, [(b"x-accepted", b"yes")])
    try:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"])
            if (text := message.get("text")) is not None:
                if text.startswith("close "):
                    await websocket.close(int(text[6:]), "as asked")
                    return
                await websocket.send_text(text)
            else:
                await websocket.send_bytes(message["bytes"])
    except WebSocketDisconnect as exc:
        shared.ledger[f"websocket {exc.code}"] += 1


async def refused(websocket):
    await websocket.close(1008)


async def denied(websocket):
    await websocket.send_denial_response(PlainTextResponse("not you", 418))


async def failing(websocket):
    await websocket.accept()
    raise RuntimeError("on purpose")


class ServedBy(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        response = await call_next(request)
        response.headers["x-served-by"] = "starlette"
        return response


async def handle_teapot(request, exc):
    return JSONResponse({"error": "teapot"}, 418)


@contextlib.asynccontextmanager
async def lifespan(app):
    yield {"started": True}
    print("the application has shut down", flush=True)


app = Starlette(
    lifespan=lifespan,
    exception_handlers={shared.TeapotError: handle_teapot},
    middleware=[
        Middleware(ServedBy),
        Middleware(CORSMiddleware, allow_origins=[shared.ORIGIN], allow_methods=["GET", "PUT"]),
        Middleware(SessionMiddleware, secret_key=shared.SECRET),
    ],
    routes=[
        Route("/items/{number:int}", item, name="item"),
        Route("/validated", validated, methods=["POST"]),
        Route("/form", form, methods=["POST"]),
        Route("/upload", upload, methods=["POST"]),
        Route("/digest", digest, methods=["POST"]),
        Route("/stream", stream),
        Route("/endless", endless_stream),
        Route("/quiet", quiet_stream),
        Route("/events", events),
        Route("/file", file),
        Route("/page", page),
        Route("/zipped", page, middleware=[Middleware(GZipMiddleware, minimum_size=1)]),
        Route("/cookies/set", set_cookies),
        Route("/cookies", cookies),
        Route("/count", count, methods=["POST"]),
        Route("/redirect", redirect),
        Route("/background", background, methods=["POST"]),
        Route("/order", order, methods=["POST"]),
        Route("/error", error),
        Route("/late-error", late_error),
        Route("/teapot", teapot),
        Route("/state", state),
        Route("/scope/{rest:path}", scope),
        Route("/waiting", wait_for_nothing),
        Route("/ledger", show_ledger),
        Route("/empty", empty),
        WebSocketRoute("/ws", echo),
        WebSocketRoute("/ws/refused", refused),
        WebSocketRoute("/ws/denied", denied),
        WebSocketRoute("/ws/failing", failing),
        Mount("/static", StaticFiles(directory=shared.STATIC)),
    ],
)
