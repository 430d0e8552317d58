# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from collections.abc import Callable
from contextvars import Context
from socket import socket
from ssl import SSLContext
from typing import Any, final

from .._loop import Watcher

@final
class Listener(Watcher):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        sock: socket,
        sslcontext: SSLContext | None,
        server: Any,
        backlog: int,
        handshake_timeout: float | None,
        shutdown_timeout: float | None,
        context: Context | None = None,
    ) -> None: ...
    def stop(self) -> None: ...
