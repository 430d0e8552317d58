# SPDX-License-Identifier: GPL-2.0-only
"""A WebSocket session between a real connection and an ASGI application, on both loops.

The `websockets` library is the conforming client, upgrading.Peer the other one.
"""

import asyncio
import contextlib
import contextvars
import gc
import logging
import socket
import sys
import weakref

import pytest
import support
import upgrading
from sites import send_often
from upgrading import BINARY, CLOSE, CONTINUATION, KEY, PING, PONG, TEXT, bare, closing, frame
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mgloop.http.errors import ClientDisconnected


@contextlib.contextmanager
def logged(caplog):
    """Expect that a record is logged; return its text, which is filled in afterwards."""
    caplog.clear()
    yield
    assert caplog.records, "nothing was logged"
    caplog.clear()


@pytest.fixture(autouse=True)
def nothing_else_is_logged(caplog):
    """Fail the test if there are records that logged() did not consume."""
    with caplog.at_level(logging.WARNING, logger="mgloop.http"):
        yield
    records = [r for r in caplog.get_records("call") if r.name.startswith("mgloop")]
    assert not records, [record.getMessage() for record in records]


async def accept(receive, send):
    assert await receive() == {"type": "websocket.connect"}
    await send({"type": "websocket.accept"})


async def echo(scope, receive, send):
    """Accept, and echo every message until the client disconnects."""
    await accept(receive, send)
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


async def send_for_ever(send):
    while True:
        await send({"type": "websocket.send", "bytes": bytes(100_000)})
        await asyncio.sleep(0)


class Recording:
    """An application that accepts, and records all messages until the end."""

    def __init__(self, then=None):
        self.messages = []
        self.then = then

    async def __call__(self, scope, receive, send):
        await accept(receive, send)
        while not self.messages or self.messages[-1]["type"] == "websocket.receive":
            self.messages.append(await receive())
        # The same message is returned forever.
        assert await receive() == self.messages[-1]
        if self.then is not None:
            await self.then(receive, send)


class Held:
    """An application that runs `step(receive, send)` and stays until it is released."""

    def __init__(self, step, *, accept=True):
        self.step = step
        self.accept = accept
        self.done = asyncio.Event()
        self.leave = asyncio.Event()
        self.result = None
        self.cancelled = False

    async def __call__(self, scope, receive, send):
        await receive()
        if self.accept:
            await send({"type": "websocket.accept"})
        try:
            self.result = await self.step(receive, send)
            self.done.set()
            await self.leave.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def disconnect(code, reason=""):
    return {"type": "websocket.disconnect", "code": code, "reason": reason}


def text(value):
    return {"type": "websocket.receive", "text": value}


def denial(*headers, status=403):
    return {"type": "websocket.http.response.start", "status": status, "headers": headers}


def part(data, more=True):
    return {"type": "websocket.http.response.body", "body": data, "more_body": more}


async def wait(receive, send):
    return await receive()


# ------------------------------------------------------------------------- handshake ----


