# SPDX-License-Identifier: GPL-2.0-only
"""From the application to records, and its flow control in both directions."""

import contextlib
import logging
import ssl

import pytest
import support
from harness import App, both_apps, only_mgloop

# --- writing --------------------------------------------------------------------------------------


def test_write_sends_at_once(connect):
    connection = connect(App())
    for size in (1, 1000, 16_384, 16_385, 100_000, 1_000_000):
        message = support.pattern(size)
        connection.app.transport.write(message)
        assert connection.heard() == message


def test_empty_writes_send_nothing(connect):
    connection = connect(App())
    connection.below.take()
    connection.app.transport.write(b"")
    connection.app.transport.writelines([])
    connection.app.transport.writelines([b""] if connection.proto.__class__ is None else [])
    assert connection.below.writes == []


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_writelines(connect, wrap):
    connection = connect(App())
    pieces = [support.pattern(size) for size in (1, 10, 5000, 100, 4096, 4097, 200_000, 3, 16_384)]
    connection.app.transport.writelines([wrap(piece) for piece in pieces])
    assert connection.heard() == b"".join(pieces)


def test_writelines_of_small_pieces_is_one_write_below(connect, kind):
    connection = connect(App())
    connection.below.take()
    connection.app.transport.writelines([b"%d" % number for number in range(10)] * 3)
    assert len(connection.below.writes) == 1
    size = len(connection.below.writes[0])
    assert connection.heard() == b"0123456789" * 3
    if kind != "asyncio":
        # One record, not thirty.
        assert size < 100


def test_writes_in_data_received_leave_in_order_and_together(connect, kind):
    sizes = [10, 3, 4096, 4096, 4096, 4096, 4097, 1, 20_000, 5, 200_000, 7]
    expected = b"".join(support.pattern(size) for size in sizes)

    def answer(app, data):
        for size in sizes:
            app.transport.write(support.pattern(size))

    connection = connect(App(answer))
    connection.below.take()
    connection.arrive(connection.peer_says(b"?"))
    if kind != "asyncio":
        assert len(connection.below.writes) < len(sizes) // 2
    assert connection.heard() == expected


@both_apps
def test_a_mutable_buffer_may_be_reused_after_write(connect, app_class):
    def answer(app, data):
        buffer = bytearray(b"a" * 10)
        app.transport.write(buffer)
        buffer[:] = b"b" * 20
        app.transport.write(memoryview(buffer)[5:15])
        buffer[:] = b"c"
        buffer.clear()

    app = app_class(on_data=answer)
    connection = connect(app)
    connection.arrive(connection.peer_says(b"?"))
    assert connection.heard() == b"a" * 10 + b"b" * 10


@both_apps
def test_data_written_before_an_abort_in_a_callback_is_sent(connect, app_class):
    def answer(app, data):
        app.transport.write(b"bye")
        app.transport.abort()
        app.transport.write(b"never")

    app = app_class(on_data=answer)
    connection = connect(app)
    connection.arrive(connection.peer_says(b"?"))
    assert connection.below.calls == ["force_close"]
    assert connection.heard() == b"bye"
    connection.lose()
    assert app.events == ["made", "data", "lost"]
    assert app.lost_with is None


@both_apps
def test_data_written_before_a_callback_failed_is_sent(connect, reported, app_class):
    def answer(app, data):
        app.transport.write(b"sorry")
        raise ZeroDivisionError

    app = app_class(on_data=answer)
    connection = connect(app)
    connection.arrive(connection.peer_says(b"?"))
    assert connection.heard() == b"sorry"
    assert isinstance(connection.below.fatal, ZeroDivisionError)
    assert reported.pop(ZeroDivisionError)["message"] == "Fatal error on SSL protocol"


def test_system_exit_in_data_received_gets_through(connect):
    def leave(app, data):
        app.transport.write(b"bye")
        raise SystemExit

    connection = connect(App(leave))
    with pytest.raises(SystemExit):
        connection.arrive(connection.peer_says(b"?"))
    connection.app.on_data = None
    connection.app.transport.write(b"!")
    assert connection.heard() == b"bye!"


