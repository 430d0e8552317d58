# SPDX-License-Identifier: GPL-2.0-only
"""The ways to make a program run on mgloop.

Per process, and set up once, hence Python. Where the running version still has event loop
policies, install() sets one; the deprecation that 3.14 attaches to its public names is asyncio's
own business and does not reach the user.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from asyncio import events, unix_events
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from . import _late, _stdlib
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


class _Watching(EventLoopPolicy):
    """What install() sets: it notices if a server goes another way all the same."""

    def __init__(self, watch: _late.Watch) -> None:
        super().__init__()
        self.watch = watch
        watch.begin()

    def set_event_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        super().set_event_loop(loop)
        self.watch.loop_is_set(loop, sys._getframe().f_back)

    # An argument, because the names of this module may be gone before somebody who has kept it.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Under whoever has set the next policy, unless somebody has kept this one.
        if not is_finalizing():
            self.watch.end()
            successor = _stdlib.policy()
            if not isinstance(successor, EventLoopPolicy):
                self.watch.policy_is_replaced(successor, sys._getframe().f_back)


def install() -> None:
    """Make asyncio.run(), asyncio.new_event_loop() and their like use mgloop from now on.

    Warns (RuntimeWarning) if it is known to be too late, or of no use, for the server that calls
    it, in which case the warning says what to do instead.
    """
    frame = sys._getframe(1)
    too_late = _late.reason(frame)
    watch = _late.Watch(_late.Place.of(frame))
    _set_policy(EventLoopPolicy() if _everywhere else _Watching(watch))
    if too_late:
        watch.tell(too_late, frame)


def use() -> None:
    """install() for those who know what they do: it never warns."""
    _set_policy(EventLoopPolicy())


# Whether this is `mgloop run`, so that the loops of other packages are mgloop's, too.
_everywhere = False


def use_everywhere() -> None:
    """use(), where nothing is left that install() could be too late for."""
    global _everywhere
    _everywhere = True
    use()


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
