# SPDX-License-Identifier: GPL-2.0-only
"""The socket that get_extra_info("socket") gives: a TransportSocket in step with deferring.

A transport may hold back small writes until the end of the iteration. Whoever acts on the socket
itself must find it as if they had been sent: shut down before them, it would lose them. So each
method has the transport send first. Who asks for the descriptor's number, or for a duplicate, may
act on it without asking again: then the transport defers no more.

Python, because it is asked per connection. It refers to its transport weakly: asyncio's does not
keep it alive either.
"""

from __future__ import annotations

import socket
import weakref
from typing import Any

from .. import _stdlib


class PublicSocket(_stdlib.TransportSocket):  # type: ignore[misc]
    """asyncio.trsock.TransportSocket over the socket of a transport of mgloop's."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Any, sock: socket.socket) -> None:
        super().__init__(sock)
        self._transport = weakref.ref(transport)

    def _settle(self, *, for_good: bool = False) -> None:
        transport = self._transport()
        if transport is not None:
            transport._settle(for_good)

    def fileno(self) -> int:
        self._settle(for_good=True)
        return super().fileno()  # type: ignore[no-any-return]

    def dup(self) -> socket.socket:
        self._settle(for_good=True)
        return super().dup()  # type: ignore[no-any-return]

    def getsockopt(self, *args: Any, **kwargs: Any) -> Any:
        self._settle()
        return super().getsockopt(*args, **kwargs)

    def setsockopt(self, *args: Any, **kwargs: Any) -> None:
        self._settle()
        super().setsockopt(*args, **kwargs)

    def shutdown(self, how: int) -> None:
        self._settle()
        super().shutdown(how)
