# SPDX-License-Identifier: GPL-2.0-only
"""The server for remote calls."""

import struct

import compiled_protocols
import pytest

RETURN, SUM = 0, 1


def request(number, method, argument=b""):
    return struct.pack(">IIB", 5 + len(argument), number, method) + argument


async def replies(reader, count):
    """Return (number, status, result) of each reply."""
    found = []
    for _ in range(count):
        length, number, status = struct.unpack(">IIB", await reader.readexactly(9))
        found.append((number, status, await reader.readexactly(length - 5)))
    return found


async def call(connected, *parts, count=1):
    """Send the parts, each in its own write, and return the replies."""
    async with connected(compiled_protocols.Calculator) as (reader, writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await replies(reader, count)


NO_LIST = b"the argument is not a list of 32-bit integers"
CALLS = {
    "return": (request(1, RETURN, b"argument"), (1, 0, b"argument")),
    "nothing": (request(2**32 - 1, RETURN), (2**32 - 1, 0, b"")),
    "sum": (
        request(2, SUM, b"\xff" * 4 + bytes(3) + b"\x02"),
        (2, 0, struct.pack(">Q", 2**32 + 1)),
    ),
    "no list": (request(3, SUM, b"abc"), (3, 1, NO_LIST)),
    "method": (request(4, 255), (4, 1, b"unknown method")),
    "longest": (request(5, RETURN, b"x" * (65536 - 5)), (5, 0, b"x" * (65536 - 5))),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call(run, connected, name):
    sent, reply = CALLS[name]
    assert run(call(connected, sent)) == [reply]


def test_many_calls_at_once(run, connected):
    sent = [request(number, RETURN, b"x" * (number * 7 % 300)) for number in range(5000)]
    got = run(call(connected, b"".join(sent), count=5000))
    assert [number for number, _, _ in got] == list(range(5000))


def test_a_request_byte_by_byte(run, connected):
    sent = request(1, RETURN, b"argument") + request(2, SUM, bytes(8))
    got = run(call(connected, *(sent[i : i + 1] for i in range(len(sent))), count=2))
    assert got == [(1, 0, b"argument"), (2, 0, bytes(8))]


@pytest.mark.parametrize("length", [0, 4, 65537, 2**31, 2**32 - 1])
def test_a_length_that_no_request_has(run, connected, length):
    async def main():
        async with connected(compiled_protocols.Calculator) as (reader, writer):
            writer.write(request(1, RETURN, b"before") + struct.pack(">I", length))
            assert await replies(reader, 1) == [(1, 0, b"before")]
            assert await reader.read() == b""

    run(main())
