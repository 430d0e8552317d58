# SPDX-License-Identifier: GPL-2.0-only
"""Who holds up a loop: a thread that looks while it happens.

A callback that runs for longer than a threshold is found by the watchdog's thread, which then takes
the stack of the loop's thread, and again each time that twice as long has passed. When the loop
goes on there is one report of it. Neither debug mode nor timing is needed, and a loop that goes on
pays nothing: port/pulse.h says how it is seen.

What cannot be seen is said. Code that keeps the GIL, as a C extension or a regular expression
may, keeps this thread from looking as well: if it has ended by the time that the GIL is to be had,
there is no stack, and the report says for how long. Without the GIL it is the same: a thread is
stopped to be looked at, and such code cannot be stopped.
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
from ._pulse import Pulse
from .environment import OncePerProcess
from .naming import coroutine_name

logger = logging.getLogger("mgloop.watchdog")

#: Looks per threshold: what lasts for this much longer is seen for certain.
_LOOKS = 4
#: Longer than this for the GIL: somebody has kept it. (Python gives it up after 5 ms if asked to.)
_KEPT = 0.05
#: A loop that has stood still for so long may never go on: it is reported without waiting for that.
_LONG = 10.0

#: As Pulse.wait() tells it: calls as (code, line, globals), the task, the handle's repr().
Seen = tuple[list[tuple[CodeType, int, dict[str, Any]]], asyncio.Task[Any] | None, str | None]


@dataclass(frozen=True)
class Sight:
    """What was seen while a loop stood still.

    after: seconds that it had by then. stack: of the loop's thread, outermost call first, from the
    callback on. task: its name and coroutine, if it was a task's step. handle: the callback, of a
    loop with timing or in debug mode. doing: "Python code", "a system call", or "native code that
    keeps the GIL" (without one: "native code that cannot be stopped").
    """

    after: float
    stack: traceback.StackSummary
    task: str | None
    handle: str | None
    doing: str

    def seen_before(self, before: Sight) -> bool:
        """Whether nothing has changed but the time."""
        return dataclasses.replace(self, after=before.after) == before


@dataclass
class Stall:
    """A loop that stood still. seconds: how long, or until now if it still does (not `over`).

    gil: seconds that the watchdog waited meanwhile for the GIL, or without one for the thread to be
    stopped. sights: nothing if it could not look before it was over.
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
        if self.gil >= _KEPT:
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
            if sight.handle and not sight.task:  # a task's handle says no more
                lines.append(f"    {sight.handle}")
            lines += [f"  {line}" for line in "".join(sight.stack.format()).splitlines()]
        return "\n".join(lines)


class Watchdog:
    """Reports what holds up a loop for longer than `threshold` seconds; a context manager.

    loops: those to watch; None: the running one, when the context is entered. callback: called
    with each Stall, in the watchdog's thread; None: it is logged, as a warning of
    "mgloop.watchdog". ValueError for a threshold that is not a finite time above 0, RuntimeError
    for a loop that has a watchdog already.
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
        self._pulse = Pulse(threshold, threshold / _LOOKS)
        self._thread: threading.Thread | None = None
        self._stalls: dict[Loop, Stall] = {}
        self._kept: weakref.WeakKeyDictionary[Loop, tuple[float, float]]
        self._kept = weakref.WeakKeyDictionary()

    def start(self) -> None:
        """As `with`: see there."""
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
                self._pulse.add(loop)
            thread = threading.Thread(target=self._run, name="mgloop watchdog", daemon=True)
            thread.start()
        except BaseException:
            self._pulse.remove_all()
            raise
        self._thread = thread

    def stop(self) -> None:
        """Watch no more; a report that is due comes first. May be called again."""
        self._pulse.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._pulse.remove_all()

    @contextlib.contextmanager
    def watching(self, loop: Loop) -> Iterator[None]:
        """Watch another loop meanwhile, unless somebody else does; what is due is reported."""
        with contextlib.suppress(RuntimeError):
            self._pulse.add(loop)
        try:
            yield
        finally:
            self._pulse.remove(loop)

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
                told = self._pulse.wait()
                if told is None:
                    break
                self._note(*told)
            except Exception:  # of a repr() or an attribute of the user's
                logger.exception("Watchdog failed to inspect an event loop")
            told = None  # it has the loop's task
        for stall in self._stalls.values():
            self._report(stall)
        self._stalls.clear()

    def _note(
        self, loop: LoopCore, stands: bool, seconds: float, until_told: float, seen: Seen | None
    ) -> None:
        assert isinstance(loop, Loop)
        if not stands:
            ended = self._stalls.pop(loop, None) or Stall(loop)
            ended.seconds, ended.over = seconds, True
            self._report(ended)
            # While this thread waited to tell of one the next may have begun.
            self._kept[loop] = time.monotonic(), until_told
            return
        stall = self._stalls.get(loop)
        if stall is None:
            stall = self._stalls[loop] = Stall(loop)
            until, before = self._kept.pop(loop, (0.0, 0.0))
            if before >= _KEPT and time.monotonic() - until_told - seconds < until:
                stall.gil = min(before, seconds)
        stall.seconds = seconds
        doing, kept = "", until_told
        if kept < _KEPT:
            # To ask the kernel is to let go of the GIL, and the loop's thread may keep it.
            began = time.monotonic()
            doing = self._doing(loop)
            kept = time.monotonic() - began if has_gil() else 0.0
        if kept >= _KEPT:
            stall.gil += kept
            doing = f"native code that {'keeps the GIL' if has_gil() else 'cannot be stopped'}"
        if seen is not None:
            calls, task, handle = seen
            stall.sights.append(
                Sight(
                    seconds + until_told,
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
        return "a system call" if in_call and self._pulse.stands(loop) else "Python code"

    def _report(self, stall: Stall) -> None:
        try:
            self._callback(stall)
        except Exception:
            logger.exception("Exception in watchdog callback")


def _log(stall: Stall) -> None:
    logger.warning("%s", stall)


def _summary(calls: list[tuple[CodeType, int, dict[str, Any]]]) -> traceback.StackSummary:
    """As StackSummary.extract() makes it of frames."""
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
    """By the kernel's word on the thread: whether it runs, or waits."""
    try:
        with open(f"/proc/self/task/{native}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    # It may also be this thread that it waits for, which has the GIL now.
    return state in (b"S", b"D") and not _wants_gil(native)


def _wants_gil(native: int) -> bool:
    """Whether the thread waits for a lock of this process's (futex)."""
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
    except RuntimeError as exc:  # no thread can be started
        logger.error("Cannot start the watchdog that MGLOOP_WATCHDOG asks for: %s", exc)
        return None
    return watchdog


#: The watchdog of all loops while MGLOOP_WATCHDOG has a threshold; a bad one is logged once.
of_environment = OncePerProcess(_make)


@atexit.register
def _report_what_is_due() -> None:
    """The thread ends with the process, whether or not it has told all."""
    for watchdog in of_environment.made:
        if watchdog is not None:
            watchdog.stop()
