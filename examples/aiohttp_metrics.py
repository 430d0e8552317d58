# SPDX-License-Identifier: GPL-2.0-only
"""An aiohttp application with /metrics for Prometheus: its loop's stats().

Needs aiohttp and prometheus_client: pip install aiohttp mgloop[prometheus]

    python examples/aiohttp_metrics.py [PORT]
    curl http://127.0.0.1:8080/metrics
"""

import asyncio
import contextlib
import sys

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

import mgloop
from mgloop.observe.prometheus import LoopCollector


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="Hello, World!")


async def metrics(request: web.Request) -> web.Response:
    return web.Response(body=generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})


async def main(port: int) -> None:
    app = web.Application()
    app.add_routes([web.get("/", hello), web.get("/metrics", metrics)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        with LoopCollector(asyncio.get_running_loop()):
            await web.TCPSite(runner, "127.0.0.1", port).start()
            host, port = runner.addresses[0]
            print(f"serving on http://{host}:{port}/, metrics on /metrics", flush=True)
            await asyncio.Event().wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        mgloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8080), timing=True)
