# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from typing import Any

from typing_extensions import disjoint_base

from ..._awaitable import Waiting
from ._site import Member

@disjoint_base
class BaseConnection(Member):
    transport: asyncio.Transport

@disjoint_base
class Response:
    scope: dict[str, Any]
    file_timeout: asyncio.Timeout | None
    @property
    def write_timeout(self) -> float | None: ...
    @property
    def closing(self) -> bool: ...
    @property
    def transport(self) -> asyncio.Transport: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def begin_file(self, kind: str, count: int, more: bool) -> bool: ...
    def end_file(self, count: int, more: bool) -> None: ...
    def _flush_due(self) -> None: ...

@disjoint_base
class Draining(Waiting): ...
