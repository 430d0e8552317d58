# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from types import TracebackType
from typing import Any, Self

from typing_extensions import disjoint_base

from ._body import RequestBody

@disjoint_base
class AppTask(RequestBody):
    task: asyncio.Task[None] | None
    cr_frame: Any
    cr_await: Any
    cr_code: Any
    cr_running: bool
    def __await__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any: ...
    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> Any: ...
    def close(self) -> None: ...
