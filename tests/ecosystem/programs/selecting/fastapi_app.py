# SPDX-License-Identifier: GPL-2.0-only
"""For FastAPI's command line, which looks into it before there is a server."""

from asked import loop_class
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

app = FastAPI()


@app.get("/", response_class=PlainTextResponse)
async def root() -> str:
    return loop_class()
