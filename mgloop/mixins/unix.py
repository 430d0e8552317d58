# SPDX-License-Identifier: GPL-2.0-only
"""UNIX sockets: connections and servers by path, and the removal of socket files.

The code runs once per connection or server, so it is asyncio's own code of the running version. It
creates native transports. Tools that forbid blocking calls (blockbuster) allow os.stat() and
os.unlink() only if these functions of asyncio call them.
"""

from __future__ import annotations

import socket

from .. import _stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class UnixMixin:
    """create_unix_connection() and create_unix_server()."""

    create_unix_connection = _stdlib.UnixLoop.create_unix_connection
    create_unix_server = _stdlib.UnixLoop.create_unix_server

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Inode of the file of each listening socket, which asyncio's code sets in versions that
        # have cleanup_socket (3.13).
        self._unix_server_sockets: dict[socket.socket, int] = {}


# Since 3.13, this closes the socket and then removes its file.
if "_stop_serving" in vars(_stdlib.UnixLoop):
    UnixMixin._stop_serving = _stdlib.with_class(  # type: ignore[attr-defined]
        _stdlib.UnixLoop._stop_serving, UnixMixin
    )