def test_writes_of_one_connection_inside_a_callback_of_another(connect):
    other = connect(App())

    def relay(app, data):
        app.transport.write(b"a")
        other.app.transport.write(b"1")
        app.transport.write(b"b")
        other.app.transport.write(b"2")

    connection = connect(App(relay))
    connection.arrive(connection.peer_says(b"?"))
    assert connection.heard() == b"ab"
    assert other.heard() == b"12"


class Liar(bytearray):
    """A buffer whose len() differs from its real size."""

    claim = 0

    def __len__(self):
        return self.claim


class Shrinking(bytearray):
    """Returns a smaller buffer every time (if `__buffer__` is used: CPython 3.12)."""

    sizes = (3000, 2000, 1000, 1, 0)

    def __buffer__(self, flags):
        size, *self.sizes = self.sizes
        return memoryview(support.pattern(size))


def at_once(connect, transport_write, app_class=App):
    connection = connect(app_class())
    transport_write(connection.app.transport)
    return connection


def in_a_callback(connect, transport_write, app_class=App):
    connection = connect(app_class(lambda app, data: transport_write(app.transport)))
    connection.arrive(connection.peer_says(b"?"))
    return connection


def while_the_transport_below_is_paused(connect, transport_write, app_class=App):
    connection = connect(app_class())
    connection.proto.pause_writing()
    transport_write(connection.app.transport)
    connection.proto.resume_writing()
    return connection


in_every_way = pytest.mark.parametrize(
    "way", [at_once, in_a_callback, while_the_transport_below_is_paused]
)


@in_every_way
@pytest.mark.parametrize("claim", [1, 9, 11, 3000, 100_000])
@pytest.mark.parametrize("method", ["write", "writelines"])
def test_a_length_that_is_not_the_size(connect, way, claim, method):
    def write(transport):
        data = Liar(b"0123456789")
        data.claim = claim
        if method == "write":
            transport.write(data)
        else:
            transport.writelines([data])

    assert way(connect, write).heard() == b"0123456789"


@in_every_way
@pytest.mark.parametrize("method", ["write", "writelines"])
def test_a_buffer_that_shrinks_between_two_looks_at_it(connect, way, method):
    def write(transport):
        data = Shrinking(b"x" * 3000)
        if method == "write":
            transport.write(data)
        else:
            transport.writelines([data])

    heard = way(connect, write).heard()
    assert heard in (b"x" * 3000, *(support.pattern(size) for size in Shrinking.sizes))


