# SPDX-License-Identifier: GPL-2.0-only
"""Subprocesses, which subprocess.Popen starts and the loop awaits through pidfds.

A pidfd becomes readable when its process exits. Neither a SIGCHLD handler nor a thread per child is
needed, and children of other code are not reaped. If pidfd_open() fails (a kernel before 5.3, a
sandbox, too many open files), a thread waits instead.

The module is Python because it runs once per process, and starting a process takes far longer.

Lifetime: the loop owns the pidfd of each child that it waits for, and closes it when the child
exits or the loop is closed. The children belong to their transports.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from asyncio.log import logger

from .. import _stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Seconds to wait for a child after SIGKILL. It takes a few milliseconds.
KILLED_IS_DEAD_WITHIN = 1.0


class ProcessMixin:
    """The hook by which BaseEventLoop starts subprocesses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pidfds: set[int] = set()

    def close(self) -> None:
        """Stop waiting for children that are still running."""
        loop: Any = self
        while self._pidfds:
            pidfd = self._pidfds.pop()
            loop._remove_reader(pidfd)
            os.close(pidfd)
        super().close()  # type: ignore[misc]

    async def _make_subprocess_transport(
        self,
        protocol: Any,
        args: Any,
        shell: bool,
        stdin: Any,
        stdout: Any,
        stderr: Any,
        bufsize: int,
        extra: Any = None,
        **kwargs: Any,
    ) -> Any:
        loop: Any = self
        waiter = loop.create_future()
        transport = _stdlib.UnixSubprocessTransport(
            loop, protocol, args, shell, stdin, stdout, stderr, bufsize,
            waiter=waiter, extra=extra, **kwargs,
        )  # fmt: skip
        try:
            self._watch_child(transport)
        except BaseException:
            transport.close()
            # close() has killed the child. Reap it here; Popen does so only if the kill failed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                transport._process_exited(
                    transport.get_extra_info("subprocess").wait(KILLED_IS_DEAD_WITHIN)
                )
            raise
        try:
            await waiter
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException:
            transport.close()
            if waiter.cancelled():
                await transport._wait()
            else:
                await self._end_unconnected(transport)
            raise
        return transport

    async def _end_unconnected(self, transport: Any) -> None:
        """Wait for the end of a closed transport whose pipes could not all be connected."""
        loop: Any = self
        process = transport.get_extra_info("subprocess")
        _stdlib.forget_unconnected_pipes(transport)
        await transport._wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                loop._remove_reader(stream.fileno())
                loop._remove_writer(stream.fileno())
                stream.close()

    def _watch_child(self, transport: Any) -> None:
        """Call transport._process_exited() when the child exits."""
        loop: Any = self
        loop._count("children")
        pid = transport.get_pid()
        pidfd = -1
        try:
            pidfd = os.pidfd_open(pid)
            loop._add_reader(pidfd, self._child_exited, pidfd, pid, transport)
        except BaseException as exc:
            if pidfd >= 0:
                os.close(pidfd)
            if not isinstance(exc, OSError):
                raise
            if not loop._wakeup_enabled:
                raise RuntimeError(
                    "waiting for a child process without a pidfd requires a loop that other "
                    "threads can wake up; this one was created with enable_wakeup=False: create it "
                    "with mgloop.new_event_loop()"
                ) from exc
            threading.Thread(
                target=_wait_in_thread, args=(loop, pid, transport), name=f"waitpid-{pid}",
                daemon=True,
            ).start()  # fmt: skip
        else:
            self._pidfds.add(pidfd)

    def _child_exited(self, pidfd: int, pid: int, transport: Any) -> None:
        loop: Any = self
        loop._remove_reader(pidfd)
        self._pidfds.discard(pidfd)
        os.close(pidfd)
        _report(pid, transport)


def _report(pid: int, transport: Any) -> None:
    transport._process_exited(_reap(pid, transport))


def _reap(pid: int, transport: Any) -> int:
    """Reap a child that has exited and return its exit code, or 255 (as asyncio) if unknown."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        # The child has already been reaped. Up to Python 3.12, asyncio's send_signal() can do that
        # through Popen.poll().
        code: int | None = transport.get_extra_info("subprocess").returncode
        if code is not None:
            return code
        logger.warning(
            "child process pid %d exit status already read: will report returncode 255", pid
        )
        return 255
    return os.waitstatus_to_exitcode(status)


def _wait_in_thread(loop: Any, pid: int, transport: Any) -> None:
    """Wait for a child to exit, and let the loop's thread reap it.

    If this thread reaped it, the PID could be reused while the loop's thread sends a signal to it.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        loop.call_soon_threadsafe(_report, pid, transport)
    except RuntimeError:
        _reap(pid, transport)
        logger.warning("Loop %r that handles pid %d is closed", loop, pid)
