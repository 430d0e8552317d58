# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from collections.abc import Iterable
from socket import socket
from typing import Any, final

from ._base import SocketTransport

# Python code cannot use these classes.

@final
class RecvmmsgBuffers: ...

@final
class AddressCache: ...

@final
class Datagram(SocketTransport):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket,
        protocol: asyncio.BaseProtocol,
        address: Any = None,
        waiter: asyncio.Future[Any] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None: ...
    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None: ...
    def write_eof(self) -> None: ...
    def can_write_eof(self) -> bool: ...
    def sendto(self, data: bytes | bytearray | memoryview, addr: Any = None) -> None: ...
