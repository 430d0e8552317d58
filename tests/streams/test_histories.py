# SPDX-License-Identifier: GPL-2.0-only
"""Random histories of one reader: mgloop.streams.StreamReader behaves as asyncio's.

A history is a list of steps: data arrives, the program reads, cancels or looks at the buffer, the
stream ends or fails. Each history runs once with each class. After each step, the results,
exceptions, calls of the transport and the state must be equal.
"""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mgloop
from mgloop import _stdlib

pytestmark = pytest.mark.mgloop_only

EXAMPLES = int(os.environ.get("MGLOOP_FUZZ_EXAMPLES", "60"))


class FakeTransport:
    """Records pause_reading() and resume_reading()."""

    def __init__(self, can_pause):
        self.can_pause = can_pause
        self.calls = []

    def pause_reading(self):
        self.calls.append("pause")
        if not self.can_pause:
            raise NotImplementedError

    def resume_reading(self):
        self.calls.append("resume")


def described(exc):
    attributes = {name: getattr(exc, name, None) for name in ("partial", "expected", "consumed")}
    return type(exc), exc.args, attributes


class History:
    """One reader and what has happened to it."""

    def __init__(self, make, limit, can_pause):
        loop = asyncio.get_running_loop()
        self.reader = make(limit=limit, loop=loop)
        self.transport = FakeTransport(can_pause)
        self.reader.set_transport(self.transport)
        self.tasks = []
        self.log = []

    async def call(self, name, *args):
        return await getattr(self.reader, name)(*args)

    async def step(self, name, *args):
        try:
            getattr(self, name)(*args)
        except Exception as exc:
            self.log.append(described(exc))
        for _ in range(3):
            await asyncio.sleep(0)

    def start(self, name, *args):
        self.tasks.append(asyncio.ensure_future(self.call(name, *args)))

    def cancel(self):
        for task in self.tasks:
            task.cancel()

    def feed(self, kind, data):
        self.reader.feed_data(kind(data))

    def end(self):
        self.reader.feed_eof()

    def fail(self):
        self.reader.set_exception(OSError(5, "reset"))

    def look(self):
        self.log.append(bytes(self.reader._buffer))

    def keep(self):
        self.kept = self.reader._buffer

    def change(self):
        self.reader._buffer.extend(b"x\n")

    def limit(self, limit):
        self.reader._limit = limit

    def state(self):
        outcomes = [
            "cancelled"
            if task.done() and task.cancelled()
            else task.done()
            and (task.result() if not task.exception() else described(task.exception()))
            for task in self.tasks
        ]
        reader = self.reader
        return (
            outcomes, self.log, self.transport.calls, reader.at_eof(), reader._paused, reader._eof,
            reader._waiter is None, reader._transport is None,
        )  # fmt: skip


sizes = st.sampled_from([-1, 0, 1, 2, 3, 7, 20, 50, 10**30])
separators = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b"ab",
        b"aab",
        b"",
        bytearray(b"\r\n"),
        memoryview(b"a"),
        (b"\n", b"ab"),
        (),
        "a",
        1,
    ]
)
data = st.binary(max_size=12) | st.lists(
    st.sampled_from([b"a", b"b", b"\r", b"\n", b"aab", b"xyz", b"\r\n"]), max_size=12
).map(b"".join)
reads = st.one_of(
    st.tuples(st.just("start"), st.sampled_from(["read", "readexactly"]), sizes),
    st.tuples(st.just("start"), st.just("readuntil"), separators),
    st.sampled_from([("start", "readline"), ("start", "__anext__"), ("start", "read")]),
    st.sampled_from(
        [("start", "read", None), ("start", "readexactly", 2.5), ("start", "read", True)]
    ),
)
feeds = st.tuples(
    st.just("feed"), st.sampled_from([bytes, bytes, bytes, bytearray, memoryview, list]), data
)
others = st.sampled_from(
    [
        ("cancel",),
        ("look",),
        ("end",),
        ("fail",),
        ("keep",),
        ("change",),
        ("limit", 3),
        ("limit", 9),
    ]
)
steps = st.lists(st.one_of(feeds, feeds, feeds, reads, reads, others), max_size=25)


async def run_both(limit, can_pause, history):
    pair = [
        History(make, limit, can_pause)
        for make in (_stdlib.StreamReader, mgloop.streams.StreamReader)
    ]
    for step in [*history, ("look",), ("end",), ("start", "read"), ("cancel",)]:
        for one in pair:
            await one.step(*step)
        expected, ours = (one.state() for one in pair)
        assert ours == expected, step


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(limit=st.sampled_from([1, 2, 5, 12, 60]), can_pause=st.booleans(), history=steps)
def test_a_history_has_the_same_results_as_with_asyncios_class(loop, limit, can_pause, history):
    loop.run_until_complete(run_both(limit, can_pause, history))


async def test_many_small_chunks_do_not_stay_apart(loop):
    reader = mgloop.streams.StreamReader(loop=loop, limit=1000)
    for _ in range(100):
        reader.feed_data(b"ab")
    assert await reader.readexactly(150) == b"ab" * 75
    reader.feed_data(b"\n")
    assert await reader.readline() == b"ab" * 25 + b"\n"


async def test_long_lines_in_many_large_chunks(loop):
    reader = mgloop.streams.StreamReader(loop=loop, limit=10_000_000)
    chunks = [bytes([65 + number]) * 2000 for number in range(20)]
    line = asyncio.ensure_future(reader.readuntil(b"\r\n"))
    for chunk in chunks:
        reader.feed_data(chunk)
        await asyncio.sleep(0)
    reader.feed_data(b"\r")
    await asyncio.sleep(0)
    reader.feed_data(b"\nrest")
    assert await line == b"".join(chunks) + b"\r\n"
    assert await reader.read(100) == b"rest"


async def test_a_read_returns_a_received_chunk_without_a_copy(loop):
    reader = mgloop.streams.StreamReader(loop=loop)
    chunk = b"x" * 1000
    reader.feed_data(chunk)
    assert await reader.read(5000) is chunk
    reader.feed_data(chunk)
    reader.feed_data(b"more")
    assert await reader.readexactly(1000) is chunk
