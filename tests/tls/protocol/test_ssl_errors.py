# SPDX-License-Identifier: GPL-2.0-only
"""Callbacks that raise: the reports, and the state of the connection afterwards.

An ordinary exception ends the connection, once, and is reported as asyncio.sslproto reports it.
SystemExit and KeyboardInterrupt end run_forever(); in these tests they reach the transport below.
When the loop runs again, the connection continues where it stopped, without loss.
"""

import asyncio
import logging
import ssl

import pytest
import support
from harness import App, BufferedApp, only_mgloop


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def tls_version(request):
    return request.param


class OopsError(Exception):
    pass


class FailingApp(App):
    """Raises `failure` in the method `where`, `times` times."""

    where = None
    failure = OopsError
    times = 1


class FailingBufferedApp(BufferedApp):
    where = None
    failure = OopsError
    times = 1


def failing(base, name):
    def method(self, *args):
        result = getattr(super(base, self), name)(*args)
        if self.where == name and self.times:
            self.times -= 1
            raise self.failure
        return result

    method.__qualname__ = f"{base.__qualname__}.{name}"
    setattr(base, name, method)


for name in [
    "connection_made",
    "data_received",
    "eof_received",
    "pause_writing",
    "resume_writing",
    "connection_lost",
]:
    failing(FailingApp, name)
for name in ["get_buffer", "buffer_updated", "eof_received", "connection_lost"]:
    failing(FailingBufferedApp, name)


def make_app(where, failure=OopsError, size=1 << 18, times=1):
    buffered = where in ("get_buffer", "buffer_updated")
    app = FailingBufferedApp(size) if buffered else FailingApp()
    app.where, app.failure, app.times = where, failure, times
    return app


@pytest.fixture
def connect_failing(connect):
    """Return connect_failing(where, ...), which makes a Connection whose application then fails."""

    def connect_failing(where, *args, **kwargs):
        app = make_app(where, *args, **kwargs)
        app.where = None
        connection = connect(app)
        app.where = where
        return connection

    return connect_failing


RECEIVING = ["data_received", "get_buffer", "buffer_updated"]
leaving = pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit])


def goodbye(connection):
    """Return the peer's closing alert."""
    with pytest.raises(ssl.SSLWantReadError):
        connection.peer.unwrap()
    return connection.sent_by_peer()


def assert_closed(connection):
    """Check that the transport below was closed without an error."""
    assert connection.below.calls[-1] == "close"
    assert "force_close" not in connection.below.calls


def assert_ended_once(connection, loop):
    """Act as the transport below, which has been closed."""
    assert connection.below.closing
    connection.lose(connection.below.fatal)
    support.turn(loop, 3)
    assert connection.app.events.count("lost") == 1
    assert connection.app.events.count("eof") <= 1
    assert connection.app.events[-1] == "lost"


# --- ordinary exceptions --------------------------------------------------------------------------


@pytest.mark.parametrize("where", RECEIVING)
def test_receiving_fails(connect_failing, loop, reported, where):
    connection = connect_failing(where)
    connection.arrive(connection.peer_says(b"one", b"two"))
    context = reported.pop(OopsError)
    assert context["message"] == "Fatal error on SSL protocol"
    assert context["transport"] is connection.below
    assert context["protocol"] is connection.proto
    assert isinstance(connection.below.fatal, OopsError)
    assert_ended_once(connection, loop)
    assert isinstance(connection.app.lost_with, OopsError)


@pytest.mark.parametrize("where", RECEIVING)
def test_an_os_error_of_the_application_is_only_logged(connect_failing, loop, caplog, where):
    connection = connect_failing(where, OSError("mine"))
    loop.set_debug(True)
    with caplog.at_level(logging.DEBUG, "asyncio"):
        connection.arrive(connection.peer_says(b"one", b"two"))
    assert "Fatal error on SSL protocol" in caplog.text
    assert_ended_once(connection, loop)


@pytest.mark.parametrize("where", RECEIVING)
def test_cancelled_error_gets_through(connect_failing, where):
    """The transport below reports it, like any exception of its protocol."""
    connection = connect_failing(where, asyncio.CancelledError)
    with pytest.raises(asyncio.CancelledError):
        connection.arrive(connection.peer_says(b"one", b"two"))
    assert connection.below.calls == []


