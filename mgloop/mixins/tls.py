# SPDX-License-Identifier: GPL-2.0-only
"""The loop's methods for TLS, which put the native protocol on top of a stream transport.

They are Python because they run once per connection.
"""

from __future__ import annotations

import socket
import ssl

from ..tls._protocol import SSLProtocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    import contextvars
    from typing import Any


class TlsMixin:
    """The hook with which BaseEventLoop creates TLS transports, and start_tls()."""

    def _make_ssl_transport(
        self, rawsock: socket.socket, protocol: Any, sslcontext: Any, waiter: Any = None, *,
        server_side: bool = False, server_hostname: str | None = None, extra: Any = None,
        server: Any = None, ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None, context: contextvars.Context | None = None,
    ) -> Any:  # fmt: skip
        loop: Any = self
        loop._ensure_fd_no_transport(rawsock)
        ssl_protocol = SSLProtocol(
            loop, protocol, sslcontext, waiter, server_side, server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )  # fmt: skip
        loop._make_socket_transport(
            rawsock, ssl_protocol, extra=extra, server=server, context=context
        )
        return ssl_protocol._app_transport

    async def start_tls(
        self, transport: Any, protocol: Any, sslcontext: Any, *, server_side: bool = False,
        server_hostname: str | None = None, ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Upgrade a connection to TLS; as asyncio.loop.start_tls.

        The method is overridden because asyncio's uses asyncio's own protocol class. Data that a
        StreamReader has already buffered is part of the handshake and is passed to the protocol,
        on both sides.
        """
        if not isinstance(sslcontext, ssl.SSLContext):
            raise TypeError(
                f"sslcontext is expected to be an instance of ssl.SSLContext, got {sslcontext!r}"
            )
        if not getattr(transport, "_start_tls_compatible", False):
            raise TypeError(f"transport {transport!r} is not supported by start_tls()")
        loop: Any = self
        waiter = loop.create_future()
        ssl_protocol = SSLProtocol(
            loop, protocol, sslcontext, waiter, server_side, server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
            call_connection_made=False,
        )  # fmt: skip
        # No data may arrive before the protocol knows its transport.
        transport.pause_reading()
        early = getattr(getattr(protocol, "_stream_reader", None), "_buffer", None)
        if early:
            ssl_protocol._incoming.write(early)
            early.clear()
        transport.set_protocol(ssl_protocol)
        made = loop.call_soon(ssl_protocol.connection_made, transport)
        resumed = loop.call_soon(transport.resume_reading)
        try:
            await waiter
        except BaseException:
            transport.close()
            made.cancel()
            resumed.cancel()
            raise
        return ssl_protocol._app_transport
