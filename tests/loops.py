# SPDX-License-Identifier: GPL-2.0-only
"""Loops by name: creation and shutdown, for the tests and for the programs that they start.

This module is separate from support.py so that a short program need not import pytest.
"""

import asyncio
import selectors


def new_loop(kind, **kwargs):
    """Return a new loop of `kind` ("asyncio" or "mgloop"); the keywords are mgloop's."""
    if kind == "asyncio":
        assert not kwargs, "asyncio's loop takes no keywords"
        return asyncio.SelectorEventLoop(selectors.DefaultSelector())
    assert kind == "mgloop"
    import mgloop

    return mgloop.new_event_loop(**kwargs)


def kind_of(loop):
    """Return the kind of `loop`, as :func:`new_loop` takes it."""
    return type(loop).__module__.partition(".")[0]


def finish(loop):
    """Shut `loop` down as ``asyncio.Runner`` does, and close it.

    Return the tasks that were pending although the loop had time to finish them.
    """
    if loop.is_closed():
        return set()
    turn(loop, 5)
    pending = asyncio.all_tasks(loop)
    for task in pending:
        task.cancel()
    if pending:
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    return pending


def turn(loop, times=1):
    """Run `loop`, which is not running, for a few iterations."""
    for _ in range(times):
        loop.call_soon(loop.stop)
        loop.run_forever()


def call_in_a_crowd(loop, *callbacks):
    """Schedule callbacks among so many others that a loop defers writes in that iteration."""

    def crowd():
        for callback in (*[int] * 8, *callbacks, *[int] * 8):
            loop.call_soon(callback)

    loop.call_soon(crowd)


def raised(exception, call, *args, **kwargs):
    """Call a function, which must raise an `exception`; return the exception."""
    try:
        call(*args, **kwargs)
    except exception as exc:
        return exc
    raise AssertionError(f"{call} has raised no {exception}")
