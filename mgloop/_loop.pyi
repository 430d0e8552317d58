# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from typing import Any, Self

from typing_extensions import disjoint_base

from ._timers import TimerCore

MONGOOSE_VERSION: str
VERSION: str
INHERITED: str

@disjoint_base
class Watcher: ...

# No event loop by itself: mgloop.Loop adds asyncio.BaseEventLoop.
@disjoint_base
class LoopCore(TimerCore):
    _debug: bool
    _stopping: bool
    _closed: bool
    _thread_id: int | None
    _current_handle: asyncio.Handle | None
    def __new__(
        cls, *args: Any, enable_wakeup: bool = True, timing: bool | None = None, **kwargs: Any
    ) -> Self: ...