async def test_the_answer_to_the_handshake(loop):
    async def app(scope, receive, send):
        await receive()
        await send(
            {
                "type": "websocket.accept",
                "subprotocol": scope["subprotocols"][1],
                "headers": [(b"x-one", b"1"), (b"set-cookie", b"a"), (b"set-cookie", b"b")],
            }
        )
        await receive()

    async with upgrading.serving(loop, app) as site:
        offers = (
            b"Sec-WebSocket-Protocol: a, b",
            b"Sec-WebSocket-Extensions: permessage-deflate",
        )
        async with bare(site, *offers, shake=False) as peer:
            status, headers = await peer.read_head()
            assert status == b"HTTP/1.1 101 Switching Protocols"
            assert headers == [
                (b"upgrade", b"websocket"),
                (b"connection", b"Upgrade"),
                (b"sec-websocket-accept", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
                (b"sec-websocket-extensions", b"permessage-deflate; server_max_window_bits=12"),
                (b"sec-websocket-protocol", b"b"),
                (b"server", b"mgloop"),
                (b"x-one", b"1"),
                (b"set-cookie", b"a"),
                (b"set-cookie", b"b"),
            ]
            peer.send(closing(1000))
            assert await peer.read_close() == (1000, "")
        assert site.answers == [101]
    assert KEY == b"dGhlIHNhbXBsZSBub25jZQ=="  # the example of the RFC


async def test_data_immediately_after_the_handshake_is_received(loop):
    app = Recording()
    async with upgrading.serving(loop, app) as site:
        behind = frame(TEXT, b"early") + closing(1000, b"bye")
        async with bare(site, behind=behind) as peer:
            assert await peer.read_close() == (1000, "bye")
            assert await peer.reader.read() == b""
    assert app.messages == [text("early"), disconnect(1000, "bye")]


async def test_closing_before_accepting_is_403(loop):
    async def app(scope, receive, send):
        await receive()
        await send({"type": "websocket.close"})
        assert await receive() == disconnect(1006)
        with pytest.raises(RuntimeError, match=r"Unexpected ASGI message 'websocket\.accept'"):
            await send({"type": "websocket.accept"})

    async with upgrading.serving(loop, app) as site:
        with pytest.raises(InvalidStatus) as caught:
            await connect(site.url)
        assert caught.value.response.status_code == 403
        assert site.answers == [403]


async def raises(scope, receive, send):
    raise ZeroDivisionError


async def returns(scope, receive, send):
    await receive()


def raises_at_once(scope, receive, send):
    raise ZeroDivisionError


async def starts_and_returns(scope, receive, send):
    await send(denial(status=401))


@pytest.mark.parametrize("app", [raises, returns, raises_at_once, starts_and_returns])
async def test_an_application_that_does_not_answer_is_500(loop, caplog, app):
    async with upgrading.serving(loop, app) as site:
        with logged(caplog):
            with pytest.raises(InvalidStatus) as caught:
                await connect(site.url)
        assert caught.value.response.status_code == 500
        assert caught.value.response.body == b"Internal Server Error"


async def test_an_application_may_be_any_awaitable(loop):
    class Awaitable:
        def __init__(self, *args):
            self.args = args

        def __await__(self):
            return echo(*self.args).__await__()

    async with upgrading.serving(loop, Awaitable) as site, connect(site.url) as client:
        await client.send("a")
        assert await client.recv() == "a"


async def test_a_denial_in_one_piece(loop):
    async def app(scope, receive, send):
        assert scope["extensions"] == {"websocket.http.response": {}}
        start = denial((b"x-why", b"because"), (b"Connection", b"keep-alive"), status=401)
        await send(start)
        with pytest.raises(RuntimeError, match="Expected ASGI message 'websocket"):
            await send(start)
        await send({"type": "websocket.http.response.body", "body": b"no"})
        with pytest.raises(RuntimeError, match=r"after sending 'websocket\.close'"):
            await send(part(b"no", False))
        assert await receive() == {"type": "websocket.connect"}
        assert await receive() == disconnect(1006)

    async with upgrading.serving(loop, app) as site:
        async with bare(site, shake=False) as peer:
            status, headers = await peer.read_head()
            assert status == b"HTTP/1.1 401 Unauthorized"
            assert headers == [
                (b"x-why", b"because"),
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", b"2"),
                (b"connection", b"close"),
                (b"server", b"mgloop"),
            ]
            assert await peer.reader.read() == b"no"
        assert site.answers == [401]


@pytest.mark.parametrize("accepts", [True, False])
async def test_headers_of_the_application_take_the_place_of_the_servers_own(loop, accepts):
    headers = [(b"Server", b"a"), (b"date", b"today")]

    async def app(scope, receive, send):
        if accepts:
            await send({"type": "websocket.accept", "headers": headers})
        else:
            await send(denial(*headers))
            await send({"type": "websocket.http.response.body"})

    async with upgrading.serving(loop, app) as site, bare(site, shake=False) as peer:
        _, got = await peer.read_head()
    assert [each for each in got if each[0].lower() in (b"server", b"date")] == headers


@pytest.mark.parametrize("status", [204, 304])
async def test_a_denial_without_a_body(loop, status):
    async def app(scope, receive, send):
        await send({"type": "websocket.http.response.start", "status": status})
        await send(part(b"nobody sees this", False))

    async with upgrading.serving(loop, app) as site, bare(site, shake=False) as peer:
        _, headers = await peer.read_head()
        assert headers == [(b"connection", b"close"), (b"server", b"mgloop")]
        assert await peer.reader.read() == b""


async def test_a_denial_is_as_long_as_it_says(loop):
    def start(*lengths):
        return denial(*[(b"content-length", length) for length in lengths])

    async def app(scope, receive, send):
        for wrong, exception, message in (
            (start(b"-5"), RuntimeError, "is not a number of bytes"),
            (start(b"5", b"5"), RuntimeError, "Too many Content-Length"),
            (denial((b"transfer-encoding", b"gzip")), RuntimeError, "Unsupported Transfer-Enc"),
            (denial(("x", "str")), TypeError, None),
        ):
            with pytest.raises(exception, match=message):
                await send(wrong)
        await send(start(b"5"))
        await send(part(b"123"))
        for wrong, exception, message in (
            (part(b"456"), RuntimeError, "longer than Content-Length"),
            (part(b"4", False), RuntimeError, "shorter than Content-Length"),
            (part("45", False), TypeError, None),
        ):
            with pytest.raises(exception, match=message):
                await send(wrong)
        await send(part(bytearray(b"45"), False))

    async with upgrading.serving(loop, app) as site, bare(site, shake=False) as peer:
        _, headers = await peer.read_head()
        assert dict(headers)[b"content-length"] == b"5"
        assert await peer.reader.read() == b"12345"


async def test_a_denial_in_pieces_ends_with_the_connection(loop):
    async def app(scope, receive, send):
        await send({"type": "websocket.http.response.start", "status": 503})
        await send(part(b"a" * 200_000))
        await send(part(b"b" * 200_000))
        await send({"type": "websocket.http.response.body"})

    async with upgrading.serving(loop, app) as site, bare(site, shake=False) as peer:
        _, headers = await peer.read_head()
        assert b"content-length" not in dict(headers)
        assert await peer.reader.read() == b"a" * 200_000 + b"b" * 200_000


async def test_a_denial_that_breaks_off_is_cut(loop, caplog):
    async def app(scope, receive, send):
        await send(denial((b"content-length", b"100")))
        await send(part(b"a"))
        raise ZeroDivisionError

    async with upgrading.serving(loop, app) as site:
        with logged(caplog):
            async with bare(site, shake=False) as peer:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await peer.read_head()
                    assert await peer.reader.read() in (b"a", b"")


async def test_a_denial_without_a_length_that_breaks_off_is_reset(loop, caplog):
    """Otherwise the client would take the part that it has received for the whole."""
    received = asyncio.Event()

    async def app(scope, receive, send):
        await send(denial())
        await send(part(b"a"))
        await received.wait()
        raise ZeroDivisionError

    async with upgrading.serving(loop, app) as site:
        with logged(caplog):
            async with bare(site, shake=False) as peer:
                await peer.read_head()
                assert await peer.reader.readexactly(1) == b"a"
                received.set()
                with pytest.raises(ConnectionResetError):
                    await peer.reader.read()
        assert site.answers == [403]


async def test_a_task_factory_that_raises_is_a_500(loop, caplog):
    """No coroutine is left that was never awaited: its warning would fail the test."""

    def factory(loop, coro, **kwargs):
        if getattr(coro, "__name__", "") == "run_application":
            raise ValueError("no task")
        return asyncio.Task(coro, loop=loop, **kwargs)

    async with upgrading.serving(loop, echo) as site, bare(site, shake=False) as peer:
        with logged(caplog):
            loop.set_task_factory(factory)
            status, _ = await peer.read_head()
            loop.set_task_factory(None)
        assert status.startswith(b"HTTP/1.1 500 ")
        gc.collect()


async def test_a_task_factory_that_accepts_no_context(loop):
    def factory(loop, coro):
        return asyncio.Task(coro, loop=loop)

    async with upgrading.serving(loop, echo) as site, bare(site, shake=False) as peer:
        loop.set_task_factory(factory)
        status, _ = await peer.read_head()
        loop.set_task_factory(None)
        assert status.startswith(b"HTTP/1.1 101 ")


async def test_a_client_that_leaves_during_a_denial_is_logged(loop):
    lost = asyncio.Event()

    async def app(scope, receive, send):
        await send(denial())
        await send(part(b"a"))
        await receive()
        assert await receive() == disconnect(1006)
        lost.set()

    async with upgrading.serving(loop, app) as site:
        async with bare(site, shake=False) as peer:
            await peer.read_head()
        await lost.wait()
        assert site.answers == [403]


@pytest.mark.parametrize("status", [99, 101, 199, 600, support.UntruthfulInt(-5)])
async def test_a_denial_needs_a_status_that_ends_a_request(loop, status):
    async def app(scope, receive, send):
        with pytest.raises(ValueError, match=f"Invalid HTTP status code {status} in response"):
            await send({"type": "websocket.http.response.start", "status": status})
        await send({"type": "websocket.close"})

    async with upgrading.serving(loop, app) as site:
        with pytest.raises(InvalidStatus):
            await connect(site.url)


@pytest.mark.parametrize(
    "header", [(b"a", b"b\r\nc: d"), (b"a\r\nb", b"c"), (b"a", b"\0"), (b"", b"a"), (b"a b", b"")]
)
async def test_headers_cannot_be_smuggled_into_the_answer(loop, header):
    async def app(scope, receive, send):
        with pytest.raises(RuntimeError, match="Invalid HTTP header"):
            await send({"type": "websocket.accept", "headers": [header]})
        with pytest.raises(RuntimeError, match="Invalid HTTP header"):
            await send({"type": "websocket.accept", "subprotocol": "a\r\nb: c"})
        await send({"type": "websocket.accept"})
        await receive()
        await receive()

    async with upgrading.serving(loop, app) as site, connect(site.url):
        pass


# -------------------------------------------------------------------------- messages ----


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_messages_return_as_they_were_sent(loop, compression):
    messages = ["", "a", "€" * 1000, b"", b"a", support.pattern(200_000), "x" * 100_000]
    async with upgrading.serving(loop, echo) as site:
        async with connect(site.url, compression=compression, max_size=None) as client:
            for message in messages * 2:
                await client.send(message)
                assert await client.recv() == message
            for message in messages:
                await client.send(message)
            assert [await client.recv() for _ in messages] == messages
            fragments = ["a" * 100, "b" * 200, "c"]
            await client.send(fragments)
            assert await client.recv() == "".join(fragments)


async def test_messages_over_tls(loop, server_ssl_context, client_ssl_context):
    async with upgrading.serving(loop, echo, ssl=server_ssl_context) as site:
        async with connect(site.url, ssl=client_ssl_context) as client:
            await client.send(b"a" * 100_000)
            assert await client.recv() == b"a" * 100_000
        async with connect(site.url, ssl=client_ssl_context) as client:
            client.transport.write(frame(3))
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
            assert caught.value.rcvd.code == 1002


async def test_a_ping_is_answered_between_fragments(loop):
    async with upgrading.serving(loop, echo) as site, bare(site) as peer:
        peer.send(frame(TEXT, b"a", fin=False) + frame(PING, b"p") + frame(CONTINUATION, b"b"))
        assert await peer.read_frame() == (0x80 | PONG, b"p")
        assert await peer.read_frame() == (0x80 | TEXT, b"ab")
        peer.send(frame(PONG, b"unasked") + closing(4000, b"done"))
        assert await peer.read_close() == (4000, "done")
        assert await peer.reader.read() == b""


async def test_a_message_without_a_payload_sends_nothing_and_a_wrong_one_raises(loop):
    async def app(scope, receive, send):
        await accept(receive, send)
        await send({"type": "websocket.send"})
        await send({"type": "websocket.send", "text": None, "bytes": None})
        with pytest.raises(TypeError):
            await send({"type": "websocket.send", "text": b"bytes"})
        with pytest.raises(TypeError):
            await send({"type": "websocket.send", "bytes": "text"})
        with pytest.raises(UnicodeEncodeError):
            await send({"type": "websocket.send", "text": "\ud800"})
        await send({"type": "websocket.send", "text": None, "bytes": bytearray(b"fine")})
        await send({"type": "websocket.close"})

    async with upgrading.serving(loop, app) as site, connect(site.url) as client:
        assert await client.recv() == b"fine"


async def test_messages_in_the_wrong_order(loop):
    async def app(scope, receive, send):
        await receive()
        wrong = "Expected ASGI message 'websocket.accept', 'websocket.close' or 'websocket.http"
        for kind in ("websocket.send", "websocket.http.response.body", "http.response.start"):
            with pytest.raises(RuntimeError, match=wrong):
                await send({"type": kind})
        await send({"type": "websocket.accept"})
        wrong = "Expected ASGI message 'websocket.send' or 'websocket.close', but got"
        for kind in ("websocket.accept", "websocket.http.response.start", "nonsense"):
            with pytest.raises(RuntimeError, match=wrong):
                await send({"type": kind, "status": 200})
        with pytest.raises(KeyError):
            await send({})
        await send({"type": "websocket.close"})
        for kind in ("websocket.send", "websocket.close", "nonsense"):
            with pytest.raises(RuntimeError, match=f"message '{kind}', after sending 'websocket."):
                await send({"type": kind})

    async with upgrading.serving(loop, app) as site, connect(site.url) as client:
        with pytest.raises(ConnectionClosed):
            await client.recv()


# ---------------------------------------------------------------------------- the end ----


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ({}, 1000, ""),
        ({"code": 4001, "reason": "why €"}, 4001, "why €"),
        ({"code": None, "reason": None}, 1000, ""),
        ({"code": 1005}, 1005, ""),
    ],
)
async def test_the_application_closes(loop, message, code, reason):
    async def step(receive, send):
        await send({"type": "websocket.close", **message})
        return await receive()

    app = Held(step)
    async with upgrading.serving(loop, app) as site:
        async with connect(site.url) as client:
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert (client.close_code, client.close_reason) == (code, reason)
        assert app.result == disconnect(code, reason)
        app.leave.set()


