# SPDX-License-Identifier: GPL-2.0-only
"""The loop in a process that eventlet has patched before anything else was imported."""

import warnings

with warnings.catch_warnings():
    # eventlet calls itself deprecated.
    warnings.simplefilter("ignore")
    import eventlet

    eventlet.monkey_patch()

import time

from common import run, say
from eventlet import tpool
from patched import in_thread, network

run(network())
say(f"eventlet {eventlet.__version__}: the loop in the patched main thread")


def beside_greenlets() -> None:
    """Run the loop in a native thread while greenlets take turns in the main thread."""
    turns = 0

    def turn() -> None:
        nonlocal turns
        while True:
            time.sleep(0.001)
            turns += 1

    turning = eventlet.spawn(turn)
    tpool.execute(in_thread)
    turning.kill()
    say(f"the loop in a native thread; a greenlet in the main thread took {turns} turns meanwhile")


beside_greenlets()
