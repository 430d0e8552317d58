# SPDX-License-Identifier: GPL-2.0-only
"""mgloop: a drop-in asyncio event loop on top of the Mongoose networking library.

asyncio.run(main(), loop_factory=mgloop.new_event_loop)     # Python 3.12 and later
mgloop.run(main())                                          # any version
mgloop.install(); asyncio.run(main())                       # for code that is not yours
mgloop.serve(app)                                           # an ASGI application
"""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ._install import EventLoopPolicy, install, new_event_loop, run, uninstall
from ._loop import MONGOOSE_VERSION
from .loop import Loop
from .stats import LoopStats

if _TYPE_CHECKING:
    from .http import serve
    from .observe.monitor import Monitor as monitor  # noqa: N813
    from .observe.watchdog import Watchdog as watchdog  # noqa: N813

__all__ = [
    "MONGOOSE_VERSION",
    "EventLoopPolicy",
    "Loop",
    "LoopStats",
    "install",
    "monitor",
    "new_event_loop",
    "run",
    "serve",
    "uninstall",
    "watchdog",
]

__version__ = _version("mgloop")


def __getattr__(name: str) -> _Any:
    # Packages of their own: a loop alone does not load them.
    if name == "serve":
        from .http import serve

        return serve
    if name == "monitor":
        from .observe.monitor import Monitor

        return Monitor
    if name == "watchdog":
        from .observe.watchdog import Watchdog

        return Watchdog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
