# SPDX-License-Identifier: GPL-2.0-only
"""The ways to make a program run on mgloop.

Per process, and set up once, hence Python. Where the running version still has event loop
policies, install() sets one; the deprecation that 3.14 attaches to its public names is asyncio's
own business and does not reach the user.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from asyncio import events, unix_events
from collections.abc import Coroutine
from typing import Any, TypeVar

from .loop import Loop

T = TypeVar("T")

# 3.14 renamed these when it deprecated them.
_set_policy: Any = getattr(events, "_set_event_loop_policy", None) or events.set_event_loop_policy
_DefaultPolicy: Any = (
    getattr(unix_events, "_DefaultEventLoopPolicy", None) or unix_events.DefaultEventLoopPolicy  # type: ignore[attr-defined,unused-ignore]
)


class EventLoopPolicy(_DefaultPolicy):  # type: ignore[misc]
    """asyncio's default policy with mgloop's loop as the one that it makes."""

    _loop_factory = Loop


def new_event_loop(*, enable_wakeup: bool = True, timing: bool | None = None) -> Loop:
    """A new event loop; for asyncio.run(loop_factory=) and asyncio.Runner(loop_factory=).

    enable_wakeup: whether other threads may wake the loop; timing: whether stats() tells where the
    time goes. See Loop.
    """
    return Loop(enable_wakeup=enable_wakeup, timing=timing)


def install() -> None:
    """Make asyncio.run(), asyncio.new_event_loop() and similar calls use mgloop from now on.

    Warns (RuntimeWarning) if another loop is already running in this thread: that loop goes on.
    """
    use()
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
    """Do what install() does, without the warning."""
    _set_policy(EventLoopPolicy())


def uninstall() -> None:
    """Undo install(): asyncio's own loops again."""
    _set_policy(None)


def run(
    main: Coroutine[Any, Any, T],
    *,
    debug: bool | None = None,
    enable_wakeup: bool = True,
    timing: bool | None = None,
) -> T:
    """asyncio.run(main) on an mgloop event loop.

    debug: the loop's debug mode, None for the default. enable_wakeup, timing: as of
    new_event_loop(). Raises what the coroutine raises, and RuntimeError inside a running event
    loop.
    """
    if events._get_running_loop() is not None:
        main.close()
        raise RuntimeError("mgloop.run() cannot be called from a running event loop")
    factory = functools.partial(new_event_loop, enable_wakeup=enable_wakeup, timing=timing)
    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        return runner.run(main)
