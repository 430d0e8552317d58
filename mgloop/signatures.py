# SPDX-License-Identifier: GPL-2.0-only
"""The full signatures of the scheduling methods.

Their native forms take what programs nearly always write, positional arguments and `context=`. A
call in any other form (`call_later(delay=1, callback=f)`, an argument missing or unknown) comes
through here, where Python binds the names, or says what is wrong in its own words.
"""

from __future__ import annotations

from typing import Any


def call_soon(self: Any, callback: Any, *args: Any, context: Any = None) -> Any:
    return self.call_soon(callback, *args, context=context)


def call_soon_threadsafe(self: Any, callback: Any, *args: Any, context: Any = None) -> Any:
    return self.call_soon_threadsafe(callback, *args, context=context)


def call_later(self: Any, delay: Any, callback: Any, *args: Any, context: Any = None) -> Any:
    return self.call_later(delay, callback, *args, context=context)


def call_at(self: Any, when: Any, callback: Any, *args: Any, context: Any = None) -> Any:
    return self.call_at(when, callback, *args, context=context)
