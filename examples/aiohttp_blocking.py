# SPDX-License-Identifier: GPL-2.0-only
"""An aiohttp application with a bug: the handler of /login blocks the event loop.

docs/observing.md shows how to find it, with

    MGLOOP_MONITOR=/tmp/app.sock MGLOOP_TIMING=1 MGLOOP_WATCHDOG=0.1 \\
        python examples/aiohttp_blocking.py

With --in-thread the bug is fixed.
"""

import argparse
import asyncio
import contextlib
import hashlib

from aiohttp import web

import mgloop

OPTIONS = argparse.ArgumentParser(description=__doc__.splitlines()[0])
OPTIONS.add_argument("port", nargs="?", type=int, default=8080)
OPTIONS.add_argument("--in-thread", action="store_true", help="check passwords in a thread")


def check(password: str) -> str:
    """Return the hash of a password. It is slow on purpose, which makes guessing expensive."""
    salt, memory = b"a salt of each user's", 128 * 1024 * 1024
    return hashlib.scrypt(password.encode(), salt=salt, n=2**16, r=8, p=1, maxmem=memory).hex()


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="Hello, World!")


async def login(request: web.Request) -> web.Response:
    return web.Response(text=check("secret"))


async def login_in_thread(request: web.Request) -> web.Response:
    return web.Response(text=await asyncio.to_thread(check, "secret"))


async def main(port: int, in_thread: bool) -> None:
    app = web.Application()
    app.add_routes(
        [web.get("/", hello), web.get("/login", login_in_thread if in_thread else login)]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        host, port = runner.addresses[0]
        print(f"serving on http://{host}:{port}/", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    options = OPTIONS.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        mgloop.run(main(options.port, options.in_thread))
