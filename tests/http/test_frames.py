# SPDX-License-Identifier: GPL-2.0-only
"""WebSocket framing: messages split in every way, and every violation of the protocol.

The results are compared with upgrading.frame(), Python's own decoder, and zlib.
MGLOOP_FUZZ_EXAMPLES sets the number of random examples of each test.
"""

import itertools
import os
import time
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upgrading import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, closing, frame

from mgloop.http.wire import deflate
from mgloop.http.wire._frames import FrameReader, FrameWriter, close_frame, control_frame, sendable

EXAMPLES = int(os.environ.get("MGLOOP_FUZZ_EXAMPLES", "100"))
NEED_DATA, FAILED = -1, -2
FLUSHED = b"\x00\x00\xff\xff"


def rest(reader):
    """Return all frames in the data that was fed: (kind, payload), or (kind, code, reason)."""
    found = []
    while (kind := reader.advance()) >= 0:
        if kind == CLOSE:
            found.append((kind, reader.code, reader.reason))
        else:
            found.append((kind, reader.payload))
    if kind == FAILED:
        assert reader.advance() == FAILED
        found.append((kind, reader.code, reader.reason))
    return found


def read(reader, *pieces):
    """Feed `pieces` one by one; return all frames."""
    found = []
    for piece in pieces:
        reader.feed(piece)
        found += rest(reader)
        if found and found[-1][0] == FAILED:
            break
    return found


def code_of(reader, *pieces):
    """Return the close code with which reading `pieces` fails, or None."""
    *_, last = read(reader, *pieces) or [(None,)]
    return last[1] if last[0] == FAILED else None


