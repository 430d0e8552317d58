# SPDX-License-Identifier: GPL-2.0-only
"""sendfile(), by the system call and where bytes have to pass through the process, as TLS wants.

asyncio's fall-back reads 16 KiB at a time, each in a thread, because a disk may be slow: two
switches of threads per record, which cost more than encrypting it. What the page cache holds can be
read without waiting, and the kernel knows whether it does (RWF_NOWAIT). A thread is for the rest.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat
from typing import Any

from .. import _stdlib

#: Bytes read at a time, and so what a slow peer costs beyond its transport's buffer, which is as
#: large. 1 MiB over TLS by aiohttp: with 16 KiB 1.5 to 1.7 times the CPU, with 256 KiB no less.
BLOCK = 64 * 1024
#: As much as asyncio reads, to begin with; more as long as the peer takes it all at once.
FIRST = 16 * 1024


class SendfileMixin:
    """What asyncio.loop.sendfile() and sock_sendfile() ask of a loop."""

    _sock_sendfile_native = _stdlib.UnixLoop._sock_sendfile_native
    _sock_sendfile_native_impl = _stdlib.UnixLoop._sock_sendfile_native_impl
    _sock_sendfile_update_filepos = _stdlib.UnixLoop._sock_sendfile_update_filepos

    async def _sendfile_native(self, transp: Any, file: Any, offset: int, count: Any) -> int:
        """Send a file by os.sendfile() while the transport keeps its hands off the socket."""
        loop: Any = self
        if type(transp) is _stdlib.SelectorSocketTransport:
            return await _stdlib.SelectorLoop._sendfile_native(loop, transp, file, offset, count)  # type: ignore[no-any-return]
        waiter = transp._make_empty_waiter()
        resume_reading = transp.is_reading()
        transp.pause_reading()
        try:
            # Inside the try, because this can be cancelled (gh-157025).
            await waiter
            sock = transp._lend()
            try:
                sent: int = await loop.sock_sendfile(sock, file, offset, count, fallback=False)
                loop._count_sent(sent)
                return sent
            finally:
                transp._take_back()
        finally:
            transp._reset_empty_waiter()
            if resume_reading:
                transp.resume_reading()

    async def _sendfile_fallback(self, transp: Any, file: Any, offset: int, count: Any) -> int:
        """Send a file by transp.write(): asyncio's, but for how the file is read."""
        loop: Any = self
        strict = _stdlib.SENDFILE_IS_STRICT
        if hasattr(file, "seek") if strict else offset:
            file.seek(offset)
        buffer = memoryview(bytearray(min(count, BLOCK) if count else BLOCK))
        size = FIRST
        start = start_in_page_cache(file)
        sent, got = 0, None
        protocol = _stdlib.SendfileFallbackProtocol(transp)
        try:
            while not count or sent < count:
                room = buffer[: min(size, count - sent) if count else size]
                got = None if start is None else read_at_once(file, room, start + sent)
                if got is None:
                    if start is not None:
                        file.seek(start + sent)
                    got = await loop.run_in_executor(None, file.readinto, room)
                else:
                    await asyncio.sleep(0)  # a file is long, and others want to be served
                if not got:
                    break
                if not strict:
                    await protocol.drain()
                transp.write(room[:got])
                if strict:
                    await protocol.drain()
                sent += got
                if not transp.get_write_buffer_size():
                    size = min(2 * size, BLOCK)
            return sent
        finally:
            if sent > 0 and hasattr(file, "seek"):
                file.seek(offset + sent)
            elif got and start is not None:
                file.seek(start + got)  # as far as readinto() would have moved it
            await protocol.restore()


def start_in_page_cache(file: Any) -> int | None:
    """Where in a regular file `file` stands; None if it is none, or may have bytes of its own.

    Only the standard library's own readers are known to give what is in the file.
    """
    raw = file.raw if type(file) is io.BufferedReader else file
    if type(raw) is not io.FileIO or not file.readable():
        return None
    if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        return None
    return int(file.tell())


def read_at_once(file: Any, room: memoryview, at: int) -> int | None:
    """Read from the page cache. Returns how much, 0 at the end, None if that would have to wait,
    or if this file system does not tell."""
    try:
        return os.preadv(file.fileno(), [room], at, os.RWF_NOWAIT)
    except OSError:
        return None
