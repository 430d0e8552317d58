# SPDX-License-Identifier: GPL-2.0-only
"""Wait for a loop in a process that gevent or eventlet has patched.

In such a process threads are greenlets. They run only while other code waits through a module that
has been patched, such as `selectors`, through which asyncio waits. A wait in the loop's own system
call would therefore stop the threads of an executor. So the loop first waits here until its epoll
descriptor is readable.

The module owns no state. It is Python because only the loops of patched processes wait through it.
The loop's thread calls it; other greenlets run meanwhile.
"""

from __future__ import annotations

import select
import selectors
from types import BuiltinFunctionType


def selector() -> type[selectors.BaseSelector] | None:
    """Return the class of the selector that greenlets wait with, or None without patches."""
    if isinstance(select.select, BuiltinFunctionType):
        return None
    return selectors.DefaultSelector


def wait(kind: type[selectors.BaseSelector], descriptor: int, timeout: float | None) -> None:
    """Wait until *descriptor* is readable or *timeout*, in seconds, has passed.

    The selector is new for each wait, because a fork gives the loop another descriptor.
    """
    with kind() as waiting:
        waiting.register(descriptor, selectors.EVENT_READ)
        waiting.select(timeout)
