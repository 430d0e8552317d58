# SPDX-License-Identifier: GPL-2.0-only
"""The FastAPI application of the seeds, for Granian and uvicorn to import."""

from fastapi import FastAPI, Request

from bench.seeds import payload

app = FastAPI()


@app.get("/")
async def hello():
    return payload.HELLO


@app.get("/json")
async def nested():
    return payload.NESTED


@app.post("/echo")
async def echo(request: Request):
    return await request.json()
