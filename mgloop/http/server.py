# SPDX-License-Identifier: GPL-2.0-only
"""One server on one loop: start-up, listening, signals, and the end in good order.

Server is what `mgloop serve` runs in a process or thread, and what a program or a test embeds:

    async with Server(Config(app=app, port=0)) as server:
        print(server.url)

The order. Start: bind, import, the application's start-up, listen; so a port in use is known at
once, and no connection waits for an application that cannot start. End: stop listening, give
requests that are on their way a moment, let go of idle connections, wait for requests (no longer
than timeout_graceful_shutdown), cancel what is left, the application's shutdown. Nothing here runs
per request.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import logging
import os
import random
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

from . import importing, logs, prometheus, proxy_protocol, sockets, tls
from .config import Config
from .errors import StartError
from .lifespan import Lifespan
from .metrics import Meter, ServerStats
from .proxy import TrustedProxies

logger = logging.getLogger("mgloop.http")

# Seconds that cancelled requests get for their clean-up.
_CLEAN_UP = 5.0
# Seconds for the request of a connection that was accepted, or kept alive, just before the end.
_ON_ITS_WAY = 0.25
# Seconds after the end of idle connections, when a server that waits for others says so.
_TELL_AFTER = 0.1
# How often a server that ends looks whether the handshakes that go on have ended, in seconds.
_HANDSHAKE_INTERVAL = 0.02
# How often a process looks at its memory, in seconds.
_MEMORY_INTERVAL = 1.0
# What the kernel takes of a response, and has not sent yet. Without a bound it takes megabytes, in
# buffers as small as the window of a client that reads slowly on purpose: 5 ms of the loop's time,
# and of the kernel's memory several times as much, for each MiB.
_UNSENT = 128 << 10

_PAGE = os.sysconf("SC_PAGESIZE")


class Server:
    """Serves config.app on the running loop.

    listeners: sockets to listen on in place of the configuration's addresses, which the server
    then owns. app: the application, if it has been imported already. on_limit: told why when the
    process is to be replaced; by default serve() ends. quiet: its end is not logged.

    url, urls: where it can be reached; sockets: the bound sockets; site: the connections. Valid
    from start() on.
    """

    def __init__(
        self,
        config: Config,
        *,
        listeners: list[socket.socket] | None = None,
        app: importing.App | None = None,
        on_limit: Callable[[str], None] | None = None,
        quiet: bool = False,
    ) -> None:
        if config.limit_max_requests and config.limit_max_requests_jitter:
            extra = random.randint(0, config.limit_max_requests_jitter)
            config = dataclasses.replace(
                config, limit_max_requests=config.limit_max_requests + extra
            )
        self.config = config
        self.sockets: list[socket.socket] = []
        self.urls: list[str] = []
        self.site: Any = None
        self.started = False
        self._given = listeners
        self._listeners: sockets.Listeners | None = None
        self._app = app
        self._on_limit = on_limit or self._stop_at_limit
        self._servers: list[asyncio.Server] = []
        self._lifespan: Lifespan | None = None
        self._context: ssl.SSLContext | None = None
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()
        self._memory_timer: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._now = asyncio.Event()
        self._idle_time = _ON_ITS_WAY
        self._quiet = quiet
        self._meter: Meter | None = None
        self._around = contextlib.AsyncExitStack()

    def stats(self) -> ServerStats:
        """What it has done, if metrics_port is set; from any thread."""
        if self._meter is None or self.site is None:
            return ServerStats()
        return self._meter.stats(in_flight=self.site.in_flight, connections=self.site.connections)

    @property
    def url(self) -> str:
        """The first address, such as http://127.0.0.1:8000."""
        return self.urls[0]

    # --- embedding ---------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Serve from now on. Raises StartError, with nothing left behind."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        from ._site import Site

        loop = asyncio.get_running_loop()
        config = self.config
        if self._given is not None:
            self.sockets = self._given
        self._context = tls.make_context(config)
        if self._given is None:
            self._listeners = sockets.open_all(config)
            self.sockets = self._listeners.of_slot(0)
            await self._around.enter_async_context(prometheus.endpoint(self.config, self._accounts))
        app = importing.load(config) if self._app is None else self._app
        lifespan = Lifespan(app, config.lifespan)
        await lifespan.startup()
        self._lifespan = lifespan
        self.site = Site(
            loop,
            app,
            config,
            state=lifespan.state,
            access_log=self._account_of_responses(loop),
            proxy=TrustedProxies(config.forwarded_allow_ips) if config.proxy_headers else None,
        )
        self.site.on_limit = self._request_limit_reached
        for sock in self.sockets:
            self._servers.append(await self._server(loop, sock))
            await self._start_listening(self._servers[-1], sock)
        self.urls = [sockets.Listener([sock]).url(tls=config.tls) for sock in self.sockets]
        if config.limit_max_memory:
            self._watch_memory()
        self.started = True

    def _account_of_responses(self, loop: asyncio.AbstractEventLoop) -> logs.AccessLog | None:
        log = logs.access_log(self.config, loop)
        if self.config.metrics_port is None:
            return log
        self._meter = Meter(log)
        return self._meter

    async def _accounts(self) -> dict[str, ServerStats]:
        return {"0": self.stats()}

    async def _server(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> asyncio.Server:
        """Make the server of a socket, which does not listen yet."""
        options: dict[str, Any] = {"backlog": self.config.backlog, "start_serving": False}
        factory: Callable[[], Any] = self.site.connection
        if self.config.proxy_protocol:
            trusted = TrustedProxies(self.config.forwarded_allow_ips)
            factory = functools.partial(
                proxy_protocol.Front, self.site, trusted, self._context, self.config.timeout_head
            )
        elif self._context is not None:
            factory = self.site.connection_over_tls
            options["ssl"] = self._context
            if self.config.timeout_head:
                options["ssl_handshake_timeout"] = self.config.timeout_head
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            # Connections inherit it. An inherited socket may be of a protocol that has it not.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        if sock.family == socket.AF_UNIX:
            # The file is for sockets.py to remove: another process may be listening still.
            if "cleanup_socket" in inspect.signature(loop.create_unix_server).parameters:
                options["cleanup_socket"] = False
            return await loop.create_unix_server(factory, sock=sock, **options)
        return await loop.create_server(factory, sock=sock, **options)

    async def _start_listening(self, server: asyncio.Server, sock: socket.socket) -> None:
        try:
            await server.start_serving()
        except OSError as exc:
            # Two may bind a port of which neither listens yet: only now one is refused.
            raise sockets.refusal(sockets.Listener([sock]).url(tls=False), exc) from exc

    async def close(self) -> None:
        """Stop in good order: see the module. Returns when the application has shut down.

        Who loses patience and cancels it gets the same at once, before CancelledError is raised.
        """
        was_started, self.started = self.started, False
        self._stopping.set()
        if self._memory_timer is not None:
            self._memory_timer.cancel()
        for server in self._servers:
            server.close()
        for sock in self.sockets:
            sock.close()
        if self._listeners is not None:
            self._listeners.close()
        if was_started and not self._quiet:
            logger.info("Shutting down.")  # nobody is accepted any more
        try:
            await self._end()
        except asyncio.CancelledError:
            self.stop(now=True)
            await self._end()
            raise

    async def _end(self) -> None:
        """All of close() that takes time."""
        if self.site is not None:
            await self._drain()
        if self._lifespan is not None:
            await self._unless_now(self._lifespan.shutdown())
        self._servers.clear()
        await self._around.aclose()

    async def _drain(self) -> None:
        self.site.begin_draining()
        drained = asyncio.ensure_future(self._drained())
        telling = asyncio.ensure_future(self._tell_what_is_waited_for())
        now = asyncio.ensure_future(self._now.wait())
        limit = self.config.timeout_graceful_shutdown or None
        idle_time = min(self._idle_time, limit or self._idle_time)
        try:
            for timeout in (idle_time, limit and limit - idle_time):
                await asyncio.wait(
                    [drained, now], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                self.site.begin_shutdown()
            if not drained.done():
                logger.warning(
                    "Cancelling %d requests and cutting %d connections that have not ended%s.",
                    self.site.in_flight,
                    self.site.connections,
                    "" if self._now.is_set() else " in time",
                )
                self.site.cancel_all()
                await asyncio.wait([drained], timeout=_CLEAN_UP)
        finally:
            for task in (drained, now, telling):
                task.cancel()
            await asyncio.gather(drained, now, telling, return_exceptions=True)

    async def _tell_what_is_waited_for(self) -> None:
        """Log why the server does not end yet, in uvicorn's words."""
        if self._quiet:
            return
        await asyncio.sleep(self._idle_time + _TELL_AFTER)
        if self.site.connections:
            logger.info("Waiting for connections to close. (CTRL+C to force quit)")
        while self.site.connections:
            await asyncio.sleep(_TELL_AFTER)
        if self.site.in_flight:
            logger.info("Waiting for background tasks to complete. (CTRL+C to force quit)")

    async def _drained(self) -> None:
        """Wait until nobody is connected."""
        # What was accepted in this turn of the loop is not a connection of the site yet.
        for _ in range(3):
            await asyncio.sleep(0)
        await self.site.wait_drained()
        while self.site.shaking_hands:
            await asyncio.sleep(_HANDSHAKE_INTERVAL)
            await self.site.wait_drained()

    async def _unless_now(self, coroutine: Any) -> None:
        """Run `coroutine`, but do not wait for it when all is to end at once."""
        work = asyncio.ensure_future(coroutine)
        now = asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait([work, now], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait([work], timeout=1.0)
        finally:
            for task in (work, now):
                task.cancel()
            await asyncio.gather(work, now, return_exceptions=True)

    # --- as a process ------------------------------------------------------------------------

    async def serve(
        self, *, handle_signals: bool = True, on_start: Callable[[], None] | None = None
    ) -> None:
        """Serve until stop(), or SIGINT or SIGTERM; a second one of these ends it at once.

        on_start: called once connections are accepted. Raises StartError. If its task is
        cancelled, the server has ended at once when CancelledError is raised.
        """
        with handled_signals(self) if handle_signals else contextlib.nullcontext():
            starting = asyncio.ensure_future(self.start())
            now = asyncio.ensure_future(self._now.wait())
            try:
                await asyncio.wait([starting, now], return_when=asyncio.FIRST_COMPLETED)
                if not starting.done():
                    starting.cancel()
                    await asyncio.wait([starting])
                    return
                starting.result()
                if on_start is not None and not self._stopping.is_set():
                    on_start()
                await self._stopping.wait()
                await self.close()
            except asyncio.CancelledError:
                starting.cancel()
                await asyncio.wait([starting])
                self.stop(now=True)
                await self.close()
                raise
            finally:
                now.cancel()
                await asyncio.wait([now])

    def stop(self, *, now: bool = False) -> None:
        """Make serve() end; now: without waiting for anybody. In the loop's thread."""
        self._stopping.set()
        if now:
            self._now.set()

    def retire(self) -> None:
        """Make serve() end, without haste: another process has taken over.

        Idle connections stay until their keep-alive time is over, as their next request may be on
        its way; its response is their last.
        """
        self._idle_time = (self.config.timeout_keep_alive or 0.0) + _ON_ITS_WAY
        self.stop()

    def interrupted(self) -> None:
        """SIGINT or SIGTERM has come."""
        if self._stopping.is_set():
            logger.warning("Stopping at once.")
        self.stop(now=self._stopping.is_set())

    def reload_certificates(self) -> None:
        """Load the files of the ssl_* options again, for connections that are accepted later.

        If they cannot be loaded, the server logs an error and keeps what it has.
        """
        if self._context is None or self._stopping.is_set():
            return
        try:
            context = tls.make_context(self.config)
        except StartError as exc:
            logger.error("The certificates stay as they were: %s", exc)
        else:
            task = asyncio.ensure_future(self._use_context(context))
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    async def _use_context(self, context: ssl.SSLContext | None) -> None:
        """Listen with `context` from now on.

        A server cannot exchange its context. Another server listens on a duplicate of its socket
        before it is closed: the kernel's queue is the socket's, so no connection is lost.
        """
        async with self._reloading:
            if self._stopping.is_set():
                return
            try:
                duplicates = [sock.dup() for sock in self.sockets]
            except OSError as exc:
                logger.error("The certificates stay as they were: %s", exc)
                return
            self._context = context
            loop = asyncio.get_running_loop()
            servers = [await self._server(loop, sock) for sock in duplicates]
            before = zip(self._servers, self.sockets, strict=True)
            self._servers, self.sockets = servers, duplicates  # close() closes these from now on
            try:
                for server in servers:
                    await server.start_serving()
            finally:
                for old, sock in before:
                    _stop_accepting(loop, old, sock)
            logger.info("Certificates loaded again.")

    # --- limits of a process -----------------------------------------------------------------

    def _request_limit_reached(self) -> None:
        self._on_limit(f"it has begun {self.config.limit_max_requests} requests")

    def _watch_memory(self) -> None:
        limit = self.config.limit_max_memory
        assert limit is not None
        used = resident_memory()
        if used >= limit:
            self._on_limit(f"it uses {used >> 20} MiB of memory")
            return
        loop = asyncio.get_running_loop()
        self._memory_timer = loop.call_later(_MEMORY_INTERVAL, self._watch_memory)

    def _stop_at_limit(self, reason: str) -> None:
        logger.warning("The process ends: %s.", reason)
        self.stop()


def _stop_accepting(
    loop: asyncio.AbstractEventLoop, server: asyncio.Server, sock: socket.socket
) -> None:
    """Close the listening socket of `server`, and lose no connection that it has accepted.

    asyncio makes the transport of a connection one iteration after accept(), which fails if the
    server is closed by then. So close the socket alone, with the hook that Server.close() calls.
    """
    stop_serving = getattr(loop, "_stop_serving", None)
    if stop_serving is None:  # not derived from asyncio's BaseEventLoop
        server.close()
        sock.close()
    else:
        stop_serving(sock)


class _Interruptible(Protocol):
    config: Config

    def interrupted(self) -> None: ...
    def reload_certificates(self) -> None: ...


@contextlib.contextmanager
def handled_signals(server: _Interruptible) -> Iterator[None]:
    """Let `server` handle the process's signals while the block lasts.

    SIGHUP is only taken where there are certificates to load again: otherwise a terminal that is
    closed ends the server, as it does with other programs. Outside of the main thread, where Python
    has no signal handled, all of them are the program's.
    """
    handlers = {signal.SIGINT: server.interrupted, signal.SIGTERM: server.interrupted}
    if server.config.tls:
        handlers[signal.SIGHUP] = server.reload_certificates
    with contextlib.ExitStack() as around:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                around.enter_context(_handled(number, handler))
        yield


# What a loop calls at a signal, for there may be several servers on it; and what was there before.
_handlers: dict[tuple[asyncio.AbstractEventLoop, int], tuple[list[Callable[[], None]], Any]] = {}


@contextlib.contextmanager
def _handled(number: int, handler: Callable[[], None]) -> Iterator[None]:
    """Have `handler` called at the signal while the block lasts."""
    loop = asyncio.get_running_loop()
    if (loop, number) not in _handlers:
        _handlers[loop, number] = ([], signal.getsignal(number))
        loop.add_signal_handler(number, _call, _handlers[loop, number][0])
    ours, before = _handlers[loop, number]
    ours.append(handler)
    try:
        yield
    finally:
        ours.remove(handler)
        if not ours:
            del _handlers[loop, number]
            loop.remove_signal_handler(number)
            signal.signal(number, before)


def _call(handlers: list[Callable[[], None]]) -> None:
    for handler in list(handlers):
        handler()


def resident_memory() -> int:
    """This process's resident memory in bytes."""
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[1]) * _PAGE
