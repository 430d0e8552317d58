# SPDX-License-Identifier: GPL-2.0-only
"""The timeline of a shutdown: wait for requests, and end those that take too long.

docs/serve-deploying.md has the timeline as a table. server.py decides when a shutdown begins; this
module runs from the moment when connections are no longer accepted until the last one is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from .config import Config

logger = logging.getLogger("mgloop.http")

# Seconds that cancelled requests usually have for their cleanup.
CLEAN_UP = 5.0
# Seconds to wait, during shutdown, for a request on a connection that was accepted or became idle
# just before.
_ON_ITS_WAY = 0.25
# Seconds after idle connections have been closed until the server logs that it waits for others.
_LOG_AFTER = 0.1
# Seconds that the application of a stream has to return after its client was disconnected.
_AFTER_CUT_OFF = 2.0
# Interval, in seconds, at which a server that shuts down checks for unfinished TLS handshakes.
_HANDSHAKE_INTERVAL = 0.02


class Draining:
    """Close the connections of a site, each when its request has been answered.

    site: state shared by the connections. quiet: do not log why the shutdown takes time. When
    `force` is set, requests are cancelled.
    """

    def __init__(self, config: Config, *, quiet: bool) -> None:
        self.config = config
        self.site: Any = None
        self.force = asyncio.Event()
        # Whether streams have a deadline, and the seconds for which idle connections stay open.
        self.ends_streams = True
        self.idle_time = _ON_ITS_WAY
        # Seconds that cancelled requests have for their cleanup.
        self.clean_up = CLEAN_UP
        self._quiet = quiet

    def without_deadlines(self) -> None:
        """Set no deadline for streams, and keep idle connections until their keep-alive timeout."""
        self.idle_time = (self.config.timeout_keep_alive or 0.0) + _ON_ITS_WAY
        self.ends_streams = False

    def apply_deadlines(self) -> None:
        """Apply the deadlines of a normal shutdown to the streams of a retired server."""
        self.ends_streams = True
        self.site.begin_shutdown()
        if limit := self.config.timeout_stream_shutdown:
            loop = asyncio.get_running_loop()
            loop.call_later(limit, self._end_streams)
            loop.call_later(limit + _AFTER_CUT_OFF, self._cancel_streams)

    async def run(self) -> None:
        """Return when no connection is left."""
        self.site.begin_draining()
        drained = asyncio.ensure_future(self._drained())
        logging_task = asyncio.ensure_future(self._log_pending_work())
        now = asyncio.ensure_future(self.force.wait())
        began = asyncio.get_running_loop().time()
        try:
            for due, step in self._timeline():
                if drained.done() or now.done():
                    break
                elapsed = asyncio.get_running_loop().time() - began
                await _first_of(drained, now, timeout=max(0.0, due - elapsed))
                if not (drained.done() or now.done()):
                    step()
            else:
                if not self.config.timeout_graceful_shutdown:
                    await _first_of(drained, now)
            if not drained.done():
                await self._cut(drained)
            self.site.begin_shutdown()
        finally:
            for task in (drained, now, logging_task):
                task.cancel()
            await asyncio.gather(drained, now, logging_task, return_exceptions=True)

    async def _log_pending_work(self) -> None:
        """Log why the shutdown takes time, with uvicorn's messages."""
        if self._quiet:
            return
        await asyncio.sleep(self.idle_time + _LOG_AFTER)
        if self.site.connections:
            logger.info("Waiting for connections to close. (CTRL+C to force quit)")
        while self.site.connections:
            await asyncio.sleep(_LOG_AFTER)
        if self.site.in_flight:
            logger.info("Waiting for background tasks to complete. (CTRL+C to force quit)")

    def _timeline(self) -> list[tuple[float, Callable[[], None]]]:
        """Return the steps of a shutdown as (seconds since its beginning, function), in order.

        They are taken for as long as requests are running.
        """
        idle, limit = self.idle_time, self.config.timeout_graceful_shutdown
        steps: list[tuple[float, Callable[[], None]]] = [(idle, self.site.begin_shutdown)]
        if self.config.timeout_stream_shutdown and self.ends_streams:
            stream = max(idle, self.config.timeout_stream_shutdown)
            steps.append((stream, self._end_streams))
            steps.append((stream + _AFTER_CUT_OFF, self._cancel_streams))
        if limit:
            # Later steps are dropped, but idle connections are always closed.
            steps = [(min(idle, limit), self.site.begin_shutdown)] + [
                each for each in steps[1:] if each[0] < limit
            ]
            steps.append((limit, lambda: None))
        return steps

    def _end_streams(self) -> None:
        if count := self.site.end_streams():
            logger.warning("Closing %d stream(s), timeout stream shutdown exceeded.", count)

    def _cancel_streams(self) -> None:
        if count := self.site.cancel_streams():
            logger.warning(
                "Cancelling %d stream(s) that kept running after their clients were disconnected.",
                count,
            )

    async def _cut(self, drained: asyncio.Future[None]) -> None:
        """Cancel the remaining requests and close the remaining connections."""
        self.site.begin_shutdown()
        if self.site.in_flight or self.site.connections:
            logger.warning(
                "Cancelling %d request(s) and closing %d connection(s)%s.",
                self.site.in_flight,
                self.site.connections,
                "" if self.force.is_set() else ", timeout graceful shutdown exceeded",
            )
        self.site.cancel_all()
        await asyncio.wait([drained], timeout=self.clean_up)

    async def _drained(self) -> None:
        """Wait until all connections are closed."""
        # A connection that was accepted in this iteration is not registered with the site yet.
        for _ in range(3):
            await asyncio.sleep(0)
        await self.site.wait_drained()
        while self.site.shaking_hands:
            await asyncio.sleep(_HANDSHAKE_INTERVAL)
            await self.site.wait_drained()


async def _first_of(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of the futures is done, or for `timeout` seconds."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
