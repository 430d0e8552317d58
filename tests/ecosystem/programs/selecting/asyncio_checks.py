# SPDX-License-Identifier: GPL-2.0-only
"""For pytest-asyncio."""

import pytest
import pytest_asyncio
from asked import loop_class


@pytest_asyncio.fixture
async def where_fixtures_run():
    return loop_class()


@pytest.mark.asyncio
async def test_loop(where_fixtures_run):
    assert where_fixtures_run == loop_class()
    print(f"\nasked: {loop_class()}")