async def test_an_invalid_close_code_or_reason_raises(loop):
    async def app(scope, receive, send):
        await accept(receive, send)
        for code in (0, 999, 1006, 1015, 5000, 1 << 40, "1000"):
            with pytest.raises(RuntimeError, match="Invalid WebSocket close code"):
                await send({"type": "websocket.close", "code": code})
        with pytest.raises(RuntimeError, match="longer than 123 bytes"):
            await send({"type": "websocket.close", "reason": "€" * 42})
        with pytest.raises(RuntimeError, match="cannot have a reason"):
            await send({"type": "websocket.close", "code": 1005, "reason": "bye"})
        await send({"type": "websocket.close", "reason": "€" * 41})

    async with upgrading.serving(loop, app) as site, connect(site.url) as client:
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_reason == "€" * 41


async def test_data_after_the_application_has_closed_is_dropped(loop):
    async def step(receive, send):
        await send({"type": "websocket.close"})
        return await receive()

    app = Held(step)
    async with upgrading.serving(loop, app) as site:
        async with bare(site) as peer:
            assert await peer.read_close() == (1000, "")
            peer.send(frame(TEXT, b"late") * 1000 + frame(PING) + closing(1000))
            assert await peer.reader.read() == b""
        assert app.result == disconnect(1000)
        app.leave.set()


