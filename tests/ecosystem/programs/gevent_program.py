# SPDX-License-Identifier: GPL-2.0-only
"""The loop in a process that gevent has patched before anything else was imported."""

from gevent import monkey

monkey.patch_all()

import time  # noqa: E402

import gevent  # noqa: E402
from common import run, say  # noqa: E402
from patched import in_thread, network  # noqa: E402

run(network())
say(f"gevent {gevent.__version__}: the loop in the patched main thread")


def beside_greenlets() -> None:
    """Run the loop in a native thread while greenlets take turns in the main thread."""
    turns = 0

    def turn() -> None:
        nonlocal turns
        while True:
            time.sleep(0.001)
            turns += 1

    turning = gevent.spawn(turn)
    gevent.get_hub().threadpool.apply(in_thread)
    turning.kill()
    say(f"the loop in a native thread; a greenlet in the main thread took {turns} turns meanwhile")


beside_greenlets()
