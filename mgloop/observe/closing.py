# SPDX-License-Identifier: GPL-2.0-only
"""What has a close() and may be used in a `with`."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Closed at the end of the `with`."""

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
