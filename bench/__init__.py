# SPDX-License-Identifier: GPL-2.0-only
"""Benchmarks that compare asyncio event loops on the machine at hand.

``python -m bench`` measures; nothing here is imported by :mod:`mgloop`, and nothing here favours
it: a loop is only a ``module:factory`` pair. The method is explained in ``docs/benchmarks.md``;
in short, server and load generator are separate processes on separate cores, the loops take
turns inside each round, and ratios are formed within the round.
"""
