# SPDX-License-Identifier: GPL-2.0-only
"""Stands in for uvloop's package in uvloop's own suite, and hands out the loop under test.

It is laid over the unpacked source distribution, of which the suite still takes ``_testbase``. The
loop is what ``swap/sitecustomize.py`` made the default.
"""

import asyncio

Loop = asyncio.SelectorEventLoop


class EventLoopPolicy(type(asyncio.get_event_loop_policy())):
    """The default policy, whose loops are those under test."""


def new_event_loop():
    """A new loop of the class under test."""
    return Loop()


def install():
    """Make the policy the current one."""
    asyncio.set_event_loop_policy(EventLoopPolicy())


def run(main, *, loop_factory=new_event_loop, debug=None):
    """Run *main*, over no other loop than one under test."""

    async def checked():
        if not isinstance(asyncio.get_running_loop(), Loop):
            main.close()
            raise TypeError("uvloop.run() uses a non-uvloop event loop")
        return await main

    with asyncio.Runner(loop_factory=loop_factory, debug=debug) as runner:
        return runner.run(checked())