@in_every_way
@pytest.mark.parametrize("size", [12, 6000, 240_000])
def test_views_of_items_and_of_more_dimensions(connect, way, size):
    message = support.pattern(size)
    views = [
        memoryview(message).cast("I"),
        memoryview(bytearray(message)).cast("H"),
        memoryview(message).cast("B", (size // 6, 2, 3)),
    ]

    def write(transport):
        for view in views:
            transport.write(view)
        transport.writelines(views)

    assert way(connect, write).heard() == message * 6


@in_every_way
@pytest.mark.parametrize("method", ["write", "writelines"])
def test_a_view_with_gaps_is_fatal(connect, reported, kind, way, method):
    def write(transport):
        data = memoryview(b"0123456789")[::2]
        if method == "write":
            transport.write(data)
        else:
            transport.writelines([data])

    connection = way(connect, write)
    assert isinstance(connection.below.fatal, BufferError)
    assert reported.pop(BufferError)["message"] == "Fatal error on SSL protocol"
    if kind == "asyncio":
        # asyncio has kept the data, and fails again whenever it sends.
        reported.pop_all()
    connection.lose(connection.below.fatal)
    assert connection.app.events[-1] == "lost"


def test_clearing_what_is_being_written(connect):
    connection = connect(App())
    data = bytearray(support.pattern(300_000))

    def clear():
        # BufferError: its memory is in use until all of it is encrypted.
        with contextlib.suppress(BufferError):
            data.clear()

    connection.below.on_write = clear
    connection.app.transport.write(data)
    assert connection.heard() == support.pattern(300_000)


def test_write_rejects_what_is_not_bytes(connect):
    connection = connect(App())
    for wrong in ("text", 1, None, [1]):
        with pytest.raises(TypeError):
            connection.app.transport.write(wrong)
    assert connection.heard() == b""


def test_writelines_rejects_what_is_not_bytes(connect, kind):
    only_mgloop(kind, "closes the connection if it meets a str")
    connection = connect(App())
    for wrong in ("text", 1, None):
        with pytest.raises(TypeError):
            connection.app.transport.writelines([b"good", wrong])
    assert connection.heard() == b""


@pytest.mark.parametrize("way", [at_once, in_a_callback])
def test_writelines_keeps_what_came_before_an_exception(connect, way):
    def pieces():
        yield b"one"
        yield b""
        yield bytearray(b"two")
        raise ZeroDivisionError

    def write(transport):
        transport.write(b"zero")
        with pytest.raises(ZeroDivisionError):
            transport.writelines(pieces())
        assert transport.get_write_buffer_size() == 6
        transport.write(b"three")

    assert way(connect, write).heard() == b"zeroonetwothree"


def test_write_eof_is_not_there(connect):
    connection = connect(App())
    assert connection.app.transport.can_write_eof() is False
    with pytest.raises(NotImplementedError):
        connection.app.transport.write_eof()


def test_writes_after_close_are_dropped_with_a_warning(connect, caplog):
    connection = connect(App())
    transport = connection.app.transport
    transport.close()
    connection.below.take()
    with caplog.at_level(logging.WARNING, "asyncio"):
        for _ in range(7):
            transport.write(b"late")
            transport.writelines([b"late"])
    assert connection.below.take() == b""
    assert "SSL connection is closed" in caplog.text


# --- flow control of writing ----------------------------------------------------------------------


def test_the_transport_below_pauses_and_resumes_the_application(connection, app):
    app.transport.set_write_buffer_limits(high=50_000, low=10_000)
    connection.proto.pause_writing()
    message = support.pattern(20_000)
    app.transport.write(message)
    assert app.transport.get_write_buffer_size() >= 20_000
    assert app.events == ["made"]
    app.transport.write(message)
    app.transport.write(message)
    assert app.events == ["made", "pause"]
    assert connection.heard() == b""
    connection.proto.resume_writing()
    assert app.events == ["made", "pause", "resume"]
    assert connection.heard() == message * 3
    assert app.transport.get_write_buffer_size() == 0


def test_a_transport_below_that_pauses_inside_write(connection, app):
    below, proto = connection.below, connection.proto
    below.on_write = proto.pause_writing
    message = support.pattern(700_000)
    app.transport.write(message)
    below.on_write = None
    received = connection.heard()
    assert len(received) + app.transport.get_write_buffer_size() >= len(message)
    proto.resume_writing()
    assert received + connection.heard() == message


def test_a_mutable_buffer_that_waits_may_be_reused(connection, app):
    connection.proto.pause_writing()
    buffer = bytearray(b"x" * 10_000)
    app.transport.write(buffer)
    app.transport.write(memoryview(buffer))
    buffer[:] = b"y" * 3
    buffer.clear()
    connection.proto.resume_writing()
    assert connection.heard() == b"x" * 20_000


def test_close_sends_what_waits(connection, app, loop):
    connection.proto.pause_writing()
    message = support.pattern(300_000)
    app.transport.write(message[:5])
    app.transport.write(message[5:])
    app.transport.close()
    connection.proto.resume_writing()
    assert connection.heard() == message
    connection.peer.unwrap()
    connection.arrive(connection.sent_by_peer())
    support.turn(loop)
    assert connection.below.calls == ["close"]


def test_errors_of_pause_and_resume_writing_are_reported(connect, reported):
    class Failing(App):
        def pause_writing(self):
            raise ZeroDivisionError

        def resume_writing(self):
            raise KeyError

    app = Failing()
    connection = connect(app)
    connection.proto.pause_writing()
    app.transport.set_write_buffer_limits(high=10)
    app.transport.write(b"x" * 100)
    assert reported.pop(ZeroDivisionError)["message"] == "protocol.pause_writing() failed"
    connection.proto.resume_writing()
    assert reported.pop(KeyError)["message"] == "protocol.resume_writing() failed"
    assert connection.heard() == b"x" * 100


def test_write_buffer_limits(connect):
    transport = connect(App()).app.transport
    assert transport.get_write_buffer_limits() == (128 * 1024, 512 * 1024)
    transport.set_write_buffer_limits(high=1000)
    assert transport.get_write_buffer_limits() == (250, 1000)
    transport.set_write_buffer_limits(low=100)
    assert transport.get_write_buffer_limits() == (100, 400)
    with pytest.raises(ValueError):
        transport.set_write_buffer_limits(high=1, low=2)
    assert transport.get_read_buffer_limits() == (64 * 1024, 256 * 1024)
    transport.set_read_buffer_limits(high=1000, low=1)
    assert transport.get_read_buffer_limits() == (1, 1000)


def test_a_high_limit_of_zero_does_not_pause_an_empty_buffer(connection, app, kind):
    only_mgloop(kind, "pauses at once, and on every other write")
    app.transport.set_write_buffer_limits(high=0)
    app.transport.write(b"x")
    assert app.events == ["made"]
    connection.proto.pause_writing()
    app.transport.write(b"x")
    assert app.events == ["made", "pause"]
    connection.proto.resume_writing()
    assert app.events == ["made", "pause", "resume"]


# --- OpenSSL wants to read before it writes -------------------------------------------------------


class Renegotiating(ssl.SSLObject):
    """Refuses the next writes, as OpenSSL does during a renegotiation."""

    refusals = 0

    def write(self, data):
        if self.refusals:
            self.refusals -= 1
            raise ssl.SSLWantReadError
        return super().write(data)


def test_writes_wait_for_the_end_of_a_renegotiation(connect, app, contexts, monkeypatch):
    monkeypatch.setattr(contexts[1], "sslobject_class", Renegotiating)
    connection = connect(app)
    sslobj = app.transport.get_extra_info("ssl_object")
    sslobj.refusals = 100
    pieces = [b"one", bytearray(b"two"), memoryview(b"three"), support.pattern(200_000)]
    for piece in pieces[:2]:
        app.transport.write(piece)
    pieces[1] = bytes(pieces[1])
    app.transport.writelines(pieces[2:])
    assert connection.heard() == b""
    assert app.transport.get_write_buffer_size() == sum(map(len, pieces))
    sslobj.refusals = 0
    connection.arrive(connection.peer_says(b"finished"))
    assert app.data == b"finished"
    assert connection.heard() == b"".join(pieces)
    assert app.transport.get_write_buffer_size() == 0


def test_an_ssl_object_of_the_users_own(connect, contexts, monkeypatch):
    reads = []

    class Own(ssl.SSLObject):
        def read(self, *args):
            data = super().read(*args)
            reads.append(data)
            return data

    monkeypatch.setattr(contexts[1], "sslobject_class", Own)
    app = App(lambda app, data: app.transport.write(data))
    connection = connect(app)
    stream = connection.peer_says(b"abc", support.pattern(50_000), b"def")
    connection.arrive(stream[:60_000])
    connection.arrive(stream[60_000:])
    assert connection.heard() == b"abc" + support.pattern(50_000) + b"def"
    assert b"".join(reads) == app.data


class Sparing(ssl.SSLObject):
    """Writes only the first part of the given data."""

    def write(self, data):
        return super().write(bytes(data)[:100])


@in_every_way
@pytest.mark.parametrize("method", ["write", "writelines"])
def test_an_ssl_object_that_takes_a_part_of_each_write(connect, contexts, monkeypatch, way, method):
    monkeypatch.setattr(contexts[1], "sslobject_class", Sparing)
    pieces = [support.pattern(size) for size in (250, 100, 1, 5000, 320)]

    def write(transport):
        if method == "writelines":
            transport.writelines(pieces)
            return
        for piece in pieces:
            transport.write(piece)

    assert way(connect, write).heard() == b"".join(pieces)
