# SPDX-License-Identifier: GPL-2.0-only
"""UNIX sockets: connections and servers by path, and the removal of a server's socket file.

Per connection and per server, hence asyncio's own code of the running version; the transports it
makes are the native ones.
"""

from __future__ import annotations

import os
import socket
from asyncio.log import logger
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

    def _remove_socket_file(self, sock: socket.socket) -> None:
        """Unlink the file of a server's socket, unless somebody has put another in its place."""
        inode = self._unix_server_sockets.pop(sock, None)
        if inode is None:
            return
        path = sock.getsockname()
        try:
            if os.stat(path).st_ino == inode:
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.error("Unable to clean up listening UNIX socket %r: %r", path, error)
