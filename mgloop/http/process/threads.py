# SPDX-License-Identifier: GPL-2.0-only
"""Several event loops in one process, each in a thread with its own Server and sockets.

This is for Python without the GIL, where threads can replace worker processes and share the memory
of the application. The application is imported once. Its lifespan runs once per loop, because the
objects that it creates there (pools, clients) belong to a loop. The main thread runs a loop that
only waits for signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from ..._stdlib import has_gil
from .. import importing
from ..config import Config
from ..metrics import ServerStats, total
from ..server import Server, metrics_endpoint
from . import signals, sockets
from .loops import loop_factory, run_loop

logger = logging.getLogger("mgloop.http")


class _ServerThread:
    """A thread with its event loop and its server."""

    def __init__(self, server: Server, main: asyncio.AbstractEventLoop, number: int) -> None:
        self.server = server
        self.main = main
        self.loop: asyncio.AbstractEventLoop | None = None
        self.started: asyncio.Future[None] = main.create_future()
        self.ended: asyncio.Future[None] = main.create_future()
        self.stopped = False  # stop() was called, possibly before the loop exists
        self.native = threading.Thread(target=self._body, name=f"mgloop-serve-{number}")

    def _body(self) -> None:
        failure: BaseException | None = None
        try:
            run_loop(loop_factory(self.server.config), self._serve)
        except BaseException as exc:
            failure = exc
        self.main.call_soon_threadsafe(self._end, failure)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        if self.stopped:
            self.server.stop(now=True)
        await self.server.serve(handle_signals=False, on_start=self._on_start)

    def _on_start(self) -> None:
        self.main.call_soon_threadsafe(self.started.set_result, None)

    def _end(self, failure: BaseException | None) -> None:
        for future in (self.started, self.ended):
            if not future.done():
                if failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(failure)
                    future.exception()  # mark as retrieved, because only one of the two is awaited

    def stop(self, *, now: bool) -> None:
        """Make the serve() of the thread's server return. now: cancel requests."""
        self.stopped = True
        self.post(lambda: self.server.stop(now=now))

    def post(self, function: Callable[[], None]) -> None:
        """Call `function` in the thread's loop if it is still running."""
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(function)


class ThreadedServer:
    """Run a Server in each of config.threads threads. serve() runs in the main thread's loop.

    listeners: a list of listening sockets for each thread. on_limit, replaceable: see Server.
    """

    def __init__(
        self,
        config: Config,
        *,
        listeners: list[list[socket.socket]] | None = None,
        on_limit: Callable[[str], None] | None = None,
        replaceable: bool = False,
    ) -> None:
        self.config = config
        self.urls: list[str] = []
        self._given = listeners
        self._listeners: sockets.Listeners | None = None
        self._threads: list[_ServerThread] = []
        self._limit = on_limit
        self._replaceable = replaceable
        self._stopping = False
        self._draining = False
        self._interrupts = 0

    async def serve(
        self, *, handle_signals: bool = True, on_start: Callable[[], None] | None = None
    ) -> None:
        """Serve until stop() is called or a signal arrives; a second SIGINT cancels requests.

        Raises StartError.
        """
        if has_gil():
            logger.warning("Threads share the GIL on this Python; --workers would be faster.")
        async with contextlib.AsyncExitStack() as resources:
            if handle_signals:
                resources.enter_context(signals.handled(signals.handlers_of(self)))
            try:
                if self._given is None:
                    await resources.enter_async_context(
                        metrics_endpoint(self.config, self._stats_by_worker)
                    )
                self._start()
                started = [thread.started for thread in self._threads]
                await asyncio.wait(started, return_when=asyncio.FIRST_EXCEPTION)
                if all(future.done() and not future.exception() for future in started):
                    self.urls = self._threads[0].server.urls
                    if on_start is not None and not self._stopping:
                        on_start()
                # When one server has stopped, stop the others.
                ended = [thread.ended for thread in self._threads]
                await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
                self.stop()
                await asyncio.wait(ended)
                for future in ended:
                    future.result()
            finally:
                self.stop(now=True)
                for thread in self._threads:
                    if thread.native.ident is not None:
                        await asyncio.wait([thread.ended])
                        thread.native.join()

    def stats(self) -> ServerStats:
        """Return the sum of the counters of all threads; all zero without metrics_port."""
        return total(thread.server.stats() for thread in self._threads)

    async def _stats_by_worker(self) -> dict[str, ServerStats]:
        return {"0": self.stats()}

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._given is None:
            self._listeners = sockets.open_all(self.config)
            self._given = [self._listeners.of_slot(n) for n in range(self.config.threads)]
        app = importing.load(self.config)
        limit = self.config.limit_max_requests
        for number, bound in enumerate(self._given):
            config = dataclasses.replace(
                self.config,
                limit_max_requests=max(1, limit // self.config.threads) if limit else None,
                limit_max_memory=None if number else self.config.limit_max_memory,
            )
            server = Server(
                config,
                listeners=bound,
                app=app,
                on_limit=self._at_limit(loop),
                replaceable=self._replaceable,
            )
            self._threads.append(_ServerThread(server, loop, number))
        for thread in self._threads:
            thread.native.start()

    def _at_limit(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        def at_limit(reason: str) -> None:
            loop.call_soon_threadsafe(self._on_limit, reason)

        return at_limit

    def _on_limit(self, reason: str) -> None:
        if self._limit is not None:
            self._limit(reason)
        elif not self._stopping:
            logger.warning("Reached %s; shutting down.", reason)
            self.stop()

    def stop(self, *, now: bool = False) -> None:
        """Make serve() return. now: cancel requests."""
        self._stopping = True
        if self._listeners is not None:
            self._listeners.close()
        for thread in self._threads:
            thread.stop(now=now)

    @property
    def should_exit(self) -> bool:
        """Return whether a shutdown has begun. The name is uvicorn's."""
        return self._stopping or self._draining

    def drain(self) -> None:
        """Stop after drain_delay if that is set; as Server.drain()."""
        if not self.config.drain_delay or self._stopping:
            self.stop()
            return
        self._draining = True
        for thread in self._threads:
            thread.post(thread.server.drain)

    def retire(self) -> None:
        """Stop after another process has taken over; as Server.retire()."""
        self._stopping = True
        signals.leaving(asyncio.get_running_loop())
        for thread in self._threads:
            thread.post(thread.server.retire)

    def interrupted(self, number: int) -> None:
        """Act on SIGINT or SIGTERM, as Server does."""
        if number == signal.SIGTERM:
            self.drain()
            return
        self._interrupts += 1
        signals.log_interrupt(self._interrupts, stopping=self._stopping)
        self.stop(now=self._interrupts > 1)

    def reload_certificates(self) -> None:
        """Reload certificate and key in every thread."""
        for thread in self._threads:
            thread.post(thread.server.reload_certificates)


def make_server(config: Config, **options: Any) -> Any:
    """Return a Server, or a ThreadedServer if several threads are configured."""
    return ThreadedServer(config, **options) if config.threads > 1 else Server(config, **options)
