# SPDX-License-Identifier: GPL-2.0-only
"""Objects that environment variables request, created once per process.

They have threads, which do not exist in the child of a fork, so a child creates its own objects.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OncePerProcess(Generic[T]):
    """Call `make` at most once per process, on first use, and return its result, even if None."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self.made: list[T] = []  # the result, if `make` has been called

    def __call__(self) -> T:
        with self._lock:
            if not self.made:
                self.made.append(self._make())
            return self.made[0]
