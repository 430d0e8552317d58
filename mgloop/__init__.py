# SPDX-License-Identifier: GPL-2.0-only
"""A drop-in asyncio event loop for Linux, on top of the Mongoose networking library.

A program that runs on asyncio runs on mgloop unchanged. One of these is enough:

    mgloop.run(main())                                          # in place of asyncio.run()
    asyncio.run(main(), loop_factory=mgloop.new_event_loop)     # Python 3.12 and later
    mgloop.install()                                            # for loops that others make

mgloop.install() holds until mgloop.uninstall(). The command `mgloop run PROGRAM` is for a program
that is not yours.

mgloop.Loop is the loop's class, a subclass of asyncio.BaseEventLoop. Beside asyncio's interface it
has stats(), which says what the loop has done (mgloop.LoopStats). mgloop.watchdog(threshold=0.1)
reports who holds up a loop, mgloop.monitor(path) tells of the loops of the process to
`python -m mgloop.top`.

mgloop.serve(app) serves an ASGI application, as the command `mgloop serve pkg.mod:app` does;
mgloop.http has the server for use within a program.

mgloop is under the GNU GPL, version 2 only: to run it is unrestricted, to pass it on is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

try:
    from ._handle import Handle as _Handle  # noqa: F401 - the first of the compiled modules
except ModuleNotFoundError as _exc:
    if _exc.name != f"{__name__}._handle":
        raise
    raise ImportError(
        f"the compiled modules of mgloop were not found in {__path__[0]}: if this is a source tree,"
        " start Python in another directory, or run make build there and use its .venv/bin/python"
    ) from None

from ._install import EventLoopPolicy, install, new_event_loop, run, uninstall
from ._loop import MONGOOSE_VERSION
from ._loop import VERSION as _VERSION
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

# Compiled in, because a vendored copy lacks a distribution's metadata.
__version__ = _VERSION


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


def __dir__() -> list[str]:
    # With those: for help(), and for whoever completes names.
    return sorted({*globals(), *__all__})
