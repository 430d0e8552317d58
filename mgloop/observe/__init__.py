# SPDX-License-Identifier: GPL-2.0-only
"""Monitoring of event loops: the watchdog, the monitor, and stats() as metrics.

prometheus and opentelemetry each require a library, which is an extra of mgloop
(mgloop[prometheus], mgloop[opentelemetry]). The watchdog and the monitor are imported only
if the environment enables them, or when a program uses them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any


class EnvironmentObserver:
    """Start the watchdog and the monitor that MGLOOP_WATCHDOG and MGLOOP_MONITOR request."""

    def created(self, loop: object) -> None:
        """Start the monitor of this process if it is requested and does not exist yet."""
        if os.environ.get("MGLOOP_MONITOR"):
            from . import monitor

            monitor.of_environment()

    def running(self, loop: Any) -> AbstractContextManager[Any] | None:
        """Return a context manager for the time in which `loop` is watched, or None."""
        if not os.environ.get("MGLOOP_WATCHDOG"):
            return None
        from .watchdog import of_environment

        watchdog = of_environment()
        return None if watchdog is None else watchdog.watching(loop)