def cut(data, places):
    """Return `data` in pieces, split at `places`."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


def bytewise(data):
    return [data[i : i + 1] for i in range(len(data))]


def compress(data, wbits=-15):
    compressor = zlib.compressobj(wbits=wbits)
    return (compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH))[: -len(FLUSHED)]


sizes = st.one_of(st.integers(0, 200), st.sampled_from([4095, 4096, 4097, 65535, 65536, 70000]))
payloads = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=50),
    st.binary(max_size=50),
    st.builds(lambda size: bytes(i * 7 & 0xFF for i in range(size)), sizes),
    st.builds(lambda size: "aé€𐍈"[size % 4] * size, sizes),
)
places = st.lists(st.integers(0, 1 << 20), max_size=6)


@st.composite
def conversations(draw):
    """Draw (bytes from a client, the messages in them)."""
    data, expected = b"", []
    mask = draw(st.binary(min_size=4, max_size=4))
    compressor = zlib.compressobj(wbits=-12)
    for payload in draw(st.lists(payloads, max_size=5)):
        kind = TEXT if isinstance(payload, str) else BINARY
        plain = payload.encode() if kind == TEXT else payload
        rsv = draw(st.sampled_from([0, 4]))
        if rsv:
            plain = compressor.compress(plain) + compressor.flush(zlib.Z_SYNC_FLUSH)
            plain = plain[: -len(FLUSHED)]
        fragments = cut(plain, draw(places)) or [b""]
        for index, fragment in enumerate(fragments):
            last = index == len(fragments) - 1
            opcode = CONTINUATION if index else kind
            data += frame(opcode, fragment, fin=last, rsv=0 if index else rsv, mask=mask)
            if not last and draw(st.booleans()):
                control = draw(st.sampled_from([PING, PONG]))
                content = draw(st.binary(max_size=125))
                data += frame(control, content, mask=mask)
                expected.append((control, content))
        expected.append((kind, payload))
    return data, expected


@settings(max_examples=EXAMPLES, deadline=None)
@given(conversations(), places, st.booleans())
def test_messages_are_the_same_wherever_the_bytes_are_cut(conversation, where, all_cut):
    data, expected = conversation
    pieces = bytewise(data[:5000]) + cut(data[5000:], where) if all_cut else cut(data, where)
    assert read(FrameReader(1 << 20, 12), *pieces) == expected
    together = FrameReader(1 << 20, 12)
    for piece in pieces:
        together.feed(piece)
    assert rest(together) == expected


INVALID = {
    "RSV1 without compression": (frame(TEXT, b"a", rsv=4), 1002),
    "RSV2": (frame(TEXT, b"a", rsv=2), 1002),
    "RSV3": (frame(TEXT, b"a", rsv=1), 1002),
    "RSV1 on a ping": (frame(PING, b"a", rsv=4), 1002),
    "not masked": (frame(TEXT, b"a", mask=b""), 1002),
    "a ping that is not masked": (frame(PING, mask=b""), 1002),
    "a fragmented ping": (frame(PING, b"a", fin=False), 1002),
    "a fragmented close": (frame(CLOSE, fin=False), 1002),
    "a ping of 126 bytes": (frame(PING, bytes(126)), 1002),
    "a close of 126 bytes": (closing(1000, b"a" * 124), 1002),
    "a continuation of nothing": (frame(CONTINUATION, b"a"), 1002),
    "a continuation after the end": (frame(TEXT, b"a") + frame(CONTINUATION, b"a"), 1002),
    "a text within a text": (frame(TEXT, b"a", fin=False) + frame(TEXT, b"a"), 1002),
    "bytes within a text": (frame(TEXT, b"a", fin=False) + frame(BINARY, b"a"), 1002),
    "a length of 64 bits": (frame(BINARY, length=1 << 63), 1002),
    "a close code of one byte": (frame(CLOSE, b"\x03"), 1002),
    "a reason that is not UTF-8": (closing(1000, b"\xff"), 1007),
    "too large": (frame(BINARY, length=1001), 1009),
    "far too large": (frame(BINARY, length=(1 << 63) - 1), 1009),
    "too large together": (
        frame(BINARY, bytes(600), fin=False) + frame(CONTINUATION, length=401),
        1009,
    ),
    **{f"opcode {code}": (frame(code), 1002) for code in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    **{
        f"close code {code}": (closing(code), 1002)
        for code in (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    },
}


@pytest.mark.parametrize("pieces", [lambda data: [data], bytewise], ids=["whole", "bytewise"])
@pytest.mark.parametrize("what", INVALID)
def test_a_violation_fails_with_its_close_code(what, pieces):
    data, code = INVALID[what]
    reader = FrameReader(1000)
    assert code_of(reader, frame(PING), *pieces(data)) == code
    assert reader.reason
    reader.feed(frame(TEXT, b"more"))
    assert reader.advance() == FAILED


def test_rsv1_is_allowed_on_the_first_frame_of_a_message_alone():
    start = frame(TEXT, compress(b"a" * 99), fin=False, rsv=4)
    assert code_of(FrameReader(0, 15), start, frame(CONTINUATION, b"", rsv=4)) == 1002
    assert code_of(FrameReader(0, 15), start, frame(PING, b"", rsv=4)) == 1002


@pytest.mark.parametrize("code", [1000, 1003, 1007, 1011, 1012, 1014, 3000, 3999, 4000, 4999])
def test_close_codes_that_may_be_sent(code):
    assert sendable(code)
    data = closing(code, "because €".encode())
    assert read(FrameReader(), *bytewise(data)) == [(CLOSE, code, "because €")]
    assert close_frame(code, "because €")[2:4] == code.to_bytes(2, "big")


def test_a_close_frame_without_a_code_is_1005_and_nothing_counts_after_it():
    assert read(FrameReader(), frame(CLOSE) + frame(3) + frame(TEXT, b"a")) == [(CLOSE, 1005, "")]
    assert close_frame(1005, "") == b"\x88\x00"


@pytest.mark.parametrize("code", [999, 1004, 1006, 1015, 5000])
def test_close_codes_that_cannot_be_sent(code):
    assert not sendable(code)
    with pytest.raises(ValueError):
        close_frame(code, "")


def test_a_length_need_not_be_minimal():
    head = b"\x82\xff" + (3).to_bytes(8, "big") + bytes(4)
    assert read(FrameReader(), head + b"abc") == [(BINARY, b"abc")]


# ------------------------------------------------------------------------------- UTF-8 ----

ODD = [b"\xc0\x80", b"\xe0\x80", b"\xed\xa0", b"\xf0\x80", b"\xf4\x90", b"\xf5", b"\xff", b"\x80"]
texts = st.lists(
    st.one_of(st.binary(max_size=4), st.text(max_size=12).map(
        lambda text: text.encode("utf-8", "surrogatepass")), st.sampled_from(ODD)), max_size=6
).map(b"".join)  # fmt: skip


def can_become_valid(data):
    """Return whether `data` can be extended to valid UTF-8."""
    for count in range(4):
        for rest in itertools.product(b"\x80\x8f\x90\x9f\xa0\xbf", repeat=count):
            try:
                (data + bytes(rest)).decode()
            except UnicodeDecodeError:
                continue
            return True
    return False


@settings(max_examples=EXAMPLES, deadline=None)
@given(texts, st.booleans())
def test_invalid_utf8_fails_at_the_first_byte_that_cannot_be_right(data, in_fragments):
    reader = FrameReader()
    if in_fragments:
        pieces = [frame(CONTINUATION, byte, fin=False) for byte in bytewise(data)]
        reader.feed(frame(TEXT, fin=False))
    else:
        pieces = bytewise(data)
        whole = frame(TEXT, data + b"x", mask=bytes(4))
        reader.feed(whole[: len(whole) - len(data) - 1])
    for index, piece in enumerate(pieces):
        failed = code_of(reader, piece)
        assert failed == (None if can_become_valid(data[: index + 1]) else 1007)
        if failed:
            return
    try:
        expected = [(TEXT, data.decode())] if in_fragments else [(TEXT, data.decode() + "x")]
    except UnicodeDecodeError:
        expected = [(FAILED, 1007, "invalid UTF-8")]
    assert read(reader, frame(CONTINUATION) if in_fragments else b"x") == expected


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=30))
def test_a_whole_text_is_what_python_decodes(data):
    try:
        expected = [(TEXT, data.decode())]
    except UnicodeDecodeError:
        expected = [(FAILED, 1007, "invalid UTF-8")]
    assert read(FrameReader(), frame(TEXT, data)) == expected
    assert read(FrameReader(), frame(TEXT, compress(data), rsv=4)) == [
        (FAILED, 1002, "reserved bits must be 0")
    ]
    assert read(FrameReader(0, 15), frame(TEXT, compress(data), rsv=4)) == expected


# ------------------------------------------------------------------------- compression ----


def test_the_examples_of_the_rfc():
    hello = [(TEXT, "Hello")]
    for payload in (
        "f248cdc9c90700",
        "f24805000000ffffcac9c90700",  # two blocks
        "000500faff48656c6c6f00",  # not compressed
        "f348cdc9c90700",  # the block claims to be the last one
    ):
        data = bytes.fromhex(payload)
        assert read(FrameReader(0, 15), frame(TEXT, data, rsv=4)) == hello
        assert read(FrameReader(0, 15), *bytewise(frame(TEXT, data, rsv=4))) == hello
    shared = frame(TEXT, bytes.fromhex("f248cdc9c90700"), rsv=4)
    again = frame(TEXT, bytes.fromhex("f200110000"), rsv=4)
    assert read(FrameReader(0, 15), shared, again) == hello * 2
    assert code_of(FrameReader(0, 15, False), shared, again) == 1007


def test_a_message_whose_last_block_says_so_may_be_followed_by_another():
    compressor = zlib.compressobj(wbits=-15)
    ended = compressor.compress(b"Hello") + compressor.flush()
    for message in (ended, ended + b"\x00"):
        data = frame(TEXT, message, rsv=4)
        assert read(FrameReader(0, 15), data * 3) == [(TEXT, "Hello")] * 3


def test_streams_that_end_again_and_again_are_refused():
    data = frame(BINARY, b"\x03\x00" * 30000, rsv=4)
    assert code_of(FrameReader(0, 15), data) == 1007


def test_invalid_compressed_data_is_refused():
    assert code_of(FrameReader(0, 15), frame(BINARY, b"\xff" * 20, rsv=4)) == 1007


@pytest.mark.parametrize("fragments", [1, 7])
def test_the_decompressed_size_is_limited(fragments):
    size = 64 * 1024 * 1024
    bomb = compress(bytes(size))
    pieces = cut(bomb, [len(bomb) * i // fragments for i in range(fragments)])
    frames = [
        frame(CONTINUATION if i else BINARY, piece, fin=i == len(pieces) - 1, rsv=0 if i else 4)
        for i, piece in enumerate(pieces)
    ]
    tracemalloc.start()
    try:
        assert code_of(FrameReader(100_000, 15), *frames) == 1009
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("rsv", [0, 4])
def test_a_message_may_be_as_large_as_the_limit_and_no_larger(rsv):
    for size, code in ((1000, None), (1001, 1009)):
        payload = compress(bytes(size)) if rsv else bytes(size)
        assert code_of(FrameReader(1000, 15), frame(BINARY, payload, rsv=rsv)) == code


def test_memory_is_not_spent_on_what_a_header_only_announces():
    tracemalloc.start()
    try:
        reader = FrameReader()
        assert read(reader, frame(BINARY, bytes(100), length=1 << 40)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def plain_of(frames, decompressor):
    """Return the opcode and the payload of a server's frame."""
    data = b"".join(frames)
    size, head = data[1], 2
    if size == 126:
        size, head = int.from_bytes(data[2:4], "big"), 4
    elif size == 127:
        size, head = int.from_bytes(data[2:10], "big"), 10
    assert data[0] & 0x80
    assert len(data) == head + size
    payload = data[head:]
    if data[0] & 0x40:
        payload = decompressor.decompress(payload + FLUSHED)
    return data[0] & 0x0F, payload


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(payloads, max_size=5), st.sampled_from([0, 9, 12, 15]), st.booleans())
def test_zlib_decompresses_the_messages_of_a_server(messages, bits, takeover):
    writer = FrameWriter(bits, takeover)
    decompressor = zlib.decompressobj(wbits=-(bits or 15))
    for message in messages:
        if not takeover:
            decompressor = zlib.decompressobj(wbits=-(bits or 15))
        kind, payload = plain_of(writer.message(message), decompressor)
        assert (payload.decode() if kind == TEXT else payload) == message


