# SPDX-License-Identifier: GPL-2.0-only
"""Signals: handlers that the loop runs, and polls that any signal interrupts.

Python's C-level handler writes the number of a signal into the descriptor that was passed to
signal.set_wakeup_fd(). Here, that is the writing end of a socket pair that the loop watches.
Mongoose's wake-up cannot be used, because it ignores one-byte messages. The methods for handlers
are those of the running asyncio.

While the loop runs in the main thread, the pair is installed even without handlers. Otherwise a
signal that arrives just before a poll would be handled only after another event. A wake-up
descriptor that other code has installed is kept until add_signal_handler() replaces it, as in
asyncio. In a forked child, _dispositions restores the previous handlers and the descriptor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading

from .. import _dispositions, _stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, TypeVarTuple

    _Ts = TypeVarTuple("_Ts")


class SignalsMixin:
    """add_signal_handler(), remove_signal_handler(), and the socket pair that they use."""

    _check_signal = _stdlib.UnixLoop._check_signal
    _handle_signal = _stdlib.UnixLoop._handle_signal
    _process_self_data = _stdlib.UnixLoop._process_self_data
    _read_from_self = _stdlib.SelectorLoop._read_from_self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._signal_handlers: dict[int, Any] = {}
        # Created early: a descriptor that is created later could get the number of one that the
        # user has closed while it was still being watched.
        self._ssock, self._csock = socket.socketpair()
        self._ssock.setblocking(False)
        self._csock.setblocking(False)
        self._handlers_generation = _dispositions.generation

    def add_signal_handler(self, sig: int, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        """Call callback(*args) in the loop when the signal arrives; as asyncio's method."""
        try:
            before = signal.getsignal(sig)
            wakeup = signal.set_wakeup_fd(self._csock.fileno())
        except (TypeError, ValueError, OSError):
            # asyncio's method raises the right exception for an invalid number, a closed loop or
            # another thread than the main one.
            _stdlib.UnixLoop.add_signal_handler(self, sig, callback, *args)
            return
        try:
            _stdlib.UnixLoop.add_signal_handler(self, sig, callback, *args)
        except BaseException:
            if wakeup != self._csock.fileno():
                signal.set_wakeup_fd(-1)
                _dispositions.give_back_wakeup(wakeup)
            raise
        self._forget_those_of_the_parent(sig)
        _dispositions.note_handler(sig, before)
        self._note_wakeup(wakeup)

    def remove_signal_handler(self, sig: int) -> bool:
        """Remove the handler of a signal; return whether it had one. As asyncio's method."""
        if self._handlers_generation != _dispositions.generation:
            self._check_signal(sig)
            return self._signal_handlers.pop(sig, None) is not None
        removed: bool = _stdlib.UnixLoop.remove_signal_handler(self, sig)
        if removed:
            _dispositions.forget_handler(sig)
            if not self._signal_handlers:
                _dispositions.forget_wakeup()
        if removed and not self._signal_handlers and self._thread_id is not None:  # type: ignore[attr-defined]
            # asyncio's code has removed the descriptor, but the running loop still needs it.
            signal.set_wakeup_fd(self._csock.fileno(), warn_on_full_buffer=False)
            self._note_wakeup(-1)
        return removed

    def run_forever(self) -> None:
        """Run until stop() is called; as asyncio.loop.run_forever."""
        # Check first, because in some versions the cleanup after an error in BaseEventLoop would
        # undo the setup of a loop that is already running.
        self._check_closed()  # type: ignore[attr-defined]
        self._check_running()  # type: ignore[attr-defined]
        self._enter()  # type: ignore[attr-defined]
        try:
            if threading.current_thread() is threading.main_thread():
                self._run_with_signals()
            else:
                super().run_forever()  # type: ignore[misc]
        finally:
            self._leave()  # type: ignore[attr-defined]

    def _run_with_signals(self) -> None:
        wakeup_fd = self._csock.fileno()
        # Registered only while the loop runs, because the registration would keep an idle loop
        # alive that has not been closed.
        self._add_reader(self._ssock.fileno(), self._read_from_self)  # type: ignore[attr-defined]
        previous = signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        if previous == -1:
            self._note_wakeup(-1)
        elif previous != wakeup_fd:
            _dispositions.give_back_wakeup(previous)
        try:
            super().run_forever()  # type: ignore[misc]
        finally:
            if not self._signal_handlers:
                current = signal.set_wakeup_fd(-1)
                if current == wakeup_fd:
                    _dispositions.forget_wakeup()
                else:
                    _dispositions.give_back_wakeup(current)
            self._remove_reader(self._ssock.fileno())  # type: ignore[attr-defined]

    def _adopted(self) -> None:
        """Replace the pair after a fork, and keep the descriptor numbers.

        The signal module may still have the number of the writing end.
        """
        reading, writing = socket.socketpair()
        with reading, writing:
            reading.setblocking(False)
            writing.setblocking(False)
            os.dup2(reading.fileno(), self._ssock.fileno(), inheritable=False)
            os.dup2(writing.fileno(), self._csock.fileno(), inheritable=False)
        self._install_again()

    def _install_again(self) -> None:
        """Reinstall the handlers that the fork has removed, because the child runs the loop."""
        if self._handlers_generation == _dispositions.generation:
            return
        handlers = self._signal_handlers.copy()
        for sig, handle in handlers.items():
            with contextlib.suppress(RuntimeError):  # not in the main thread
                self.add_signal_handler(sig, _nothing)
                self._signal_handlers[sig] = handle

    def _forget_those_of_the_parent(self, sig: int) -> None:
        """Drop the handlers that a fork has removed, except that of `sig`."""
        if self._handlers_generation != _dispositions.generation:
            self._handlers_generation = _dispositions.generation
            self._signal_handlers = {sig: self._signal_handlers[sig]}

    def _note_wakeup(self, before: int) -> None:
        wakeup_fd = self._csock.fileno()
        if before != wakeup_fd:
            _dispositions.note_wakeup(wakeup_fd, before)

    def _close_signals(self, dispositions: ModuleType = _dispositions) -> None:
        # The default is there at exit too, when the names of this module may have been cleared.
        try:
            if self._handlers_generation != dispositions.generation:
                self._signal_handlers.clear()  # the handlers of this process are not the loop's
            for sig in list(self._signal_handlers):
                self.remove_signal_handler(sig)
        finally:
            self._ssock.close()
            self._csock.close()


def _nothing() -> None:
    """Stand in for a callback until its handle is restored."""
