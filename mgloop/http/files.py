# SPDX-License-Identifier: GPL-2.0-only
"""Files as bodies of responses: ASGI's extensions pathsend and zerocopysend.

The loop's sendfile() does the work, so the bytes do not pass through the process.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from typing import Any, BinaryIO


def whole(message: dict[str, Any]) -> tuple[BinaryIO, int, int, bool]:
    """(file, offset, count, more) of http.response.pathsend; OSError if it cannot be opened."""
    file = open(message["path"], "rb")  # noqa: SIM115 - send() closes it
    return file, 0, os.fstat(file.fileno()).st_size, False


def part(message: dict[str, Any]) -> tuple[BinaryIO, int, int, bool]:
    """(file, offset, count, more) of http.response.zerocopysend."""
    file = message["file"]
    if isinstance(file, int):
        file = open(file, "rb", closefd=False)  # noqa: SIM115 - of whoever has the descriptor
    offset = message.get("offset")
    if offset is None:
        offset = file.tell()
    size = os.fstat(file.fileno()).st_size
    count = message.get("count")
    count = max(0, size - offset) if count is None else count
    return file, offset, count, bool(message.get("more_body", False))


def send(
    request: Any, file: BinaryIO, offset: int, count: int, more: bool, close: bool
) -> Coroutine[Any, Any, None]:
    """Send `count` bytes of the file from `offset` as (a piece of) the body."""
    return _send(request, file, offset, count, more, close)


async def _send(
    request: Any, file: BinaryIO, offset: int, count: int, more: bool, close: bool
) -> None:
    try:
        if request.begin_file(count, more):
            loop = request.loop
            sent = await loop.sendfile(request.transport, file, offset, count)
            if sent != count:
                raise RuntimeError(f"the file ended {count - sent} bytes early")
        request.end_file(count, more)
    finally:
        if close:
            file.close()
