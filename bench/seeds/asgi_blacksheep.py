# SPDX-License-Identifier: GPL-2.0-only
"""The BlackSheep application of the seeds, for Granian to import."""

from blacksheep import Application, Request, get, json, post

from bench.seeds import payload

app = Application(show_error_details=False)


@get("/")
async def hello():
    return json(payload.HELLO)


@get("/json")
async def nested():
    return json(payload.NESTED)


@post("/echo")
async def echo(request: Request):
    return json(await request.json())