async def test_a_peer_that_does_not_answer_the_close_is_cut_off(loop, monkeypatch):
    async def app(scope, receive, send):
        await accept(receive, send)
        await send({"type": "websocket.close"})

    real = loop.call_later
    monkeypatch.setattr(
        loop, "call_later", lambda delay, *args: real(delay / 100, *args), raising=False
    )
    async with upgrading.serving(loop, app) as site, bare(site) as peer:
        assert await peer.read_close() == (1000, "")
        with contextlib.suppress(ConnectionError):
            assert await peer.reader.read() == b""


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (closing(1000), 1000, ""),
        (closing(1001, b"leaving"), 1001, "leaving"),
        (frame(CLOSE), 1005, ""),
        (b"", 1006, ""),
        (frame(TEXT, b"half", fin=False), 1006, ""),
    ],
)
async def test_the_client_goes(loop, data, code, reason):
    async def then(receive, send):
        with pytest.raises(OSError) as caught:
            await send({"type": "websocket.send", "text": "late"})
        assert type(caught.value) is ClientDisconnected
        # Many applications close in any case; sending after that is an error.
        await send({"type": "websocket.close"})
        with pytest.raises(RuntimeError, match=r"after sending 'websocket\.close'"):
            await send({"type": "websocket.send", "text": "late"})

    app = Recording(then)
    async with upgrading.serving(loop, app) as site, bare(site) as peer:
        peer.send(frame(TEXT, b"first") + data)
        if code != 1006:
            assert await peer.read_close() == (code, reason)
            assert await peer.reader.read() == b""
    assert app.messages == [text("first"), disconnect(code, reason)]


