# SPDX-License-Identifier: GPL-2.0-only
"""From records to the application, however the records are split, with its flow control."""

import asyncio
import random
import ssl

import pytest
import support
from harness import App, BufferedApp, all_apps, both_apps, only_mgloop


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def tls_version(request):
    return request.param


# --- records --------------------------------------------------------------------------------------


@all_apps
def test_records_cut_at_every_byte(connect, loop, app_class):
    app = app_class()
    connection = connect(app)
    stream = connection.peer_says(b"one", b"two", b"three")
    for cut in range(len(stream)):
        connection.arrive(stream[cut : cut + 1])
    support.turn(loop)
    assert app.data == b"onetwothree"


@all_apps
def test_records_cut_anywhere(connect, loop, app_class):
    for seed in range(6):
        cut_anywhere(connect, loop, app_class, random.Random(seed))


def cut_anywhere(connect, loop, app_class, rng):
    app = app_class()
    connection = connect(app)
    message = support.pattern(150_000)
    stream, at = b"", 0
    while at < len(message):
        size = rng.choice([1, 20, 1000, 16_384, 16_385, 40_000])
        stream += connection.peer_says(message[at : at + size])
        at += size
    while stream:
        size = rng.choice([1, 4, 5, 6, 100, 1100, 16_400, 70_000, 300_000])
        connection.arrive(stream[:size])
        stream = stream[size:]
        if rng.random() < 0.2:
            support.turn(loop)

    def arrived():
        return sum(map(len, app.chunks))

    while (before := arrived()) < len(message):
        support.turn(loop)
        assert arrived() > before
    assert app.data == message


def test_records_that_arrive_together_are_delivered_together(connection, app):
    connection.arrive(connection.peer_says(*[b"%05d" % number for number in range(1000)]))
    assert len(app.chunks) == 1
    assert app.data == b"".join(b"%05d" % number for number in range(1000))


def test_the_beginning_of_the_next_record_is_kept(connection, app):
    first, second = connection.peer_says(b"first"), connection.peer_says(b"second" * 100)
    connection.arrive(first + second[:300])
    assert app.data == b"first"
    connection.arrive(second[300:])
    assert app.data == b"first" + b"second" * 100


def test_records_without_data_are_not_delivered(connect):
    app = App()
    # With TLS 1.3 a client gets tickets, which look like records of application data.
    connection = connect(app, client=True)
    assert app.events == ["made"]
    connection.arrive(connection.peer_says(b"data"))
    assert app.chunks == [b"data"]


@both_apps
def test_data_that_comes_with_the_end_of_the_handshake(loop, prepare, app_class):
    app = app_class()
    connection = prepare(app)
    connection.proto.connection_made(connection.below)
    with pytest.raises(ssl.SSLWantReadError):
        connection.peer.do_handshake()
    connection.arrive(connection.sent_by_peer())
    connection.incoming.write(connection.below.take())
    try:
        connection.peer.do_handshake()
    except ssl.SSLWantReadError:
        # TLS 1.2: the client may not write before it has received the server's last message.
        pytest.skip("cannot happen with TLS 1.2")
    finish = connection.sent_by_peer()
    early = connection.peer_says(b"early", b"and more")
    connection.arrive(finish + early + connection.peer_says(b"next")[:7])
    assert app.events == ["made", "data"]
    assert app.data == b"earlyand more"


def test_bytes_that_start_tls_found_in_a_stream_reader(loop, prepare):
    # base_events.start_tls() of newer versions writes them to the BIO before connection_made().
    app = App()
    connection = prepare(app)
    with pytest.raises(ssl.SSLWantReadError):
        connection.peer.do_handshake()
    hello = connection.sent_by_peer()
    connection.proto._incoming.write(hello[:50])
    connection.proto.connection_made(connection.below)
    connection.arrive(hello[50:])
    connection.incoming.write(connection.below.take())
    connection.exchange(3)
    stream = connection.peer_says(b"hello", b"world")
    connection.arrive(stream[:10])
    connection.arrive(stream[10:])
    assert app.data == b"helloworld"


def test_writing_to_the_bio_behind_the_protocols_back(connection, app):
    stream = connection.peer_says(b"hello", b"world", b"again")
    connection.proto._incoming.write(stream[:10])
    for byte in range(10, len(stream)):
        connection.arrive(stream[byte : byte + 1])
    assert app.data == b"helloworldagain"


