# SPDX-License-Identifier: GPL-2.0-only
"""The watchdog: a thread that detects and reports code that blocks an event loop.

When a callback runs for longer than a threshold, the watchdog's thread captures the stack of the
loop's thread, and again each time the duration has doubled. When the loop continues, the watchdog
reports the stall once. This requires neither debug mode nor timing, and costs nothing while a loop
is not blocked: observe/stalls.h describes how stalls are detected.

Native code that holds the GIL, such as a C extension or a regular expression, also blocks the
watchdog's thread. If that code ends before the watchdog acquires the GIL, the report has no stack,
but the duration. The same applies without the GIL: the thread must be stopped to capture its stack,
and such code cannot be stopped.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import linecache
import logging
import math
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, TracebackType
from typing import Any, Self

from .._loop import LoopCore
from .._stdlib import has_gil
from ..loop import Loop
from ._stalls import StallDetector
from .environment import OncePerProcess
from .naming import coroutine_name

logger = logging.getLogger("mgloop.watchdog")

#: Checks per threshold. A stall is certainly detected if it lasts one check longer than that.
_CHECKS = 4
#: Seconds of waiting for the GIL after which native code must have held it. Python code releases it
#: within 5 ms on request.
_GIL_HELD = 0.05
#: Seconds after which a stall is reported although it continues, because it may never end.
_LONG = 10.0

#: A result of StallDetector.wait(): calls as (code, line, globals), the task, the handle's repr().
Seen = tuple[list[tuple[CodeType, int, dict[str, Any]]], asyncio.Task[Any] | None, str | None]


@dataclass(frozen=True)
class Sight:
    """The state of a blocked loop at one time.

    after: seconds since the stall began. stack: calls of the loop's thread, from the callback on,
    outermost call first. task: name and coroutine, if the callback is a step of a task. handle: the
    callback, for a loop with timing or in debug mode. doing: "Python code", "a system call", or
    "native code that keeps the GIL" (without a GIL, "native code that cannot be stopped").
    """

    after: float
    stack: traceback.StackSummary
    task: str | None
    handle: str | None
    doing: str

    def seen_before(self, before: Sight) -> bool:
        """Return whether only the time differs."""
        return dataclasses.replace(self, after=before.after) == before


@dataclass
class Stall:
    """A period during which a loop was blocked. str() returns the report.

    seconds: duration, until now if the loop is still blocked (not `over`). gil: seconds that the
    watchdog waited for the GIL or, without a GIL, for the thread to be stopped. sights: captured
    states; empty if the stall ended before one could be captured.
    """

    loop: Loop
    seconds: float = 0.0
    over: bool = False
    gil: float = 0.0
    sights: list[Sight] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.loop!r} was blocked for {self.seconds:.3f} s"]
        if not self.over:
            lines[0] = f"{self.loop!r} has been blocked for {self.seconds:.3f} s and still is"
        if self.gil >= _GIL_HELD:
            kept = "held the GIL" if has_gil() else "could not be stopped"
            lines[0] += f", of which native code {kept} for {self.gil:.3f} s"
        if not self.sights:
            lines.append("  (it ended before its stack could be captured)")
        before = None
        for sight in self.sights:
            same, before = before is not None and sight.seen_before(before), sight
            if same:
                lines.append(f"  after {sight.after:.3f} s: unchanged")
                continue
            of = f" of {sight.task}" if sight.task else ""
            lines.append(f"  after {sight.after:.3f} s, in {sight.doing}{of}:")
            if sight.handle and not sight.task:  # a task describes itself better than its handle
                lines.append(f"    {sight.handle}")
            lines += [f"  {line}" for line in "".join(sight.stack.format()).splitlines()]
        return "\n".join(lines)


class Watchdog:
    """Report code that blocks a loop for longer than `threshold` seconds; a context manager.

    loops: the loops to watch; None for the loop that is running when the context is entered.
    callback: called with each Stall in the watchdog's thread; None logs it as a warning of
    "mgloop.watchdog". Raises ValueError if the threshold is not a positive, finite number, and
    RuntimeError if a loop already has a watchdog.
    """

    def __init__(
        self,
        threshold: float = 0.1,
        *,
        loops: Iterable[Loop] | None = None,
        callback: Callable[[Stall], object] | None = None,
    ) -> None:
        if not (threshold > 0 and math.isfinite(threshold)):
            raise ValueError(f"threshold must be a positive number of seconds, got {threshold!r}")
        self.threshold = threshold
        self._given = None if loops is None else list(loops)
        self._callback = _log if callback is None else callback
        self._detector = StallDetector(threshold, threshold / _CHECKS)
        self._thread: threading.Thread | None = None
        self._stalls: dict[Loop, Stall] = {}
        # When the watchdog last reported a loop, and how long it had waited for the GIL by then.
        self._gil_waits: weakref.WeakKeyDictionary[Loop, tuple[float, float]]
        self._gil_waits = weakref.WeakKeyDictionary()

    def start(self) -> None:
        """Start watching; as entering the context. Raises TypeError and RuntimeError."""
        loops: list[Any] = self._given or []
        if self._given is None:
            loops = [asyncio.get_running_loop()]
        for loop in loops:
            if not isinstance(loop, Loop):
                raise TypeError(f"{loop!r} is not an mgloop.Loop")
        if self._thread is not None:
            raise RuntimeError("watchdogs can only be started once")
        try:
            for loop in loops:
                self._detector.add(loop)
            thread = threading.Thread(target=self._run, name="mgloop watchdog", daemon=True)
            thread.start()
        except BaseException:
            self._detector.remove_all()
            raise
        self._thread = thread

    def stop(self) -> None:
        """Report stalls that are in progress, and stop watching. Further calls do nothing."""
        self._detector.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._detector.remove_all()

    @contextlib.contextmanager
    def watching(self, loop: Loop) -> Iterator[None]:
        """Also watch `loop` while the block lasts, unless it already has a watchdog."""
        with contextlib.suppress(RuntimeError):
            self._detector.add(loop)
        try:
            yield
        finally:
            self._detector.remove(loop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()

    # --- in the watchdog's thread ------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                state = self._detector.wait()
                if state is None:
                    break
                self._handle_state(*state)
            except Exception:  # raised by a repr() or an attribute of the user
                logger.exception("Watchdog failed to inspect an event loop")
            state = None  # drop the reference to the loop's task
        for stall in self._stalls.values():
            self._report(stall)
        self._stalls.clear()

    def _handle_state(
        self, loop: LoopCore, stalled: bool, seconds: float, delay: float, seen: Seen | None
    ) -> None:
        """Handle a result of StallDetector.wait(): a loop that is blocked, or was until now.

        seconds: duration of the stall when the watchdog noticed it. delay: seconds from then until
        this thread acquired the GIL.
        """
        assert isinstance(loop, Loop)
        if not stalled:
            ended = self._stalls.pop(loop, None) or Stall(loop)
            ended.seconds, ended.over = seconds, True
            self._report(ended)
            # The next stall may have begun while this thread waited for the GIL.
            self._gil_waits[loop] = time.monotonic(), delay
            return
        stall = self._stalls.get(loop)
        if stall is None:
            stall = self._stalls[loop] = Stall(loop)
            until, before = self._gil_waits.pop(loop, (0.0, 0.0))
            if before >= _GIL_HELD and time.monotonic() - delay - seconds < until:
                stall.gil = min(before, seconds)
        stall.seconds = seconds
        doing, waited = "", delay
        if waited < _GIL_HELD:
            # Reading from /proc releases the GIL, and the loop's thread may then hold it.
            began = time.monotonic()
            doing = self._doing(loop)
            waited = time.monotonic() - began if has_gil() else 0.0
        if waited >= _GIL_HELD:
            stall.gil += waited
            doing = f"native code that {'keeps the GIL' if has_gil() else 'cannot be stopped'}"
        if seen is not None:
            calls, task, handle = seen
            stall.sights.append(
                Sight(
                    seconds + delay,
                    _summary(calls),
                    None if task is None else _described(task),
                    handle,
                    doing,
                )
            )
        if seconds >= _LONG:
            self._report(stall)

    def _doing(self, loop: Loop) -> str:
        in_call = _in_system_call(loop._native_thread)
        return "a system call" if in_call and self._detector.is_stalled(loop) else "Python code"

    def _report(self, stall: Stall) -> None:
        try:
            self._callback(stall)
        except Exception:
            logger.exception("Exception in watchdog callback")


def _log(stall: Stall) -> None:
    logger.warning("%s", stall)


def _summary(calls: list[tuple[CodeType, int, dict[str, Any]]]) -> traceback.StackSummary:
    """Return the calls as StackSummary.extract() would return frames."""
    for code, _, names in calls:
        linecache.lazycache(code.co_filename, names)
    for filename in {code.co_filename for code, _, _ in calls}:
        linecache.checkcache(filename)
    return traceback.StackSummary.from_list(
        [traceback.FrameSummary(code.co_filename, line, code.co_name) for code, line, _ in calls]
    )


def _described(task: asyncio.Task[Any]) -> str:
    return f"task {task.get_name()!r} ({coroutine_name(task)})"


def _in_system_call(native: int) -> bool:
    """Return whether a thread is blocked in a system call, from its state in /proc."""
    try:
        with open(f"/proc/self/task/{native}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    # A thread that waits for the GIL, which this thread holds, is also blocked.
    return state in (b"S", b"D") and not _wants_gil(native)


def _wants_gil(native: int) -> bool:
    """Return whether the thread waits for a lock of this process (a futex)."""
    try:
        with open(f"/proc/self/task/{native}/wchan", "rb") as file:
            return b"futex" in file.read()
    except OSError:
        return False


# --- unchanged programs --------------------------------------------------------------------------


def _make() -> Watchdog | None:
    text = os.environ.get("MGLOOP_WATCHDOG", "")
    if text in ("", "0"):
        return None
    try:
        watchdog = Watchdog(float(text), loops=())
        watchdog.start()
    except ValueError:
        logger.error("Ignoring MGLOOP_WATCHDOG=%s: expected a positive number of seconds", text)
        return None
    except RuntimeError as exc:  # cannot start a thread
        logger.error("Cannot start the watchdog that MGLOOP_WATCHDOG asks for: %s", exc)
        return None
    return watchdog


#: Returns the watchdog of all loops that MGLOOP_WATCHDOG requests. A bad value is logged once.
of_environment = OncePerProcess(_make)


@atexit.register
def _report_what_is_due() -> None:
    """Report pending stalls at exit, because the daemon thread ends with the process."""
    for watchdog in of_environment.made:
        if watchdog is not None:
            watchdog.stop()
