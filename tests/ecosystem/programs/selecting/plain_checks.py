# SPDX-License-Identifier: GPL-2.0-only
"""For pytest alone."""

import asyncio

from asked import loop_class


def test_loop():
    async def inside():
        return loop_class()

    print(f"\nasked: {asyncio.run(inside())}")
