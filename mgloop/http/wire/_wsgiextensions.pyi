# SPDX-License-Identifier: GPL-2.0-only
from collections.abc import Iterable

from typing_extensions import disjoint_base

from ._wsgiresponse import WsgiResponse

@disjoint_base
class WsgiExtensions(WsgiResponse):
    def early_hints(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> None: ...
    def want_body(self) -> None: ...
    def client_left(self) -> None: ...