async def test_the_client_goes_before_it_is_accepted(loop):
    async def app(scope, receive, send):
        assert await receive() == {"type": "websocket.connect"}
        seen.append(await receive())
        with pytest.raises(OSError):
            await send({"type": "websocket.accept"})

    seen = []
    async with upgrading.serving(loop, app) as site, bare(site, shake=False):
        await support.wait_until(lambda: site.members)
    assert seen == [disconnect(1006)]


async def test_an_application_need_not_catch_what_send_raises_after_the_end(loop):
    async def app(scope, receive, send):
        await accept(receive, send)
        await receive()
        await send({"type": "websocket.send", "text": "late"})

    async with upgrading.serving(loop, app) as site, bare(site):
        pass


@pytest.mark.parametrize("leaves", [None, "SystemExit: 3", "ZeroDivisionError"])
async def test_an_application_that_leaves_without_closing(loop, caplog, leaves):
    async def app(scope, receive, send):
        await accept(receive, send)
        await send({"type": "websocket.send", "text": "a"})
        if leaves == "SystemExit: 3":
            sys.exit(3)
        elif leaves:
            raise ZeroDivisionError

    async with upgrading.serving(loop, app) as site:
        with logged(caplog) if leaves else contextlib.nullcontext():
            async with connect(site.url) as client:
                assert await client.recv() == "a"
                with pytest.raises(ConnectionClosed):
                    await client.recv()
                assert client.close_code == (1011 if leaves else 1000)
            assert (leaves or "") in caplog.text


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(3), 1002),
        (frame(TEXT, b"a", mask=b""), 1002),
        (frame(TEXT, b"\xff"), 1007),
        (frame(BINARY, length=1001), 1009),
        (frame(BINARY, bytes(1000), fin=False) + frame(CONTINUATION, length=1), 1009),
        (closing(1005), 1002),
    ],
)
async def test_a_peer_that_breaks_the_rules(loop, data, code):
    app = Recording()
    async with upgrading.serving(loop, app, ws_max_size=1000) as site:
        async with bare(site) as peer:
            # More data than the server reads, which must not reset the connection.
            peer.send(frame(TEXT, b"first") + data + bytes(500_000))
            got, reason = await peer.read_close()
            assert got == code
            assert await peer.reader.read() == b""
        first, last = app.messages
        assert first == text("first")
        assert last == disconnect(code, reason)


