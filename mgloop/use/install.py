# SPDX-License-Identifier: GPL-2.0-only
"""The functions that make a program run on mgloop: new_event_loop(), run(), install().

They are Python because they run once per process. install() sets an event loop policy. Python 3.14
deprecates the public names of policies, so the private names are used there and users do not see
deprecation warnings.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import warnings
from asyncio import events, unix_events
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..loop import Loop

T = TypeVar("T")

# 3.14 renamed these when it deprecated them.
_set_policy: Any = getattr(events, "_set_event_loop_policy", None) or events.set_event_loop_policy
_DefaultPolicy: Any = (
    getattr(unix_events, "_DefaultEventLoopPolicy", None) or unix_events.DefaultEventLoopPolicy  # type: ignore[attr-defined,unused-ignore]
)


class EventLoopPolicy(_DefaultPolicy):  # type: ignore[misc]
    """asyncio's default event loop policy, which creates mgloop's loop."""

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
    _set_policy(EventLoopPolicy())


def uninstall() -> None:
    """Undo install(): asyncio creates its own loops again, and has its own streams."""
    _set_policy(None)
    streams = sys.modules.get("mgloop.streams")
    if streams is not None:
        streams.restore()


def run(
    main: Coroutine[Any, Any, T],
    *,
    debug: bool | None = None,
    enable_wakeup: bool = True,
    timing: bool | None = None,
) -> T:
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
