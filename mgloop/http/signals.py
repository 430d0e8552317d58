# SPDX-License-Identifier: GPL-2.0-only
"""The signals of a process that serves.

A loop runs the handlers, but signal.getsignal(SIGTERM) returns a bound method of ExitSignals, as
it returns one of uvicorn's Server there. sse-starlette, and with it the MCP SDK, reads the
attribute `should_exit` of its object and ends its streams when that becomes true. A program's
replacement of uvicorn.Server.handle_exit is called as well.

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

from .. import _dispositions
from .config import Config

logger = logging.getLogger("mgloop.http")

EXITS = (signal.SIGINT, signal.SIGTERM)
_STANDARD_STREAMS = (0, 1, 2)

Handlers = Mapping[int, Callable[[], None]]


class Interruptible(Protocol):
    """A server, as far as signals are concerned."""

    config: Config

    def interrupted(self, number: int) -> None: ...
    def reload_certificates(self) -> None: ...
    def stop(self) -> None: ...


class StoppedError(BaseException):
    """A signal has come while the application was imported."""


class ExitSignals:
    """The owner of the handlers of a loop's servers, with the attributes of uvicorn's Server."""

    def __init__(self) -> None:
        self.should_exit = False
        self.force_exit = False
        self.importing = False
        self._captured_signals: list[int] = []

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        """Note the signal; the wake-up descriptor has the loop do the rest. An import, which the
        loop waits for, is broken off."""
        self.should_exit = True
        if self.importing:
            self.importing = False
            raise StoppedError

    def tell_patches(self, number: int) -> None:
        """Call a program's replacement of uvicorn.Server.handle_exit."""
        server = getattr(sys.modules.get("uvicorn.server"), "Server", None)
        handle: Any = getattr(server, "handle_exit", None)
        if handle is None or handle.__module__ == "uvicorn.server":
            return
        try:
            handle(self, number, None)
        except Exception:
            logger.exception("Exception in a patched uvicorn.Server.handle_exit")


class _LoopSignals:
    """The handlers that a loop runs for each signal, and Python's handlers from before."""

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
            self.exits.tell_patches(number)
        for handler in list(self.handlers.get(number, ())):
            handler()


_loops: dict[asyncio.AbstractEventLoop, _LoopSignals] = {}


@contextlib.contextmanager
def handled(handlers: Handlers) -> Iterator[None]:
    """Have the running loop call the handlers, by signal, while the block lasts.

    Outside of the main thread, where Python handles no signals, the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    ours = _loops.setdefault(loop, _LoopSignals(loop))
    try:
        with contextlib.ExitStack() as around:
            for number, handler in handlers.items():
                ours.add(number, handler)
                around.callback(ours.remove, number, handler)
            yield
    finally:
        if not ours.handlers:
            _loops.pop(loop, None)


@contextlib.contextmanager
def interrupted_import(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Raise StoppedError in the block at SIGINT or SIGTERM, if `loop` handles them."""
    exits = _loops[loop].exits if loop in _loops else ExitSignals()
    exits.importing = True
    try:
        yield
    finally:
        exits.importing = False


def log_interrupt(count: int, *, stopping: bool) -> None:
    """Log what a SIGINT does, which is the one of that number."""
    if count > 1:
        logger.warning("Forcing shutdown, cancelling requests.")
    elif stopping:
        logger.info("Waiting for requests to finish. (CTRL+C to force quit)")


def leaving(loop: asyncio.AbstractEventLoop) -> None:
    """Set should_exit: the servers of `loop` end without a signal."""
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
    """Handles SIGHUP without certificates: the terminal was closed, or a reload is meant."""

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
