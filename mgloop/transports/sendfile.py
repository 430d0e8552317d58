# SPDX-License-Identifier: GPL-2.0-only
"""Sending files by os.sendfile(): the step that loop.sendfile() and loop.sock_sendfile() repeat.

asyncio's own code checks the arguments, decides whether the system call can be used and falls back
to reading and writing. Its step takes the socket out of the poll loop and puts it back for each
piece that the kernel accepts, with a new callback each time. Here the interest stays registered
until the transfer is over, and the state is in an object instead of in the callback's arguments.

Python, because a step moves one or two megabytes: the kernel's share of it is fifty times ours.
Everything runs in the loop's thread; os.sendfile() releases the GIL. A transfer is held by the
poll loop while it waits, and by nothing once its future is done.
"""

from __future__ import annotations

import errno
import inspect
import os
from asyncio import SendfileNotAvailableError
from typing import Any

from .. import _stdlib

# Bytes per step. A reader on another processor that keeps up would otherwise let one system call
# send the whole file, and the loop would stand still for as long.
MAX_PIECE = 4 * 1024 * 1024

# Up to 3.13 a transfer that sent nothing leaves the file's position alone.
_MOVES_ALWAYS = (
    "total_sent" not in inspect.signature(_stdlib.UnixLoop._sock_sendfile_update_filepos).parameters
)


class Transfer:
    """Part of a file on its way into a socket; `future` gets the number of bytes sent."""

    __slots__ = ("count", "file", "future", "loop", "offset", "registered", "sent", "size", "sock")

    def __init__(
        self, loop: Any, future: Any, registered: int | None, sock: Any, file: int, offset: int,
        count: int | None, size: int, sent: int,
    ) -> None:  # fmt: skip
        self.loop = loop
        self.future = future
        self.registered = registered
        self.sock = sock
        self.file = file
        self.offset = offset
        self.count = count
        self.size = size
        self.sent = sent

    def step(self) -> None:
        """Send a piece; done once everything is sent, the file ends, or sending fails."""
        if self.future.cancelled():
            self.release()
            return
        left = self.count - self.sent if self.count else self.size
        if left <= 0:
            self.finish()
            return
        try:
            sent = os.sendfile(self.sock.fileno(), self.file, self.offset, min(left, MAX_PIECE))
        except (BlockingIOError, InterruptedError):
            self.wait()
        except OSError as exc:
            self.fail(exc)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.release()
            self.future.set_exception(exc)
        else:
            self.offset += sent
            self.sent += sent
            if sent == 0 or self.sent == self.count:
                self.finish()
            else:
                self.wait()

    def wait(self) -> None:
        """Go on when the socket takes more."""
        if self.registered is None:
            fd = self.sock.fileno()
            self.loop.add_writer(fd, self.step)
            self.registered = fd
            self.future.add_done_callback(self.on_done)

    def on_done(self, future: Any) -> None:
        if future.cancelled():
            self.release()

    def finish(self) -> None:
        self.release()
        self.future.set_result(self.sent)

    def fail(self, exc: OSError) -> None:
        if self.sent == 0:
            # Not a file that can be mapped, or not a socket of the right kind: asyncio falls back.
            self.release()
            self.future.set_exception(SendfileNotAvailableError("os.sendfile call failed"))
            return
        if exc.errno == errno.ENOTCONN and type(exc) is not ConnectionError:
            # The connection was closed half way; asyncio says so by the general class.
            lost = ConnectionError("socket is not connected", errno.ENOTCONN)
            lost.__cause__ = exc
            exc = lost
        self.release()
        self.future.set_exception(exc)

    def release(self) -> None:
        """Leave the poll loop, and the file where the transfer has come to."""
        if self.registered is not None:
            if self.sock.fileno() == self.registered:
                self.loop.remove_writer(self.registered)
            self.registered = None
        if self.sent > 0 or _MOVES_ALWAYS:
            os.lseek(self.file, self.offset, os.SEEK_SET)


def sock_sendfile_native_impl(
    self: Any, fut: Any, registered_fd: int | None, sock: Any, fileno: int, offset: int,
    count: int | None, blocksize: int, total_sent: int,
) -> None:  # fmt: skip
    """In place of the method of the same name of asyncio's loops, with the same arguments."""
    Transfer(self, fut, registered_fd, sock, fileno, offset, count, blocksize, total_sent).step()
