# SPDX-License-Identifier: GPL-2.0-only
"""The echo server."""

import compiled_protocols


async def echo(connected, data):
    """Send the data to a server and return the answer and the server's protocol."""
    protocol = compiled_protocols.Echo()
    async with connected(lambda: protocol) as (reader, writer):
        writer.write(data)
        return await reader.readexactly(len(data)), protocol


def test_a_short_message(run, connected):
    answer, protocol = run(echo(connected, b"hello"))
    assert answer == b"hello"
    assert protocol.received == 5


def test_a_long_message(run, connected):
    data = bytes(range(256)) * 40_000
    answer, _ = run(echo(connected, data))
    assert answer == data