async def test_a_peer_that_breaks_the_rules_and_goes(loop):
    """The close frame provokes a reset, and the server cannot end its side of the connection."""
    app = Recording()
    async with upgrading.serving(loop, app) as site:
        with socket.create_connection(site.address) as sock:
            sock.setblocking(False)
            sock.send(upgrading.request())
            assert b" 101 " in await loop.sock_recv(sock, 1000)
            sock.send(frame(3))
        await support.wait_until(lambda: not site.members)
    assert app.messages[-1]["code"] == 1002


async def test_an_error_of_our_own_ends_the_connection_and_is_logged(loop, caplog, monkeypatch):
    app = Recording()
    async with upgrading.serving(loop, app) as site, bare(site) as peer:
        await support.wait_until(lambda: site.answers)
        with logged(caplog):
            site.members[0].data_received("not bytes")
        with contextlib.suppress(ConnectionError):
            assert await peer.reader.read() == b""
    assert app.messages == [disconnect(1011)]


# -------------------------------------------------------------------- keep-alive ----


async def test_pings_are_sent_and_who_answers_stays(loop):
    async with upgrading.serving(
        loop, echo, ws_ping_interval=0.01, ws_ping_timeout=support.PATIENCE
    ) as site:
        async with bare(site) as peer:
            seen = set()
            for _ in range(3):
                first, payload = await peer.read_frame()
                assert first == 0x80 | PING
                seen.add(payload)
                peer.send(frame(PONG, b"another") + frame(PONG, payload))
            assert len(seen) == 3


async def test_without_a_timeout_pings_are_sent_all_the_same(loop):
    async with upgrading.serving(loop, echo, ws_ping_interval=0.01) as site, bare(site) as peer:
        for _ in range(3):
            assert (await peer.read_frame())[0] == 0x80 | PING


async def test_a_client_that_does_not_answer_a_ping_is_disconnected(loop):
    app = Recording()
    async with upgrading.serving(loop, app, ws_ping_interval=0.01, ws_ping_timeout=0.01) as site:
        async with bare(site) as peer:
            assert (await peer.read_frame())[0] == 0x80 | PING
            assert await peer.read_close() == (1011, "keepalive ping timeout")
            assert await peer.reader.read() == b""
    assert app.messages == [disconnect(1011, "keepalive ping timeout")]


async def test_a_peer_is_not_given_up_while_the_application_does_not_read_it(loop):
    async def step(receive, send):
        await full.wait()
        await asyncio.sleep(0.2)
        return [(await receive())["text"] for _ in range(5)]

    full = asyncio.Event()
    app = Held(step)
    options = {"ws_ping_interval": 0.01, "ws_ping_timeout": 0.03, "ws_max_queue": 2}
    async with upgrading.serving(loop, app, **options) as site, connect(site.url) as client:
        for number in range(5):
            await client.send(str(number))
        full.set()
        await app.done.wait()
        assert app.result == ["0", "1", "2", "3", "4"]
        app.leave.set()


# ------------------------------------------------------------------- back-pressure ----


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_peer_has_to_wait_for_the_application(loop, size):
    async def step(receive, send):
        await go.wait()
        return [len((await receive())["bytes"]) for _ in range(count)]

    go = asyncio.Event()
    app = Held(step)
    count = 50_000_000 // (size * 100 if size == 10 else size)
    async with upgrading.serving(loop, app, ws_max_queue=8) as site, bare(site) as peer:
        peer.send(frame(BINARY, bytes(size)) * count)
        await support.wait_until(lambda: site.answers)
        if size > 10:
            # The socket is full, and nothing is sent any more.
            left = await support.settled(peer.writer.transport.get_write_buffer_size)
            assert left > 30_000_000
        go.set()
        await app.done.wait()
        assert app.result == [size] * count
        peer.send(closing(1000))
        assert await peer.read_close() == (1000, "")
        app.leave.set()


async def test_messages_from_before_a_lost_connection_are_delivered(loop):
    async def step(receive, send):
        await broken.wait()
        with pytest.raises(ClientDisconnected):
            await send_for_ever(send)
        return [await receive() for _ in range(102)]

    broken = asyncio.Event()
    app = Held(step)
    async with upgrading.serving(loop, app, ws_max_queue=4) as site:
        frames = b"".join(frame(TEXT, b"%d" % number) for number in range(100))
        # The frames arrive in one piece, which is read in one call and mostly not parsed yet.
        async with bare(site, behind=frames) as peer:
            support.reset(peer.writer.get_extra_info("socket").dup())
            peer.writer.transport.abort()
            broken.set()
            await app.done.wait()
            assert app.result[:100] == [text(str(number)) for number in range(100)]
            assert app.result[100:] == [disconnect(1006)] * 2
            app.leave.set()


