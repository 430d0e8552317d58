# SPDX-License-Identifier: GPL-2.0-only
"""What tasks are called in reports: by their coroutine."""

from __future__ import annotations

import asyncio
from typing import Any


def coroutine_name(task: asyncio.Task[Any]) -> str:
    """As it is in its source; of an object that has no name, its type's. Of a task that has ended
    and kept no coroutine, as one that was started eagerly, "ended"."""
    # The attribute that the standard library's repr() reads: get_coro() of such a task crashes
    # CPython before 3.12.5, and one of another thread's may end between any two lines here.
    coroutine = getattr(task, "_coro", None)
    if coroutine is None:
        return "ended"
    return str(getattr(coroutine, "__qualname__", None) or type(coroutine).__qualname__)
