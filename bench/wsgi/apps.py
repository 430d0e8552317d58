# SPDX-License-Identifier: GPL-2.0-only
"""The plain WSGI application of the suite, imported by every server: one handler per path.

It uses no framework, so that the figures measure the server. Beyond the protocol, a handler does
only the work of any application, such as encoding JSON for each request. The document and the
pieces are those of the suite asgi.
"""

import json
import os
import time

from bench.asgi.apps import BLOCK, CHUNKS, DOCUMENT, HELLO

PAGE = (b"<p>A page of ten kilobytes.</p>\n" * 320)[:10240]
#: Seconds for which a request for /sleep occupies its thread.
SLEEP = 2.0


def answer(start_response, content_type, body):
    start_response("200 OK", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]


def hello(environ, start_response):
    return answer(start_response, "text/plain", HELLO)


def document(environ, start_response):
    return answer(start_response, "application/json", json.dumps(DOCUMENT).encode())


def page(environ, start_response):
    return answer(start_response, "text/html", PAGE)


def echo(environ, start_response):
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    return answer(start_response, "application/json", body)


def upload(environ, start_response):
    """Read a body without storing it, and answer with its length."""
    read, left = environ["wsgi.input"].read, int(environ["CONTENT_LENGTH"])
    length = 0
    while left and (block := read(min(left, BLOCK))):
        length += len(block)
        left -= len(block)
    return answer(start_response, "text/plain", str(length).encode())


def stream(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/event-stream")])
    return iter(CHUNKS)


def download(environ, start_response):
    """Send a file: by wsgi.file_wrapper if the server has it, otherwise in blocks."""
    path = os.environ["BENCH_FILE"]
    file = open(path, "rb")  # noqa: SIM115 - the server closes it through close()
    headers = [("Content-Type", "application/octet-stream")]
    headers.append(("Content-Length", str(os.stat(path).st_size)))
    start_response("200 OK", headers)
    if "wsgi.file_wrapper" in environ:
        return environ["wsgi.file_wrapper"](file, BLOCK)
    return blocks(file)


def blocks(file):
    with file:
        while block := file.read(BLOCK):
            yield block


def sleep(environ, start_response):
    """Occupy a thread as a query to a slow database does, without the GIL."""
    time.sleep(SLEEP)
    return answer(start_response, "text/plain", b"awake")


HANDLERS = {
    "/": hello,
    "/json": document,
    "/page": page,
    "/echo": echo,
    "/upload": upload,
    "/stream": stream,
    "/download": download,
    "/sleep": sleep,
}


def app(environ, start_response):
    return HANDLERS[environ["PATH_INFO"]](environ, start_response)
