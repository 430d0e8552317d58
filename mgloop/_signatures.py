# SPDX-License-Identifier: GPL-2.0-only
"""The full Python signatures of the scheduling methods.

The native methods parse positional arguments and `context=`, the form of nearly all calls. Any
other call, such as `call_later(delay=1, callback=f)` or one with a missing or unknown argument, is
passed to these functions, so that Python binds the names or raises its usual TypeError.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def call_soon(self: Any, callback: Any, *args: Any, context: Any = None) -> Any:
    return self.call_soon(callback, *args, context=context)


def call_soon_threadsafe(self: Any, callback: Any, *args: Any, context: Any = None) -> Any:
    return self.call_soon_threadsafe(callback, *args, context=context)


def call_later(self: Any, delay: Any, callback: Any, *args: Any, context: Any = None) -> Any:
    return self.call_later(delay, callback, *args, context=context)


def call_at(self: Any, when: Any, callback: Any, *args: Any, context: Any = None) -> Any:
    return self.call_at(when, callback, *args, context=context)
