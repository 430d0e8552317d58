# SPDX-License-Identifier: GPL-2.0-only
"""A worker process, and its communication with the supervisor.

A worker is a new interpreter instead of a fork, so that it reads the current code and certificates,
and inherits no lock or thread of the supervisor. A socket pair connects the two: messages.py lists
their messages. The supervisor keeps its end open.

A worker must not outlive its supervisor. The stream ends when the supervisor exits, for whatever
reason. A thread waits for that, so it works even if the loop is blocked. (PR_SET_PDEATHSIG is sent
when the thread that started the worker exits, is reset when a process changes its user, misses an
exit before it was set, and leaves no time to finish requests.)

SIGTERM stops a worker gracefully after --drain-delay, and SIGQUIT stops it immediately. A repeated
SIGTERM has no effect, because init systems send it to every process of a service, and so does the
supervisor. A terminal sends SIGINT and SIGHUP to all processes; only the supervisor handles them.
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
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ... import _dispositions
from .. import logs
from ..errors import StartError
from . import signals
from .loops import loop_factory, run_loop
from .messages import COUNT, LENGTH, RETIRE, STOP, Event, Task
from .threads import make_server

# Seconds for requests, and then for the lifespan shutdown, after the supervisor has exited, if no
# deadline is configured.
_ORPHAN_DEADLINE = 10.0
# Seconds that cancelled requests have for their cleanup in between.
_CLEAN_UP = 5.0


class Channel:
    """The worker's end of the socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def receive(self) -> Task:
        """Receive the task, which the supervisor sends immediately."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        task = pickle.loads(self._exactly(length))
        assert isinstance(task, Task)
        return task

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            chunk = self._sock.recv(length - len(data))
            if not chunk:
                sys.exit(1)  # the supervisor has already exited
            data += chunk
        return data

    def send(self, event: Event, **values: Any) -> None:
        """Send a message to the supervisor, without blocking."""
        line = json.dumps({"event": event, **values}).encode() + b"\n"
        try:
            self._sock.send(line, socket.MSG_DONTWAIT)
        except OSError:
            pass  # the supervisor has exited, which the thread notices, or it is stopped

    def send_stats(self, server: Any) -> None:
        """Send the counters of `server` to the supervisor."""
        self.send(Event.STATS, stats=server.stats().packed())

    def watch(self, loop: asyncio.AbstractEventLoop, server: Any, deadline: float) -> None:
        """Stop the process when the supervisor has exited.

        After `deadline` seconds requests are cancelled. The application then has the same time for
        its shutdown before the process exits by force.
        """

        def post(function: Callable[..., None], *args: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed and the process is exiting
                loop.call_soon_threadsafe(function, *args)

        def wait() -> None:
            with contextlib.suppress(OSError):  # the socket is closed
                while data := self._sock.recv(1024):
                    if RETIRE in data:
                        post(server.retire)
                    if COUNT in data:
                        post(self.send_stats, server)
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
    """Run the worker process. fd: descriptor of its end of the socket pair."""
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
        factory = loop_factory(task.config)
        run_loop(factory, lambda: _serve(channel, task))
    except StartError as exc:
        sys.exit(logs.report(exc))


async def _serve(channel: Channel, task: Task) -> None:
    loop = asyncio.get_running_loop()
    config = task.config
    bound = [[_adopt(fd) for fd in fds] for fds in task.fds]
    server = make_server(
        config,
        listeners=bound if config.threads > 1 else bound[0],
        on_limit=lambda reason: channel.send(Event.REPLACE, reason=reason),
        replaceable=True,
    )
    handlers: signals.Handlers = {
        signal.SIGTERM: server.drain,
        signal.SIGQUIT: functools.partial(server.stop, now=True),
    }
    channel.watch(loop, server, config.timeout_graceful_shutdown or _ORPHAN_DEADLINE)

    def send_heartbeat(interval: float) -> None:
        channel.send(Event.ALIVE)
        loop.call_later(interval, send_heartbeat, interval)

    def on_start() -> None:
        channel.send(Event.READY, urls=server.urls)
        if config.timeout_worker_healthcheck:
            send_heartbeat(config.timeout_worker_healthcheck / 4)

    with signals.handled(handlers):
        await server.serve(handle_signals=False, on_start=on_start)
    signal.signal(signal.SIGTERM, lambda *_: None)  # a repeated SIGTERM must not interrupt the exit
    if config.metrics_port is not None:
        channel.send_stats(server)
    channel.send(Event.ENDED)


def _adopt(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock
