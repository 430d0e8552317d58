# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

from typing_extensions import disjoint_base

from .proxy import TrustedProxies

@disjoint_base
class Writer: ...

@disjoint_base
class Member:
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def begin_shutdown(self) -> None: ...
    def cancel(self) -> None: ...

@disjoint_base
class Handshake:
    def __new__(cls, site: Site) -> Self: ...

@disjoint_base
class Site:
    loop: asyncio.AbstractEventLoop
    app: Callable[..., Awaitable[None]]
    config: Any
    state: dict[str, Any] | None
    access_log: Callable[[dict[str, Any], int, int, float], object] | None
    proxy: TrustedProxies | None
    draining: bool
    requests: int
    in_flight: int
    members: set[Any]
    running: set[Any]
    on_limit: Callable[[], object] | None
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        app: Callable[..., Awaitable[None]],
        config: Any,
        *,
        state: dict[str, Any] | None = None,
        access_log: Callable[[dict[str, Any], int, int, float], object] | None = None,
        proxy: TrustedProxies | None = None,
    ) -> None: ...
    @property
    def connections(self) -> int: ...
    @property
    def shaking_hands(self) -> bool: ...
    def connection(self) -> asyncio.Protocol: ...
    def connection_over_tls(self) -> asyncio.Protocol: ...
    def default_headers(self) -> bytes: ...
    def attach(self, member: Any) -> None: ...
    def detach(self, member: Any) -> None: ...
    def begin_draining(self) -> None: ...
    def begin_shutdown(self) -> None: ...
    async def wait_drained(self) -> None: ...
    def cancel_all(self) -> None: ...
    def _ring(self) -> None: ...
