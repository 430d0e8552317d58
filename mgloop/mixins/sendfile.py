# SPDX-License-Identifier: GPL-2.0-only
"""sendfile(), with the system call or, for TLS, by reading the file and writing to the transport.

Because a disk may be slow, asyncio's fallback reads each 16 KiB in a thread. The two thread
switches per TLS record cost more than its encryption. This module reads data that is in the page
cache without a thread. RWF_NOWAIT makes the kernel report whether it is. Other data is read in a
thread.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat

from .. import _stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Bytes per read, which are also the memory that a slow peer takes in addition to its transport's
#: buffer. For 1 MiB over TLS with aiohttp, 16 KiB takes 1.5 to 1.7 times the CPU time, and 256 KiB
#: saves nothing.
BLOCK = 64 * 1024
#: Bytes of the first read, as in asyncio. The size grows as long as the peer receives everything
#: immediately.
FIRST = 16 * 1024


class SendfileMixin:
    """The hooks that asyncio.loop.sendfile() and sock_sendfile() call."""

    _sock_sendfile_native = _stdlib.UnixLoop._sock_sendfile_native
    _sock_sendfile_native_impl = _stdlib.UnixLoop._sock_sendfile_native_impl
    _sock_sendfile_update_filepos = _stdlib.UnixLoop._sock_sendfile_update_filepos

    async def _sendfile_native(self, transp: Any, file: Any, offset: int, count: Any) -> int:
        """Send a file with os.sendfile() while the transport does not use its socket."""
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
                loop._count("bytes_sent", sent)
                return sent
            finally:
                transp._take_back()
        finally:
            transp._reset_empty_waiter()
            if resume_reading:
                transp.resume_reading()

    async def _sendfile_fallback(self, transp: Any, file: Any, offset: int, count: Any) -> int:
        """Send a file with transp.write(); as asyncio's method, except for reading the file."""
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
                view = buffer[: min(size, count - sent) if count else size]
                got = None if start is None else read_from_page_cache(file, view, start + sent)
                if got is None:
                    if start is not None:
                        file.seek(start + sent)
                    got = await loop.run_in_executor(None, file.readinto, view)
                else:
                    await asyncio.sleep(0)  # let other callbacks run during a large file
                if not got:
                    break
                if not strict:
                    await protocol.drain()
                transp.write(view[:got])
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
                file.seek(start + got)  # the position to which readinto() would have advanced
            await protocol.restore()


def start_in_page_cache(file: Any) -> int | None:
    """Return the position of a regular file, or None if the page cache must not be read directly.

    That is the case for other files, and for objects that may transform or buffer the data: only
    the standard library's own readers are known to return the bytes of the file.
    """
    raw = file.raw if type(file) is io.BufferedReader else file
    if type(raw) is not io.FileIO or not file.readable():
        return None
    if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        return None
    return int(file.tell())


def read_from_page_cache(file: Any, buffer: memoryview, offset: int) -> int | None:
    """Read from the page cache; return the number of bytes, or 0 at the end of the file.

    Returns None if the read would block, or if the file system does not support RWF_NOWAIT.
    """
    try:
        return os.preadv(file.fileno(), [buffer], offset, os.RWF_NOWAIT)
    except OSError:
        return None
