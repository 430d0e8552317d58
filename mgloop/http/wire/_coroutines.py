# SPDX-License-Identifier: GPL-2.0-only
"""Coroutines for the native modules, which must not contain any.

A generator or coroutine that is compiled by Cython 3.3.1 reads memory beyond the None object. In
CPython 3.11 and later, the current exception of a generator is None after a Python function has
handled an exception, and Cython treats that None as an exception. tools/check_except.py rejects
such code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol


class _Draining(Protocol):
    def next_end(self) -> asyncio.Future[None] | None: ...


async def run_application(running: Awaitable[Any]) -> Any:
    """Return the result of an application's awaitable.

    A SystemExit becomes a RuntimeError: as in uvicorn, an application cannot stop the server with
    sys.exit().
    """
    try:
        return await running
    except SystemExit as exc:
        raise RuntimeError("sys.exit() called in a WebSocket application") from exc


async def wait_drained(site: _Draining) -> None:
    """Wait until all connections of the site are closed and all applications have returned."""
    # A connection can be added while another one ends: a PROXY header's connection is replaced by
    # an HTTP connection.
    while (future := site.next_end()) is not None:
        await asyncio.shield(future)
