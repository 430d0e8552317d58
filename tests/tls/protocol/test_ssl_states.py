# SPDX-License-Identifier: GPL-2.0-only
"""The handshake, the ends of a connection, and calls inside callbacks."""

import asyncio
import gc
import logging
import ssl

import pytest
import support
from harness import (
    STDLIB,
    App,
    Below,
    BufferedApp,
    Connection,
    all_apps,
    both_apps,
    only_mgloop,
)


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def tls_version(request):
    return request.param


# --- handshake ------------------------------------------------------------------------------------


def test_the_waiter_and_the_extra_info(loop, prepare, contexts):
    waiter = loop.create_future()
    connection = prepare(App(), client=True, waiter=waiter)
    transport = connection.proto._get_app_transport()
    assert transport.get_extra_info("sslcontext") is contexts[0]
    assert transport.get_extra_info("cipher") is None
    connection.shake_hands()
    assert waiter.result() is None
    assert connection.app.transport is transport
    assert connection.proto._get_app_transport() is transport
    sslobj = transport.get_extra_info("ssl_object")
    assert isinstance(sslobj, ssl.SSLObject)
    assert transport.get_extra_info("cipher") == sslobj.cipher()
    assert transport.get_extra_info("peercert")["subjectAltName"]
    assert transport.get_extra_info("compression") is None
    assert transport.get_extra_info("peername") == "somebody"
    assert transport.get_extra_info("nothing", 7) == 7


@pytest.mark.parametrize(
    ("interrupt", "exception"),
    [
        (lambda connection: connection.proto.eof_received(), ConnectionResetError),
        (lambda connection: connection.arrive(b"GET / HTTP/1.1\r\n\r\n"), ssl.SSLError),
    ],
    ids=["eof", "garbage"],
)
def test_the_handshake_fails(loop, prepare, interrupt, exception):
    waiter = loop.create_future()
    app = App()
    connection = prepare(app, waiter=waiter)
    connection.proto.connection_made(connection.below)
    interrupt(connection)
    assert isinstance(waiter.exception(), exception)
    assert isinstance(connection.below.fatal, exception)
    connection.lose(connection.below.fatal)
    assert app.events == []


def test_a_certificate_that_is_not_trusted(loop, prepare, contexts, caplog):
    waiter = loop.create_future()
    untrusting = (ssl.create_default_context(), contexts[1])
    connection = prepare(App(), contexts=untrusting, client=True, waiter=waiter)
    loop.set_debug(True)
    with caplog.at_level(logging.DEBUG, "asyncio"):
        connection.proto.connection_made(connection.below)
        for _ in range(2):
            connection.incoming.write(connection.below.take())
            try:
                connection.peer.do_handshake()
            except ssl.SSLError:
                pass
            connection.arrive(connection.sent_by_peer())
    assert isinstance(waiter.exception(), ssl.SSLCertVerificationError)
    assert "SSL handshake failed on verifying the certificate" in caplog.text
    connection.lose(connection.below.fatal)


def test_handshake_timeout(loop, prepare, run_for):
    waiter = loop.create_future()
    connection = prepare(App(), waiter=waiter, ssl_handshake_timeout=0.01)
    connection.proto.connection_made(connection.below)
    run_for(lambda: connection.below.calls)
    assert isinstance(connection.below.fatal, ConnectionAbortedError)
    assert "taking longer than 0.01 seconds" in str(connection.below.fatal)
    connection.lose(connection.below.fatal)
    assert isinstance(waiter.exception(), ConnectionAbortedError)


def test_a_server_needs_a_context(loop, protocol_class):
    with pytest.raises(ValueError, match="needs a valid SSLContext"):
        protocol_class(loop, App(), None, None, server_side=True)


def test_close_during_the_handshake(loop, prepare):
    connection = prepare(App())
    connection.proto.connection_made(connection.below)
    connection.proto._app_transport.close()
    assert connection.below.calls == ["force_close"]
    connection.lose()
    assert connection.app.events == []


def test_writes_during_the_handshake_wait_for_its_end(loop, prepare):
    app = App()
    connection = prepare(app, call_connection_made=False)
    transport = connection.proto._app_transport
    connection.proto.connection_made(connection.below)
    connection.below.take()
    transport.write(b"one")
    transport.writelines([b"two", b"three"])
    assert connection.below.take() == b""
    connection.exchange(3)
    assert connection.heard() == b"onetwothree"
    # start_tls() does not call the application's connection_made().
    assert app.events == []
    connection.lose()
    assert app.events == ["lost"]


