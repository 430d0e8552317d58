# SPDX-License-Identifier: GPL-2.0-only
"""The base class of objects that have a close() method and are context managers."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Call close() at the end of the `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
