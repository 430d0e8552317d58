# SPDX-License-Identifier: GPL-2.0-only
"""A view of the watched descriptors with the interface of asyncio's private `loop._selector`.

mgloop has no selector. Programs and tests that inspect loop._selector to find out which descriptors
a loop watches get the same results from this view. It contains the descriptors of the user
(add_reader(), add_writer()), not those of transports. It is Python because it is rarely used. It
refers to the loop, and the loop does not refer to it.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterator, Mapping

from . import _stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class SelectorView(Mapping["Any", selectors.SelectorKey]):
    """Map descriptors, or objects with fileno(), to selectors.SelectorKey."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        """Return the key of a watched descriptor, whose data is (reader, writer).

        Raises KeyError if the descriptor is not watched.
        """
        fd = _stdlib.fileno(fileobj)
        interest = self._loop._interest(fd)
        if interest is None:
            raise KeyError(f"{fileobj!r} is not registered")
        reader, writer = interest
        events = (selectors.EVENT_READ if reader is not None else 0) | (
            selectors.EVENT_WRITE if writer is not None else 0
        )
        return selectors.SelectorKey(fileobj, fd, events, interest)

    __getitem__ = get_key

    def __iter__(self) -> Iterator[int]:
        return (fd for fd in range(self._loop._fd_limit()) if self._loop._interest(fd) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