def test_an_error_in_connection_made_gets_through(loop, prepare):
    def fail(app):
        raise ZeroDivisionError

    connection = prepare(App(on_made=fail))
    with pytest.raises(ZeroDivisionError):
        connection.shake_hands()


def test_debug_mode_logs_the_handshake_and_eof(loop, prepare, caplog):
    loop.set_debug(True)
    with caplog.at_level(logging.DEBUG, "asyncio"):
        connection = prepare(App()).shake_hands()
        connection.proto.eof_received()
    for message in ("starts SSL handshake", "SSL handshake took", "received EOF"):
        assert message in caplog.text


# --- set_protocol and other things done inside callbacks ------------------------------------------


def test_set_protocol_in_data_received(connect, loop):
    second = BufferedApp(4)

    def switch(app, data):
        app.transport.set_protocol(second)
        assert app.transport.get_protocol() is second

    app = App(switch)
    connection = connect(app)
    connection.arrive(connection.peer_says(b"first"))
    connection.arrive(connection.peer_says(b"second"))
    support.turn(loop, 3)
    assert app.data == b"first"
    assert second.data == b"second"
    third = App()
    app.transport.set_protocol(third)
    connection.arrive(connection.peer_says(b"third"))
    assert third.data == b"third"


@both_apps
def test_close_in_data_received(connect, loop, app_class):
    def answer(app, data):
        app.transport.write(b"answer")
        app.transport.close()
        assert app.transport.is_closing()
        app.transport.write(b"never")

    app = app_class(on_data=answer)
    connection = connect(app)
    connection.arrive(connection.peer_says(b"?"))
    assert connection.heard() == b"answer"
    connection.peer.unwrap()
    connection.arrive(connection.sent_by_peer())
    support.turn(loop)
    assert connection.below.calls == ["close"]
    connection.lose()
    assert app.events == ["made", "data", "eof", "lost"]


def test_close_in_connection_made(connect, loop):
    app = App(on_made=lambda app: app.transport.close())
    connection = connect(app)
    support.turn(loop)
    assert connection.heard() == b""
    assert connection.below.calls == []


def test_abort_in_connection_made(loop, prepare):
    app = App(on_made=lambda app: app.transport.abort())
    connection = prepare(app)
    connection.proto.connection_made(connection.below)
    connection.exchange(3)
    assert connection.below.calls == ["force_close"]
    connection.lose()
    assert app.events == ["made", "lost"]


def test_pause_in_connection_made_lets_the_handshake_end(loop, prepare, kind):
    only_mgloop(kind, "keeps the client's last message until something is written")
    app = App(on_made=lambda app: app.transport.pause_reading())
    connection = prepare(app, client=True)
    connection.shake_hands()
    connection.peer.write(b"x")
    connection.arrive(connection.sent_by_peer())
    assert app.data == b""
    app.transport.resume_reading()
    support.turn(loop)
    assert app.data == b"x"


def test_connection_lost_inside_write(connect):
    app = App(lambda app, data: [app.transport.write(b"x" * 5000) for _ in range(100)])
    connection = connect(app)

    def lose():
        if connection.proto._app_transport is not None:
            connection.proto.connection_lost(None)

    connection.below.on_write = lose
    connection.arrive(connection.peer_says(b"?"))
    support.turn(connection.loop)
    assert app.events == ["made", "data", "lost"]


# --- the ends -------------------------------------------------------------------------------------


@all_apps
def test_the_peer_closes(connect, loop, app_class):
    app = app_class()
    connection = connect(app)
    stream = connection.peer_says(support.pattern(40_000))
    with pytest.raises(ssl.SSLWantReadError):
        connection.peer.unwrap()
    connection.arrive(stream + connection.sent_by_peer())
    support.turn(loop, 500)
    assert app.data == support.pattern(40_000)
    assert app.events[-1] == "eof"
    assert app.transport.is_closing()
    assert connection.below.calls == ["close"]
    # The alert was answered.
    connection.incoming.write(connection.below.take())
    connection.peer.unwrap()
    connection.lose()
    assert app.events[-2:] == ["eof", "lost"]
    assert app.events.count("eof") == app.events.count("lost") == 1


@all_apps
def test_unclean_eof(connect, loop, app_class):
    app = app_class()
    connection = connect(app)
    connection.arrive(connection.peer_says(b"data" * 200)[:-1])
    assert not connection.proto.eof_received()
    support.turn(loop, 3)
    assert connection.below.calls == ["close"]
    assert app.events == ["made", "eof"]
    connection.lose()
    assert app.events == ["made", "eof", "lost"]


