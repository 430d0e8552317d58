# SPDX-License-Identifier: GPL-2.0-only
"""One server on one event loop: startup, listening, signals and graceful shutdown.

`mgloop serve` runs a Server in each process or thread. Programs and tests embed it:

    async with Server(Config(app=app, port=0)) as server:
        print(server.url)

Startup binds the addresses, imports the application, runs its lifespan startup and then listens.
A port in use is therefore reported early, and no connection waits for an application that cannot
start. Shutdown stops listening, waits a moment for requests that are already being transmitted,
closes idle connections, waits for running requests (at most timeout_graceful_shutdown), cancels
the remaining ones and runs the application's lifespan shutdown. Nothing in this module runs per
request. docs/serve-deploying.md shows the timeline of a shutdown.
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
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

from . import health, importing, logs, prometheus, tls
from .config import Config
from .draining import CLEAN_UP, Draining
from .errors import StartError
from .health import Health
from .lifespan import Lifespan
from .metrics import Meter, ServerStats
from .process import signals, sockets
from .proxy import TrustedProxies
from .request_watch import RequestWatch
from .wire import proxy_protocol

logger = logging.getLogger("mgloop.http")

# Interval, in seconds, at which a process checks its memory usage.
_MEMORY_INTERVAL = 1.0
# Limit for the unsent bytes of a response in the kernel's send queue. Without it the kernel accepts
# megabytes, in buffers as small as the window of a client that deliberately reads slowly. Each MiB
# then costs 5 ms of the loop's time and several MiB of kernel memory.
_UNSENT = 128 << 10

_PAGE = os.sysconf("SC_PAGESIZE")


class Server:
    """Serve config.app on the running loop.

    listeners: sockets to listen on instead of the configured addresses; the server owns them. app:
    the application, if it has already been imported. on_limit: called with the reason when the
    process has reached a limit and should be replaced; by default serve() returns. replaceable:
    another process takes over then, so that a request that exceeds timeout_request is such a limit,
    too. quiet: do not log the shutdown.

    The attributes url and urls (addresses of the server), sockets (bound sockets) and site (state
    shared by the connections) are valid after start().
    """

    def __init__(
        self,
        config: Config,
        *,
        listeners: list[socket.socket] | None = None,
        app: importing.App | importing.WsgiApp | None = None,
        on_limit: Callable[[str], None] | None = None,
        replaceable: bool = False,
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
        self._given_sockets = listeners
        self._listeners: sockets.Listeners | None = None
        self._app = app
        self._on_limit = on_limit or self._stop_at_limit
        self._replaceable = replaceable
        self._watch: RequestWatch | None = None
        self._servers: list[asyncio.Server] = []
        self._lifespan: Lifespan | None = None
        self._context: ssl.SSLContext | None = None
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()
        self._memory_timer: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._stop_called = asyncio.Event()  # possibly during startup, before start() returns
        self._interrupts = 0
        self._retired = False
        self._delay: asyncio.TimerHandle | None = None
        self._draining = Draining(config, quiet=quiet)
        self._quiet = quiet
        self._meter: Meter | None = None
        self._resources = contextlib.AsyncExitStack()

    def stats(self) -> ServerStats:
        """Return the counters of the server; all zero without metrics_port. Thread-safe."""
        if self._meter is None or self.site is None:
            return ServerStats()
        return self._meter.stats(
            in_flight=self.site.in_flight,
            connections=self.site.connections,
            pool=self.site.wsgi,
            slow=self._watch.count if self._watch is not None else 0,
        )

    @property
    def url(self) -> str:
        """Return the URL of the first address, such as http://127.0.0.1:8000."""
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
        """Start serving. Raises StartError, after releasing all resources."""
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        from .wire._connection import Connection
        from .wire._site import Site

        loop = asyncio.get_running_loop()
        config = self.config
        if self._given_sockets is not None:
            self.sockets = self._given_sockets
        self._context = tls.make_context(config)
        if self._given_sockets is None:
            self._listeners = sockets.open_all(config)
            self.sockets = self._listeners.of_slot(0)
            await self._resources.enter_async_context(
                metrics_endpoint(self.config, self._stats_by_worker)
            )
        app = self._app
        if app is None:
            with signals.interrupted_import(loop):
                app = importing.load(config)
        with signals.interrupted_import(loop):
            handler = importing.load_handler(config)
        state = None
        wsgi = app.call if isinstance(app, importing.WsgiApp) else None
        if not isinstance(app, importing.WsgiApp):
            lifespan = Lifespan(app, config.lifespan)
            await lifespan.startup()
            self._lifespan = lifespan
            state = lifespan.state
            if config.health_path is not None:
                app = Health(app, config.health_path, lambda: self.should_exit)
        self.site = Site(
            loop,
            app,
            config,
            connection=Connection,
            state=state,
            access_log=self._response_log(loop),
            proxy=TrustedProxies(config.forwarded_allow_ips) if config.proxy_headers else None,
        )
        if wsgi is not None:
            self._serve_wsgi(wsgi)
        if handler is not None:
            from .wire._handled import HandlerRunner

            self.site.handler = HandlerRunner(self.site, handler)
        self.site.on_limit = self._request_limit_reached
        self._draining.site = self.site
        for sock in self.sockets:
            self._servers.append(await self._server(loop, sock))
            await self._start_listening(self._servers[-1], sock)
        self.urls = [sockets.Listener([sock]).url(tls=config.tls) for sock in self.sockets]
        if config.limit_max_memory:
            self._watch_memory()
        self.started = True

    def _serve_wsgi(self, app: Callable[..., Any]) -> None:
        from .wire._wsgirequest import WsgiRunner

        config, site = self.config, self.site
        site.wsgi = WsgiRunner(
            site, app, config.wsgi_threads, lambda: health.answer(self.should_exit)
        )
        if config.timeout_request:
            on_slow = self._on_limit if self._replaceable else None
            self._watch = RequestWatch(
                site,
                config.timeout_request,
                on_slow=on_slow,
                stopping=self._stopping.is_set,
                leave=self._leave,
            )
            self._watch.start()

    def _leave(self) -> None:
        """Stop without waiting for requests whose threads are blocked in the application."""
        self._draining.clean_up = 0.1
        self.stop(now=True)

    def _response_log(self, loop: asyncio.AbstractEventLoop) -> logs.AccessLog | None:
        log = logs.access_log(self.config, loop)
        if self.config.metrics_port is None:
            return log
        self._meter = Meter(log)
        return self._meter

    async def _stats_by_worker(self) -> dict[str, ServerStats]:
        return {"0": self.stats()}

    async def _server(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> asyncio.Server:
        """Create the asyncio server of a bound socket, without listening yet."""
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
            # Accepted connections inherit the option. Not every protocol of a socket that was
            # passed in supports it.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        if sock.family == socket.AF_UNIX:
            # sockets.py removes the socket file, because another process may still be listening.
            if "cleanup_socket" in inspect.signature(loop.create_unix_server).parameters:
                options["cleanup_socket"] = False
            return await loop.create_unix_server(factory, sock=sock, **options)
        return await loop.create_server(factory, sock=sock, **options)

    async def _start_listening(self, server: asyncio.Server, sock: socket.socket) -> None:
        try:
            await server.start_serving()
        except OSError as exc:
            # Two sockets can be bound to a port as long as neither listens; listen() reports it.
            raise sockets.refusal(sockets.Listener([sock]).url(tls=False), exc) from exc

    async def close(self) -> None:
        """Shut down gracefully, as the module describes, and return after the lifespan shutdown.

        If the task is cancelled, requests are cancelled and the application has only
        timeout_graceful_shutdown (by default 5 seconds) for its shutdown, before CancelledError is
        raised.
        """
        self._stopping.set()
        await self._close()

    async def _close(self) -> None:
        was_started, self.started = self.started, False
        for timer in (self._memory_timer, self._delay):
            if timer is not None:
                timer.cancel()
        for server in self._servers:
            server.close()
        for sock in self.sockets:
            sock.close()
        if self._listeners is not None:
            self._listeners.close()
        if was_started and not self._quiet:
            logger.info("Shutting down")  # connections are no longer accepted
        try:
            await self._end()
        except asyncio.CancelledError:
            self.stop(now=True)
            limit = self.config.timeout_graceful_shutdown or CLEAN_UP
            await self._end(for_application=limit)
            raise

    async def _end(self, *, for_application: float | None = None) -> None:
        """Wait for requests and for the lifespan shutdown.

        for_application: seconds that the lifespan shutdown may take; None for no limit.
        """
        if self.site is not None:
            await self._draining.run()
            self.site.end()
        if self._watch is not None:
            self._watch.stop()
        if self._lifespan is not None:
            shutdown = asyncio.ensure_future(self._lifespan.shutdown())
            try:
                await asyncio.wait([shutdown], timeout=for_application)
            finally:
                shutdown.cancel()
                await asyncio.gather(shutdown, return_exceptions=True)
        self._servers.clear()
        await self._resources.aclose()

    # --- as a process ------------------------------------------------------------------------

    async def serve(
        self, *, handle_signals: bool = True, on_start: Callable[[], None] | None = None
    ) -> None:
        """Serve until stop() is called, or SIGINT or SIGTERM arrives.

        A second SIGINT cancels requests. on_start: called when the server accepts connections.
        Raises StartError. If the task is cancelled, requests are cancelled, and the server has
        stopped before CancelledError is raised.
        """
        signal_handlers = (
            signals.handled(signals.handlers_of(self))
            if handle_signals
            else contextlib.nullcontext()
        )
        with signal_handlers:
            starting = asyncio.ensure_future(self.start())
            stop_called = asyncio.ensure_future(self._stop_called.wait())
            try:
                await asyncio.wait([starting, stop_called], return_when=asyncio.FIRST_COMPLETED)
                if not starting.done():
                    await self._give_up(starting)
                    return
                try:
                    starting.result()
                except signals.StoppedError:
                    logger.warning("Received a signal while importing the application. Exiting.")
                    return
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
                stop_called.cancel()
                await asyncio.wait([stop_called])

    async def _give_up(self, starting: asyncio.Future[None]) -> None:
        """Cancel the application's startup, which may be waiting for something indefinitely."""
        logger.warning("Shutdown requested during application startup. Cancelling startup.")
        starting.cancel()
        limit = self.config.timeout_graceful_shutdown or CLEAN_UP
        await asyncio.wait([starting], timeout=limit)
        if not starting.done():
            logger.error(
                "Application startup did not stop within %g seconds of being cancelled.", limit
            )
        elif not starting.cancelled():
            starting.exception()  # mark as retrieved: asyncio must not report this failure

    @property
    def should_exit(self) -> bool:
        """Return whether a shutdown has begun. The name is uvicorn's."""
        return self._stopping.is_set() or self._delay is not None

    def stop(self, *, now: bool = False) -> None:
        """Make serve() return. now: cancel requests. Must be called in the loop's thread."""
        if self._retired:
            self._retired = False
            self._draining.apply_deadlines()
        self._stopping.set()
        self._stop_called.set()
        if now:
            self._draining.force.set()

    def drain(self) -> None:
        """Make serve() return, after drain_delay if that is set.

        Until then the server keeps serving, and closes each connection after its next response.
        """
        delay = self.config.drain_delay
        if not delay or not self.started or self._stopping.is_set():
            self.stop()
        elif self._delay is None:
            logger.info("Continuing to serve for %g seconds before shutting down.", delay)
            self.site.begin_draining()
            self._delay = asyncio.get_running_loop().call_later(delay, self.stop)

    def retire(self) -> None:
        """Make serve() return after another process has taken over, without a deadline for streams.

        Idle connections stay open until their keep-alive timeout, because a next request may
        already be in transit; they are closed after its response. Streams continue until they end,
        because nothing waits for this process to exit.
        """
        self._draining.without_deadlines()
        signals.leaving(asyncio.get_running_loop())
        self.stop()
        self._retired = True

    def interrupted(self, number: int) -> None:
        """Act on SIGINT or SIGTERM.

        A second SIGINT, which a user sends from a terminal, cancels requests. A repeated SIGTERM
        does not, because process managers send SIGTERM twice, and also send it to processes that
        have received SIGINT from the terminal.
        """
        if number == signal.SIGTERM:
            self.drain()
            return
        self._interrupts += 1
        signals.log_interrupt(self._interrupts, stopping=self._stopping.is_set())
        self.stop(now=self._interrupts > 1)

    def reload_certificates(self) -> None:
        """Reload the files of the ssl_* options, for connections that are accepted from now on.

        If they cannot be loaded, the server logs an error and keeps the current certificates.
        """
        if self._context is None or self._stopping.is_set():
            return
        try:
            context = tls.make_context(self.config)
        except StartError as exc:
            logger.error("Failed to reload certificates, keeping the current ones: %s", exc)
        else:
            task = asyncio.ensure_future(self._use_context(context))
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    async def _use_context(self, context: ssl.SSLContext | None) -> None:
        """Use `context` for connections that are accepted from now on.

        An asyncio server cannot replace its context. A second server therefore listens on a
        duplicate of the socket before the first one is closed. Both descriptors share the kernel's
        accept queue, so no connection is lost.
        """
        async with self._reloading:
            if self._stopping.is_set():
                return
            try:
                duplicates = [sock.dup() for sock in self.sockets]
            except OSError as exc:
                logger.error("Failed to reload certificates, keeping the current ones: %s", exc)
                return
            self._context = context
            loop = asyncio.get_running_loop()
            servers = [await self._server(loop, sock) for sock in duplicates]
            before = zip(self._servers, self.sockets, strict=True)
            self._servers, self.sockets = servers, duplicates  # close() must close these
            try:
                for server in servers:
                    await server.start_serving()
            finally:
                for old, sock in before:
                    _stop_accepting(loop, old, sock)
            logger.info("Reloaded certificates.")

    # --- limits of a process -----------------------------------------------------------------

    def _request_limit_reached(self) -> None:
        self._on_limit(f"limit_max_requests ({self.config.limit_max_requests})")

    def _watch_memory(self) -> None:
        limit = self.config.limit_max_memory
        assert limit is not None
        used = resident_memory()
        if used >= limit:
            self._on_limit(f"limit_max_memory ({used >> 20} MiB in use)")
            return
        loop = asyncio.get_running_loop()
        self._memory_timer = loop.call_later(_MEMORY_INTERVAL, self._watch_memory)

    def _stop_at_limit(self, reason: str) -> None:
        logger.warning("Reached %s; shutting down.", reason)
        self.stop()


def _stop_accepting(
    loop: asyncio.AbstractEventLoop, server: asyncio.Server, sock: socket.socket
) -> None:
    """Close the listening socket of `server` without losing connections that it has accepted.

    asyncio creates the transport of a connection one iteration after accept(), which fails if the
    server has been closed by then. This function therefore closes only the socket, with the hook
    that Server.close() calls.
    """
    stop_serving = getattr(loop, "_stop_serving", None)
    if stop_serving is None:
        # The loop does not derive from BaseEventLoop.
        server.close()
        sock.close()
    else:
        stop_serving(sock)


def resident_memory() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", "rb") as stream:
        return int(stream.read().split()[1]) * _PAGE


@contextlib.asynccontextmanager
async def metrics_endpoint(config: Config, stats: prometheus.StatsSource) -> AsyncIterator[None]:
    """Serve GET /metrics while the block lasts, if metrics_port is set. Raises StartError.

    The process that opens the listening sockets runs it.
    """
    if config.metrics_port is None:
        yield
        return
    endpoint = Config(
        app=prometheus.application(stats),
        host=config.metrics_address,
        port=config.metrics_port,
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1.0,
    )
    async with Server(endpoint, quiet=True) as server:
        logger.info("Serving metrics on %s/metrics", server.url)
        yield
