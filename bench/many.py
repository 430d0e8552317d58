# SPDX-License-Identifier: GPL-2.0-only
"""One server in several loops on one port: each loop in its own thread or its own process.

Every loop has a listening socket (SO_REUSEPORT), and the kernel distributes the connections. Each
loop has a core to itself if there are enough; the client runs on one of them.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import traceback


@contextlib.contextmanager
def reserved(port):
    """Reserve a port (any free one for 0) that only other sockets of this user can bind as well.

    The socket that reserves it does not listen, so it accepts no connection.
    """
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", port))
        yield sock.getsockname()[1]


def pin(number, count):
    """Pin the calling thread, the *number*-th of *count*, to a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    if count <= len(cores):
        os.sched_setaffinity(0, {cores[number]})


def in_threads(run, count):
    """Call ``run(ready)`` in *count* threads; return when all have called ``ready()``."""
    listening = threading.Semaphore(0)

    def main(number):
        try:
            pin(number, count)
            run(listening.release)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    for number in range(count):
        threading.Thread(target=main, args=(number,), daemon=True).start()
    for _ in range(count):
        listening.acquire()


def in_processes(run, count):
    """Call ``run(ready)`` in *count* processes of this session, which end together with it."""
    reading, writing = os.pipe()
    for number in range(count):
        if os.fork() == 0:
            status = 1
            try:
                pin(number, count)
                run(lambda: os.write(writing, b"."))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
    os.close(writing)
    for _ in range(count):
        if not os.read(reading, 1):
            sys.exit("a process ended before it listened")


SHAPES = {"threads": in_threads, "processes": in_processes}


def main(serve, config, factory, tell):
    """Run the coroutine function *serve* in as many loops as *config* says; never return."""
    with reserved(config.get("port", 0)) as port:

        def run(ready):
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(serve({**config, "port": port}, lambda **_: ready()))

        together = config["together"]
        SHAPES[together["shape"]](run, together["loops"])
        tell(port=port, pid=os.getpid())
        while True:
            signal.pause()
