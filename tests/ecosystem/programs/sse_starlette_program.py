# SPDX-License-Identifier: GPL-2.0-only
"""sse-starlette over a server: events, clients that leave, and SIGTERM while streams are open.

sse-starlette ends its streams when it sees that uvicorn's server stops. A server without such an
object must end them by other means.
"""

import asyncio
import signal
import time

import httpx
from common import expect, run, say, server, started

STREAMS = 20

#: Seconds that a server may take to end while streams are open.
END_LIMIT = 15


def application():
    """Return an application whose paths are endless streams, a finite one, and a count."""
    from sse_starlette.sse import EventSourceResponse
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    open_streams = 0

    async def numbers(request):
        async def generate():
            for number in range(1000):
                yield {"id": str(number), "event": "number", "data": f"{number}\nnext"}

        return EventSourceResponse(generate())

    async def endless(request):
        async def generate():
            nonlocal open_streams
            open_streams += 1
            try:
                while True:
                    yield {"data": "x"}
                    await asyncio.sleep(0.05)
            finally:
                open_streams -= 1

        return EventSourceResponse(generate())

    async def quiet(request):
        async def generate():
            nonlocal open_streams
            open_streams += 1
            try:
                yield {"data": "x"}
                await asyncio.Event().wait()
            finally:
                open_streams -= 1

        return EventSourceResponse(generate())

    async def count(request):
        return JSONResponse(open_streams)

    return Starlette(
        routes=[
            Route("/numbers", numbers),
            Route("/endless", endless),
            Route("/quiet", quiet),
            Route("/count", count),
        ]
    )


async def open_stream(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """Return a response of which the first event has been read."""
    response = await client.send(client.build_request("GET", path), stream=True)
    lines = response.aiter_lines()
    expect(await anext(lines) == "data: x", f"the first event of {path}")
    # Keep the iterator: when it is collected, httpx closes the response.
    response.extensions["lines"] = lines
    return response


async def streams_open(client: httpx.AsyncClient, wanted: int) -> None:
    """Wait until the application has *wanted* open streams."""
    async with asyncio.timeout(30):
        while (await client.get("/count")).json() != wanted:
            await asyncio.sleep(0.05)


async def use(process, port: int, stop: signal.Signals) -> None:
    """Read events, leave streams, and end the server while streams are open."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=30, limits=limits
    ) as client:
        text = (await client.get("/numbers")).text
        expected = "".join(
            f"id: {number}\r\nevent: number\r\ndata: {number}\r\ndata: next\r\n\r\n"
            for number in range(1000)
        )
        expect(text == expected, "1,000 events in order")

        for path in ("/endless", "/quiet"):
            responses = [await open_stream(client, path) for _ in range(STREAMS)]
            await streams_open(client, STREAMS)
            for response in responses:
                await response.aclose()
            await streams_open(client, 0)
        say(f"1,000 events; {STREAMS} clients of each kind of stream left, and their streams ended")

        for path in ("/endless", "/quiet"):
            await open_stream(client, path)
        began = time.monotonic()
        process.send_signal(stop)
        while process.poll() is None and time.monotonic() < began + END_LIMIT:
            await asyncio.sleep(0.05)
        if process.poll() is None:
            process.kill()
            expect(False, f"{stop.name} ends the server within {END_LIMIT} s, with open streams")
        say(
            f"{stop.name} with two streams open: the server ended after "
            f"{time.monotonic() - began:.1f} s with status {process.returncode}"
        )


def main() -> None:
    """Run a server for each signal."""
    command = [*server("sse_starlette_program:application", "--factory", log_level="warning")]
    for stop in (signal.SIGTERM, signal.SIGINT):
        with started(*command) as (process, port):
            run(use(process, port, stop))


if __name__ == "__main__":
    main()
