# SPDX-License-Identifier: GPL-2.0-only
"""Tests of other projects that may differ between the loops, each with its reason.

A line is for a test that passes over the standard library's loop and cannot pass over another one,
because of what it examines; never for one that ought to pass.
"""

from typing import NamedTuple


class Expected(NamedTuple):
    """A test id (a pattern), and why it may fail here although it passes over the standard loop."""

    pattern: str
    reason: str


AIOHTTP: tuple[Expected, ...] = ()

UVICORN: tuple[Expected, ...] = (
    Expected(
        "tests/test_auto_detection.py::test_loop_auto",
        'asserts that the class of the loop that loop="auto" gives comes from a module of asyncio',
    ),
)
