# SPDX-License-Identifier: GPL-2.0-only
"""mgloop.Loop: the native core and asyncio.BaseEventLoop put together.

What runs per callback or per packet is native and comes from LoopCore and SockCore. What runs per
connection or per loop is BaseEventLoop's own code, reached through the hooks that it defines for
its subclasses: so each CPython's own semantics come with it. This module holds the hooks.
"""

from __future__ import annotations

import asyncio
import os
import socket
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from . import _stdlib, stats
from ._sock import SockCore
from .mixins.executor import ExecutorMixin
from .mixins.process import ProcessMixin
from .mixins.resolve import ResolveMixin
from .mixins.sendfile import SendfileMixin
from .mixins.signals import SignalsMixin
from .stats import LoopStats, TimeSpent
from .tls.mixin import TlsMixin
from .transports._datagram import Datagram
from .transports._pipe import ReadPipe, WritePipe
from .transports._stream import Stream
from .transports.server import ServerMixin
from .transports.unix import UnixMixin

if TYPE_CHECKING:
    import contextvars


# All that are open, for who looks at them from outside.
_open: weakref.WeakValueDictionary[int, Loop] = weakref.WeakValueDictionary()


def open_loops() -> list[Loop]:
    """The loops of this process that are not closed, oldest first; from any thread."""
    loops = (reference() for reference in _open.valuerefs())
    return [loop for loop in loops if loop is not None and not loop.is_closed()]


class Loop(
    SockCore,
    SignalsMixin,
    TlsMixin,
    UnixMixin,
    ProcessMixin,
    ResolveMixin,
    SendfileMixin,
    ExecutorMixin,
    ServerMixin,
    asyncio.BaseEventLoop,
):
    """An asyncio event loop on Mongoose's poll loop.

    enable_wakeup: whether other threads may wake the loop (call_soon_threadsafe(), executors).
    Without it those raise RuntimeError, and the loop holds two descriptors less.

    timing: whether stats() also tells where the time goes, for which the clock is read with each
    callback; None: what the environment's MGLOOP_TIMING says, by default not.
    """

    _sock_add_cancellation_callback = _stdlib.UnixLoop._sock_add_cancellation_callback
    sock_recvfrom = _stdlib.SelectorLoop.sock_recvfrom
    sock_recvfrom_into = _stdlib.SelectorLoop.sock_recvfrom_into
    sock_sendto = _stdlib.SelectorLoop.sock_sendto
    sock_accept = _stdlib.SelectorLoop.sock_accept
    _sock_recv = _stdlib.SelectorLoop._sock_recv
    _sock_recv_into = _stdlib.SelectorLoop._sock_recv_into
    _sock_sendall = _stdlib.SelectorLoop._sock_sendall
    _sock_read_done = _stdlib.SelectorLoop._sock_read_done
    _sock_write_done = _stdlib.SelectorLoop._sock_write_done
    _sock_recvfrom = _stdlib.SelectorLoop._sock_recvfrom
    _sock_recvfrom_into = _stdlib.SelectorLoop._sock_recvfrom_into
    _sock_sendto = _stdlib.SelectorLoop._sock_sendto
    _sock_connect = _stdlib.SelectorLoop._sock_connect
    _sock_connect_cb = _stdlib.SelectorLoop._sock_connect_cb
    _sock_accept = _stdlib.SelectorLoop._sock_accept

    def __init__(self, *, enable_wakeup: bool = True, timing: bool | None = None) -> None:
        try:
            super().__init__()
        except BaseException:
            self._closed = True
            self._dispose()
            raise
        # asyncio's own transports register themselves here.
        self._transports: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        _open[id(self)] = self
        if os.environ.get("MGLOOP_MONITOR"):
            from .observe import monitor

            monitor.of_environment()

    def run_forever(self) -> None:
        """Run until stop() is called; as asyncio.loop.run_forever."""
        watchdog = None
        if os.environ.get("MGLOOP_WATCHDOG"):
            from .observe.watchdog import of_environment

            watchdog = of_environment()
        if watchdog is None:
            super().run_forever()
            return
        with watchdog.watching(self):
            super().run_forever()

    def close(self) -> None:
        """Close the loop; as asyncio.loop.close. It must not be running."""
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self.is_closed() or (posted := self._begin_close()) is None:
            return
        if self._signal_handlers and _stdlib.is_finalizing():
            warnings.warn(
                f"Closing the loop {self!r} on interpreter shutdown stage, "
                "skipping signal handlers removal",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self._signal_handlers.clear()
        # Each step is taken even if one before has failed: there is no second close(). What was
        # posted may add a signal handler.
        try:
            self._run_posted(posted)
        finally:
            try:
                self._close_signals()
            finally:
                try:
                    super().close()
                finally:
                    self._dispose()

    def stats(self) -> LoopStats:
        """What the loop has done since it was made; LoopStats says what its numbers are.

        From any thread, of a closed loop too. Two of them make an account of the time between:
        later.delta(earlier).
        """
        return stats.make(self._counted())

    def callback_times(self) -> dict[str, TimeSpent]:
        """Where the time has gone, by name: of a task's coroutine, of a callback, or of the class
        of a protocol ("turns of ..."): when data came for it.

        Empty but for a loop that was made with timing. From any thread. A thousand names are told
        apart, what comes after these is "others".
        """
        return stats.by_name(self._spent())

    # ------------------------------------------------------------ transports ----

    def _make_socket_transport(
        self, sock: socket.socket, protocol: Any, waiter: Any = None, *,
        extra: Any = None, server: Any = None, context: contextvars.Context | None = None,
    ) -> Any:  # fmt: skip
        self._ensure_fd_no_transport(sock)
        if _stdlib.overrides(sock, "recv", "recv_into", "send", "sendmsg"):
            return self._make_asyncios_transport(
                _stdlib.SelectorSocketTransport, sock, protocol, waiter, extra, server, context
            )
        return Stream(self, sock, protocol, waiter, extra, server, context)

    async def _create_connection_transport(self, sock: Any, *args: Any, **options: Any) -> Any:
        # asyncio closes a socket that comes to nothing, since 3.14.8 (gh-153133). This one is the
        # transport's that has it already.
        if sock.fileno() >= 0:
            self._ensure_fd_no_transport(sock)
        base: Any = super()
        return await base._create_connection_transport(sock, *args, **options)

    def _make_asyncios_transport(self, kind: Any, *args: Any) -> Any:
        """Make one of asyncio's own transports, which call the methods of the socket's class."""
        context = args[-1]
        options = {} if context is None else {"context": context}
        self._share_descriptors(self._transports)
        return kind(self, *args[:-1], **options)

    def _make_datagram_transport(
        self, sock: socket.socket, protocol: Any, address: Any = None, waiter: Any = None,
        extra: Any = None,
    ) -> Any:  # fmt: skip
        self._ensure_fd_no_transport(sock)
        if _stdlib.overrides(sock, "recvfrom", "send", "sendto"):
            return self._make_asyncios_transport(
                _stdlib.SelectorDatagramTransport, sock, protocol, address, waiter, extra, None
            )
        return Datagram(self, sock, protocol, address, waiter, extra)

    def _make_read_pipe_transport(
        self, pipe: Any, protocol: Any, waiter: Any = None, extra: Any = None
    ) -> Any:
        return ReadPipe(self, pipe, protocol, waiter, extra)

    def _make_write_pipe_transport(
        self, pipe: Any, protocol: Any, waiter: Any = None, extra: Any = None
    ) -> Any:
        return WritePipe(self, pipe, protocol, waiter, extra)
