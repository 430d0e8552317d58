# SPDX-License-Identifier: GPL-2.0-only
"""Terminal colours of log levels and of HTTP statuses, as uvicorn has them."""

from __future__ import annotations

import logging
from http import HTTPStatus

#: The level below DEBUG, which uvicorn calls "trace".
TRACE = 5

_COLORS = {
    TRACE: "34",
    logging.DEBUG: "36",
    logging.INFO: "32",
    logging.WARNING: "33",
    logging.ERROR: "31",
    logging.CRITICAL: "91",
}
_STATUS_COLORS = {1: "37", 2: "32", 3: "33", 4: "31", 5: "91"}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


def paint(text: str, color: str) -> str:
    """Return `text` with the escape sequences of a terminal colour, such as "31"."""
    return f"\x1b[{color}m{text}\x1b[0m"


def paint_level(name: str, level: int) -> str:
    """Return the name of a level in the colour of that level."""
    return paint(name, _COLORS.get(level, "0"))


def paint_status(status: int, use_colors: bool) -> str:
    """Return a status code with its phrase, optionally in colour."""
    text = f"{status} {_PHRASES.get(status, '')}".rstrip()
    return paint(text, _STATUS_COLORS.get(status // 100, "0")) if use_colors else text
