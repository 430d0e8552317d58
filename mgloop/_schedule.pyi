# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

from typing_extensions import TypeVarTuple, Unpack

from ._hooks import HookCore

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

# The signatures are those of asyncio.BaseEventLoop.
class ScheduleCore(HookCore):
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
    # Since CPython 3.13.3 every further keyword (eager_start) reaches the task.
    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: object = None,
        context: Context | None = None,
        **kwargs: Any,
    ) -> asyncio.Task[_T]: ...
