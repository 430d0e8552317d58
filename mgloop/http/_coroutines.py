# SPDX-License-Identifier: GPL-2.0-only
"""Coroutines for the native modules, which have none of their own.

They are Python because a generator or coroutine that Cython compiles reads memory beyond None: in
CPython 3.11 and later the current exception of a generator is None after a Python function has
handled one, and Cython 3.3.1 takes that for an exception. tools/check_except.py rejects such code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol


class _Draining(Protocol):
    def next_end(self) -> asyncio.Future[None] | None: ...


async def run_application(running: Awaitable[Any]) -> Any:
    """Return the result of an application's awaitable; sys.exit() in it raises RuntimeError.

    An application does not end the server by sys.exit(), as with uvicorn.
    """
    try:
        return await running
    except SystemExit as exc:
        raise RuntimeError("sys.exit() called in a WebSocket application") from exc


async def wait_drained(site: _Draining) -> None:
    """Wait until all connections of the site have ended, and all applications have returned."""
    # A connection can come while another one ends, such as the one behind a PROXY header.
    while (future := site.next_end()) is not None:
        await asyncio.shield(future)
