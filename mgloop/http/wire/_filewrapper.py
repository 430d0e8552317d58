# SPDX-License-Identifier: GPL-2.0-only
"""wsgi.file_wrapper: a file that a WSGI application returns as its response.

If the file is a regular file of the operating system, the loop sends it by sendfile() and the bytes
do not pass through the process. Otherwise the object is an ordinary iterable of blocks.

The loop gets a duplicate of the descriptor. The application's thread can therefore close its file
at once, and does not wait for the client.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from typing import Any

#: Bytes in a block, unless the application chooses another size.
_BLOCK = 64 << 10
_PLAIN = (io.BufferedReader, io.BufferedRandom, io.FileIO)


class FileWrapper:
    """The blocks of a file-like object, as PEP 3333 defines them.

    filelike: an object with read().
    block_size: bytes in a block, if the file is not sent by sendfile().
    """

    def __init__(self, filelike: Any, block_size: int = _BLOCK) -> None:
        self.filelike = filelike
        self.block_size = block_size
        if hasattr(filelike, "close"):
            self.close = filelike.close

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        block: bytes = self.filelike.read(self.block_size)
        if block:
            return block
        raise StopIteration


def plain_file(wrapper: FileWrapper) -> tuple[io.FileIO, int, int] | None:
    """Return (file, position, size) of the regular file in `wrapper`, or None.

    The result is None if read() may return other bytes than the descriptor contains: the fileno()
    of a GzipFile, for example, is that of the compressed file. The caller has to close `file`,
    which is a duplicate.
    """
    try:
        # A NamedTemporaryFile, or a File of Django, has the read() of the file inside it.
        read = wrapper.filelike.read
        file = getattr(read, "__wrapped__", read).__self__
        if type(file) not in _PLAIN or type(getattr(file, "raw", file)) is not io.FileIO:
            return None
        position, status = file.tell(), os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        return _duplicate(file.fileno()), position, status.st_size
    except (AttributeError, OSError, ValueError):  # a closed file, or no more descriptors
        return None


def _duplicate(descriptor: int) -> io.FileIO:
    duplicate = os.dup(descriptor)
    try:
        return io.FileIO(duplicate)
    except BaseException:  # no memory
        os.close(duplicate)
        raise
