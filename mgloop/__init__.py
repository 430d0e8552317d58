# SPDX-License-Identifier: GPL-2.0-only
"""A drop-in asyncio event loop for Linux, on top of the Mongoose networking library.

A program that runs on asyncio runs on mgloop unchanged. One of these is enough:

    mgloop.run(main())                                          # instead of asyncio.run()
    asyncio.run(main(), loop_factory=mgloop.new_event_loop)     # Python 3.12 and later
    mgloop.install()                                            # for loops that libraries create

mgloop.install() is in effect until mgloop.uninstall(). The command `mgloop run PROGRAM` runs a
program without changes to its source.

mgloop.Loop is the class of the event loop, a subclass of asyncio.BaseEventLoop. In addition to
asyncio's interface it has stats(), which returns counters of the loop (mgloop.LoopStats).
mgloop.watchdog(threshold=0.1) reports the code that blocks a loop, and mgloop.monitor(path) lets
`mgloop top` display the loops of the process.

mgloop.streams has asyncio's streams with the code that runs per packet compiled.
mgloop.install(streams=True), and MGLOOP_STREAMS=1 in the environment when mgloop is imported, let
asyncio's names refer to them.

mgloop.Protocol and mgloop.Transport are for programs in Cython, which `cimport mgloop`: protocols
whose methods are C functions. mgloop.get_include() returns the folder for Cython's option -I.

mgloop.serve(app) serves an ASGI application, as the command `mgloop serve pkg.mod:app` does;
mgloop.http has the server for use inside a program.

mgloop is licensed under the GNU GPL, version 2 only. Running it is unrestricted; distributing it is
subject to the licence.
"""

from __future__ import annotations

import importlib as _importlib
import os as _os

try:
    from ._handle import Handle as _Handle  # noqa: F401 - the first of the compiled modules
except ModuleNotFoundError as _exc:
    if _exc.name != f"{__name__}._handle":
        raise
    raise ImportError(
        f"the compiled modules of mgloop were not found in {__path__[0]}: if this is a source tree,"
        " start Python in another directory, or run make build there and use its .venv/bin/python"
    ) from None
except ImportError as _exc:
    # CPython's message, and Cython's before 3.12.
    if "subinterpreters" not in str(_exc) and "one interpreter per process" not in str(_exc):
        raise
    raise ImportError(
        "mgloop runs in the main interpreter only; in other interpreters use asyncio's event loop"
    ) from _exc

from . import loop as _loop_module
from ._loop import MONGOOSE_VERSION
from ._loop import VERSION as _VERSION
from .loop import Loop
from .observe import EnvironmentObserver as _EnvironmentObserver
from .use import install as _use
from .use.install import install, new_event_loop, run, uninstall

# The modules that every program imports do not import typing, which would take longer than mgloop.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as _Any

    from . import streams
    from ._compiled import Protocol_1 as Protocol
    from ._compiled import Transport_1 as Transport
    from .http import serve
    from .observe.monitor import Monitor as monitor  # noqa: N813
    from .observe.watchdog import Watchdog as watchdog  # noqa: N813
    from .stats import LoopStats

__all__ = [
    "MONGOOSE_VERSION",
    "Loop",
    "LoopStats",
    "Protocol",
    "Transport",
    "get_include",
    "install",
    "monitor",
    "new_event_loop",
    "run",
    "serve",
    "streams",
    "uninstall",
    "watchdog",
]
if _use.HAS_POLICIES:
    from .use.install import EventLoopPolicy as EventLoopPolicy

    __all__ += ["EventLoopPolicy"]

# Compiled in, because a vendored copy lacks a distribution's metadata.
__version__ = _VERSION

_loop_module.observer = _EnvironmentObserver()

if _os.environ.get("MGLOOP_STREAMS", "") not in ("", "0"):
    from . import streams

    streams.use()


def get_include() -> str:
    """Return the folder for the option -I of Cython, in which `cimport mgloop` finds mgloop.

    A build needs it if mgloop is not below a folder of sys.path, such as site-packages.
    """
    return _os.path.dirname(_os.path.dirname(__file__))


def __getattr__(name: str) -> _Any:
    # Imported on first use, so that a program that only needs a loop does not load these modules.
    if name == "LoopStats":
        from .stats import LoopStats

        return LoopStats
    if name in ("Protocol", "Transport"):
        from . import _compiled

        return _compiled.Protocol_1 if name == "Protocol" else _compiled.Transport_1
    if name == "serve":
        from .http import serve

        return serve
    if name == "streams":
        return _importlib.import_module(".streams", __name__)
    if name == "monitor":
        from .observe.monitor import Monitor

        return Monitor
    if name == "watchdog":
        from .observe.watchdog import Watchdog

        return Watchdog
    if name == "EventLoopPolicy":
        raise AttributeError(
            "this version of Python has no event loop policies: use mgloop.install(), or"
            " asyncio.run(main(), loop_factory=mgloop.new_event_loop)"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # Include the lazily imported names, for help() and for name completion.
    return sorted({*globals(), *__all__})
