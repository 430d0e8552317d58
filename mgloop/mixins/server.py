# SPDX-License-Identifier: GPL-2.0-only
"""The hooks that BaseEventLoop.create_server() and similar methods call.

They run once per server, and per connection only with TLS or in debug mode. transports/_listener
accepts all other connections in native code.
"""

from __future__ import annotations

import socket

from .. import _stdlib
from ..transports._listener import Listener

TYPE_CHECKING = False
if TYPE_CHECKING:
    import contextvars
    from typing import Any


class ServerMixin:
    """The hooks by which BaseEventLoop starts and stops listening."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listeners: dict[socket.socket, Listener] = {}

    def close(self) -> None:
        """Forget the listening sockets, which belong to their servers."""
        self._listeners.clear()
        super().close()  # type: ignore[misc]

    def _start_serving(
        self, protocol_factory: Any, sock: socket.socket, sslcontext: Any = None,
        server: Any = None, backlog: int = 100,
        ssl_handshake_timeout: float | None = _stdlib.SSL_HANDSHAKE_TIMEOUT,
        ssl_shutdown_timeout: float | None = _stdlib.SSL_SHUTDOWN_TIMEOUT,
        context: contextvars.Context | None = None,
    ) -> None:  # fmt: skip
        loop: Any = self
        self._listeners[sock] = Listener(
            loop, protocol_factory, sock, sslcontext, server, backlog, ssl_handshake_timeout,
            ssl_shutdown_timeout, context,
        )  # fmt: skip

    def _stop_serving(self, sock: socket.socket) -> None:
        loop: Any = self
        listener = self._listeners.pop(sock, None)
        if listener is not None:
            listener.stop()
        else:
            loop._remove_reader(sock)
        sock.close()

    async def _accept_connection(
        self, protocol_factory: Any, conn: socket.socket, peername: Any, sslcontext: Any,
        server: Any, ssl_handshake_timeout: float | None, ssl_shutdown_timeout: float | None,
    ) -> None:  # fmt: skip
        """Serve an accepted connection that the native listener leaves to Python.

        That is a TLS connection, or any connection in debug mode, in which failures are reported.
        """
        loop: Any = self
        protocol = transport = None
        extra = {"peername": peername}
        try:
            try:
                protocol = protocol_factory()
                waiter: Any = loop.create_future()
                if sslcontext:
                    transport = loop._make_ssl_transport(
                        conn, protocol, sslcontext, waiter, server_side=True, extra=extra,
                        server=server, ssl_handshake_timeout=ssl_handshake_timeout,
                        ssl_shutdown_timeout=ssl_shutdown_timeout,
                    )  # fmt: skip
                else:
                    transport = loop._make_socket_transport(
                        conn, protocol, waiter, extra=extra, server=server
                    )
            except BaseException:
                conn.close()
                raise
            try:
                await waiter
            except BaseException:
                transport.close()
                raise
            finally:
                waiter = None  # the exception in it would keep the protocol alive
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            if loop._debug:
                context = {
                    "message": "Error on transport creation for incoming connection",
                    "exception": exc,
                }
                if protocol is not None:
                    context["protocol"] = protocol
                if transport is not None:
                    context["transport"] = transport
                loop.call_exception_handler(context)
