# SPDX-License-Identifier: GPL-2.0-only
from collections.abc import Coroutine
from socket import socket
from typing import Any, final

from _typeshed import ReadableBuffer, WriteableBuffer
from typing_extensions import disjoint_base

from ._interest import FdCore, Waiter
from ._loop import Watcher

# The awaitables that the methods return.
@disjoint_base
class SockCall(Waiter): ...

@final
class Recv(SockCall): ...

@final
class RecvInto(SockCall): ...

@final
class SendAll(SockCall): ...

@final
class Connect(SockCall): ...

# Checks a connection attempt in the iteration after connect().
@final
class ConnectCheck(Watcher): ...

class SockCore(FdCore):
    def sock_connect(self, sock: socket, address: Any) -> Coroutine[Any, Any, None]: ...
    def sock_recv(self, sock: socket, n: int) -> Coroutine[Any, Any, bytes]: ...
    def sock_recv_into(self, sock: socket, buf: WriteableBuffer) -> Coroutine[Any, Any, int]: ...
    def sock_sendall(self, sock: socket, data: ReadableBuffer) -> Coroutine[Any, Any, None]: ...
