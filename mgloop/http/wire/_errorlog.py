# SPDX-License-Identifier: GPL-2.0-only
"""wsgi.errors: the text that a WSGI application writes for the administrator, as log records.

Text is logged at the end of a line, because print() writes a line in two parts. Threads may write
at the same time, so each thread has an incomplete line of its own. Writing is rare, so the module
is Python.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

#: Characters of an incomplete line at which it is logged.
_LONGEST = 64 << 10

logger = logging.getLogger("mgloop.http")


class ErrorLog:
    """A text stream whose lines are error records of the server's log."""

    def __init__(self) -> None:
        self._pending = threading.local()

    def write(self, text: str) -> int:
        """Log complete lines, and keep an incomplete one until the rest of it is written."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        pending = getattr(self._pending, "text", "") + text
        if pending.endswith("\n") or len(pending) >= _LONGEST:
            self._pending.text = ""
            self._log(pending)
        else:
            self._pending.text = pending
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of the strings, as write() does."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Log the incomplete line of this thread."""
        pending, self._pending.text = getattr(self._pending, "text", ""), ""
        self._log(pending)

    def _log(self, text: str) -> None:
        text = text.removesuffix("\n")
        if text:
            logger.error("%s", text)
