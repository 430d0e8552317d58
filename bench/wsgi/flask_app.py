# SPDX-License-Identifier: GPL-2.0-only
"""The Flask application of the suite."""

import flask

from bench.asgi.apps import HELLO

app = flask.Flask("bench")


@app.get("/")
def hello():
    return HELLO.decode()
