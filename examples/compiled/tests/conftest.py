# SPDX-License-Identifier: GPL-2.0-only
"""Run servers and clients on asyncio's loop and on mgloop's."""

import asyncio
import contextlib

import pytest

import mgloop

LOOPS = {"asyncio": asyncio.new_event_loop, "mgloop": mgloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request):
    """Return a function that runs a coroutine on the loop under test."""
    loop = LOOPS[request.param]()
    yield lambda coroutine: loop.run_until_complete(asyncio.wait_for(coroutine, 30))
    loop.close()


@pytest.fixture
def connected():
    """Return a context manager that makes a connection to a server with a protocol."""
    return connection


@contextlib.asynccontextmanager
async def connection(protocol):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        server.close()
        await server.wait_closed()
