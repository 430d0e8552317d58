# SPDX-License-Identifier: GPL-2.0-only
"""mgloop.Loop, which combines the native core with asyncio.BaseEventLoop.

Code that runs per callback or per packet is native and comes from SockCore and its base classes.
Code that runs per connection or per loop is that of BaseEventLoop, so its semantics are those of
the running CPython version. It calls hooks that it defines for subclasses. This module implements
the hooks.
"""

from __future__ import annotations

import asyncio
import socket
import warnings
import weakref

from . import _stdlib
from ._sock import SockCore
from .mixins.executor import ExecutorMixin
from .mixins.process import ProcessMixin
from .mixins.resolve import ResolveMixin
from .mixins.sendfile import SendfileMixin
from .mixins.server import ServerMixin
from .mixins.signals import SignalsMixin
from .mixins.tls import TlsMixin
from .mixins.unix import UnixMixin
from .transports._datagram import Datagram
from .transports._pipe import ReadPipe, WritePipe
from .transports._stream import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    import contextvars
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    from .stats import LoopStats, TimeSpent

    class _LoopObserver(Protocol):
        """An object that is informed of the loops of this process."""

        def created(self, loop: Loop) -> None:
            """Handle a new loop."""

        def running(self, loop: Loop) -> AbstractContextManager[Any] | None:
            """Return a context manager that stays entered while `loop` runs, or None."""


# All open loops, for the monitor.
_open: weakref.WeakValueDictionary[int, Loop] = weakref.WeakValueDictionary()


#: The observer of all loops. mgloop/__init__.py sets it, because the modules of observe/ need this
#: one, which therefore cannot import them.
observer: _LoopObserver | None = None


def open_loops() -> list[Loop]:
    """Return the open loops of this process, oldest first. Thread-safe."""
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
    """An asyncio event loop on top of Mongoose's poll loop.

    enable_wakeup: whether other threads can wake up the loop. If it is False,
    call_soon_threadsafe() and run_in_executor() raise RuntimeError, and the loop uses two
    descriptors less.

    timing: whether stats() includes timing, for which the loop reads the clock for each callback.
    None: according to the environment variable MGLOOP_TIMING, by default no timing.
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
        if observer is not None:
            observer.created(self)

    def run_forever(self) -> None:
        """Run until stop() is called; as asyncio.loop.run_forever."""
        watching = None if observer is None else observer.running(self)
        if watching is None:
            super().run_forever()
            return
        with watching:
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
        # Each step runs even if an earlier one failed, because close() cannot be repeated. Signal
        # handlers are removed after the posted callbacks, which may add one.
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
        """Return the counters of the loop since its creation; see LoopStats.

        Thread-safe, and usable after close(). later.delta(earlier) returns the counters of the time
        between two snapshots.
        """
        from . import stats  # imported on first use, because its dataclasses take milliseconds

        return stats.make(self)

    def callback_times(self) -> dict[str, TimeSpent]:
        """Return the time spent in callbacks, by name.

        The name is that of a task's coroutine, of a callback, or "turns of ..." with the class of a
        protocol whose transport had events. Empty for a loop without timing. Thread-safe. After a
        thousand names, all others are counted as "others".
        """
        from . import stats

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
        # Since 3.14.8 (gh-153133) asyncio closes the socket if this fails. Check for an existing
        # transport first, which would lose its socket.
        if sock.fileno() >= 0:
            self._ensure_fd_no_transport(sock)
        base: Any = super()
        return await base._create_connection_transport(sock, *args, **options)

    def _make_asyncios_transport(self, kind: Any, *args: Any) -> Any:
        """Create one of asyncio's own transports, which call the methods of the socket's class."""
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
