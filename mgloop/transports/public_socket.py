# SPDX-License-Identifier: GPL-2.0-only
"""The socket of get_extra_info("socket"), a TransportSocket that flushes deferred writes.

A transport may defer small writes to the end of the iteration. Code that uses the socket directly
must find it as if they had been sent; for example, a shutdown() before them would lose them. Each
method therefore makes the transport flush first. Code that has the descriptor number or a duplicate
can use it at any time, so fileno() and dup() disable deferred writes permanently.

The class is Python because it is used once per connection. It refers to its transport weakly,
because asyncio's TransportSocket does not keep the transport alive either.
"""

from __future__ import annotations

import socket
import weakref

from .. import _stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class PublicSocket(_stdlib.TransportSocket):  # type: ignore[misc]
    """An asyncio.trsock.TransportSocket for the socket of an mgloop transport."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Any, sock: socket.socket) -> None:
        super().__init__(sock)
        self._transport = weakref.ref(transport)

    def _flush_pending(self, *, permanent: bool = False) -> None:
        transport = self._transport()
        if transport is not None:
            transport._flush_pending(permanent)

    def fileno(self) -> int:
        self._flush_pending(permanent=True)
        return super().fileno()  # type: ignore[no-any-return]

    def dup(self) -> socket.socket:
        self._flush_pending(permanent=True)
        return super().dup()  # type: ignore[no-any-return]

    def getsockopt(self, *args: Any, **kwargs: Any) -> Any:
        self._flush_pending()
        return super().getsockopt(*args, **kwargs)

    def setsockopt(self, *args: Any, **kwargs: Any) -> None:
        self._flush_pending()
        super().setsockopt(*args, **kwargs)

    def shutdown(self, how: int) -> None:
        self._flush_pending()
        super().shutdown(how)
