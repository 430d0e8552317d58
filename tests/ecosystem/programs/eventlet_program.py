# SPDX-License-Identifier: GPL-2.0-only
"""The loop in a process that eventlet has patched before anything else was imported."""

import warnings

with warnings.catch_warnings():
    # eventlet calls itself deprecated.
    warnings.simplefilter("ignore")
    import eventlet

    eventlet.monkey_patch()

from common import run, say
from eventlet import tpool
from patched import beside_greenlets, executor, network

run(network())
run(executor())
say(f"eventlet {eventlet.__version__}: the loop in the patched main thread")

beside_greenlets(eventlet.spawn, tpool.execute)