@both_apps
def test_garbage_is_fatal(connect, app_class):
    app = app_class()
    connection = connect(app)
    connection.arrive(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert isinstance(connection.below.fatal, ssl.SSLError)
    connection.lose(connection.below.fatal)
    assert app.events == ["made", "lost"]
    assert isinstance(app.lost_with, ssl.SSLError)


@both_apps
def test_a_forged_record_is_fatal(connect, app_class):
    app = app_class()
    connection = connect(app)
    stream = bytearray(connection.peer_says(b"x" * 1000))
    stream[500] ^= 1
    connection.arrive(bytes(stream))
    assert isinstance(connection.below.fatal, ssl.SSLError)
    assert app.data == b""


def test_a_record_longer_than_allowed_is_fatal(connection):
    connection.arrive(b"\x17\x03\x03\xff\xff" + b"x" * 70_000)
    assert isinstance(connection.below.fatal, ssl.SSLError)


# --- flow control of reading ----------------------------------------------------------------------


@both_apps
def test_pause_reading(connect, loop, app_class):
    app = app_class()
    connection = connect(app)
    app.transport.pause_reading()
    app.transport.pause_reading()
    assert not app.transport.is_reading()
    stream = connection.peer_says(b"one", b"two")
    connection.arrive(stream[:30])
    connection.arrive(stream[30:])
    assert app.data == b""
    app.transport.resume_reading()
    app.transport.resume_reading()
    assert app.transport.is_reading()
    assert app.data == b""
    support.turn(loop)
    assert app.data == b"onetwo"
    connection.arrive(connection.peer_says(b"three"))
    assert app.data == b"onetwothree"


@both_apps
def test_pause_reading_in_data_received(connect, loop, app_class):
    app = app_class(on_data=lambda app, data: app.transport.pause_reading())
    connection = connect(app)
    for message in (b"one", b"two", b"three"):
        connection.arrive(connection.peer_says(message))
    assert app.chunks == [b"one"]
    app.transport.resume_reading()
    support.turn(loop)
    assert app.data == b"onetwothree"


def test_the_transport_below_is_paused_at_the_limit(connection, app, loop):
    app.transport.set_read_buffer_limits(high=100_000, low=20_000)
    app.transport.pause_reading()
    message = support.pattern(150_000)
    stream = connection.peer_says(message)
    connection.arrive(stream[:90_000])
    assert connection.below.calls == []
    assert app.transport.get_read_buffer_size() == 90_000
    connection.arrive(stream[90_000:])
    assert connection.below.calls == ["pause"]
    app.transport.resume_reading()
    support.turn(loop)
    assert connection.below.calls == ["pause", "resume"]
    assert app.data == message


def test_a_low_read_limit_does_not_stop_a_record_in_the_middle(connection, app):
    app.transport.set_read_buffer_limits(high=1000, low=0)
    stream = connection.peer_says(support.pattern(16_000))
    connection.arrive(stream[:9000])
    assert connection.below.calls == []
    connection.arrive(stream[9000:])
    assert app.data == support.pattern(16_000)


def test_buffers_smaller_than_a_record(connect, loop):
    app = BufferedApp(1000)
    connection = connect(app)
    message = support.pattern(20_000)
    connection.arrive(connection.peer_says(message))
    for _ in range(30):
        support.turn(loop)
    assert app.data == message
    assert max(map(len, app.chunks)) == 1000


def test_an_empty_buffer_is_an_error(connect, kind, reported):
    only_mgloop(kind, "takes it for the end of the stream")
    app = BufferedApp(0)
    connection = connect(app)
    connection.arrive(connection.peer_says(b"data"))
    assert "empty buffer" in str(reported.pop(RuntimeError)["exception"])
    assert isinstance(connection.below.fatal, RuntimeError)


def test_get_buffer_that_sets_another_protocol(connect):
    """The requested buffer still belongs to the old protocol; the new one is unbuffered."""

    class Leaving(BufferedApp):
        successor = None

        def get_buffer(self, sizehint):
            if self.successor is not None:
                self.transport.set_protocol(self.successor)
            return super().get_buffer(sizehint)

    app = Leaving()
    connection = connect(app)
    app.successor = App()
    connection.arrive(connection.peer_says(b"one"))
    connection.arrive(connection.peer_says(b"two"))
    assert app.data == b"one"
    assert app.successor.data == b"two"
    assert connection.below.calls == []


def test_the_applications_buffer_is_not_held(connect):
    class Growing(asyncio.BufferedProtocol):
        data = b""

        def connection_made(self, transport):
            self.transport = transport

        def get_buffer(self, sizehint):
            self.buffer = bytearray(64)
            return self.buffer

        def buffer_updated(self, nbytes):
            self.data += self.buffer[:nbytes]
            # Raises BufferError if the buffer still had an export.
            self.buffer.clear()

    app = Growing()
    connection = connect(app)
    connection.arrive(connection.peer_says(b"one"))
    connection.arrive(connection.peer_says(b"two"))
    assert app.data == b"onetwo"
