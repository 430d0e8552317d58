# SPDX-License-Identifier: GPL-2.0-only
from typing import Any, Self, final

from typing_extensions import disjoint_base

from ._body import RequestBody
from ._factory import RequestFactory
from ._handler import HTTPHandler_1
from ._site import Site

@final
class HandledRequest(RequestBody):
    @property
    def connected(self) -> bool: ...
    def cancel(self) -> None: ...
    def end_stream(self) -> bool: ...

@disjoint_base
class HandlerFactory(RequestFactory): ...

@disjoint_base
class HandlerRunner:
    site: Site
    handler: HTTPHandler_1
    def __new__(cls, site: Site, handler: HTTPHandler_1) -> Self: ...
    def request_factory(
        self, inner: RequestFactory, transport: Any, over_tls: bool, ends: Any, unnamed: bool
    ) -> RequestFactory: ...
