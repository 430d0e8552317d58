# SPDX-License-Identifier: GPL-2.0-only
"""The workloads in which the loop under test is the client: aiohttp requests to a C server.

This module runs in its own child process. The peer is the C floor server in its http mode, so that
the figures measure the client. The child prints one line of JSON in the load generator's format,
and reports its own CPU time as the server's.
"""

import asyncio
import time

from . import stats

PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)


async def drive(config, tell):
    """Send requests for ``warmup + seconds`` on ``conns`` connections and report the result."""
    import aiohttp

    url = f"http://127.0.0.1:{config['port']}/"
    expected = config["body"].encode()
    latencies, errors = [], {"closed": 0, "mismatched": 0}
    opened = time.perf_counter() + config["warmup"]
    ends = opened + config["seconds"]

    async def worker(session):
        while (begun := time.perf_counter()) < ends:
            try:
                async with session.get(url) as response:
                    body = await response.read()
            except (aiohttp.ClientError, OSError):
                errors["closed"] += 1
                return
            if body != expected:
                errors["mismatched"] += 1
            now = time.perf_counter()
            if begun >= opened:
                latencies.append((now - begun) * 1e6)

    async def clock():
        await asyncio.sleep(opened - time.perf_counter())
        return time.process_time()

    connector = aiohttp.TCPConnector(limit=config["conns"])
    async with aiohttp.ClientSession(connector=connector) as session:
        started = asyncio.ensure_future(clock())
        await asyncio.gather(*(worker(session) for _ in range(config["conns"])))
        cpu = time.process_time() - await started
    seconds = time.perf_counter() - opened
    tell(
        ops=len(latencies),
        seconds=seconds,
        errors=errors,
        client_cpu_s=0.0,
        server_cpu_s=cpu,
        server_main_cpu_s=cpu,
        latency_us={f"{p:g}": stats.percentile(latencies, p) for p in PERCENTS if latencies},
    )


def main(config, factory, tell):
    """Run the child process."""
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(drive(config, tell))
