# SPDX-License-Identifier: GPL-2.0-only
"""A served application that uses multiprocessing: children of its lifespan, and of its requests.

The application leaves its children to the interpreter, as applications do. The server must not take
a signal for its own that is meant for a child, and a signal must end the server whatever the
children are doing. uvicorn, the control, does less: its forked children inherit a handler in place
of SIGTERM's default action, and children outlive it when it kills itself by the signal received.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor

from common import expect, loop_class, say, server, session, started

#: Seconds that a server may take to end while its children are busy.
END_LIMIT = 15

#: Seconds in which the server's children may end after it.
PATIENCE = 2

REQUEST_LIMIT = 60

#: Whether the server is mgloop's own, or uvicorn.
OWN = loop_class().__module__.startswith("mgloop")

METHOD = os.environ.get("ECOSYSTEM_START_METHOD", "fork")

context = multiprocessing.get_context(METHOD)


def wait_long() -> None:
    """Occupy a child process."""
    time.sleep(600)


def square(number: int) -> int:
    """Compute something for a pool."""
    return number * number


class Application:
    """An ASGI application with a daemonic child, and two pools of which one is busy."""

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
        elif scope["type"] == "http":
            body = json.dumps(await getattr(self, scope["path"].strip("/"))()).encode()
            headers = [(b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def lifespan(self, receive, send) -> None:
        await receive()
        self.child = context.Process(target=wait_long, daemon=True)
        self.child.start()
        self.busy = context.Pool(2)
        self.busy.apply_async(wait_long)
        self.executor = ProcessPoolExecutor(2, mp_context=context)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def compute(self) -> list[int]:
        """Use both kinds of pool."""
        loop = asyncio.get_running_loop()
        mapped = await loop.run_in_executor(None, self.busy.map, square, range(50))
        jobs = (loop.run_in_executor(self.executor, square, number) for number in range(50))
        return mapped + await asyncio.gather(*jobs)

    async def terminate(self) -> int:
        """Start a child and end it; return its exit status."""
        child = context.Process(target=wait_long)
        child.start()
        await asyncio.sleep(0.3)
        child.terminate()
        await asyncio.to_thread(child.join, 10)
        if child.is_alive():
            child.kill()
            await asyncio.to_thread(child.join)
        return child.exitcode

    async def alive(self) -> bool:
        """Return whether the child of the lifespan is alive."""
        return self.child.is_alive()


def use(process, port: int, stop: signal.Signals) -> None:
    """Make requests, and end the server."""

    def get(path: str) -> object:
        address = f"http://127.0.0.1:{port}/{path}"
        with urllib.request.urlopen(address, timeout=REQUEST_LIMIT) as response:
            return json.load(response)

    squares = [number * number for number in range(50)]
    expect(get("compute") == squares + squares, f"{METHOD}: both pools computed")
    status = get("terminate")
    if OWN or METHOD != "fork":
        expect(status == -signal.SIGTERM, f"{METHOD}: a child ends by SIGTERM, not with {status}")
    expect(process.poll() is None, f"{METHOD}: the server is still there")
    expect(get("alive") is True, f"{METHOD}: the child of the lifespan is alive")

    began = time.monotonic()
    process.send_signal(stop)
    while process.poll() is None and time.monotonic() < began + END_LIMIT:
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
        expect(False, f"{METHOD}: {stop.name} ends the server within {END_LIMIT} s")
    seconds = time.monotonic() - began
    # The processes of forkserver and of the resource tracker end when the server is gone.
    while session(process.pid) and time.monotonic() < began + seconds + PATIENCE:
        time.sleep(0.05)
    left = len(session(process.pid))
    if OWN:
        expect(left == 0, f"{METHOD}: {stop.name} leaves no process behind ({left} are left)")
    say(
        f"{METHOD}: SIGTERM ended a child with {status}; {stop.name} ended the server after "
        f"{seconds:.1f} s with {process.returncode}, {left} children left"
    )


def main() -> None:
    """Run a server for each start method and signal."""
    global METHOD
    command = server(
        "served_processes_program:application", "--lifespan", "on", log_level="warning"
    )
    for METHOD in ("fork", "forkserver", "spawn"):
        os.environ["ECOSYSTEM_START_METHOD"] = METHOD
        # After SIGINT uvicorn returns, and the interpreter waits without end for forked children,
        # which ignore the SIGTERM that it sends them.
        endless = METHOD == "fork" and not OWN
        for stop in (signal.SIGTERM,) if endless else (signal.SIGTERM, signal.SIGINT):
            with started(*command) as (process, port):
                use(process, port, stop)


application = Application()

if __name__ == "__main__":
    main()
