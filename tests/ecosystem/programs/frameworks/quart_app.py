# SPDX-License-Identifier: GPL-2.0-only
"""A Quart application; see ../frameworks_program.py for what each path has to do."""

import asyncio

import shared
from quart import (
    Quart,
    jsonify,
    make_response,
    redirect,
    render_template,
    request,
    send_file,
    session,
    url_for,
    websocket,
)

app = Quart(
    __name__,
    static_folder=shared.STATIC,
    static_url_path="/static",
    template_folder=shared.FOLDER / "templates",
)
app.secret_key = shared.SECRET
app.config["MAX_CONTENT_LENGTH"] = 64 << 20


@app.while_serving
async def lifespan():
    app.started = True
    yield
    print("the application has shut down", flush=True)


@app.after_request
async def served_by(response):
    response.headers["x-served-by"] = "quart"
    if request.headers.get("origin") == shared.ORIGIN:
        response.headers["access-control-allow-origin"] = shared.ORIGIN
        if request.method == "OPTIONS":
            response.headers["access-control-allow-methods"] = "GET, PUT"
    return response


@app.errorhandler(shared.TeapotError)
async def handle_teapot(exc):
    return {"error": "teapot"}, 418


@app.get("/items/<int:number>")
async def item(number):
    return {"id": number, "q": request.args.get("q"), "tags": request.args.getlist("tag")}


@app.post("/validated")
async def validated():
    body = await request.get_json()
    try:
        return {"name": str(body["name"]), "price": float(body["price"])}, 201
    except (ValueError, KeyError) as exc:
        return {"error": type(exc).__name__}, 400


@app.post("/form")
async def form():
    return dict(await request.form)


@app.post("/upload")
async def upload():
    fields, files = await request.form, await request.files
    file = files["file"]
    return shared.described(fields["note"], file.filename, file.read())


@app.post("/digest")
async def digest():
    digest = shared.Digest()
    async for piece in request.body:
        await digest.take(piece)
    return digest.result()


@app.get("/stream")
async def stream():
    return shared.pieces(), 200, {"content-type": "application/octet-stream"}


@app.get("/endless")
async def endless_stream():
    response = await make_response(shared.endless(), {"content-type": "application/octet-stream"})
    response.timeout = None
    return response


@app.get("/quiet")
async def quiet_stream():
    response = await make_response(shared.quiet(), {"content-type": "application/octet-stream"})
    response.timeout = None
    return response


@app.get("/events")
async def events():
    async def lines():
        async for number in shared.ticks():
            yield f"data: {number}\n\n".encode()

    return lines(), 200, {"content-type": "text/event-stream"}


@app.get("/file")
async def file():
    return await send_file(shared.DATA, conditional=True, as_attachment=True)


@app.get("/page")
async def page():
    return await render_template("page.html", name="<mgloop>")


@app.get("/cookies/set")
async def set_cookies():
    response = await make_response("", 204)
    response.set_cookie("one", "1", httponly=True)
    response.set_cookie("two", "zwei", path="/", max_age=600)
    return response


@app.get("/cookies")
async def cookies():
    return dict(request.cookies)


@app.post("/count")
async def count():
    session["count"] = session.get("count", 0) + 1
    return {"count": session["count"]}


@app.get("/redirect")
async def redirected():
    return redirect(url_for("item", number=1))


@app.post("/background")
async def background():
    async def later():
        await asyncio.sleep(0)
        shared.ledger["background"] += 1

    app.add_background_task(later)
    return {}, 202


@app.get("/error")
async def error():
    raise RuntimeError("on purpose")


@app.get("/late-error")
async def late_error():
    return shared.broken(), 200, {"content-length": "20"}


@app.get("/teapot")
async def teapot():
    raise shared.TeapotError


@app.get("/state")
async def state():
    return {"started": app.started}


@app.get("/scope/<path:rest>")
async def scope(rest):
    return shared.seen(request.scope)


@app.get("/waiting")
async def wait_for_nothing():
    # Quart cancels a handler whose client has gone.
    shared.ledger["waiting begun"] += 1
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        shared.ledger["waiting ended"] += 1
        raise


@app.get("/ledger")
async def show_ledger():
    return jsonify(shared.noted())


@app.get("/empty")
async def empty():
    return "", 204


@app.websocket("/ws")
async def echo():
    offered = websocket.requested_subprotocols
    await websocket.accept({"x-accepted": "yes"}, "b" if "b" in offered else None)
    try:
        while True:
            message = await websocket.receive()
            if isinstance(message, str) and message.startswith("close "):
                await websocket.close(int(message[6:]), "as asked")
                return
            await websocket.send(message)
    except asyncio.CancelledError:
        shared.ledger["websocket gone"] += 1
        raise


@app.websocket("/ws/refused")
async def refused():
    await websocket.close(1008)


@app.websocket("/ws/denied")
async def denied():
    return "not you", 418


@app.websocket("/ws/failing")
async def failing():
    await websocket.accept()
    raise RuntimeError("on purpose")
