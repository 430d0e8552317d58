# SPDX-License-Identifier: GPL-2.0-only
from types import TracebackType
from typing import Self

from typing_extensions import disjoint_base

from ._body import RequestBody

@disjoint_base
class WsgiResponse(RequestBody):
    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: tuple[type[BaseException], BaseException, TracebackType | None] | None = None,
    ) -> Self: ...
    def __call__(self, data: bytes) -> None: ...