@pytest.mark.parametrize("app_class", [FailingApp, FailingBufferedApp])
@pytest.mark.parametrize("data", [b"", b"data"])
def test_eof_received_fails(connect, loop, reported, app_class, data):
    app = app_class()
    app.where = "eof_received"
    connection = connect(app)
    stream = connection.peer_says(data) if data else b""
    connection.arrive(stream + goodbye(connection))
    context = reported.pop(OopsError)
    assert context["message"] == "Error calling eof_received()"
    assert context["transport"] is connection.below
    assert isinstance(connection.below.fatal, OopsError)
    support.turn(loop)
    assert_ended_once(connection, loop)


@pytest.mark.parametrize("where", ["pause_writing", "resume_writing"])
def test_flow_control_fails(connect_failing, loop, reported, where):
    connection = connect_failing(where)
    transport = connection.app.transport
    transport.set_write_buffer_limits(high=10)
    connection.proto.pause_writing()
    transport.write(b"x" * 100)
    connection.proto.resume_writing()
    context = reported.pop(OopsError)
    assert context["message"] == f"protocol.{where}() failed"
    assert context["transport"] is transport
    assert context["protocol"] is connection.proto
    assert connection.heard() == b"x" * 100
    assert connection.below.calls == []


def test_connection_lost_fails(connect_failing, loop, reported):
    connection = connect_failing("connection_lost")
    connection.app.transport.abort()
    connection.lose()
    assert "connection_lost" in reported.pop(OopsError)["message"]
    assert connection.app.events == ["made", "lost"]
    assert connection.proto._app_transport is None


def test_connection_lost_is_not_there(connect, loop):
    """The transport below reports it; all references are released nevertheless."""
    connection = connect(App())
    connection.app.transport.set_protocol(object())
    with pytest.raises(AttributeError):
        connection.proto.connection_lost(None)
    assert connection.app.transport.is_closing()


def test_a_failure_in_data_received_whose_last_words_fail_too(connect, loop, reported):
    def fail(app, data):
        app.transport.write(b"last words")
        connection.below.on_write = cannot_write
        raise OopsError

    def cannot_write():
        connection.below.on_write = None
        raise ZeroDivisionError

    connection = connect(App(fail))
    connection.arrive(connection.peer_says(b"?"))
    failures = {type(context["exception"]) for context in reported.pop_all()}
    assert OopsError in failures
    assert_ended_once(connection, loop)


