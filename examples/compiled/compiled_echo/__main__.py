# SPDX-License-Identifier: GPL-2.0-only
"""Serve on 127.0.0.1, port 8007, until Ctrl-C: `python -m compiled_echo`."""

import asyncio

import mgloop

from . import Echo


async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 8007)
    await server.serve_forever()


mgloop.run(main())
