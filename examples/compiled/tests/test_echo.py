# SPDX-License-Identifier: GPL-2.0-only
"""The echo server, on asyncio's loop and on mgloop's."""

import asyncio

import compiled_echo
import pytest

import mgloop

LOOPS = {"asyncio": asyncio.new_event_loop, "mgloop": mgloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request):
    """Return a function that runs a coroutine on the loop under test."""
    loop = LOOPS[request.param]()
    yield loop.run_until_complete
    loop.close()


async def talk(data, reads):
    """Send the data to a server and return the answer and the server's protocol."""
    protocols = []

    def factory():
        protocols.append(compiled_echo.Echo())
        return protocols[-1]

    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(data)
    answer = await reader.readexactly(reads)
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    return answer, protocols[0]


def test_a_short_message(run):
    answer, protocol = run(talk(b"hello", 5))
    assert answer == b"hello"
    assert protocol.received == 5


def test_a_long_message(run):
    data = bytes(range(256)) * 40_000
    answer, _ = run(talk(data, len(data)))
    assert answer == data
