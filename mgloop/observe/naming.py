# SPDX-License-Identifier: GPL-2.0-only
"""The names of tasks in reports, which are those of their coroutines."""

from __future__ import annotations

import asyncio
from typing import Any


def coroutine_name(task: asyncio.Task[Any]) -> str:
    """Return the qualified name of a task's coroutine, or of its type if it has no name.

    A task that has finished and does not keep its coroutine, such as an eager task, is "ended".
    """
    # Read the attribute, as repr() of a task does. Before 3.12.5, get_coro() crashes for a finished
    # task without a coroutine, and a task of another thread may finish at any time.
    coroutine = getattr(task, "_coro", None)
    if coroutine is None:
        return "ended"
    return str(getattr(coroutine, "__qualname__", None) or type(coroutine).__qualname__)
