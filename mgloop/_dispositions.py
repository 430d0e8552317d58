# SPDX-License-Identifier: GPL-2.0-only
"""Signal handlers that a forked child must not inherit.

A child of os.fork(), of multiprocessing's "fork" and of subprocess with preexec_fn starts with the
handlers of its parent, but no loop runs in it. With the handler of a loop the child would ignore
the signal: Process.terminate() would do nothing, and the parent would wait for the child when it
exits. In addition, Python's C-level handler writes the number of the signal into the wake-up
descriptor, which parent and child share, so the parent would handle the child's SIGTERM as its own.

Code that installs a handler records it here, and the previous handler is restored in the child. The
signals are blocked during the fork, so that a signal to the new child stays pending until its
handlers are restored.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# By signal: the handler before, and the installed handler.
_replaced: dict[int, tuple[Any, Any]] = {}
_wakeup: tuple[int, int] | None = None  # the wake-up descriptor of a loop, and the previous one
_masks: dict[int, set[int | signal.Signals]] = {}  # signal masks of the threads that are forking
#: Number of forks between the first process and this one. The records are empty after each fork.
generation = 0


def note_handler(number: int, before: Any) -> None:
    """Record that the current handler has replaced `before`."""
    known = _replaced.get(number)
    if known is not None:
        before = known[0]
    elif _is_of_runner(before):
        before = signal.default_int_handler  # the only handler that a Runner replaces
    _replaced[number] = before, signal.getsignal(number)


def forget_handler(number: int) -> None:
    """Record that the handler has been removed."""
    _replaced.pop(number, None)


def note_wakeup(fd: int, before: int) -> None:
    """Record that the wake-up descriptor `fd` of a loop has replaced `before`."""
    global _wakeup
    if _wakeup is not None and _wakeup[0] == before:
        before = _wakeup[1]
    _wakeup = fd, before


def forget_wakeup() -> None:
    """Record that the wake-up descriptor has been removed."""
    global _wakeup
    _wakeup = None


def wakeup_fd() -> int:
    """Return the current wake-up descriptor, or -1."""
    fd = signal.set_wakeup_fd(-1)
    give_back_wakeup(fd)
    return fd


def give_back_wakeup(fd: int) -> None:
    """Install a wake-up descriptor again, unless it has been closed since."""
    if fd != -1:
        try:
            signal.set_wakeup_fd(fd)
        except (OSError, ValueError):
            pass


def _is_of_runner(handler: Any) -> bool:
    return isinstance(handler, functools.partial) and isinstance(
        getattr(handler.func, "__self__", None), asyncio.Runner
    )


def _block() -> None:
    if _replaced:
        thread = threading.get_ident()
        _masks[thread] = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_sigmask(signal.SIG_BLOCK, _replaced)


def _unblock() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _restore() -> None:
    global _wakeup, generation
    generation += 1
    for number, (before, installed) in _replaced.items():
        # None: C code has installed the handler. A handler that the program installed later stays.
        if before is not None and signal.getsignal(number) == installed:
            signal.signal(number, before)
    _replaced.clear()
    if _wakeup is not None:
        ours, before = _wakeup
        _wakeup = None
        current = signal.set_wakeup_fd(-1)
        # Since Python 3.12, asyncio has already removed it.
        give_back_wakeup(before if current in (ours, -1) else current)
    _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore)
