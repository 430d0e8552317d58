# SPDX-License-Identifier: GPL-2.0-only
"""wsgi.input in memory, in a file and as a stream: the same results as io.BytesIO.

MGLOOP_FUZZ_EXAMPLES sets the number of random histories of calls for each form.
"""

import io
import itertools
import os
import random
import sys
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import open_fds as open_descriptors

from mgloop.http.errors import ClientDisconnected
from mgloop.http.wire._wsgiinput import BodyBuffer, FileInput, StreamInput, WsgiInput, open_unnamed

EXAMPLES = int(os.environ.get("MGLOOP_FUZZ_EXAMPLES", "30"))
TIMEOUT = 20


def in_memory(pieces):
    return WsgiInput(b"".join(pieces))


def in_a_file(pieces):
    data = b"".join(pieces)
    fd = open_unnamed()
    os.write(fd, data)
    return FileInput(fd, len(data))


def from_the_buffer(pieces):
    buffer = BodyBuffer()
    for piece in pieces:
        buffer.feed(piece)
    return buffer.input()


def streamed(pieces):
    stream = StreamInput(1)
    for piece in pieces:
        stream.feed(piece)
    stream.feed_eof()
    return stream


def streamed_later(pieces):
    """Return a stream that gets its next piece each time that it asks for one."""
    coming = iter(pieces)

    def send_more():
        piece = next(coming, None)
        if piece is None:
            stream.feed_eof()
        else:
            stream.feed(piece)

    stream = StreamInput(4, send_more)
    return stream


FORMS = [in_memory, in_a_file, from_the_buffer, streamed, streamed_later]

sizes = st.one_of(st.none(), st.integers(-2, 40), st.sampled_from([1 << 16, sys.maxsize, 10**30]))
calls = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["read", "readline", "readlines"]), sizes),
        st.tuples(st.sampled_from(["read", "readline", "readlines", "next"])),
    ),
    max_size=12,
)
small_pieces = st.lists(st.text("ab\n", max_size=12).map(str.encode), max_size=8)
large_pieces = st.builds(
    lambda seed, count: [random.Random(seed).randbytes(70_000) for _ in range(count)],
    st.integers(0, 1000),
    st.sampled_from([1, 2, 16, 18]),
)


def result_of(stream, call, *arguments):
    """Return the result of the call, or the class of its exception."""
    arguments = [sys.maxsize if each == 10**30 else each for each in arguments]
    try:
        return next(stream) if call == "next" else getattr(stream, call)(*arguments)
    except Exception as exc:
        return type(exc)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(pieces=st.one_of(small_pieces, large_pieces), history=calls)
@example(pieces=[b"ab\n", b"\n", b"b"], history=[("readline",), ("readlines", 1), ("read",)])
def test_as_bytesio(form, pieces, history):
    stream, model = form(pieces), io.BytesIO(b"".join(pieces))
    for call in [*history, ("read",), ("read", 1), ("next",)]:
        assert result_of(stream, *call) == result_of(model, *call)


@pytest.mark.parametrize("form", FORMS)
def test_sizes_of_other_types(form):
    class Five:
        def __index__(self):
            return 5

    assert form([b"123456789"]).read(Five()) == b"12345"
    assert form([b"123456789"]).read(10**30) == b"123456789"
    for call in ("read", "readline", "readlines"):
        for size in (1.0, "1", b"1"):
            with pytest.raises(TypeError):
                getattr(form([b"123"]), call)(size)


def test_a_body_that_is_read_at_once_is_not_copied():
    body = bytes(100_000)
    assert WsgiInput(body).read() is body
    assert WsgiInput(body).read(100_000) is body


@pytest.mark.parametrize("length", [0, 1, 1 << 20, (1 << 20) + 1, (1 << 20) + (1 << 16), 3_000_001])
def test_a_large_body_is_in_an_unnamed_file(length):
    body = random.Random(1).randbytes(length)
    before = open_descriptors()
    stream = from_the_buffer([body[i : i + 65536] for i in range(0, length, 65536)])
    assert isinstance(stream, FileInput) == (length > 1 << 20)
    assert len(open_descriptors()) - len(before) == (length > 1 << 20)
    assert stream.read(10) + stream.read(100_000) + stream.read() == body
    del stream
    assert open_descriptors() == before


def test_a_buffer_that_is_dropped_closes_its_file():
    before = open_descriptors()
    buffer = BodyBuffer()
    buffer.feed(bytes(2 << 20))
    assert open_descriptors() != before
    del buffer
    assert open_descriptors() == before


def test_the_file_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    buffer = BodyBuffer()
    with pytest.raises(OSError, match="No such file"):
        buffer.feed(bytes(2 << 20))


def test_the_file_is_shorter_than_the_body():
    stream = FileInput(open_unnamed(), 10)
    for _ in range(2):
        with pytest.raises(OSError, match="temporary file"):
            stream.read()
        with pytest.raises(OSError, match="temporary file"):
            stream.readline()


def test_the_stream_waits_for_data():
    asked = threading.Semaphore(0)
    stream = StreamInput(10, asked.release)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(stream))
    reader.start()
    for piece in (b"one\ntw", b"o\nthree", b"\n", b"four"):
        assert asked.acquire(timeout=TIMEOUT)
        assert not stream.feed(piece)
    assert asked.acquire(timeout=TIMEOUT)
    stream.feed_eof()
    reader.join(TIMEOUT)
    assert lines == [b"one\n", b"two\n", b"three\n", b"four"]


def test_a_full_stream_asks_for_more_when_it_is_read():
    asked = []
    stream = StreamInput(10, lambda: asked.append(1))
    assert not stream.feed(b"12345")
    assert stream.feed(b"67890")
    assert stream.read(3) == b"123"
    assert asked == [1]
    assert stream.read(7) == b"4567890"
    assert asked == [1]


def test_a_stream_that_breaks_off():
    stream = StreamInput(10)
    stream.feed(b"12345")
    stream.disconnect()
    stream.feed_eof()
    assert stream.read(3) == b"123"
    for call in (stream.read, stream.readline, stream.readlines, lambda: next(stream)):
        with pytest.raises(ClientDisconnected):
            call()


def test_a_stream_that_breaks_off_while_it_waits():
    asked = threading.Event()
    stream = StreamInput(10, asked.set)
    failures = []

    def read():
        try:
            stream.read()
        except OSError as exc:
            failures.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    assert asked.wait(TIMEOUT)
    stream.disconnect()
    reader.join(TIMEOUT)
    assert [type(each) for each in failures] == [ClientDisconnected]


@pytest.mark.parametrize("calls", [["read"], ["readline"], ["read", "readline"]])
def test_a_stream_in_two_threads_loses_nothing(calls):
    body = random.Random(2).randbytes(2_000_000)
    ready = threading.Semaphore(0)
    stream = StreamInput(65536, ready.release)

    def feed():
        for i in range(0, len(body), 10_007):
            if stream.feed(body[i : i + 10_007]):
                assert ready.acquire(timeout=TIMEOUT)
        stream.feed_eof()

    writer = threading.Thread(target=feed)
    writer.start()
    parts = []
    for call in itertools.cycle(calls):
        parts.append(getattr(stream, call)(9_000))
        if not parts[-1]:
            break
    writer.join(TIMEOUT)
    assert b"".join(parts) == body
