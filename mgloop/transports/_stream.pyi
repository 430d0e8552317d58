# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from collections.abc import Iterable
from contextvars import Context
from socket import socket
from typing import Any, final

from ._receiving import ReceivingStream

@final
class Stream(ReceivingStream):
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
