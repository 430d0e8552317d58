# SPDX-License-Identifier: GPL-2.0-only
"""UNIX sockets: connections and servers by path, and the removal of a server's socket file.

Per connection and per server, hence asyncio's own code of the running version; the transports it
makes are the native ones. That its own functions make the calls matters by itself: tools that
forbid blocking calls (blockbuster) permit os.stat() and os.unlink() beneath these.
"""

from __future__ import annotations

import socket
from typing import Any

from .. import _stdlib


class UnixMixin:
    """create_unix_connection() and create_unix_server()."""

    create_unix_connection = _stdlib.UnixLoop.create_unix_connection
    create_unix_server = _stdlib.UnixLoop.create_unix_server

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Inode of each listening socket's file; filled by asyncio's code where cleanup_socket is
        # known (3.13).
        self._unix_server_sockets: dict[socket.socket, int] = {}


# Since 3.13: closes the socket, then removes its file.
if "_stop_serving" in vars(_stdlib.UnixLoop):
    UnixMixin._stop_serving = _stdlib.with_class(  # type: ignore[attr-defined]
        _stdlib.UnixLoop._stop_serving, UnixMixin
    )
