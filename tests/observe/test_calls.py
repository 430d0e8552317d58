# SPDX-License-Identifier: GPL-2.0-only
"""The watchdog's view of another thread's call stack, read while the thread calls and returns."""

import itertools
import threading
import time

import pytest
import support

from mgloop.observe._stalls import calls_of

pytestmark = pytest.mark.mgloop_only

#: Function -> its caller.
CALLERS = {"outer": "run", "middle": "outer", "inner": "middle"}


def inner(n):
    return n + 1


def middle(n):
    return inner(n) + inner(n)


def test_a_thread_that_calls_and_returns():
    """Without the GIL the thread runs during the read: walking its frames crashed the process."""
    over = threading.Event()

    def outer():
        n = 0
        while not over.is_set():
            n += middle(n) & 1

    thread = threading.Thread(target=outer)
    thread.start()
    seen = set()
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            calls = calls_of(thread.ident)
            names = [code.co_name for code, _, _ in calls]
            for caller, name in itertools.pairwise(names):
                assert caller == CALLERS.get(name, caller), names
            for code, line, names_of_module in calls:
                assert code.co_firstlineno <= line < code.co_firstlineno + 1000
                assert "__name__" in names_of_module
            seen.update(names)
    finally:
        over.set()
        thread.join()
    assert {"outer", "middle"} <= seen
    assert calls_of(thread.ident) is None


def test_from_a_call_inwards():
    arrived, over = threading.Event(), threading.Event()

    def outer():
        middle_one()

    def middle_one():
        arrived.set()
        over.wait()

    def names(thread):
        return [code.co_name for code, _, _ in calls_of(thread.ident, outer.__code__)]

    thread = threading.Thread(target=outer)
    thread.start()
    try:
        arrived.wait()
        support.eventually(lambda: names(thread)[:2] == ["middle_one", "wait"])
    finally:
        over.set()
        thread.join()