@pytest.mark.parametrize("takeover", [True, False])
@pytest.mark.parametrize("bits", [9, 12])
def test_incompressible_messages_are_sent_uncompressed(bits, takeover):
    """A message must not grow, because its receiver may limit sizes; later ones stay readable."""
    writer = FrameWriter(bits, takeover)
    decompressor = zlib.decompressobj(wbits=-bits)
    noise = os.urandom(1024 * 1024)
    for message in (b"text " * 1000, noise, b"text " * 1000, noise[:5000], b"text " * 1000):
        frames = writer.message(message)
        assert sum(map(len, frames)) < len(message) + 11
        if not takeover:
            decompressor = zlib.decompressobj(wbits=-bits)
        assert plain_of(frames, decompressor) == (BINARY, message)


@pytest.mark.parametrize("size", [10, 100, 100_000])
@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_any_buffer_may_be_sent_and_changed_afterwards(kind, size):
    data = bytearray(b"a" * size)
    for writer in (FrameWriter(), FrameWriter(12)):
        frames = writer.message(kind(data))
        data[:] = b"b" * size
        assert plain_of(frames, zlib.decompressobj(wbits=-15)) == (BINARY, b"a" * size)
        data[:] = b"a" * size


def test_a_text_with_a_lone_surrogate_cannot_be_sent():
    with pytest.raises(UnicodeEncodeError):
        FrameWriter().message("\ud800")
    with pytest.raises(TypeError):
        FrameWriter().message(5)