async def test_the_application_has_to_wait_for_a_slow_peer(loop):
    async def app(scope, receive, send):
        await accept(receive, send)
        for _ in range(200):
            sent.append(0)
            await send({"type": "websocket.send", "bytes": bytes(100_000)})
        await send({"type": "websocket.close", "code": 4000})

    sent = []
    async with upgrading.serving(loop, app) as site, bare(site, small=True) as peer:
        assert await support.settled(lambda: len(sent)) < 150
        # Pings are answered when the socket is writable, and only the last of them.
        for number in range(1000):
            peer.send(frame(PING, b"%d" % number))
        frames = [await peer.read_frame() for _ in range(200)]
        data = [payload for first, payload in frames if first == 0x80 | BINARY]
        pongs = [payload for first, payload in frames if first == 0x80 | PONG]
        while (found := await peer.read_frame())[0] != 0x80 | CLOSE:
            (data if found[0] == 0x80 | BINARY else pongs).append(found[1])
        assert data == [bytes(100_000)] * 200
        assert found[1] == (4000).to_bytes(2, "big")
        assert len(pongs) < 1000
        peer.send(closing(4000))
        assert await peer.reader.read() == b""


async def test_a_peer_that_takes_nothing_is_cut_off(loop):
    async def app(scope, receive, send):
        await accept(receive, send)
        with pytest.raises(ClientDisconnected):
            await send_for_ever(send)
        assert await receive() == disconnect(1006)
        ended.set()

    ended = asyncio.Event()
    async with upgrading.serving(loop, app, timeout_write=0.05) as site, bare(site, small=True):
        await ended.wait()


@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_waiting_send_fails_immediately_when_the_session_ends(loop, who):
    """The call ends immediately, and not only when a client that reads nothing has been cut off."""

    async def app(scope, receive, send):
        def noted(message):
            calls.append(send(message))
            return calls[-1]

        await accept(receive, send)
        with pytest.raises(ClientDisconnected):
            await send_for_ever(noted)
        ended.set()

    calls, ended = [], asyncio.Event()
    async with upgrading.serving(loop, app) as site, bare(site, small=True) as peer:
        await support.wait_until(lambda: calls and calls[-1].cr_await is not None)
        if who == "client":
            peer.send(closing(1000))
        else:
            site.members[0].begin_shutdown()
        await ended.wait()
        await support.turns(5)
        assert site.members  # the connection itself still exists


@pytest.mark.parametrize("accepts", [True, False])
async def test_sends_without_a_pause_fail_after_the_client_has_disconnected(loop, accepts):
    """The reset arrives while the application does not yield to the loop."""
    kind = "websocket.send" if accepts else "websocket.http.response.body"

    async def app(scope, receive, send):
        if accepts:
            await send({"type": "websocket.accept"})
        else:
            await send(denial())
            await send(part(b"a"))
        await connected.wait()
        support.reset(sock)
        message = {"type": kind, "text": "a", "body": b"a", "more_body": True}
        with pytest.raises(ClientDisconnected):
            await send_often(send, message)
        ended.set()

    connected, ended = asyncio.Event(), asyncio.Event()
    async with upgrading.serving(loop, app) as site:
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, site.address)
        await loop.sock_sendall(sock, upgrading.request())
        assert await loop.sock_recv(sock, 1000)
        connected.set()
        await ended.wait()


# ------------------------------------------------------------- tasks and awaitables ----


async def test_the_awaitables_of_receive_and_send_are_coroutines(loop):
    async def app(scope, receive, send):
        call = receive()
        assert asyncio.iscoroutine(call)
        assert await call == {"type": "websocket.connect"}
        with pytest.raises(RuntimeError, match="cannot reuse"):
            await call
        await asyncio.create_task(send({"type": "websocket.accept"}))
        assert await asyncio.wait_for(receive(), support.PATIENCE) == text("a")
        # The call does nothing before it is awaited.
        never = send({"type": "websocket.send", "text": "never"})
        never.close()
        with pytest.raises(RuntimeError, match="cannot reuse"):
            await never
        first = asyncio.create_task(receive())
        second = asyncio.create_task(receive())
        await send({"type": "websocket.send", "text": "now"})
        assert await first == text("b")
        assert await second == text("c")

    async with upgrading.serving(loop, app) as site, connect(site.url) as client:
        await client.send("a")
        assert await client.recv() == "now"
        await client.send("b")
        await client.send("c")
        with pytest.raises(ConnectionClosed):
            await client.recv()


