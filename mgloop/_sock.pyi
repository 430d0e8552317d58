# SPDX-License-Identifier: GPL-2.0-only
import asyncio
from collections.abc import Coroutine
from socket import socket
from typing import Any, final

from _typeshed import ReadableBuffer, WriteableBuffer

from ._interest import FdCore, Waiter
from ._loop import Watcher

# The awaitable that sock_recv(), sock_recv_into(), sock_sendall() and sock_connect() return.
@final
class SockCall(Waiter):
    @property
    def cr_await(self) -> asyncio.Future[Any] | None: ...
    @property
    def __name__(self) -> str: ...
    @property
    def __qualname__(self) -> str: ...

# Checks a connection attempt in the iteration after connect().
@final
class ConnectCheck(Watcher): ...

class SockCore(FdCore):
    def sock_connect(self, sock: socket, address: Any) -> Coroutine[Any, Any, None]: ...
    def sock_recv(self, sock: socket, n: int) -> Coroutine[Any, Any, bytes]: ...
    def sock_recv_into(self, sock: socket, buf: WriteableBuffer) -> Coroutine[Any, Any, int]: ...
    def sock_sendall(self, sock: socket, data: ReadableBuffer) -> Coroutine[Any, Any, None]: ...
