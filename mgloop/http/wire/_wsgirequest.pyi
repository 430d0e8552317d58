# SPDX-License-Identifier: GPL-2.0-only
from collections.abc import Callable, Iterable
from typing import Any, final

from typing_extensions import disjoint_base

from ._factory import RequestFactory
from ._site import Site
from ._workpool import WorkPool
from ._wsgiextensions import WsgiExtensions

@final
class WsgiRequest(WsgiExtensions):
    @property
    def connected(self) -> bool: ...
    def cancel(self) -> None: ...
    def end_stream(self) -> bool: ...
    def _continue(self) -> None: ...

@disjoint_base
class WsgiFactory(RequestFactory): ...

@disjoint_base
class WsgiRunner(WorkPool):
    site: Site
    app: Callable[..., Iterable[bytes]]
    def __init__(
        self,
        site: Site,
        app: Callable[..., Iterable[bytes]],
        threads: int,
        health: Callable[[], Any] | None = None,
    ) -> None: ...
    def request_factory(
        self, transport: Any, over_tls: bool, ends: Any, unnamed: bool
    ) -> RequestFactory: ...