def test_eof_while_reading_is_paused(connection, app, loop):
    app.transport.pause_reading()
    connection.arrive(connection.peer_says(b"data"))
    assert connection.proto.eof_received() is True
    assert app.events == ["made"]
    app.transport.resume_reading()
    support.turn(loop, 3)
    assert app.events == ["made", "data", "eof"]
    assert connection.below.calls == ["close"]


def test_eof_with_a_buffer_too_small_for_the_rest(connect, loop, kind):
    only_mgloop(kind, "loses what does not fit")
    app = BufferedApp(100)
    connection = connect(app)
    app.transport.pause_reading()
    connection.arrive(connection.peer_says(support.pattern(10_000)))
    connection.proto.eof_received()
    app.transport.resume_reading()
    support.turn(loop, 3)
    assert app.data == support.pattern(10_000)
    assert app.events[-1] == "eof"


def test_the_answer_of_eof_received_is_ignored(connect, caplog):
    class KeepOpen(App):
        def eof_received(self):
            super().eof_received()
            return True

    app = KeepOpen()
    connection = connect(app)
    with pytest.raises(ssl.SSLWantReadError):
        connection.peer.unwrap()
    with caplog.at_level(logging.WARNING, "asyncio"):
        connection.arrive(connection.sent_by_peer())
    assert "has no effect when using ssl" in caplog.text
    assert app.transport.is_closing()


def test_an_error_in_eof_received_is_reported(connect, reported):
    class Failing(App):
        def eof_received(self):
            raise ZeroDivisionError

    connection = connect(Failing())
    with pytest.raises(ssl.SSLWantReadError):
        connection.peer.unwrap()
    connection.arrive(connection.sent_by_peer())
    assert reported.pop(ZeroDivisionError)["message"] == "Error calling eof_received()"
    assert isinstance(connection.below.fatal, ZeroDivisionError)


def test_close_waits_for_the_peer(connection, app, loop):
    app.transport.close()
    support.turn(loop, 3)
    assert connection.below.calls == []
    assert connection.heard() == b""
    connection.peer.unwrap()
    connection.arrive(connection.sent_by_peer())
    support.turn(loop, 3)
    assert connection.below.calls == ["close"]
    connection.lose()
    assert app.events == ["made", "eof", "lost"]
    assert app.lost_with is None


@pytest.mark.parametrize("data", ["after our close", "undelivered"])
def test_data_of_the_peer_that_cannot_be_delivered_is_an_error(connection, app, loop, data):
    if data == "undelivered":
        app.transport.pause_reading()
        connection.arrive(connection.peer_says(b"undelivered"))
    app.transport.close()
    if data == "after our close":
        connection.arrive(connection.peer_says(b"too late"))
    support.turn(loop)
    assert app.data == b""
    assert connection.below.calls[-1] == "force_close"
    assert isinstance(connection.below.fatal, ssl.SSLError)


def test_shutdown_timeout(loop, prepare, run_for):
    app = App()
    connection = prepare(app, ssl_shutdown_timeout=0.01)
    connection.shake_hands()
    app.transport.close()
    run_for(lambda: connection.below.calls)
    assert connection.below.calls == ["force_close"]
    assert isinstance(connection.below.fatal, TimeoutError)
    assert "shutdown timed out" in str(connection.below.fatal)
    connection.lose(connection.below.fatal)
    assert isinstance(app.lost_with, TimeoutError)


def test_connection_lost_cancels_the_shutdown_timeout(connect, loop):
    connection = connect(App(), ssl_shutdown_timeout=0.01)
    connection.app.transport.close()
    connection.lose()
    loop.run_until_complete(asyncio.sleep(0.03))
    assert connection.below.calls == []


def test_abort(connection, app, loop):
    app.transport.abort()
    assert app.transport.is_closing()
    assert connection.below.calls == ["force_close"]
    assert connection.below.take() == b""
    connection.lose()
    assert app.events == ["made", "lost"]


def test_abort_after_closing_twice(connection, app, kind):
    only_mgloop(kind, "forgets the connection at the second close")
    app.transport.close()
    app.transport.close()
    assert app.transport.get_extra_info("peername") == "somebody"
    app.transport.abort()
    assert connection.below.calls == ["force_close"]


def test_closing_below_counts_as_closing(connection, app, kind):
    if kind == "asyncio" and not hasattr(STDLIB, "_is_transport_closing"):
        pytest.skip("fixed in CPython 3.12.8 and 3.13.1")
    assert not app.transport.is_closing()
    connection.below.closing = True
    assert app.transport.is_closing()


