# SPDX-License-Identifier: GPL-2.0-only
"""A Flask application, which speaks WSGI; see ../frameworks_program.py for what each path has to
do.
"""

import shared
from flask import (
    Flask,
    jsonify,
    make_response,
    redirect,
    render_template,
    request,
    send_file,
    session,
    url_for,
)

app = Flask(
    __name__,
    static_folder=shared.STATIC,
    static_url_path="/static",
    template_folder=shared.FOLDER / "templates",
)
app.secret_key = shared.SECRET


@app.after_request
def served_by(response):
    response.headers["x-served-by"] = "flask"
    if request.headers.get("origin") == shared.ORIGIN:
        response.headers["access-control-allow-origin"] = shared.ORIGIN
        if request.method == "OPTIONS":
            response.headers["access-control-allow-methods"] = "GET, PUT"
    return response


@app.errorhandler(shared.TeapotError)
def handle_teapot(exc):
    return {"error": "teapot"}, 418


@app.get("/items/<int:number>")
def item(number):
    return {"id": number, "q": request.args.get("q"), "tags": request.args.getlist("tag")}


@app.post("/validated")
def validated():
    body = request.get_json()
    try:
        return {"name": str(body["name"]), "price": float(body["price"])}, 201
    except (ValueError, KeyError) as exc:
        return {"error": type(exc).__name__}, 400


@app.post("/form")
def form():
    return request.form.to_dict()


@app.post("/upload")
def upload():
    file = request.files["file"]
    return shared.described(request.form["note"], file.filename, file.read())


@app.get("/stream")
def stream():
    def body():
        for number in range(16):
            yield bytes([number]) + shared.PIECE[1:]

    return body(), 200, {"content-type": "application/octet-stream"}


@app.get("/endless")
def endless_stream():
    def body():
        shared.ledger["endless begun"] += 1
        try:
            while True:
                yield shared.PIECE
        finally:
            shared.ledger["endless ended"] += 1

    return body(), 200, {"content-type": "application/octet-stream"}


@app.get("/file")
def file():
    return send_file(shared.DATA, conditional=True, as_attachment=True)


@app.get("/page")
def page():
    return render_template("page.html", name="<mgloop>")


@app.get("/cookies/set")
def set_cookies():
    response = make_response("", 204)
    response.set_cookie("one", "1", httponly=True)
    response.set_cookie("two", "zwei", path="/", max_age=600)
    return response


@app.get("/cookies")
def cookies():
    return dict(request.cookies)


@app.post("/count")
def count():
    session["count"] = session.get("count", 0) + 1
    return {"count": session["count"]}


@app.get("/redirect")
def redirected():
    return redirect(url_for("item", number=1))


@app.get("/error")
def error():
    raise RuntimeError("on purpose")


@app.get("/teapot")
def teapot():
    raise shared.TeapotError


@app.get("/environ/<path:rest>")
def environ(rest):
    names = ("REQUEST_METHOD", "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", "SERVER_PROTOCOL")
    kept = {name: request.environ.get(name) for name in (*names, "wsgi.url_scheme")}
    # On a UNIX socket it is empty, as with gunicorn. uvicorn runs Flask through a2wsgi, which omits
    # it.
    kept["REMOTE_ADDR"] = request.environ.get("REMOTE_ADDR") or None
    return kept | {name: v for name, v in request.environ.items() if name.startswith("HTTP_X_")}


@app.get("/ledger")
def show_ledger():
    return jsonify(shared.noted())


@app.get("/empty")
def empty():
    return "", 204
