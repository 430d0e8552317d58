# SPDX-License-Identifier: GPL-2.0-only
"""The signal handlers of a server process.

The event loop runs the handlers. signal.getsignal(SIGTERM) nevertheless returns a bound method of
ExitSignals, because under uvicorn it returns a bound method of uvicorn's Server. sse-starlette, and
with it the MCP SDK, reads the attribute `should_exit` of that object and ends its streams when it
becomes true. If a program has patched uvicorn.Server.handle_exit, the patch is called as well.

Several servers can run on a loop; each of them gets every signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Protocol

from ... import _dispositions
from ..config import Config

logger = logging.getLogger("mgloop.http")

EXITS = (signal.SIGINT, signal.SIGTERM)
_STANDARD_STREAMS = (0, 1, 2)

Handlers = Mapping[int, Callable[[], None]]


class Interruptible(Protocol):
    """The part of a server's interface that signal handlers use."""

    config: Config

    def interrupted(self, number: int) -> None: ...
    def reload_certificates(self) -> None: ...
    def stop(self) -> None: ...


class StoppedError(BaseException):
    """A signal arrived while the application was being imported."""


class ExitSignals:
    """The owner of the handlers of a loop's servers, with the attributes of uvicorn's Server."""

    def __init__(self) -> None:
        self.should_exit = False
        self.force_exit = False
        self.importing = False
        self._captured_signals: list[int] = []

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        """Record the signal, and interrupt the import of the application.

        The loop, which the wake-up descriptor wakes, runs the handlers. During the import the loop
        is blocked, so StoppedError is raised instead.
        """
        self.should_exit = True
        if self.importing:
            self.importing = False
            raise StoppedError

    def call_patch(self, number: int) -> None:
        """Call uvicorn.Server.handle_exit if a program has patched it."""
        server = getattr(sys.modules.get("uvicorn.server"), "Server", None)
        handle: Any = getattr(server, "handle_exit", None)
        if handle is None or handle.__module__ == "uvicorn.server":
            return
        try:
            handle(self, number, None)
        except Exception:
            logger.exception("Exception in a patched uvicorn.Server.handle_exit")


class _LoopSignals:
    """The handlers that a loop runs for each signal, and Python's previous handlers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.exits = ExitSignals()
        self.before: dict[int, Any] = {}
        self.handlers: dict[int, list[Callable[[], None]]] = {}

    def add(self, number: int, handler: Callable[[], None]) -> None:
        if number in self.handlers:
            self.handlers[number].append(handler)
            return
        before = signal.getsignal(number)
        wakeup = _dispositions.wakeup_fd()
        self.loop.add_signal_handler(number, self._call, number)
        self.handlers[number] = [handler]
        self.before[number] = before
        if (present := _dispositions.wakeup_fd()) != wakeup:  # as with a loop that is not mgloop's
            _dispositions.note_wakeup(present, wakeup)
        if number in EXITS:
            signal.signal(number, self.exits.handle_exit)
            signal.siginterrupt(number, False)
        _dispositions.note_handler(number, before)

    def remove(self, number: int, handler: Callable[[], None]) -> None:
        self.handlers[number].remove(handler)
        if self.handlers[number]:
            return
        del self.handlers[number]
        self.loop.remove_signal_handler(number)
        before = self.before.pop(number)
        if before is not None:
            signal.signal(number, before)
        _dispositions.forget_handler(number)
        if _dispositions.wakeup_fd() == -1:
            _dispositions.forget_wakeup()

    def _call(self, number: int) -> None:
        if number in EXITS:
            self.exits.call_patch(number)
        for handler in list(self.handlers.get(number, ())):
            handler()


_loops: dict[asyncio.AbstractEventLoop, _LoopSignals] = {}


@contextlib.contextmanager
def handled(handlers: Handlers) -> Iterator[None]:
    """Install handlers, by signal number, in the running loop while the block lasts.

    Outside the main thread, where Python handles no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    ours = _loops.setdefault(loop, _LoopSignals(loop))
    try:
        with contextlib.ExitStack() as restoring:
            for number, handler in handlers.items():
                ours.add(number, handler)
                restoring.callback(ours.remove, number, handler)
            yield
    finally:
        if not ours.handlers:
            _loops.pop(loop, None)


@contextlib.contextmanager
def interrupted_import(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Raise StoppedError in the block on SIGINT or SIGTERM, if `loop` handles them."""
    exits = _loops[loop].exits if loop in _loops else ExitSignals()
    exits.importing = True
    try:
        yield
    finally:
        exits.importing = False


def log_interrupt(count: int, *, stopping: bool) -> None:
    """Log the effect of a SIGINT. count: how many have arrived, including this one."""
    if count > 1:
        logger.warning("Forcing shutdown, cancelling requests.")
    elif stopping:
        logger.info("Waiting for requests to finish. (CTRL+C to force quit)")


def leaving(loop: asyncio.AbstractEventLoop) -> None:
    """Set should_exit for the servers of `loop`, which stop without a signal."""
    if loop in _loops:
        _loops[loop].exits.should_exit = True


def handlers_of(server: Interruptible) -> dict[int, Callable[[], None]]:
    """Return the handlers of a process without a supervisor, by signal."""
    handlers: dict[int, Callable[[], None]] = {
        signal.SIGINT: lambda: server.interrupted(signal.SIGINT),
        signal.SIGTERM: lambda: server.interrupted(signal.SIGTERM),
    }
    if server.config.tls:
        handlers[signal.SIGHUP] = server.reload_certificates
    elif signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else nohup has set SIG_IGN
        handlers[signal.SIGHUP] = _Hangup(server)
    return handlers


class _Hangup:
    """Handle SIGHUP of a server without TLS: stop if it runs in a terminal, otherwise warn."""

    def __init__(self, server: Interruptible) -> None:
        self._server = server
        self._on_terminal = any(map(os.isatty, _STANDARD_STREAMS))

    def __call__(self) -> None:
        if self._on_terminal:
            self._server.stop()
        else:
            logger.warning(
                "Ignoring SIGHUP: a single process cannot be replaced without losing requests; use"
                " --workers 2 or more."
            )