def test_control_frames():
    assert control_frame(PONG, b"abc") == b"\x8a\x03abc"


# -------------------------------------------------------------------------- negotiation ----


@pytest.mark.parametrize(
    ("offers", "answer"),
    [
        ([b"permessage-deflate"], b"permessage-deflate; server_max_window_bits=12"),
        (
            [b"permessage-deflate; client_max_window_bits"],
            b"permessage-deflate; client_max_window_bits=12; server_max_window_bits=12",
        ),
        (
            [b'foo, Permessage-Deflate; client_max_window_bits="9";server_max_window_bits=10'],
            b"permessage-deflate; client_max_window_bits=9; server_max_window_bits=10",
        ),
        (
            [b"permessage-deflate; server_no_context_takeover; client_no_context_takeover"],
            b"permessage-deflate; server_no_context_takeover; client_no_context_takeover; "
            b"server_max_window_bits=12",
        ),
        # zlib does not support a window of 8 bits for sending, so the next offer is used.
        (
            [b"permessage-deflate; server_max_window_bits=8", b"permessage-deflate"],
            b"permessage-deflate; server_max_window_bits=12",
        ),
        ([b"permessage-deflate; server_max_window_bits"], None),
        ([b"permessage-deflate; server_max_window_bits=16"], None),
        ([b"permessage-deflate; server_max_window_bits=08"], None),
        ([b"permessage-deflate; client_max_window_bits=7"], None),
        ([b"permessage-deflate; server_no_context_takeover=1"], None),
        ([b"permessage-deflate; client_max_window_bits; client_max_window_bits"], None),
        ([b"permessage-deflate; unknown"], None),
        ([b"permessage-deflate;"], None),
        ([b"x-webkit-deflate-frame"], None),
        ([b"\xff"], None),
        ([], None),
    ],
)
def test_negotiation(offers, answer):
    agreement = deflate.negotiate(offers)
    assert (agreement and agreement.answer) == answer


def test_a_window_of_8_bits_is_read_with_a_larger_one():
    agreement = deflate.negotiate([b"permessage-deflate; client_max_window_bits=8"])
    assert b"client_max_window_bits=8" in agreement.answer
    assert agreement.client_bits == 9


def test_many_pieces_take_linear_time():
    size = 200_000
    reader = FrameReader()
    head = frame(BINARY, b"", length=size, mask=bytes(4))
    reader.feed(head)
    for i in range(size):
        reader.feed(b"%d" % (i % 10))
    began = time.process_time()
    assert reader.advance() == BINARY
    assert time.process_time() - began < 2  # 0.05; 15 with quadratic time
    assert reader.payload == b"0123456789" * (size // 10)
    assert reader.advance() == NEED_DATA


@given(st.lists(st.integers(1, 40), max_size=200), st.integers(1, 7))
def test_pieces_are_taken_in_order_however_they_are_fed(sizes, batch):
    message = bytes(i % 251 for i in range(sum(sizes)))
    data = frame(BINARY, message) + frame(BINARY, b"end")
    reader, found = FrameReader(), []
    pieces = cut(data, list(itertools.accumulate(sizes)))
    for i in range(0, len(pieces), batch):
        for piece in pieces[i : i + batch]:
            reader.feed(piece)
        found += rest(reader)
    assert found == [(BINARY, message), (BINARY, b"end")]
