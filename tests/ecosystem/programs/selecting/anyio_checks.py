# SPDX-License-Identifier: GPL-2.0-only
"""For anyio's plugin: the backend as it is by default, and a factory of loops in its options."""

import os

import pytest
from asked import loop_class

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    if os.environ.get("SELECTING_FACTORY"):
        import mgloop

        return "asyncio", {"loop_factory": mgloop.new_event_loop}
    return "asyncio"


@pytest.fixture
async def where_fixtures_run():
    return loop_class()


async def test_loop(where_fixtures_run):
    assert where_fixtures_run == loop_class()
    print(f"\nasked: {loop_class()}")
