# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Self, TypeVar

from typing_extensions import TypeVarTuple, Unpack, disjoint_base

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

MONGOOSE_VERSION: str

@disjoint_base
class Watcher: ...

# No event loop by itself: mgloop.Loop adds asyncio.BaseEventLoop, whose signatures these follow.
@disjoint_base
class LoopCore:
    _debug: bool
    _stopping: bool
    _closed: bool
    _thread_id: int | None
    def __new__(cls, *args: Any, enable_wakeup: bool = True, **kwargs: Any) -> Self: ...
    def time(self) -> float: ...
    def get_debug(self) -> bool: ...
    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle: ...
    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle: ...
    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle: ...
    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle: ...
    def create_future(self) -> asyncio.Future[Any]: ...
    # Keywords that came later (eager_start) are handed on to asyncio's own method.
    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: object = None,
        context: Context | None = None,
        **kwargs: Any,
    ) -> asyncio.Task[_T]: ...
    @property
    def _wakeup_enabled(self) -> bool: ...
    def _run_once(self) -> None: ...
    def _check_not_forked(self) -> None: ...
    def _add_callback(self, handle: asyncio.Handle) -> None: ...
    def _add_callback_signalsafe(self, handle: asyncio.Handle) -> None: ...
    def _write_to_self(self) -> None: ...
    def _dispose(self) -> None: ...
