# SPDX-License-Identifier: GPL-2.0-only
"""What the environment asks for, made once in each process: a thread is not in the child of a fork,
which makes its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OncePerProcess(Generic[T]):
    """What `make` makes, when somebody asks for it first; None as well."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self.made: list[T] = []  # of which there is one, at most

    def __call__(self) -> T:
        with self._lock:
            if not self.made:
                self.made.append(self._make())
            return self.made[0]
