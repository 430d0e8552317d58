# SPDX-License-Identifier: GPL-2.0-only
"""For pytest-aiohttp: what its server answers."""

import aiohttp_app
from asked import loop_class


async def test_loop(aiohttp_client):
    client = await aiohttp_client(aiohttp_app.main())
    async with client.get("/") as response:
        answer = await response.text()
    assert answer == loop_class()
    print(f"\nasked: {answer}")