def test_the_transport_and_the_protocol_take_attributes(connect):
    connection = connect(App())
    for thing in (connection.app.transport, connection.proto):
        thing.session = "mine"
        assert thing.session == "mine"


def test_a_method_of_ones_own_over_the_transports(connect):
    written = []
    connection = connect(App())
    transport = connection.app.transport
    transport.write = written.append
    transport.write(b"seen")
    del transport.write
    transport.write(b"sent")
    assert written == [b"seen"]
    assert connection.heard() == b"sent"


def test_everything_is_harmless_when_the_connection_is_lost(connection, app, loop):
    connection.lose(OSError("gone"))
    transport = app.transport
    assert str(app.lost_with) == "gone"
    assert transport.is_closing()
    transport.write(b"x")
    transport.writelines([b"x"])
    transport.pause_reading()
    transport.resume_reading()
    support.turn(loop)
    assert transport.get_extra_info("peername", "nobody") == "nobody"
    assert transport.get_extra_info("ssl_object") is not None
    assert transport.get_protocol() is None
    assert transport.get_write_buffer_size() == 0
    transport.abort()
    transport.close()
    assert app.events == ["made", "lost"]


# --- life after loop.close() ----------------------------------------------------------------------


@pytest.fixture
def orphan(protocol_class, contexts):
    """Return orphan(app, stage), which makes a Connection whose loop is closed."""

    def orphan(app, stage="connected"):
        loop = support.new_loop("asyncio")
        connection = Connection(loop, protocol_class, contexts, app)
        if stage != "new":
            connection.shake_hands()
        if stage == "paused":
            app.transport.pause_reading()
        if stage == "lost":
            connection.lose()
        loop.close()
        return connection

    yield orphan
    gc.collect()


NEEDS_THE_LOOP = {
    "close": ("connected", lambda connection: connection.app.transport.close()),
    "resume_reading": ("paused", lambda connection: connection.app.transport.resume_reading()),
    "connection_lost": ("connected", lambda connection: connection.proto.connection_lost(None)),
    "connection_made": ("new", lambda connection: connection.proto.connection_made(Below())),
}
NEEDS_NO_LOOP = {
    "write": lambda connection: connection.app.transport.write(b"still"),
    "writelines": lambda connection: connection.app.transport.writelines([b"still", b"there"]),
    "data": lambda connection: connection.arrive(connection.peer_says(b"data")),
    "abort": lambda connection: connection.app.transport.abort(),
    "pause_reading": lambda connection: connection.app.transport.pause_reading(),
    "limits": lambda connection: connection.app.transport.set_write_buffer_limits(10, 5),
    "extra info": lambda connection: connection.app.transport.get_extra_info("peername"),
    "protocol": lambda connection: connection.app.transport.set_protocol(App()),
    "pause_writing": lambda connection: connection.proto.pause_writing(),
}


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
@pytest.mark.parametrize("name", NEEDS_THE_LOOP)
def test_methods_that_need_the_loop_raise(orphan, name):
    stage, call = NEEDS_THE_LOOP[name]
    connection = orphan(App(), stage)
    transport = connection.proto._app_transport
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        call(connection)
    transport.abort()


@pytest.mark.parametrize("stage", ["connected", "lost"])
@pytest.mark.parametrize("name", NEEDS_NO_LOOP)
def test_other_methods_work_without_the_loop(orphan, name, stage):
    connection = orphan(App(), stage)
    before = len(connection.below.writes)
    NEEDS_NO_LOOP[name](connection)
    assert (len(connection.below.writes) > before) == (name.startswith("write") and stage != "lost")
    connection.app.transport.abort()


# --- types ----------------------------------------------------------------------------------------


def test_the_classes_are_those_of_asyncio(connect):
    connection = connect(App())
    transport = connection.app.transport
    assert isinstance(transport, asyncio.Transport)
    assert isinstance(transport, asyncio.transports._FlowControlMixin)
    assert transport._start_tls_compatible
    assert transport._sendfile_compatible is asyncio.constants._SendfileMode.FALLBACK
    assert transport._protocol_paused is False
    assert isinstance(connection.proto, asyncio.BufferedProtocol)
    assert isinstance(connection.proto, STDLIB)
    assert connection.proto._app_transport is transport
    assert transport._ssl_protocol is connection.proto
    assert "SSLProtocol object" in repr(connection.proto)


def test_a_transport_that_is_forgotten_warns(loop, protocol_class, contexts):
    def forget():
        protocol_class(loop, App(), contexts[1], None, server_side=True)
        gc.collect()

    with pytest.warns(ResourceWarning, match="unclosed transport"):
        forget()
