# SPDX-License-Identifier: GPL-2.0-only
"""Detect requests that occupy a thread of a WSGI application for too long: --timeout-request.

A thread that is blocked in the application cannot be ended. The watch therefore logs its stack, so
that the cause can be found, and counts it. If another process can take over, it asks once for this
process to be replaced. The other requests then end as in every shutdown. When only the slow ones
are left, the watch ends the shutdown, because they may never end.

The watch runs in the loop's thread, several times per limit. Nothing here runs per request. The
module is Python because it runs only with the option.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

logger = logging.getLogger("mgloop.http")

# Checks per limit, and the longest interval in seconds between two of them.
_CHECKS = 4
_LONGEST_INTERVAL = 1.0


class RequestWatch:
    """Watch the threads of site.wsgi for requests that take longer than `limit` seconds.

    on_slow: called with the reason once the process should be replaced, or None to only log.
    stopping: returns whether the process shuts down and accepts no more connections. leave: called
    then, when only slow requests are left.

    count: the number of slow requests so far.
    """

    def __init__(
        self,
        site: Any,
        limit: float,
        *,
        on_slow: Callable[[str], None] | None,
        stopping: Callable[[], bool],
        leave: Callable[[], None],
    ) -> None:
        self.count = 0
        self._site = site
        self._limit = limit
        self._on_slow = on_slow
        self._stopping = stopping
        self._leave = leave
        self._slow: dict[int, float] = {}  # when the slow request of a thread began, by its ident
        self._timer: asyncio.TimerHandle | None = None
        self._alone = False  # only slow requests were left at the last check

    def start(self) -> None:
        """Begin to watch. Must be called in the loop's thread, as must stop()."""
        self._check()

    def stop(self) -> None:
        """End the watch."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        interval = min(self._limit / _CHECKS, _LONGEST_INTERVAL)
        self._timer = asyncio.get_running_loop().call_later(interval, self._check)
        running = self._site.wsgi.running()
        now = time.monotonic()
        before, self._slow = self._slow, {}
        for ident, seconds in running:
            if seconds < self._limit:
                continue
            began = now - seconds
            # A thread needs longer than the limit until its next request is slow, too.
            known = ident in before and abs(before[ident] - began) < self._limit / 2
            self._slow[ident] = before[ident] if known else began
            if not known:
                self._report(ident, seconds)
        before_alone = self._alone
        self._alone = bool(self._slow) and self._stopping() and self._only_slow_left(len(running))
        # A connection that has just been accepted is not registered with the site yet.
        if self._alone and before_alone:
            logger.warning(
                "Leaving %d request(s) behind, timeout request exceeded.", len(self._slow)
            )
            self._leave()

    def _report(self, ident: int, seconds: float) -> None:
        self.count += 1
        name = next((t.name for t in threading.enumerate() if t.ident == ident), str(ident))
        logger.error(
            "Request has been running for %.1f seconds, timeout request exceeded. Stack of thread"
            " %s:\n%s",
            seconds,
            name,
            _stack(sys._current_frames().get(ident)),
        )
        on_slow, self._on_slow = self._on_slow, None
        if on_slow is not None:
            on_slow(f"timeout_request ({self._limit:g} seconds)")

    def _only_slow_left(self, running: int) -> bool:
        """Return whether no request is left but slow ones, and those that wait for their threads.

        running: the number of threads that run a request.
        """
        site = self._site
        if running > len(self._slow):
            return False
        # Requests that are queued have a chance while a thread is free or can be started.
        stuck = site.wsgi.queued if running >= site.config.wsgi_threads else 0
        if len(site.running) > running + stuck:  # also those whose body has not arrived yet
            return False
        # Other connections are idle, and a request may be in transit, or their response is.
        return bool(site.connections <= sum(request.connected for request in site.running))


def _stack(frame: FrameType | None) -> str:
    """Return the stack that ends with `frame` in the form of a traceback."""
    if frame is None:
        return "  (the thread has ended)"
    return "".join(traceback.format_stack(frame)).rstrip("\n")
