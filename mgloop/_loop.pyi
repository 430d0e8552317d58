# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from _typeshed import FileDescriptorLike
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar, final

from typing_extensions import TypeVarTuple, Unpack, disjoint_base

from .selector_view import SelectorView

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

MONGOOSE_VERSION: str

@disjoint_base
class Watcher: ...

@disjoint_base
class Waiter: ...

@final
class FdWatch(Watcher): ...

# Not an event loop by itself: mgloop.Loop adds asyncio.BaseEventLoop, with which the signatures
# agree.
@disjoint_base
class LoopCore:
    def __new__(cls, *args: Any, enable_wakeup: bool = True, **kwargs: Any) -> LoopCore: ...
    _debug: bool
    _stopping: bool
    _closed: bool
    _time_patched: bool
    _thread_id: int | None
    _task_factory: Any
    _current_handle: Any
    def time(self) -> float: ...
    def get_debug(self) -> bool: ...
    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: Unpack[_Ts],
        context: Context | None = None,
    ) -> asyncio.Handle: ...
    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: Unpack[_Ts],
        context: Context | None = None,
    ) -> asyncio.Handle: ...
    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: Unpack[_Ts],
        context: Context | None = None,
    ) -> asyncio.TimerHandle: ...
    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: Unpack[_Ts],
        context: Context | None = None,
    ) -> asyncio.TimerHandle: ...
    def create_future(self) -> asyncio.Future[Any]: ...
    # Keywords that later versions of asyncio know (eager_start) are handed on to its own method.
    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: object = None,
        context: Context | None = None,
        **kwargs: Any,
    ) -> asyncio.Task[_T]: ...
    def add_reader(
        self, fd: FileDescriptorLike, callback: Callable[[Unpack[_Ts]], Any], *args: Unpack[_Ts]
    ) -> None: ...
    def add_writer(
        self, fd: FileDescriptorLike, callback: Callable[[Unpack[_Ts]], Any], *args: Unpack[_Ts]
    ) -> None: ...
    def remove_reader(self, fd: FileDescriptorLike) -> bool: ...
    def remove_writer(self, fd: FileDescriptorLike) -> bool: ...
    @property
    def _selector(self) -> SelectorView | None: ...
    @property
    def _wakeup_enabled(self) -> bool: ...
    def _run_once(self) -> None: ...
    def _check_not_forked(self) -> None: ...
    def _interest(self, fd: int) -> tuple[asyncio.Handle | None, asyncio.Handle | None] | None: ...
    def _fd_limit(self) -> int: ...
    def _ensure_fd_no_transport(self, fd: FileDescriptorLike) -> int: ...
    def _add_reader(
        self, fd: FileDescriptorLike, callback: Callable[[Unpack[_Ts]], Any], *args: Unpack[_Ts]
    ) -> asyncio.Handle: ...
    def _add_writer(
        self, fd: FileDescriptorLike, callback: Callable[[Unpack[_Ts]], Any], *args: Unpack[_Ts]
    ) -> asyncio.Handle: ...
    def _remove_reader(self, fd: FileDescriptorLike) -> bool: ...
    def _remove_writer(self, fd: FileDescriptorLike) -> bool: ...
    def _add_callback(self, handle: asyncio.Handle) -> None: ...
    def _add_callback_signalsafe(self, handle: asyncio.Handle) -> None: ...
    def _write_to_self(self) -> None: ...
    def _dispose(self) -> None: ...
