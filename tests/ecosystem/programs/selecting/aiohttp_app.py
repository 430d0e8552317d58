# SPDX-License-Identifier: GPL-2.0-only
"""For aiohttp: as its command line wants it, and as its worker class of gunicorn's does."""

from aiohttp import web
from asked import loop_class


async def root(request: web.Request) -> web.Response:
    return web.Response(text=loop_class())


def main(arguments: list[str] | None = None) -> web.Application:
    application = web.Application()
    application.router.add_get("/", root)
    return application


app = main()
