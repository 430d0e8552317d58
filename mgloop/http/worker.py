# SPDX-License-Identifier: GPL-2.0-only
"""A worker process: what the supervisor starts, and how the two talk.

A fresh interpreter, not a fork: so that a new worker has the code and the certificates of now,
and no lock or thread of the supervisor's. A socket pair connects them. The supervisor sends the
task (configuration, descriptors) and keeps its end open; the worker sends lines of JSON: that it
is ready, that it is alive, that it wants to be replaced; and is told when it has been.

A worker must not outlive its supervisor. The end of the stream says that it is gone, however it
went: a thread waits for it, so that a loop that is stuck is no obstacle. (PR_SET_PDEATHSIG would
tell when the thread ends that started the worker, is lost when a process changes its user, cannot
tell of a death before it was set, and leaves no time to finish requests.)

SIGTERM: finish, after --drain-delay. SIGQUIT: at once. A repeated SIGTERM means nothing: init
systems send it to every process of a service, the supervisor does it again. SIGINT and SIGHUP,
which a terminal sends to all, are the supervisor's to act on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import _dispositions
from . import logs, running, signals
from .config import Config
from .errors import StartError

LENGTH = struct.Struct("!I")

# What the supervisor sends to a worker that has been replaced.
RETIRE = b"r"
# And when it wants to know what the worker has done.
COUNT = b"c"
# And to stop it without --drain-delay, before or after SIGTERM.
STOP = b"s"

# Seconds for requests, and then for the application's shutdown, once the supervisor has gone and if
# no deadline is configured.
_ORPHAN_DEADLINE = 10.0
# Seconds that cancelled requests have for their clean-up in between.
_CLEAN_UP = 5.0


@dataclass
class Task:
    """What the supervisor sends first."""

    config: Config
    fds: list[list[int]]  # to listen on, for each thread
    path: list[str]
    argv: list[str]

    def packed(self) -> bytes:
        data = pickle.dumps(self)
        return LENGTH.pack(len(data)) + data


class Channel:
    """The worker's end of the socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def receive(self) -> Task:
        """The task; the supervisor sends it at once."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        task = pickle.loads(self._exactly(length))
        assert isinstance(task, Task)
        return task

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self._sock.recv(length - len(data))
            if not piece:
                sys.exit(1)  # the supervisor is gone already
            data += piece
        return data

    def send(self, event: str, **values: Any) -> None:
        """Tell the supervisor; never waits."""
        line = json.dumps({"event": event, **values}).encode() + b"\n"
        try:
            self._sock.send(line, socket.MSG_DONTWAIT)
        except OSError:
            pass  # it is gone, which the thread notices, or stopped and not interested

    def tell(self, server: Any) -> None:
        """Tell the supervisor what `server` has done."""
        self.send("stats", stats=server.stats().packed())

    def watch(self, loop: asyncio.AbstractEventLoop, server: Any, deadline: float) -> None:
        """End the process when the supervisor has ended. After `deadline` requests are cancelled,
        and the application has as long for its shutdown before the process ends by force."""

        def post(function: Callable[..., None], *args: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: so will the process
                loop.call_soon_threadsafe(function, *args)

        def wait() -> None:
            with contextlib.suppress(OSError):  # the socket is closed
                while data := self._sock.recv(1024):
                    if RETIRE in data:
                        post(server.retire)
                    if COUNT in data:
                        post(self.tell, server)
                    if STOP in data:
                        post(server.stop)
            logs.logger.error("Supervisor exited; shutting down worker.")
            post(server.stop)
            time.sleep(deadline)
            post(functools.partial(server.stop, now=True))
            time.sleep(deadline + _CLEAN_UP)
            os._exit(1)

        threading.Thread(target=wait, name="mgloop-supervisor-watch", daemon=True).start()


def main(fd: int) -> None:
    """The process's main function; `fd` is its end of the socket pair."""
    for number in (signal.SIGINT, signal.SIGHUP):
        _dispositions.note_handler(number, signal.signal(number, lambda *_: None))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    channel = Channel(sock)
    task = channel.receive()
    sys.path[:] = task.path
    sys.argv[:] = task.argv
    try:
        logs.configure(task.config)
        factory = running.loop_factory(task.config)
        running.run_loop(factory, lambda: _serve(channel, task))
    except StartError as exc:
        sys.exit(running.report(exc))


async def _serve(channel: Channel, task: Task) -> None:
    loop = asyncio.get_running_loop()
    config = task.config
    bound = [[_adopt(fd) for fd in fds] for fds in task.fds]
    server = running.make_server(
        config,
        listeners=bound if config.threads > 1 else bound[0],
        on_limit=lambda reason: channel.send("replace", reason=reason),
    )
    handlers: signals.Handlers = {
        signal.SIGTERM: server.drain,
        signal.SIGQUIT: functools.partial(server.stop, now=True),
    }
    channel.watch(loop, server, config.timeout_graceful_shutdown or _ORPHAN_DEADLINE)

    def beat(interval: float) -> None:
        channel.send("alive")
        loop.call_later(interval, beat, interval)

    def on_start() -> None:
        channel.send("ready", urls=server.urls)
        if config.timeout_worker_healthcheck:
            beat(config.timeout_worker_healthcheck / 4)

    with signals.handled(handlers):
        await server.serve(handle_signals=False, on_start=on_start)
    signal.signal(signal.SIGTERM, lambda *_: None)  # a repeated one must not cut the exit short
    if config.metrics_port is not None:
        channel.tell(server)
    channel.send("ended")


def _adopt(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock
