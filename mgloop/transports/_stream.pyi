# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from socket import socket
from ssl import SSLContext
from typing import Any, final

from .._loop import Watcher
from ._base import SocketTransport

@final
class Stream(SocketTransport):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[Any] | None = None,
        extra: dict[str, Any] | None = None,
        server: Any = None,
        context: Context | None = None,
    ) -> None: ...
    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None: ...
    def can_write_eof(self) -> bool: ...
    def write_eof(self) -> None: ...

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
