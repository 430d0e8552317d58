# SPDX-License-Identifier: GPL-2.0-only
"""The functions that make a program run on mgloop: new_event_loop(), run(), install().

They are Python because they run once per process. install() sets an event loop policy. Python 3.14
deprecates the public names of policies, so the private names are used there and users do not see
deprecation warnings. Python 3.16 has no policies: there, install() replaces asyncio's function
new_event_loop(), which asyncio.run() and asyncio.Runner call.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import warnings
from asyncio import events, unix_events

from ..loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeVar

    _T = TypeVar("_T")


def _policies(module: Any, name: str) -> Any:
    """Return a name of asyncio's policies, which 3.14 made private and 3.16 removed, or None."""
    return getattr(module, f"_{name}", None) or getattr(module, name, None)


_set_policy: Any = _policies(events, "set_event_loop_policy")
_DefaultPolicy: Any = _policies(unix_events, "DefaultEventLoopPolicy")

HAS_POLICIES: bool = _set_policy is not None and _DefaultPolicy is not None

if HAS_POLICIES:

    class EventLoopPolicy(_DefaultPolicy):  # type: ignore[misc]
        """asyncio's default event loop policy, which creates mgloop's loop.

        Python 3.16 has no policies, and mgloop does not have this class there.
        """

        _loop_factory = Loop


def new_event_loop(*, enable_wakeup: bool = True, timing: bool | None = None) -> Loop:
    """Return a new event loop; for asyncio.run(loop_factory=) and asyncio.Runner(loop_factory=).

    enable_wakeup: whether other threads can wake up the loop. timing: whether stats() includes
    timing. See Loop.
    """
    return Loop(enable_wakeup=enable_wakeup, timing=timing)


def install(*, streams: bool = False) -> None:
    """Make asyncio.run(), asyncio.new_event_loop() and similar functions create mgloop's loops.

    streams: whether asyncio's names of streams, such as asyncio.StreamReader, refer to those of
    mgloop.streams from now on. Issues a RuntimeWarning if another loop is already running in this
    thread, because that loop keeps running.
    """
    use()
    if streams:
        from .. import streams as module

        module.use()
    running = events._get_running_loop()
    if running is not None and not isinstance(running, Loop):
        kind = f"{type(running).__module__}.{type(running).__qualname__}"
        warnings.warn(
            f"mgloop.install() was called too late: a {kind} is already running; "
            "start the program with `mgloop run`, or its loop with mgloop.run()",
            RuntimeWarning,
            stacklevel=2,
        )


def use() -> None:
    """Do the same as install(), without the warning."""
    if HAS_POLICIES:
        _set_policy(EventLoopPolicy())
    else:
        _replace_new_event_loop(_new_event_loop)


def uninstall() -> None:
    """Undo install(): asyncio creates its own loops again, and has its own streams."""
    if HAS_POLICIES:
        _set_policy(None)
    else:
        _replace_new_event_loop(_asyncios_new_event_loop)
    streams = sys.modules.get("mgloop.streams")
    if streams is not None:
        streams.restore()


_asyncios_new_event_loop = events.new_event_loop


def _new_event_loop() -> Loop:
    """Return a new loop; take the place of asyncio.new_event_loop(), which has no arguments."""
    return Loop()


def _replace_new_event_loop(function: Callable[[], Any]) -> None:
    for module in asyncio, events:
        vars(module)["new_event_loop"] = function


def run(
    main: Coroutine[Any, Any, _T],
    *,
    debug: bool | None = None,
    enable_wakeup: bool = True,
    timing: bool | None = None,
) -> _T:
    """Run a coroutine on an mgloop event loop, as asyncio.run() does, and return its result.

    debug: the loop's debug mode; None for the default. enable_wakeup, timing: see
    new_event_loop(). Propagates exceptions of the coroutine, and raises RuntimeError if called from
    a running event loop.
    """
    if events._get_running_loop() is not None:
        main.close()
        raise RuntimeError("mgloop.run() cannot be called from a running event loop")
    factory = functools.partial(new_event_loop, enable_wakeup=enable_wakeup, timing=timing)
    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        return runner.run(main)
