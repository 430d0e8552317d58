# SPDX-License-Identifier: GPL-2.0-only
"""For Quart's own server."""

from asked import loop_class
from quart import Quart

app = Quart(__name__)


@app.get("/")
async def root() -> str:
    return loop_class()
