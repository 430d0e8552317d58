# SPDX-License-Identifier: GPL-2.0-only
"""The loop in a process that gevent has patched before anything else was imported."""

from gevent import monkey

monkey.patch_all()

import gevent  # noqa: E402
from common import run, say  # noqa: E402
from patched import beside_greenlets, executor, network  # noqa: E402

run(network())
run(executor())
say(f"gevent {gevent.__version__}: the loop in the patched main thread")

beside_greenlets(gevent.spawn, gevent.get_hub().threadpool.apply)
