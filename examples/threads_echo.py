# SPDX-License-Identifier: GPL-2.0-only
"""One echo server in several loops, each in its own thread or its own process.

    python examples/threads_echo.py --threads 2
    python examples/threads_echo.py --processes 2
    printf hello | nc -q1 127.0.0.1 8007

Each loop has its own listening socket for the same address (SO_REUSEPORT), and the kernel
distributes the connections; the loops share nothing else. Threads run in parallel only on a Python
without the GIL. docs/threads.md explains which to choose.

The main thread receives Ctrl-C or SIGTERM and asks every loop to stop accepting. Each loop closes
its connections, and the program exits with status 0.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

import mgloop


class Echo(asyncio.Protocol):
    """Sends back the data that it receives."""

    def __init__(self, connections: set[asyncio.Transport]) -> None:
        self.connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.connections.add(transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self.transport)


async def serve(host: str, port: int, started: Callable[[Callable[[], None]], None]) -> None:
    """Serve until stop() is called. Call started(stop) once the server listens; stop() may be
    called from any thread."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    connections: set[asyncio.Transport] = set()

    def stop() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has already ended
            loop.call_soon_threadsafe(over.set)

    server = await loop.create_server(lambda: Echo(connections), host, port, reuse_port=True)
    try:
        started(stop)
        await over.wait()
    finally:
        server.close()
        for transport in list(connections):
            transport.close()
        await server.wait_closed()


ENDING = {signal.SIGINT, signal.SIGTERM}


def wait_for_signal() -> None:
    """Return when Ctrl-C or SIGTERM arrives; both are blocked in every thread."""
    signal.sigwait(ENDING)


def in_threads(host: str, port: int, count: int) -> int:
    """Run `count` loops in threads of this process; return the exit status."""
    stops: list[Callable[[], None]] = []
    failures: list[BaseException] = []
    listening = threading.Semaphore(0)

    def started(stop: Callable[[], None]) -> None:
        stops.append(stop)
        listening.release()

    def run() -> None:
        try:
            mgloop.run(serve(host, port, started))
        except BaseException as exc:
            failures.append(exc)
            listening.release()
            os.kill(os.getpid(), signal.SIGTERM)  # end the other threads as well

    threads = [threading.Thread(target=run, name=f"loop {i}") for i in range(count)]
    for thread in threads:
        thread.start()
    for _ in threads:
        listening.acquire()
    if not failures:
        say(host, port, count, "threads")
    wait_for_signal()
    for stop in stops:
        stop()
    for thread in threads:
        thread.join()
    for exc in failures:
        print(f"threads_echo: {exc}", file=sys.stderr)
    return 1 if failures else 0


def child(host: str, port: int, listening: "multiprocessing.synchronize.Semaphore") -> None:
    """Run one loop in the main thread of this process."""

    def started(stop: Callable[[], None]) -> None:
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        listening.release()

    mgloop.run(serve(host, port, started))


def in_processes(host: str, port: int, count: int) -> int:
    """Run `count` loops in separate processes; return the exit status."""
    context = multiprocessing.get_context("spawn")
    listening = context.Semaphore(0)
    processes = [context.Process(target=child, args=(host, port, listening)) for _ in range(count)]
    for process in processes:
        process.start()
    # multiprocessing unblocked the signals when it started its resource tracker.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    for _ in processes:
        listening.acquire()
    say(host, port, count, "processes")
    wait_for_signal()
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()
    return max((abs(process.exitcode or 0) for process in processes), default=0)


def say(host: str, port: int, count: int, what: str) -> None:
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(
        f"echo on {host}:{port}, {count} {what}, {'with' if gil else 'without'} the GIL",
        flush=True,
    )


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8007, help="0 = one that is free")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--threads", type=int, metavar="N", default=os.cpu_count() or 1)
    how.add_argument("--processes", type=int, metavar="N")
    args = parser.parse_args()
    port = args.port or free_port(args.host)
    # Block the signals before threads and children start, because they inherit the mask. Only the
    # main thread then receives the signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    if args.processes:
        return in_processes(args.host, port, args.processes)
    return in_threads(args.host, port, args.threads)


if __name__ == "__main__":
    sys.exit(main())
