# SPDX-License-Identifier: GPL-2.0-only
"""Files as response bodies: the ASGI extensions pathsend and zerocopysend.

The loop's sendfile() sends the file, so the bytes do not pass through the process. sendfile() has
no timeout and reports no progress, so the file is sent in chunks, and the write timeout applies to
each chunk. The size of a chunk adapts to the speed of the client, because the timeout requires a
client to read at least one whole chunk in that time.
"""

from __future__ import annotations

import asyncio
import errno
import operator
import os
import stat
from collections.abc import Coroutine
from typing import Any, BinaryIO

from . import _peer

_LEAST, _MOST = 64 << 10, 1 << 20  # bytes in a chunk
# Seconds. A chunk that takes longer than _SLOW is followed by a smaller one, and a chunk that takes
# less than _FAST by a larger one.
_SLOW, _FAST = 5.0, 0.5
# During a shutdown: the interval between checks of the client's progress, in seconds, and how many
# consecutive checks may find no progress. One chunk can take longer than that.
_CHECK_INTERVAL, _CHECKS = 1.0, 2


def whole(message: dict[str, Any]) -> tuple[BinaryIO, int, int, bool]:
    """Return (file, offset, count, more) of http.response.pathsend.

    Raises OSError if the path cannot be opened or does not name a regular file.
    """
    path = message["path"]
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - send() closes it
    try:
        return file, 0, _size(file, path), False
    except BaseException:
        file.close()
        raise


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking on the writer of a FIFO or the holder of a lease."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _size(file: BinaryIO, name: object) -> int:
    """Return the size of a regular file in bytes; raise OSError for anything else.

    A FIFO, a socket or a device has no size to announce, and reading it can take forever.
    """
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", name)
    return status.st_size


def part(message: dict[str, Any]) -> tuple[BinaryIO, int, int, bool]:
    """Return (file, offset, count, more) of http.response.zerocopysend.

    Raises OSError if the file is not a regular one.
    """
    file = message["file"]
    if isinstance(file, int):
        file = open(file, "rb", closefd=False)  # noqa: SIM115 - the application owns the descriptor
    size = _size(file, getattr(file, "name", None))
    offset = message.get("offset")
    if offset is None:
        offset = file.tell()
    count = message.get("count")
    count = max(0, size - offset) if count is None else count
    # Plain ints: the comparison operators of a subclass cannot be trusted.
    offset, count = operator.index(offset), operator.index(count)
    if offset < 0 or count < 0:
        raise RuntimeError(f"File offset {offset} and count {count} must not be negative.")
    return file, offset, count, bool(message.get("more_body", False))


def send(
    request: Any, kind: str, file: BinaryIO, offset: int, count: int, more: bool, close: bool
) -> Coroutine[Any, Any, None]:
    """Send `count` bytes of the file from `offset` as the response body, or as a part of it.

    kind: type of the ASGI message. more: whether more of the body follows. close: whether to close
    the file at the end.
    """
    return _send(request, kind, file, offset, count, more, close)


async def _send(
    request: Any, kind: str, file: BinaryIO, offset: int, count: int, more: bool, close: bool
) -> None:
    try:
        if request.begin_file(kind, count, more) and not await _send_pieces(
            request, file, offset, count
        ):
            return
        request.end_file(count, more)
    finally:
        if close:
            file.close()


async def _send_pieces(request: Any, file: BinaryIO, offset: int, count: int) -> bool:
    """Send the file; return False if the client has disconnected before its end."""
    loop, transport, limit = request.loop, request.transport, request.write_timeout
    end, size = offset + count, _LEAST
    began = loop.time()
    # Leave the data_received() call that delivered the request. Data that arrived with the request
    # has not been delivered yet, and the protocol that asyncio installs to send files over TLS
    # accepts neither data nor EOF.
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(limit) as file_timeout:
            request.file_timeout = file_timeout
            if request.closing:
                watch(request)
            while offset < end:
                if transport.is_closing():
                    raise ConnectionError
                sent = await loop.sendfile(transport, file, offset, min(size, end - offset))
                if sent == 0:
                    raise RuntimeError(f"the file ended {end - offset} bytes early")
                offset += sent
                now = loop.time()
                if now - began < _FAST:
                    size = min(size * 2, _MOST)
                elif now - began > _SLOW:
                    size = max(size // 2, _LEAST)
                began = now
                if limit and offset < end:
                    file_timeout.reschedule(now + limit)
    except (ConnectionError, TimeoutError):
        request.client_left()
        return False
    finally:
        request.file_timeout = None
    return True


def watch(request: Any) -> None:
    """Disconnect a client that reads nothing of its file earlier than the timeout would."""
    _check(request, request.file_timeout, None, 0)


def _check(request: Any, file_timeout: asyncio.Timeout, before: int | None, idle: int) -> None:
    if request.file_timeout is not file_timeout:
        return
    taken = _peer.taken(request.transport)
    idle = idle + 1 if taken == before else 0
    if idle >= _CHECKS:
        file_timeout.reschedule(request.loop.time())
    else:
        request.loop.call_later(_CHECK_INTERVAL, _check, request, file_timeout, taken, idle)
