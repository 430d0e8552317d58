# SPDX-License-Identifier: GPL-2.0-only
"""A FastAPI application; see ../frameworks_program.py for what each path has to do."""

import contextlib
from collections.abc import AsyncIterable
from typing import Annotated

import shared
from fastapi import (
    BackgroundTasks,
    Cookie,
    Depends,
    FastAPI,
    File,
    Form,
    Header,
    Query,
    Request,
    Response,
    UploadFile,
    WebSocket,
    WebSocketDisconnect,
    WebSocketException,
)
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    StreamingResponse,
)
from fastapi.sse import EventSourceResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.middleware.sessions import SessionMiddleware


@contextlib.asynccontextmanager
async def lifespan(app):
    yield {"started": True}
    print("the application has shut down", flush=True)


app = FastAPI(lifespan=lifespan)
app.add_middleware(SessionMiddleware, secret_key=shared.SECRET)
app.add_middleware(CORSMiddleware, allow_origins=[shared.ORIGIN], allow_methods=["GET", "PUT"])


@app.middleware("http")
async def served_by(request: Request, call_next):
    response = await call_next(request)
    response.headers["x-served-by"] = "fastapi"
    return response


@app.exception_handler(shared.TeapotError)
async def handle_teapot(request: Request, exc: shared.TeapotError):
    return JSONResponse({"error": "teapot"}, 418)


class Goods(BaseModel):
    name: str
    price: float


@app.get("/items/{number}")
async def item(number: int, q: str | None = None, tag: Annotated[list[str], Query()] = []):  # noqa: B006
    return {"id": number, "q": q, "tags": tag}


@app.post("/validated", status_code=201)
async def validated(goods: Goods) -> Goods:
    return goods


@app.post("/form")
async def form(name: Annotated[str, Form()], city: Annotated[str, Form()]):
    return {"name": name, "city": city}


@app.post("/upload")
async def upload(note: Annotated[str, Form()], file: Annotated[UploadFile, File()]):
    return shared.described(note, file.filename, await file.read())


@app.post("/digest")
async def digest(request: Request):
    digest = shared.Digest()
    async for piece in request.stream():
        await digest.take(piece)
    return digest.result()


@app.get("/stream")
async def stream():
    return StreamingResponse(shared.pieces(), media_type="application/octet-stream")


@app.get("/endless")
async def endless_stream():
    return StreamingResponse(shared.endless(), media_type="application/octet-stream")


@app.get("/quiet")
async def quiet_stream():
    return StreamingResponse(shared.quiet(), media_type="application/octet-stream")


@app.get("/events", response_class=EventSourceResponse)
async def events() -> AsyncIterable[int]:
    async for number in shared.ticks():
        yield number


@app.get("/file")
async def file():
    return FileResponse(shared.DATA, filename="data.bin")


@app.get("/cookies/set", status_code=204)
async def set_cookies(response: Response):
    response.set_cookie("one", "1", httponly=True)
    response.set_cookie("two", "zwei", path="/", max_age=600)


@app.get("/cookies")
async def cookies(one: Annotated[str, Cookie()], two: Annotated[str, Cookie()]):
    return {"one": one, "two": two}


@app.post("/count")
async def count(request: Request):
    request.session["count"] = request.session.get("count", 0) + 1
    return {"count": request.session["count"]}


@app.get("/redirect")
async def redirect(request: Request):
    return RedirectResponse(request.url_for("item", number=1))


@app.post("/background", status_code=202)
async def background(tasks: BackgroundTasks):
    tasks.add_task(shared.ledger.update, ["background"])


@app.post("/order", status_code=202)
async def order(tasks: BackgroundTasks):
    await shared.wait_for_the_client_to_leave()
    tasks.add_task(shared.ledger.update, ["order done"])


@app.get("/error")
async def error():
    raise RuntimeError("on purpose")


@app.get("/late-error")
async def late_error():
    return StreamingResponse(shared.broken(), headers={"content-length": "20"})


@app.get("/teapot")
async def teapot():
    raise shared.TeapotError


@app.get("/state")
async def state(request: Request):
    return {"started": request.state.started}


async def resource():
    shared.ledger["resource opened"] += 1
    try:
        yield "resource"
    finally:
        shared.ledger["resource closed"] += 1


def agent(user_agent: Annotated[str, Header()]):
    return user_agent


@app.get("/depends")
async def depends(value: Annotated[str, Depends(resource)], user: Annotated[str, Depends(agent)]):
    return {"value": value, "user": user}


@app.get("/scope/{rest:path}")
async def scope(request: Request):
    return shared.seen(request.scope)


@app.get("/ledger")
def show_ledger():
    return shared.noted()


@app.get("/empty", status_code=204)
def empty():
    return None


@app.websocket("/ws")
async def echo(websocket: WebSocket):
    offered = websocket.scope["subprotocols"]
    await websocket.accept("b" if "b" in offered else None, [(b"x-accepted", b"yes")])
    try:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"])
            if (text := message.get("text")) is not None:
                if text.startswith("close "):
                    raise WebSocketException(int(text[6:]), "as asked")
                await websocket.send_text(text)
            else:
                await websocket.send_bytes(message["bytes"])
    except WebSocketDisconnect as exc:
        shared.ledger[f"websocket {exc.code}"] += 1


@app.websocket("/ws/refused")
async def refused(websocket: WebSocket):
    raise WebSocketException(1008)


@app.websocket("/ws/denied")
async def denied(websocket: WebSocket):
    await websocket.send_denial_response(PlainTextResponse("not you", 418))


@app.websocket("/ws/failing")
async def failing(websocket: WebSocket):
    await websocket.accept()
    raise RuntimeError("on purpose")


app.mount("/static", StaticFiles(directory=shared.STATIC))
