# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any, final

from _typeshed import FileDescriptorLike
from typing_extensions import TypeVarTuple, Unpack, disjoint_base

from ._awaitable import Call
from ._loop import Watcher
from ._schedule import ScheduleCore
from ._selector_view import SelectorView

_Ts = TypeVarTuple("_Ts")

@disjoint_base
class Waiter(Call): ...

@final
class Direction: ...

@final
class FdWatch(Watcher): ...

@disjoint_base
class FdCore(ScheduleCore):
    def add_reader(
        self, fd: FileDescriptorLike, callback: Callable[[Unpack[_Ts]], Any], *args: *_Ts
    ) -> None: ...
    def add_writer(
        self, fd: FileDescriptorLike, callback: Callable[[Unpack[_Ts]], Any], *args: *_Ts
    ) -> None: ...
    def remove_reader(self, fd: FileDescriptorLike) -> bool: ...
    def remove_writer(self, fd: FileDescriptorLike) -> bool: ...
    @property
    def _selector(self) -> SelectorView | None: ...
    def _interest(self, fd: int) -> tuple[asyncio.Handle | None, asyncio.Handle | None] | None: ...
    def _fd_limit(self) -> int: ...
    def _share_descriptors(self, transports: Mapping[int, Any]) -> None: ...
    def _ensure_fd_no_transport(self, fd: FileDescriptorLike) -> int: ...
    def _add_reader(
        self,
        fd: FileDescriptorLike,
        callback: Callable[[Unpack[_Ts]], Any],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle: ...
    def _add_writer(
        self,
        fd: FileDescriptorLike,
        callback: Callable[[Unpack[_Ts]], Any],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle: ...
    def _remove_reader(self, fd: FileDescriptorLike) -> bool: ...
    def _remove_writer(self, fd: FileDescriptorLike) -> bool: ...
