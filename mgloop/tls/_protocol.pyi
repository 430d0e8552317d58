# SPDX-License-Identifier: GPL-2.0-only
import asyncio
import ssl
from asyncio.sslproto import SSLProtocol as _StdProtocol
from typing import Any, final

from ._transport import SSLTransport

# At run time this is not a subclass, but its `__class__` returns the base, so isinstance() is true.

@final
class SSLProtocol(_StdProtocol):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        app_protocol: asyncio.BaseProtocol,
        sslcontext: ssl.SSLContext | None,
        waiter: asyncio.Future[Any] | None,
        server_side: bool = False,
        server_hostname: str | None = None,
        call_connection_made: bool = True,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> None: ...
    @property
    def _incoming(self) -> ssl.MemoryBIO: ...
    def _get_app_transport(self) -> SSLTransport: ...
