# SPDX-License-Identifier: GPL-2.0-only
"""For Sanic, which imports it in each of its processes."""

import os

from asked import loop_class
from sanic import Sanic
from sanic.response import text

app = Sanic("selecting")
if os.environ.get("SELECTING_INSTALL") == "without uvloop":
    app.config.USE_UVLOOP = False


@app.get("/")
async def root(request):
    return text(loop_class())
