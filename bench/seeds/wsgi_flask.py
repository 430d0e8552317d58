# SPDX-License-Identifier: GPL-2.0-only
"""The Flask application of the seeds, for Flask's own server and for `mgloop serve`."""

import flask

from bench.seeds import payload

app = flask.Flask("bench")


@app.get("/")
def hello():
    return flask.jsonify(payload.HELLO)