# --- SystemExit and KeyboardInterrupt -------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "size", "count"),
    [
        (KeyboardInterrupt, 50, 1),
        (SystemExit, 50, 40),
        (SystemExit, 1 << 18, 1),
        (KeyboardInterrupt, 1 << 18, 40),
    ],
)
@pytest.mark.parametrize("where", RECEIVING)
def test_leaving_while_receiving_loses_nothing(
    connect_failing, loop, where, failure, size, count, kind
):
    only_mgloop(kind, "forgets the closing alert that came with the data")
    connection = connect_failing(where, failure, size)
    messages = [support.pattern(1000 * number + 1) for number in range(count)]
    stream = connection.peer_says(*messages) + goodbye(connection)
    with pytest.raises(failure):
        connection.arrive(stream[:200_000])
    connection.arrive(stream[200_000:])
    support.turn(loop, sum(map(len, messages)) // size + 3)
    assert connection.app.data == b"".join(messages)
    assert connection.app.events[-1] == "eof"
    assert_closed(connection)
    # The closing alert was answered.
    assert connection.heard() == b""
    connection.peer.unwrap()
    assert_ended_once(connection, loop)
    assert connection.app.lost_with is None


@leaving
@pytest.mark.parametrize("where", RECEIVING)
def test_leaving_over_and_over(connect_failing, loop, where, failure):
    connection = connect_failing(where, failure, 1 << 18, times=5)
    message = support.pattern(300_000)
    stream = connection.peer_says(message)
    left = 0
    for at in range(0, len(stream), 20_000):
        try:
            connection.arrive(stream[at : at + 20_000])
        except failure:
            left += 1
    for _ in range(5):
        try:
            support.turn(loop, 2)
        except failure:
            left += 1
    assert left == 5
    connection.arrive(connection.peer_says(b"more"))
    assert connection.app.data == message + b"more"


@leaving
@pytest.mark.parametrize("where", RECEIVING)
def test_leaving_and_pausing(connect_failing, loop, where, failure, kind):
    only_mgloop(kind, "forgets the closing alert that came with the data")
    connection = connect_failing(where, failure)
    app = connection.app
    with pytest.raises(failure):
        connection.arrive(connection.peer_says(b"one", b"two") + goodbye(connection))
    app.transport.pause_reading()
    support.turn(loop, 3)
    assert "eof" not in app.events
    app.transport.resume_reading()
    support.turn(loop, 3)
    assert app.data == b"onetwo"
    assert app.events[-1] == "eof"
    assert_closed(connection)


@leaving
@pytest.mark.parametrize("where", RECEIVING)
def test_leaving_while_the_rest_is_flushed_after_eof(connect_failing, loop, where, failure, kind):
    only_mgloop(kind, "never closes the transport below")
    connection = connect_failing(where, failure, 100)
    app = connection.app
    app.transport.pause_reading()
    message = support.pattern(1000)
    connection.arrive(connection.peer_says(message))
    assert connection.proto.eof_received() is True
    app.transport.resume_reading()
    with pytest.raises(failure):
        support.turn(loop, 2)
    support.turn(loop, 20)
    assert app.data == message
    assert app.events[-1] == "eof"
    assert_closed(connection)


@leaving
def test_leaving_in_the_flush_of_an_unclean_eof(connect_failing, loop, failure, kind):
    only_mgloop(kind, "never closes the transport below")
    connection = connect_failing("eof_received", failure)
    app = connection.app
    with pytest.raises(failure):
        connection.proto.eof_received()
    support.turn(loop, 3)
    assert_closed(connection)
    assert app.events == ["made", "eof"]


@leaving
@pytest.mark.parametrize("way", ["peer closes", "we close"])
def test_leaving_in_eof_received(connect_failing, loop, failure, kind, way):
    only_mgloop(kind, "never answers the closing alert, nor closes the transport below")
    connection = connect_failing("eof_received", failure)
    if way == "we close":
        connection.app.transport.close()
        assert connection.heard() == b""
        connection.peer.unwrap()
        alert = connection.sent_by_peer()
    else:
        alert = goodbye(connection)
    with pytest.raises(failure):
        connection.arrive(alert)
    support.turn(loop, 3)
    assert connection.app.events == ["made", "eof"]
    assert_closed(connection)
    if way == "peer closes":
        assert connection.heard() == b""
        connection.peer.unwrap()
    assert_ended_once(connection, loop)


@leaving
def test_leaving_in_connection_made(prepare, loop, failure, kind):
    only_mgloop(kind, "never tells the waiter, and keeps what it has received")
    waiter = loop.create_future()
    connection = prepare(make_app("connection_made", failure), waiter=waiter)
    with pytest.raises(failure):
        connection.shake_hands()
    support.turn(loop)
    assert waiter.done()
    connection.incoming.write(connection.below.take())
    connection.peer.do_handshake()
    assert connection.heard() == b""
    connection.arrive(connection.peer_says(b"data"))
    assert connection.app.data == b"data"
    connection.app.transport.write(b"reply")
    assert connection.heard() == b"reply"


@leaving
def test_leaving_in_connection_made_with_data_behind_the_handshake(prepare, loop, failure, kind):
    only_mgloop(kind, "keeps what it has received")
    connection = prepare(make_app("connection_made", failure))
    connection.proto.connection_made(connection.below)
    with pytest.raises(ssl.SSLWantReadError):
        connection.peer.do_handshake()
    connection.arrive(connection.sent_by_peer())
    connection.incoming.write(connection.below.take())
    try:
        connection.peer.do_handshake()
    except ssl.SSLWantReadError:
        pytest.skip("cannot happen with TLS 1.2")
    finish = connection.sent_by_peer()
    with pytest.raises(failure):
        connection.arrive(finish + connection.peer_says(b"early"))
    support.turn(loop)
    assert connection.app.data == b"early"


@pytest.mark.parametrize(
    ("failure", "sizes"),
    [
        (KeyboardInterrupt, [100]),
        (SystemExit, [100] * 50),
        (KeyboardInterrupt, [300_000, 5]),
        (SystemExit, [5, 300_000, 70_000]),
    ],
)
@pytest.mark.parametrize("where", ["pause_writing", "resume_writing"])
def test_leaving_in_flow_control(connect_failing, loop, failure, where, sizes):
    """The written data is neither lost nor sent twice."""
    connection = connect_failing(where, failure)
    app = connection.app
    below, proto = connection.below, connection.proto
    messages = [support.pattern(size) for size in sizes]
    app.transport.set_write_buffer_limits(high=50)
    left = 0

    def pause():
        if not proto._ssl_writing_paused:
            proto.pause_writing()

    below.on_write = pause
    pause()
    for message in messages:
        try:
            app.transport.write(message)
        except failure:
            left += 1
    received = b""
    for _ in range(100):
        received += connection.heard()
        try:
            if proto._ssl_writing_paused:
                proto.resume_writing()
        except failure:
            left += 1
    below.on_write = None
    received += connection.heard()
    assert left == 1
    assert received == b"".join(messages)
    assert app.transport.get_write_buffer_size() == 0


@leaving
def test_leaving_in_pause_writing_inside_data_received(connect_failing, loop, failure):
    def answer(app, data):
        app.transport.write(b"answer to " + data)

    connection = connect_failing("pause_writing", failure)
    app = connection.app
    app.on_data = answer
    app.transport.set_write_buffer_limits(high=5)
    connection.proto.pause_writing()
    with pytest.raises(failure):
        connection.arrive(connection.peer_says(b"one"))
    connection.arrive(connection.peer_says(b"two"))
    connection.proto.resume_writing()
    support.turn(loop)
    assert app.data == b"onetwo"
    assert connection.heard() == b"answer to oneanswer to two"


@leaving
def test_leaving_in_connection_lost(connect_failing, loop, failure):
    connection = connect_failing("connection_lost", failure)
    connection.proto.connection_lost(None)
    with pytest.raises(failure):
        support.turn(loop)
    support.turn(loop)
    assert connection.app.events == ["made", "lost"]


@leaving
@pytest.mark.parametrize("where", RECEIVING)
def test_after_leaving_nothing_comes_to_a_connection_that_is_gone(
    connect_failing, loop, where, failure
):
    connection = connect_failing(where, failure, 5)
    with pytest.raises(failure):
        connection.arrive(connection.peer_says(b"one", b"two" * 10))
    before = connection.app.data
    connection.app.transport.abort()
    connection.lose()
    support.turn(loop, 3)
    assert connection.app.data == before
    assert connection.app.events[-1] == "lost"


# --- callbacks of the context ---------------------------------------------------------------------


@pytest.mark.parametrize("failure", [OopsError, KeyboardInterrupt, SystemExit])
def test_a_server_name_callback_that_fails(loop, prepare, contexts, monkeypatch, failure):
    def fail(sslobj, name, context):
        raise failure

    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: unraisable.append(args.exc_type))
    monkeypatch.setattr(contexts[1], "sni_callback", fail)
    waiter = loop.create_future()
    connection = prepare(App(), waiter=waiter)
    connection.proto.connection_made(connection.below)
    with pytest.raises(ssl.SSLWantReadError):
        connection.peer.do_handshake()
    connection.arrive(connection.sent_by_peer())
    assert unraisable == [failure]
    assert isinstance(waiter.exception(), ssl.SSLError)
    assert isinstance(connection.below.fatal, ssl.SSLError)
    connection.lose(connection.below.fatal)
    assert connection.app.events == []


@pytest.mark.parametrize("failure", [OopsError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("stage", ["handshake", "data"])
def test_a_message_callback_that_fails(loop, prepare, contexts, monkeypatch, failure, stage):
    """It is the only callback of OpenSSL whose exception Python propagates."""

    def fail(*args):
        if armed:
            armed.clear()
            raise failure

    armed = []
    monkeypatch.setattr(contexts[1], "_msg_callback", fail)
    connection = prepare(App())
    if stage == "data":
        connection.shake_hands()
        stream = connection.peer_says(b"one", b"two")
    else:
        connection.proto.connection_made(connection.below)
        with pytest.raises(ssl.SSLWantReadError):
            connection.peer.do_handshake()
        stream = connection.sent_by_peer()
    loop.set_exception_handler(lambda loop, context: None)
    armed.append(True)
    try:
        connection.arrive(stream)
    except failure:
        assert connection.below.calls == [] or failure is OopsError
    else:
        assert not armed
    support.turn(loop, 3)
