# SPDX-License-Identifier: GPL-2.0-only
"""Programs whose allocations fail, over asyncio's loop and over mgloop.

``python -m tests.nomem`` runs each program of ``programs`` many times (``worker``) and counts how
the runs end. asyncio's loop is the control. Each run is a process of its own, forked from a worker
in which everything is imported already.
"""