async def test_a_receive_that_is_cancelled_loses_nothing(loop):
    async def app(scope, receive, send):
        await accept(receive, send)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(receive(), 0.01)
        one = asyncio.create_task(receive())
        two = asyncio.create_task(receive())
        await support.turns(3)
        # The task was woken and then cancelled before it ran: the other task gets the message.
        receive.__self__.data_received(frame(TEXT, b"a"))
        one.cancel()
        assert await two == text("a")
        with pytest.raises(asyncio.CancelledError):
            await one
        # The task is cancelled while it waits.
        one = asyncio.create_task(receive())
        await support.turns(3)
        one.cancel()
        await support.turns(3)
        receive.__self__.data_received(frame(TEXT, b"b"))
        assert await receive() == text("b")

    async with upgrading.serving(loop, app) as site, bare(site) as peer:
        assert await peer.read_close() == (1000, "")


async def test_a_send_that_is_not_awaited_is_warned_about(loop):
    async def app(scope, receive, send):
        await receive()
        call = receive()
        assert (call.__name__, call.__qualname__) == ("receive", "WebSocket.receive")
        call.close()
        with pytest.warns(RuntimeWarning, match=r"coroutine 'WebSocket\.send' was never awaited"):
            send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})

    async with upgrading.serving(loop, app) as site, bare(site, shake=False) as peer:
        assert b" 403 " in (await peer.read_head())[0]


async def test_a_session_is_one_task_with_a_context_of_its_own(loop):
    async def app(scope, receive, send):
        assert variable.get() == "server"
        variable.set("session")
        task = asyncio.current_task()
        await accept(receive, send)
        while (await receive())["type"] == "websocket.receive":
            assert asyncio.current_task() is task
            assert variable.get() == "session"
            await send({"type": "websocket.send", "text": "fine"})

    variable = contextvars.ContextVar("variable", default="server")
    async with upgrading.serving(loop, app) as site:
        for _ in range(2):
            async with connect(site.url) as client:
                await client.send("a")
                assert await client.recv() == "fine"
    assert variable.get() == "server"


async def test_nothing_of_a_session_is_left(loop):
    refs = []

    async def app(scope, receive, send):
        refs.append(weakref.ref(receive.__self__))
        await echo(scope, receive, send)

    async with upgrading.serving(loop, app) as site:
        async with connect(site.url) as client:
            await client.send("a")
            await client.recv()
        async with bare(site) as peer:
            peer.send(frame(TEXT, b"half", fin=False))
    await support.turns(5)
    del client, peer
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


# ------------------------------------------------------------------------- shutdown ----


async def test_shutting_down_is_1012(loop):
    async def step(receive, send):
        last = await receive()
        with pytest.raises(ClientDisconnected):
            await send({"type": "websocket.send", "text": "late"})
        return last

    app = Held(step)
    async with upgrading.serving(loop, app) as site, connect(site.url) as client:
        site.members[0].begin_shutdown()
        site.members[0].begin_shutdown()
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1012
        await app.done.wait()
        assert app.result == disconnect(1012)
        app.leave.set()


async def test_shutting_down_refuses_who_is_not_accepted_yet(loop):
    app = Held(wait, accept=False)
    async with upgrading.serving(loop, app) as site:
        connecting = asyncio.ensure_future(connect(site.url, additional_headers={}).__aenter__())
        await support.wait_until(lambda: site.members)
        site.members[0].begin_shutdown()
        await app.done.wait()
        assert app.result == disconnect(1012)
        app.leave.set()
        # The client library retries after a 503, as it should.
        connecting.cancel()
        with pytest.raises((asyncio.CancelledError, InvalidStatus)):
            await connecting
        await support.wait_until(lambda: not site.members)
        assert site.answers[0] == 503


@pytest.mark.parametrize("accepts", [False, True])
async def test_cancelling_ends_the_task_and_the_connection(loop, accepts):
    app = Held(lambda receive, send: asyncio.Event().wait(), accept=accepts)
    async with upgrading.serving(loop, app) as site, bare(site, shake=accepts) as peer:
        await support.wait_until(lambda: site.members)
        await support.turns(5)
        site.members[0].cancel()
        if accepts:
            assert await peer.read_close() == (1012, "")
        else:
            assert b" 503 " in (await peer.read_head())[0]
        await peer.reader.read()
        await support.wait_until(lambda: not site.members)
    assert app.cancelled


async def test_cancelling_waits_for_no_peer_that_does_not_read(loop):
    app = Held(lambda receive, send: send_for_ever(send))
    async with upgrading.serving(loop, app) as site, bare(site, small=True):
        await support.wait_until(lambda: site.members)
        site.members[0].cancel()
        await support.wait_until(lambda: not site.members)
    assert app.cancelled
