# SPDX-License-Identifier: GPL-2.0-only
"""The application of the soaks in WSGI. It has the paths of application.py, except WebSockets."""

import hashlib
import time

import application
from application import BIG, FILE, PID, DeliberateError

HEADERS = [("Content-Type", "text/plain"), ("X-Pid", PID.decode())]


def app(environ, start_response):
    return PATHS.get(environ["PATH_INFO"], on_unknown)(environ, start_response)


def on_hello(environ, start_response):
    start_response("200 OK", HEADERS)
    return [b"Hello, World!"]


def on_echo(environ, start_response):
    """Send back each piece of the body after it was read."""
    start_response("200 OK", HEADERS)
    return iter(lambda: environ["wsgi.input"].read(10_000), b"")


def on_digest(environ, start_response):
    digest = hashlib.sha256(environ["wsgi.input"].read())
    start_response("200 OK", HEADERS)
    return [digest.hexdigest().encode()]


def on_big(environ, start_response):
    start_response("200 OK", HEADERS)
    return [BIG]


def on_stream(environ, start_response):
    start_response("200 OK", HEADERS)
    for _ in range(16):
        yield BIG[:65536]


def on_file(environ, start_response):
    start_response("200 OK", [*HEADERS, ("Content-Length", str(len(BIG) * 4))])
    return environ["wsgi.file_wrapper"](open(f"/proc/self/fd/{FILE}", "rb"))


def on_wait(environ, start_response):
    time.sleep(0.02)
    return on_hello(environ, start_response)


def on_raise(environ, start_response):
    raise DeliberateError


def on_raise_late(environ, start_response):
    start_response("200 OK", HEADERS)
    yield b"half"
    raise DeliberateError


def on_unknown(environ, start_response):
    start_response("404 Not Found", HEADERS)
    return []


PATHS = {path: globals()[function.__name__] for path, function in application.PATHS.items()}
