# SPDX-License-Identifier: GPL-2.0-only
"""The interface between server and application: ASGI 3's `http`."""

import asyncio
import contextlib
import contextvars
import dataclasses
import gc
import inspect
import os
import socket
import sys
import tracemalloc
import weakref

import pytest
import support
from sites import Serving, answer, connected, get, post, read_body, send_often

from mgloop.http import ClientDisconnected

START = {"type": "http.response.start", "status": 200, "headers": []}


def app_of(*messages):
    async def app(scope, receive, send):
        for message in messages:
            await send(message)

    return app


def body(data=b"", more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


def declaring(*lengths):
    return {**START, "headers": [(b"content-length", length) for length in lengths]}


def sized(payload):
    """Return an application that declares the response's length and sends it in one piece."""
    return app_of(declaring(b"%d" % len(payload)), body(payload))


class Log(list):
    """An access log: a list of (path, status, bytes of the body)."""

    def __call__(self, scope, status, nbytes, seconds):
        assert 0 <= seconds < 60
        self.append((scope["path"], status, nbytes))


@contextlib.asynccontextmanager
async def raw_client(loop, app, request, *, buffer, **config):
    """Serve `app`; yield a socket with a receive buffer of that size, which has sent `request`."""
    async with Serving(loop, app, **config) as serving:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", serving.port))
            await loop.sock_sendall(sock, request)
            yield sock


def logged(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


# --- framing -------------------------------------------------------------------------------------


HEAD = get().replace(b"GET", b"HEAD")

#: Messages of an application, a request, and the response, after which the connection is kept.
KEPT = {
    "one piece": ((START, body(b"hello")), get(), (200, {"content-length": "5"}, b"hello")),
    "nothing": ((START, body(None)), get(), (200, {"content-length": "0"}, b"")),
    "204": (({**START, "status": 204}, body(b"nobody sees this")), get(), (204, {}, b"")),
    "304": (({**START, "status": 304}, body(b"nobody sees this")), get(), (304, {}, b"")),
    "HEAD": ((declaring(b"5"), body(b"hello")), HEAD, (200, {"content-length": "5"}, b"")),
    "18 digits": ((declaring(b"9" * 18), body()), HEAD, (200, {"content-length": "9" * 18}, b"")),
    "zeros": (
        (declaring(b"000000000000000007"), body()),
        HEAD,
        (200, {"content-length": "000000000000000007"}, b""),
    ),
    "1.0 that asks to keep": (
        (START, body(b"a")),
        get("/", "Connection: keep-alive", version="1.0"),
        (200, {"content-length": "1", "connection": "keep-alive"}, b"a"),
    ),
}


@pytest.mark.parametrize("case", KEPT)
async def test_a_response_after_which_the_connection_is_kept(loop, case):
    messages, request, expected = KEPT[case]
    async with connected(loop, app_of(*messages)) as client:
        for _ in range(3):
            assert await client.request(request, method=request.split()[0].decode()) == expected


CLOSING = {**START, "headers": [(b"Connection", b"close")]}

#: Messages of an application, a request, and the response, which is the connection's last.
LAST = {
    "the application closes": ((CLOSING, body(b"bye")), get() + get(), "3", b"bye"),
    "the client closes": ((START, body(b"bye")), get("/", "Connection: close"), "3", b"bye"),
    "1.0": ((START, body(b"a", True), body(b"b")), get(version="1.0"), None, b"ab"),
}


@pytest.mark.parametrize("case", LAST)
async def test_a_response_that_ends_the_connection(loop, case):
    messages, request, length, expected = LAST[case]
    async with connected(loop, app_of(*messages), request) as client:
        status, headers, got = await client.response()
        assert (status, headers.pop("connection"), got) == (200, "close", expected)
        assert headers == ({"content-length": length} if length else {})
        await client.ended()


@pytest.mark.parametrize("size", [1, 100, 20_000, 300_000])
async def test_pieces_are_chunked(loop, size):
    pieces = [bytes([65 + i]) * size for i in range(5)]
    app = app_of(START, *[body(piece, True) for piece in pieces], body())
    async with connected(loop, app) as client:
        for _ in range(2):
            status, headers, got = await client.request(get())
            assert (status, headers) == (200, {"transfer-encoding": "chunked"})
            assert got == b"".join(pieces)


async def test_headers_are_those_of_the_application(loop):
    headers = [(b"X-A", b"1"), (b"set-cookie", b"a"), (b"Set-Cookie", b"b"), (b"date", b"today")]
    app = app_of({**START, "headers": iter(headers)}, body())
    async with connected(
        loop, app, get(), server_header=True, date_header=True, headers=[("x-all", "2")]
    ) as client:
        head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.split(b"\r\n")[1:] == [
        b"X-A: 1",
        b"set-cookie: a",
        b"Set-Cookie: b",
        b"date: today",
        b"content-length: 0",
        b"server: mgloop",
        b"x-all: 2",
        b"",
        b"",
    ]


async def test_an_application_may_ask_for_an_upgrade(loop):
    """A sender of Upgrade must also send Connection: upgrade (RFC 9110, 7.8)."""
    headers = [(b"upgrade", b"TLS/1.0"), (b"connection", b"keep-alive, Upgrade")]
    app = app_of({**START, "status": 426, "headers": headers}, body(b"ok"))
    async with connected(loop, app) as client:
        for _ in range(2):
            status, headers, _ = await client.request(get())
            assert (status, headers["upgrade"], headers["connection"]) == (
                426,
                "TLS/1.0",
                "upgrade",
            )


async def test_configured_headers_take_the_place_of_the_servers_own(loop):
    configured = [("Server", "configured"), ("Date", "never")]
    for given, server in ([], "configured"), ([(b"server", b"the application's")], None):
        app = app_of({**START, "headers": given}, body())
        async with connected(
            loop, app, get(), server_header=True, date_header=True, headers=configured
        ) as client:
            head = await client.reader.readuntil(b"\r\n\r\n")
        lines = sorted(head.lower().split(b"\r\n")[1:-2])
        name = b"server: " + (server or "the application's").encode()
        assert lines == [b"content-length: 0", b"date: never", name]


async def test_small_pieces_of_a_body_take_no_more_memory_than_large_ones(loop):
    go_on = asyncio.Event()
    received = []

    async def app(scope, receive, send):
        await go_on.wait()
        received.append(await receive())
        await answer(send)

    size = 30_000
    async with connected(loop, app, post(None)) as client:
        await support.wait_until(lambda: client.site.in_flight)
        (connection,) = client.site.members
        chunks = b"".join(b"2\r\n%02d\r\n" % (i % 100) for i in range(size // 2))
        tracemalloc.start()
        try:
            connection.data_received(chunks)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 2 * size  # 20 times as much with an object for each piece
        await client.send(b"0\r\n\r\n")
        go_on.set()
        assert (await client.response())[0] == 200
    assert b"".join(message["body"] for message in received) == b"".join(
        b"%02d" % (i % 100) for i in range(size // 2)
    )


# --- messages in a wrong order, or wrong in themselves -------------------------------------------

NO_NUMBER = "is not a number of bytes"
WRONG = {
    "body first": ([body(b"x")], "Expected ASGI message 'http.response.start', but got"),
    "start twice": ([START, START], "Expected ASGI message 'http.response.body', but got"),
    "unknown first": ([{"type": "http.nothing"}], "Expected ASGI message 'http.response.start'"),
    "bad name": ([{**START, "headers": [(b"a b", b"c")]}], "Invalid HTTP header name."),
    "bad value": ([{**START, "headers": [(b"a", b"b\r\nc: d")]}], "Invalid HTTP header value."),
    "text": ([{**START, "headers": [("a", "b")]}], "TypeError"),
    "bad status": ([{**START, "status": 99}], "status code 99"),
    "bad length": ([declaring(b"-1")], "Content-Length"),
    "a length of 19 digits": ([declaring(b"1000000000000000000")], NO_NUMBER),
    "a length beyond 63 bits": ([declaring(b"9223372036854775808")], NO_NUMBER),
    "a length beyond 64 bits": ([declaring(b"18446744073709551621")], NO_NUMBER),
    "an empty length": ([declaring(b"")], NO_NUMBER),
    "two lengths": ([declaring(b"1", b"1")], "Content-Length"),
    "no type": ([{}], "KeyError"),
    "no status": ([{"type": "http.response.start"}], "KeyError"),
    "an unhashable type": ([{"type": []}], "TypeError"),
    "no message": ([5], "TypeError"),
    "nothing": ([], "ASGI callable returned without starting response."),
    "text as body": ([START, {"type": "http.response.body", "body": "x"}], "TypeError"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_message_before_the_response_is_a_500(loop, case, caplog):
    messages, text = WRONG[case]
    async with connected(loop, app_of(*messages)) as client:
        status, headers, got = await client.request(get())
        assert (status, headers["connection"], got) == (500, "close", b"Internal Server Error")
        await client.ended()
    (message,) = logged(caplog)
    assert text in caplog.text
    assert "ASGI" in message


class Text(str):
    """A string whose exact type is not str. `seen` is called when it is hashed."""

    def __new__(cls, text, seen=None):
        self = super().__new__(cls, text)
        self.seen = seen
        return self

    def __hash__(self):
        if self.seen is not None:
            self.seen()
        return super().__hash__()


class Clearing:
    """The `more_body` of a last piece, which empties its message when its truth value is tested."""

    def __init__(self, message):
        self.message = message

    def __bool__(self):
        self.message.clear()
        return False


@pytest.mark.parametrize("text", [Text, lambda text: "".join(list(text))], ids=["other", "equal"])
async def test_keys_and_types_count_by_their_letters(loop, text):
    def message(**fields):
        return {text(key): value for key, value in fields.items()}

    app = app_of(
        message(type=text("http.response.start"), status=201, headers=[(b"a", b"b")], other=1),
        message(type=text("http.response.body"), body=b"one", more_body=True),
        message(other=1, type=text("http.response.body"), body=b"two"),
    )
    async with Serving(loop, app) as serving:
        status, headers, got = await serving.one(get())
        assert (status, headers["a"], got) == (201, "b", b"onetwo")


async def test_the_types_of_files_and_trailers_count_by_their_letters(loop, tmp_path):
    (tmp_path / "file").write_bytes(b"hello")
    with open(tmp_path / "file", "rb") as file:
        app = app_of(
            {**START, "trailers": True},
            {"type": Text("http.response.zerocopysend"), "file": file, "more_body": True},
            {"type": Text("http.response.pathsend"), "path": str(tmp_path / "file")},
            {"type": Text("http.response.trailers")},
        )
        async with Serving(loop, app) as serving:
            assert (await serving.one(get()))[2] == b"hellohello"


async def test_a_message_that_is_emptied_while_it_is_read(loop):
    async def app(scope, receive, send):
        start = {"status": 200, "headers": [(b"a", b"b")]}
        start["type"] = Text("http.response.start", start.clear)
        await send(start)
        last = {"type": "http.response.body", "body": bytes(900)}
        last["more_body"] = Clearing(last)
        await send(last)

    async with Serving(loop, app) as serving:
        status, headers, got = await serving.one(get())
        assert (status, headers["a"], got) == (200, "b", bytes(900))


LONGER = "longer than Content-Length"
LATE = {
    "too long": ([declaring(b"3"), body(b"toolong")], LONGER),
    "too long later": ([declaring(b"3"), body(b"to", True), body(b"olong")], LONGER),
    "too short": ([declaring(b"3"), body(b"to", True), body()], "shorter than"),
    "no end": ([START, body(b"x", True)], "returned without completing"),
    "start again": (
        [START, body(b"x", True), START],
        "Expected ASGI message 'http.response.body'",
    ),
}


@pytest.mark.parametrize("case", LATE)
async def test_a_response_that_goes_wrong_is_cut(loop, case, caplog):
    messages, text = LATE[case]
    async with connected(loop, app_of(*messages), get()) as client:
        got = await client.reader.read()
        if got.startswith(b"HTTP/1.1 200"):
            assert not got.endswith(b"0\r\n\r\n")
            _, _, content = got.partition(b"\r\n\r\n")
            assert b"content-length" not in got or len(content) < 3
        else:
            assert got.startswith(b"HTTP/1.1 500")
    assert text in caplog.text


@pytest.mark.parametrize("end", ["raises", "returns", "times out", "is cancelled"])
async def test_a_response_of_no_length_that_is_cut_does_not_look_whole(loop, end, caplog):
    """In HTTP/1.0 the end of the connection is the end of the body."""
    received = asyncio.Event()

    async def app(scope, receive, send):
        await send(START)
        await send(body(b"half", True))
        await receive()
        received.set()
        if end == "times out":
            assert (await receive())["type"] == "http.disconnect"
        elif end == "is cancelled":
            await receive()
        elif end == "raises":
            raise ValueError

    async with connected(
        loop,
        app,
        b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n",
        timeout_body=0.2 * (end == "times out"),
    ) as client:
        assert (await client.head())[0] == 200
        assert await client.reader.readexactly(4) == b"half"
        await client.send(b"a")
        await received.wait()
        if end == "is cancelled":
            client.site.cancel_all()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(), 5)


async def test_more_after_the_end(loop, caplog):
    failures = []

    async def app(scope, receive, send):
        await answer(send, b"done")
        try:
            await send(body(b"more"))
        except RuntimeError as exc:
            failures.append(str(exc))

    async with connected(loop, app) as client:
        for _ in range(2):
            assert (await client.request(get()))[2] == b"done"
    assert (
        failures
        == ["Unexpected ASGI message 'http.response.body' sent, after response already completed."]
        * 2
    )


@pytest.mark.parametrize("debug", [False, True])
async def test_an_exception_is_a_500_that_tells_nothing(loop, debug, caplog):
    async def app(scope, receive, send):
        raise ValueError("a secret")

    async with Serving(loop, app, debug=debug) as serving:
        status, _, got = await serving.one(get())
    assert status == 500
    assert (b"a secret" in got) == debug
    assert logged(caplog) == ["Exception in ASGI application\n"]
    assert "ValueError: a secret" in caplog.text


def exits():
    sys.exit(3)


def is_cancelled():
    raise asyncio.CancelledError


@pytest.mark.parametrize("act", [exits, is_cancelled])
async def test_an_exit_or_a_cancellation_does_not_end_the_server(loop, caplog, act):
    """The exception does not end the server, and is logged; as with uvicorn."""

    async def app(scope, receive, send):
        if scope["path"] == "/":
            act()
        await answer(send, b"ok")

    async with Serving(loop, app) as serving:
        assert (await serving.one(get()))[0] == 500
        assert (await serving.one(get("/other")))[2] == b"ok"
    assert logged(caplog) == ["Exception in ASGI application\n"]


@pytest.mark.parametrize("factory_does", ["cancels", "raises"])
async def test_a_task_that_never_starts_is_a_500(loop, caplog, factory_does):
    def factory(loop, coro, **kwargs):
        task = asyncio.Task(coro, loop=loop, **kwargs)
        if type(coro).__name__ == "Request":
            task.cancel()
            if factory_does == "raises":
                raise ValueError("no task")
        return task

    async with Serving(loop, app_of(START, body())) as serving:
        loop.set_task_factory(factory)
        status, headers, _ = await asyncio.wait_for(serving.one(get()), 5)
        assert (status, headers["connection"]) == (500, "close")
        loop.set_task_factory(None)
        assert serving.site.in_flight == 0
    assert logged(caplog) == ["Exception in ASGI application\n"]


@pytest.mark.parametrize("sent", [0, 1, 2], ids=["nothing", "the head", "a part"])
async def test_a_task_that_is_lost_after_its_first_step(loop, caplog, sent):
    """The application's coroutine is closed, and its client learns that the request has failed."""
    coroutines = []

    async def run(send):
        for message in (START, body(b"part", True))[:sent]:
            await send(message)
        await asyncio.sleep(10)

    def app(scope, receive, send):
        coroutines.append(run(send))
        return coroutines[0]

    def factory(loop, coro, **kwargs):
        if type(coro).__name__ == "Request":
            coro.send(None)
            raise ValueError("no task")
        return asyncio.Task(coro, loop=loop, **kwargs)

    async with Serving(loop, app) as serving:
        loop.set_task_factory(factory)
        if sent == 0:
            status, headers, _ = await asyncio.wait_for(serving.one(get()), 5)
            assert (status, headers["connection"]) == (500, "close")
        else:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await asyncio.wait_for(serving.one(get()), 5)
        loop.set_task_factory(None)
        assert inspect.getcoroutinestate(coroutines[0]) == inspect.CORO_CLOSED
        assert serving.site.in_flight == 0
    assert logged(caplog) == ["Exception in ASGI application\n"]


async def test_an_exception_after_the_response_is_logged(loop, caplog):
    async def app(scope, receive, send):
        await answer(send, b"fine")
        raise ValueError("later")

    async with connected(loop, app) as client:
        for _ in range(2):
            assert (await client.request(get()))[0] == 200
    assert logged(caplog) == ["Exception in ASGI application\n"] * 2


async def test_a_head_that_is_refused_leaves_nothing(loop):
    wrong = [(b"connection", b"close"), (b"content-length", b"3"), (b"a", b"\n")]

    async def app(scope, receive, send):
        with pytest.raises(RuntimeError, match="Invalid HTTP header value"):
            await send({**START, "status": 204, "headers": wrong, "trailers": True})
        await answer(send, b"x")

    async with connected(loop, app) as client:
        for _ in range(2):
            assert await client.request(get()) == (200, {"content-length": "1"}, b"x")


async def test_an_iterator_of_headers_may_send_messages(loop):
    """The iterator sends another response, or the response that the headers belong to."""
    begun = asyncio.Event()
    sends = []

    async def first(send):
        await send(START)
        await send(body(b"a", True))
        sends.append(send)
        await begun.wait()
        await send(body(b"c"))

    async def second(send):
        def headers():
            yield b"a", b"1"
            sends[0](body(b"b", True))
            if len(sends) == 2:
                send({**START, "status": 404})
            yield b"b", b"2"

        sends.append(send)
        with pytest.raises(RuntimeError, match=r"Expected ASGI message 'http\.response\.body'"):
            await send({**START, "headers": headers()})
        await send(body(b"own"))
        begun.set()

    async def third(send):
        def headers():
            yield b"a", b"1"
            sends[0](body(b"b", True))
            yield b"b", b"2"

        await send({**START, "headers": headers()})
        await send(body(b"own"))

    async def app(scope, receive, send):
        await {"/1": first, "/2": second, "/3": third}[scope["path"]](send)

    async with connected(loop, app, get("/1")) as client:
        await support.wait_until(lambda: sends)
        headers = {"content-length": "3"}
        assert await client.serving.one(get("/3")) == (200, {"a": "1", "b": "2", **headers}, b"own")
        assert await client.serving.one(get("/2")) == (404, headers, b"own")
        assert await client.response() == (200, {"transfer-encoding": "chunked"}, b"abbc")


# --- tasks and contexts --------------------------------------------------------------------------


async def test_each_request_has_a_task_and_a_context_of_its_own(loop):
    variable = contextvars.ContextVar("variable", default=0)
    tasks = []

    async def app(scope, receive, send):
        assert variable.get() == 0
        variable.set(1)
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(10):
            await asyncio.sleep(0)
        assert asyncio.current_task() is tasks[-1]
        assert variable.get() == 1
        await answer(send)

    async with connected(loop, app) as client:
        for _ in range(3):
            assert (await client.request(get()))[0] == 200
    assert len(set(map(id, tasks))) == 3
    assert all(task.done() for task in tasks)


@pytest.mark.parametrize("case", ["sent ahead", "behind a body that was waited for"])
async def test_a_request_sees_nothing_of_the_context_of_the_one_before(loop, case):
    variable = contextvars.ContextVar("variable", default=None)
    seen = []

    async def app(scope, receive, send):
        seen.append(variable.get())
        variable.set(scope["path"])
        await read_body(receive)
        await asyncio.sleep(0)
        await answer(send)

    async with connected(loop, app, body_buffer=1) as client:
        if case == "sent ahead":
            await client.send(get("/1") + get("/2") + get("/3"))
            for _ in range(3):
                await client.response()
        else:
            for i in range(3):
                await client.send(post(4, body=b"ab"))
                await support.wait_until(lambda i=i: len(seen) == i + 1)
                await client.request(b"cd")
    assert seen == [None] * 3


async def test_timing_a_connection_keeps_no_context_of_a_request(loop):
    variable = contextvars.ContextVar("variable", default=None)
    kept = weakref.WeakSet()

    async def app(scope, receive, send):
        variable.set(Kept())
        kept.add(variable.get())
        await asyncio.sleep(0)
        await answer(send)

    class Kept:
        pass

    async with connected(loop, app, timeout_keep_alive=100) as client:
        await client.request(get())
        await support.wait_until(lambda: gc.collect() >= 0 and not kept)


async def test_receive_and_send_are_coroutines_to_create_task(loop):
    async def app(scope, receive, send):
        message = await asyncio.create_task(receive())
        await asyncio.gather(send(START))
        await asyncio.wait_for(send(body(message["body"])), 5)

    async with Serving(loop, app) as serving:
        data = post(2, body=b"hi")
        assert (await serving.one(data))[2] == b"hi"


@pytest.mark.parametrize("wrap", [asyncio.create_task, lambda sending: sending])
async def test_sending_waits_for_a_slow_client(loop, wrap):
    """A send() that has to wait is also a coroutine that a task can run."""
    sent = []

    async def app(scope, receive, send):
        await send(START)
        for _ in range(200):
            await wrap(send(body(bytes(100_000), True)))
            sent.append(1)
        await send(body())

    async with connected(loop, app, get()) as client:
        assert await support.settled(lambda: len(sent)) < 150
        assert len((await client.response())[2]) == 20_000_000


async def test_another_task_may_answer(loop):
    async def app(scope, receive, send):
        async def respond():
            await send(START)
            for _ in range(3):
                await send(body(b"x", True))
            await send(body())

        await asyncio.create_task(respond())

    async with connected(loop, app) as client:
        for _ in range(2):
            assert (await client.request(get()))[2] == b"xxx"


async def test_a_task_factory_is_asked(loop):
    made = []

    def factory(loop, coro, **kwargs):
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **kwargs)

    async with Serving(loop, app_of(START, body())) as serving:
        loop.set_task_factory(factory)
        await serving.one(get())
        loop.set_task_factory(None)
    assert any(type(coro).__name__ == "Request" for coro in made)


@pytest.mark.parametrize("step", ["send", "throw", "close", "__next__"])
@pytest.mark.parametrize("place", ["called", "running", "closed"])
async def test_an_application_that_steps_its_own_task_gets_an_exception(loop, step, place):
    raised, tasks = [], []

    def step_self(request):
        arguments = {"send": [None], "throw": [ZeroDivisionError]}.get(step, [])
        try:
            getattr(request, step)(*arguments)
        except ValueError as exc:
            raised.append(str(exc))

    async def run(send):
        request = asyncio.current_task().get_coro()
        tasks.append(asyncio.current_task())
        if place == "closed":
            try:
                await asyncio.Event().wait()
            finally:
                step_self(request)
        if place == "running":
            step_self(request)
        await answer(send, b"ok")

    def app(scope, receive, send):
        if place == "called":
            step_self(asyncio.current_task().get_coro())
        return run(send)

    async with connected(loop, app) as client:
        if place == "closed":
            await client.send(get())
            await support.wait_until(lambda: tasks)
            tasks[0].get_coro().close()
            tasks[0].cancel()
        else:
            assert (await client.request(get()))[2] == b"ok"
        assert client.site.in_flight == 0
    assert raised == ["coroutine already executing"]


# --- receiving -----------------------------------------------------------------------------------


async def test_a_body_in_pieces(loop):
    got = []

    async def app(scope, receive, send):
        got.append(await read_body(receive))
        await answer(send)

    async with connected(loop, app, post(300000)) as client:
        for i in range(30):
            await client.send(bytes([i]) * 10_000)
            await asyncio.sleep(0)
        assert (await client.response())[0] == 200
    assert got == [b"".join(bytes([i]) * 10_000 for i in range(30))]


async def test_a_body_that_nobody_receives_is_not_kept(loop):
    """The server stops reading, which holds up the client."""
    go_on = asyncio.Event()
    got = []

    async def app(scope, receive, send):
        await go_on.wait()
        got.append(await read_body(receive))
        await answer(send)

    size = 24 << 20
    async with connected(loop, app, post(size)) as client:
        sending = loop.create_task(client.send(bytes(size)))
        done, _ = await asyncio.wait([sending], timeout=1)
        assert not done
        go_on.set()
        await sending
        assert (await client.response())[0] == 200
    assert len(got[0]) == size


@pytest.mark.parametrize("receives", [True, False])
async def test_expect_continue(loop, receives):
    async def app(scope, receive, send):
        await answer(send, await read_body(receive) if receives else b"no, thanks")

    async with connected(loop, app, post(2, "Expect: 100-continue")) as client:
        if receives:
            assert await client.head() == (100, {})
            assert (await client.request(b"hi"))[2] == b"hi"
        else:
            status, headers, got = await client.response()
            assert (status, headers["connection"], got) == (200, "close", b"no, thanks")


async def test_continue_goes_before_a_response_that_has_begun_in_vain(loop):
    """The application waits while the head has not been written yet."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"1")]})
        while (message := await receive())["more_body"]:
            await send({**message, "type": "http.response.body"})
        await send({**message, "type": "http.response.body"})

    async with connected(loop, app) as client:
        for _ in range(2):
            await client.send(post(2, "Expect: 100-continue"))
            assert await client.head() == (100, {})
            status, headers, got = await client.request(b"hi")
            assert (status, headers["a"], got) == (200, "1", b"hi")
            assert "connection" not in headers


async def test_the_body_timeout_starts_after_100_continue(loop):
    async def app(scope, receive, send):
        await asyncio.sleep(0.5)
        await answer(send, await read_body(receive))

    async with connected(loop, app, post(2, "Expect: 100-continue"), timeout_body=0.2) as client:
        assert await client.head() == (100, {})
        assert (await client.response())[0] == 408


async def test_without_100_continue_the_body_timeout_starts_at_receive(loop):
    """The start of the response lets the client decide whether to send the body."""
    ended = loop.create_future()

    async def app(scope, receive, send):
        await send(START)
        await send(body(b"a", True))
        await asyncio.sleep(0.02)
        ended.set_result(await receive())

    async with connected(loop, app, post(2, "Expect: 100-continue"), timeout_body=0.2) as client:
        assert (await client.head())[0] == 200
        assert await asyncio.wait_for(ended, 5) == {"type": "http.disconnect"}


@pytest.mark.parametrize("rest", [b"", b"5\r\nhello?\r\n"], ids=["silence", "a broken chunk"])
async def test_one_response_though_the_rest_of_the_body_is_wrong(loop, rest):
    seconds = 0 if rest else 0.2
    async with connected(
        loop, app_of(START, body(b"ok")), post(None), timeout_body=seconds
    ) as client:
        assert (await client.response())[2] == b"ok"
        await client.send(rest)
        await asyncio.wait_for(client.ended(), 10)


async def test_a_head_that_is_held_when_the_request_is_refused_is_not_sent(loop):
    """Sent by another task, it would follow the refusal and end the connection immediately."""
    answered = asyncio.Event()

    async def app(scope, receive, send):
        (connection,) = serving.site.members
        loop.call_soon(lambda: (send(START), connection.data_received(b"no chunk\r\n")))
        assert (await receive())["type"] == "http.disconnect"
        await asyncio.sleep(0)
        closing.append(connection.transport.is_closing())
        answered.set()

    closing = []
    async with Serving(loop, app) as serving:
        client = await serving.connect()
        chunked = post(None)
        assert (await client.request(chunked))[0] == 400
        await answered.wait()
        await client.ended()
    assert closing == [False]


async def test_a_body_that_the_application_leaves(loop):
    """The connection can be used for the next request."""
    async with connected(loop, app_of(START, body(b"ok"))) as client:
        for _ in range(3):
            await client.send(post(100000))
            assert (await client.response())[2] == b"ok"
            await client.send(bytes(100_000))
        assert (await client.request(get()))[2] == b"ok"


async def test_a_large_body_that_the_application_leaves(loop):
    """The response arrives although the connection is then closed."""
    async with connected(loop, app_of(START, body(b"ok")), post(100000000)) as client:
        assert (await client.response())[2] == b"ok"

        async def send_on():
            while True:
                await client.send(bytes(100_000))

        with pytest.raises(ConnectionError):
            await send_on()


async def test_a_client_that_sends_a_large_body_first_gets_the_response(loop):
    async with Serving(loop, app_of(START, body(b"ok"))) as serving:
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", serving.port))
            size = 5 << 20
            await loop.sock_sendall(sock, post(size))
            await loop.sock_sendall(sock, bytes(size))
            assert (await loop.sock_recv(sock, 1000)).endswith(b"\r\n\r\nok")
            assert await loop.sock_recv(sock, 1000) == b""


# --- the client goes -----------------------------------------------------------------------------


async def test_the_client_goes_while_the_application_waits(loop):
    told = loop.create_future()

    async def app(scope, receive, send):
        assert (await receive())["type"] == "http.request"
        waiting.set()
        first = await receive()
        second = await receive()
        # Each message is discarded, even one that would be an error.
        for message in (START, body(b"x"), START):
            await send(message)
        told.set_result((first, second))

    waiting = asyncio.Event()
    async with connected(loop, app, get()) as client:
        await waiting.wait()
        client.writer.close()
        gone = {"type": "http.disconnect"}
        assert await told == (gone, gone)


async def test_send_discards_messages_after_the_disconnect_and_raises_in_the_end(loop, caplog):
    """Code after a response runs, but a response that never ends does not block the loop."""
    caplog.set_level("DEBUG", "mgloop.http")
    turns = sends = 0
    ended = loop.create_future()

    def count_turns():
        nonlocal turns
        turns += 1
        if not ended.done():
            loop.call_soon(count_turns)

    async def app(scope, receive, send):
        nonlocal sends
        await receive()
        assert await receive() == {"type": "http.disconnect"}
        await send(START)
        loop.call_soon(count_turns)
        try:
            while True:
                await send(body(b"x", True))
                sends += 1
        except ClientDisconnected:
            ended.set_result(None)
            raise

    async with connected(loop, app, get()) as client:
        await support.wait_until(lambda: client.site.running)
        client.writer.close()
        await ended
    assert sends == 99
    assert turns >= sends
    assert logged(caplog) == []
    told = "Application sent 100 messages after the client disconnected; send() raises now."
    assert told in caplog.messages


class Stream:
    """A response that is sent as by Starlette's StreamingResponse, with a background task."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.open = 0
        self.background = asyncio.Event()

    async def stream(self, send):
        self.open += 1
        try:
            await send(START)
            async for piece in self.pieces():
                await send(body(piece, True))
            await send(body(b""))
        finally:
            self.open -= 1

    async def __call__(self, scope, receive, send):
        if tuple(map(int, scope["asgi"]["spec_version"].split("."))) >= (2, 4):
            await self.stream(send)
        else:
            streaming = asyncio.ensure_future(self.stream(send))
            listening = asyncio.ensure_future(self.listen(receive))
            tasks = [streaming, listening]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
        self.background.set()

    async def listen(self, receive):
        while (await receive())["type"] != "http.disconnect":
            pass


@pytest.mark.parametrize("kind", ["waits", "sends"])
async def test_a_stream_ends_with_its_client_and_its_background_task_runs(loop, kind):
    async def pieces():
        yield b"first"
        if kind == "waits":
            await loop.create_future()
        while True:
            yield bytes(1000)

    app = Stream(pieces)
    async with connected(loop, app, get()) as client:
        await client.head()
        assert app.open == 1
        client.writer.transport.abort()
        await app.background.wait()
        assert app.open == 0


async def test_a_background_task_runs_after_the_client_has_left(loop, caplog):
    async def app(scope, receive, send):
        await gone.wait()
        await answer(send, b"late")
        background.set()

    gone, background = asyncio.Event(), asyncio.Event()
    async with connected(loop, app, get()) as client:
        await support.wait_until(lambda: client.site.running)
        client.writer.close()
        await support.wait_until(lambda: not client.site.connections)
        gone.set()
        await background.wait()
    assert logged(caplog) == []


async def test_a_middleware_that_discards_pathsend_is_named_in_the_log(loop, caplog, tmp_path):
    async def app(scope, receive, send):
        await send(START)
        if "http.response.pathsend" in scope["extensions"]:
            await send({"type": "http.response.pathsend", "path": str(tmp_path)})
        else:
            await send(body(b"read"))

    async def middleware(scope, receive, send):
        start = None

        async def send_on(message):
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            elif message["type"] == "http.response.body":
                await send(start)
                await send(message)

        await app(scope, receive, send_on)

    async with Serving(loop, middleware) as serving:
        assert (await serving.one(get()))[2] == b"read"
    assert logged(caplog) == []
    async with Serving(loop, middleware, sendfile=True) as serving:
        assert (await serving.one(get()))[0] == 500
    assert "--no-sendfile" in caplog.text


@pytest.mark.parametrize("size", [1000, 100_000])
async def test_sends_without_a_pause_fail_after_the_client_has_disconnected(loop, size):
    """The reset arrives while the application does not yield to the loop."""

    async def app(scope, receive, send):
        await send(START)
        await connected.wait()
        support.reset(sock)
        with pytest.raises(ClientDisconnected):
            await send_often(send, body(bytes(size), True))
        ended.set()

    connected, ended = asyncio.Event(), asyncio.Event()
    async with Serving(loop, app) as serving:
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", serving.port))
        await loop.sock_sendall(sock, get())
        await support.wait_until(lambda: serving.site.running)
        connected.set()
        await ended.wait()


async def test_the_client_goes_while_the_application_sends(loop, caplog):
    ended = loop.create_future()

    async def app(scope, receive, send):
        await send(START)
        try:
            while True:
                await send(body(bytes(100_000), True))
        except OSError as exc:
            ended.set_result(type(exc).__name__)
            raise

    async with connected(loop, app, get()) as client:
        await client.head()
        client.writer.transport.abort()
        assert await ended == "ClientDisconnected"
    assert logged(caplog) == []


@pytest.mark.parametrize("sends", [True, False], ids=["sends", "returns"])
async def test_a_client_that_closes_as_the_answer_comes(loop, sends, caplog):
    """The response provokes a reset, and the server cannot end its side of the connection."""
    clients = []

    async def app(scope, receive, send):
        await receive()
        clients[0].close()
        if sends:
            await answer(send, headers=[(b"connection", b"close")])

    async with Serving(loop, app) as serving:
        with socket.create_connection(("127.0.0.1", serving.port)) as sock:
            clients.append(sock)
            sock.sendall(post(9, body=b"abc"))
            await support.wait_until(lambda: serving.site.requests)
            await asyncio.wait_for(serving.site.wait_drained(), 5)
        assert serving.site.in_flight == 0
    assert len(logged(caplog)) == (0 if sends else 1)


async def in_other_words():
    try:
        yield
    except OSError as exc:
        raise ValueError from exc


async def in_a_group():
    async def fail(exc):
        raise exc

    try:
        yield
    except OSError as exc:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(exc))


@dataclasses.dataclass
class UnhashableError(Exception):
    text: str


async def unhashably():
    try:
        yield
    except OSError as exc:
        raise UnhashableError("a fault") from exc


async def wrongly():
    try:
        yield
    except OSError:
        raise ValueError("a fault") from None


async def in_a_ring():
    try:
        yield
    except OSError:
        first, second = ValueError("a fault"), ValueError("another")
        first.__cause__, second.__cause__ = second, first
        raise first  # noqa: B904 - its cause is set


@pytest.mark.parametrize("react", [in_other_words, in_a_group, unhashably, wrongly, in_a_ring])
async def test_reactions_to_a_disconnected_client(loop, caplog, react):
    """The exception is logged if it is more than the disconnection."""
    ended = asyncio.Event()

    async def app(scope, receive, send):
        try:
            async with contextlib.asynccontextmanager(react)():
                await send(START)
                while True:
                    await send(body(bytes(100_000), True))
        finally:
            ended.set()

    async with connected(loop, app, get()) as client:
        await client.head()
        client.writer.transport.abort()
        await ended.wait()
    assert len(logged(caplog)) == (react in (wrongly, in_a_ring))


async def test_after_the_response_receive_says_so(loop):
    messages = []

    async def app(scope, receive, send):
        await receive()
        waiting = asyncio.create_task(receive())
        await asyncio.sleep(0)
        await answer(send)
        messages.append(await waiting)
        messages.append(await receive())

    async with Serving(loop, app) as serving:
        await serving.one(get())
    assert messages == [{"type": "http.disconnect"}] * 2


# --- extensions ----------------------------------------------------------------------------------


async def test_trailers(loop):
    app = app_of(
        {**START, "trailers": True},
        body(b"x"),
        {"type": "http.response.trailers", "headers": [(b"a", b"1")], "more_trailers": True},
        {"type": "http.response.trailers", "headers": [(b"b", b"2")]},
    )
    async with connected(loop, app) as client:
        for _ in range(2):
            await client.send(get())
            await client.head()
            assert (
                await client.reader.readuntil(b"\r\n\r\n") == b"1\r\nx\r\n0\r\na: 1\r\nb: 2\r\n\r\n"
            )


async def test_trailers_that_are_refused_leave_nothing(loop):
    async def app(scope, receive, send):
        await send({**START, "trailers": True})
        await send(body(b"x"))
        for wrong in (b"a b", b"content-length"):
            with pytest.raises(RuntimeError):
                await send(
                    {"type": "http.response.trailers", "headers": [(b"a", b"1"), (wrong, b"2")]}
                )
        await send({"type": "http.response.trailers", "headers": [(b"a", b"1")]})

    async with connected(loop, app, get()) as client:
        await client.head()
        assert await client.reader.readuntil(b"\r\n\r\n") == b"1\r\nx\r\n0\r\na: 1\r\n\r\n"


@pytest.mark.parametrize("trailers", [False, True], ids=["head", "body before trailers"])
async def test_parts_from_another_task_do_not_wait_for_the_next(loop, trailers):
    go_on = asyncio.Event()
    trailer = {"type": "http.response.trailers", "headers": [(b"a", b"b")]}
    parts = [{**START, "trailers": trailers}, body(b"x")] + [trailer] * trailers

    async def app(scope, receive, send):
        async def respond():
            for part in parts[:-1]:
                await send(part)
            await go_on.wait()
            await send(parts[-1])

        await asyncio.create_task(respond())

    async with connected(loop, app, get()) as client:
        assert (await client.head())[0] == 200
        if trailers:
            assert await client.reader.readuntil(b"0\r\n") == b"1\r\nx\r\n0\r\n"
        go_on.set()
        last = b"a: b\r\n\r\n" if trailers else b"1\r\nx\r\n0\r\n\r\n"
        assert await client.reader.readexactly(len(last)) == last


async def test_early_hints(loop):
    app = app_of(
        {"type": "http.response.early_hint", "links": [b"</a>; rel=preload", b"</b>"]},
        START,
        body(b"x"),
    )
    async with connected(loop, app, get()) as client:
        assert await client.reader.readuntil(b"\r\n\r\n") == (
            b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\nlink: </b>\r\n\r\n"
        )
        assert (await client.response())[2] == b"x"
        assert (await client.serving.one(get(version="1.0")))[0] == 200


async def test_an_iterator_of_links_may_send_messages(loop):
    async def app(scope, receive, send):
        def links():
            send(START)
            yield b"</a>"

        with pytest.raises(RuntimeError, match=r"Expected ASGI message 'http\.response\.body'"):
            await send({"type": "http.response.early_hint", "links": links()})
        await send(body(b"x"))

    async with Serving(loop, app) as serving:
        assert await serving.one(get()) == (200, {"content-length": "1"}, b"x")


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
@pytest.mark.parametrize("length", [True, False], ids=["with length", "without"])
async def test_pathsend(loop, tmp_path, size, length):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    headers = [(b"content-length", str(size).encode())] if length else []
    app = app_of(
        {**START, "headers": headers}, {"type": "http.response.pathsend", "path": str(path)}
    )
    async with connected(loop, app) as client:
        for _ in range(2):
            status, headers, got = await client.request(get())
            assert (status, headers) == (200, {"content-length": str(size)})
            assert got == path.read_bytes()


async def test_a_file_for_head_is_not_counted_as_sent(loop, tmp_path):
    (tmp_path / "file").write_bytes(b"hello")
    log = Log()
    sending = {"type": "http.response.pathsend", "path": str(tmp_path / "file")}
    async with connected(loop, app_of(declaring(b"5"), sending), access_log=log) as client:
        request = get("/head").replace(b"GET", b"HEAD")
        assert (await client.request(request, method="HEAD"))[1] == {"content-length": "5"}
        assert (await client.request(get("/get")))[2] == b"hello"
    assert log == [("/head", 200, 0), ("/get", 200, 5)]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("nothing", "FileNotFoundError"),
        ("fifo", "Not a regular file"),  # without waiting for another process to open it
        ("device", "Not a regular file"),
        ("directory", "IsADirectoryError"),
    ],
)
async def test_pathsend_of_anything_but_a_file_is_a_500(loop, tmp_path, kind, error, caplog):
    path = {"device": "/dev/zero", "directory": tmp_path}.get(kind, tmp_path / kind)
    if kind == "fifo":
        os.mkfifo(path)
    app = app_of(START, {"type": "http.response.pathsend", "path": str(path)})
    async with Serving(loop, app) as serving:
        assert (await serving.one(get()))[0] == 500
    assert error in caplog.text


@pytest.mark.parametrize("way", ["descriptor", "file"])
async def test_zerocopysend_of_a_pipe_is_a_500(loop, way, caplog):
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as file, open(write_end, "wb"):
        given = file if way == "file" else read_end
        message = {"type": "http.response.zerocopysend", "file": given, "offset": 0, "count": 5}
        async with Serving(loop, app_of(START, message)) as serving:
            assert (await serving.one(get()))[0] == 500
    assert "Not a regular file" in caplog.text


@pytest.mark.parametrize("goes", [True, False], ids=["goes", "stays but reads nothing"])
async def test_a_client_that_does_not_receive_the_file(loop, tmp_path, caplog, goes):
    path = tmp_path / "file"
    path.write_bytes(bytes(20_000_000))
    ended = loop.create_future()

    async def app(scope, receive, send):
        await send(START)
        await send({"type": "http.response.pathsend", "path": str(path)})
        ended.set_result((await receive())["type"])

    async with connected(loop, app, get(), limit=1, timeout_write=0 if goes else 0.3) as client:
        if goes:
            await client.reader.readexactly(1000)
            client.writer.transport.abort()
        assert await asyncio.wait_for(ended, 20) == "http.disconnect"
    assert logged(caplog) == []


async def test_a_body_is_not_timed_while_a_file_is_sent(loop, tmp_path):
    """The server does not read then, although the body may have arrived."""
    (tmp_path / "file").write_bytes(bytes(20_000_000))
    begun = asyncio.Event()
    bodies = []

    async def app(scope, receive, send):
        await send(START)
        begun.set()
        await send({"type": "http.response.zerocopysend", "file": file, "more_body": True})
        bodies.append(await read_body(receive))
        await send(body(b"end"))

    with open(tmp_path / "file", "rb") as file:
        async with connected(
            loop, app, post(4, body=b"a"), limit=1 << 16, timeout_body=0.2
        ) as client:
            await begun.wait()
            await client.send(b"bcd")
            await asyncio.sleep(0.5)
            assert (await client.response())[2] == bytes(20_000_000) + b"end"
    assert bodies == [b"abcd"]


async def test_a_file_has_its_turn(loop, tmp_path):
    """Another message is sent before the task that sends the file runs, or while it runs."""
    path = tmp_path / "file"
    path.write_bytes(bytes(3_000_000))
    said = []

    async def app(scope, receive, send):
        await send(START)
        late = asyncio.ensure_future(send({"type": "http.response.pathsend", "path": str(path)}))
        if scope["path"] == "/during":
            await asyncio.sleep(0)
        try:
            await send(body(b"B"))
            await late
        except RuntimeError as exc:
            said.append(str(exc))
        if scope["path"] == "/during":
            await late

    async with connected(loop, app) as client:
        assert (await client.request(get("/before")))[2] == b"B"
        assert (await client.request(get("/during")))[2] == path.read_bytes()
    assert said == [
        "Unexpected ASGI message 'http.response.pathsend' sent, after response already completed.",
        "Unexpected ASGI message 'http.response.body' sent, while a file is being sent.",
    ]


async def test_zerocopysend_in_pieces(loop, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 1000)

    async def app(scope, receive, send):
        await send(START)
        await send(body(b"before ", True))
        with path.open("rb") as file:
            part = {"type": "http.response.zerocopysend", "file": file.fileno(), "more_body": True}
            await send({**part, "offset": 256, "count": 256})
            await send({**part, "offset": 0, "count": 3})
        await send(body(b" after"))

    async with connected(loop, app) as client:
        for _ in range(2):
            assert (await client.request(get()))[2] == (
                b"before " + bytes(range(256)) + b"\0\1\2 after"
            )


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": -1},
        {"offset": -1},
        pytest.param({"count": support.UntruthfulInt(-5)}, id="compares-as-positive"),
    ],
)
async def test_a_piece_of_a_file_is_not_negative(loop, tmp_path, wrong, caplog):
    async def app(scope, receive, send):
        await send(START)
        with (tmp_path / "file").open("w+b") as file:
            with pytest.raises(RuntimeError, match="must not be negative"):
                await send({"type": "http.response.zerocopysend", "file": file, **wrong})
        await send(body(b"x"))

    async with Serving(loop, app) as serving:
        assert await serving.one(get()) == (200, {"content-length": "1"}, b"x")


# --- limits and timeouts -------------------------------------------------------------------------


async def test_a_body_that_is_too_large(loop, caplog):
    async def app(scope, receive, send):
        await answer(send, await read_body(receive))

    async with Serving(loop, app, limit_request_body=10) as serving:
        post = b"POST / HTTP/1.1\r\nHost: a\r\n"
        assert (await serving.one(post + b"Content-Length: 10\r\n\r\n0123456789"))[0] == 200
        assert (await serving.one(post + b"Content-Length: 11\r\n\r\n"))[0] == 413
        chunked = post + b"Transfer-Encoding: chunked\r\n\r\n6\r\n012345\r\n6\r\n"
        assert (await serving.one(chunked + b"012345\r\n0\r\n\r\n"))[0] == 413


async def test_too_many_requests_at_once(loop):
    go_on = asyncio.Event()

    async def app(scope, receive, send):
        await go_on.wait()
        await answer(send)

    async with Serving(loop, app, limit_concurrency=2) as serving:
        waiting = [loop.create_task(serving.one(get())) for _ in range(2)]
        await support.wait_until(lambda: serving.site.in_flight >= 2)
        status, headers, _ = await serving.one(get())
        assert (status, headers["retry-after"]) == (503, "1")
        go_on.set()
        for task in waiting:
            assert (await task)[0] == 200
        assert serving.site.in_flight == 0


async def test_too_many_connections(loop):
    async with Serving(loop, app_of(START, body()), limit_connections=2) as serving:
        clients = [await serving.connect() for _ in range(2)]
        for client in clients:
            assert (await client.request(get()))[0] == 200
        assert (await (await serving.connect()).response())[0] == 503
        clients[0].writer.close()
        await support.wait_until(lambda: serving.site.connections <= 1)
        assert (await serving.one(get()))[0] == 200


@pytest.mark.parametrize(
    ("sent", "config", "expected"),
    [
        (b"", {"timeout_head": 0.2}, None),
        (b"GET / HT", {"timeout_head": 0.2}, 408),
        (b"GE", {"timeout_head": 0.2}, 408),
        (get(), {"timeout_keep_alive": 0.2}, 200),
        (get() + b"GET / ", {"timeout_head": 0.2}, 200),
        (post(5, body=b"he"), {"timeout_body": 0.2}, 408),
    ],
    ids=["nothing", "half a head", "half a method", "idle", "half of the second", "half a body"],
)
async def test_request_timeouts(loop, sent, config, expected):
    async def app(scope, receive, send):
        message = await receive()
        while message.get("more_body"):
            message = await receive()
        if message["type"] == "http.request":
            await answer(send)

    async with connected(loop, app, **config) as client:
        if sent:
            await client.send(sent)
        if expected is not None:
            assert (await client.response())[0] == expected
        if expected == 200 and not sent.endswith(b"\r\n\r\n"):
            assert (await client.response())[0] == 408
        await asyncio.wait_for(client.ended(), 10)


@pytest.mark.parametrize(
    "dripped", [b"5;" + b"x" * 4000, b"0\r\n" + b"x: y\r\n" * 4000], ids=["extension", "trailers"]
)
@pytest.mark.parametrize("answered", [False, True], ids=["", "answered"])
async def test_chunk_lines_and_trailers_have_the_timeout_of_a_head(loop, dripped, answered):
    """Sent byte by byte, it would hold the connection for hours."""

    async def app(scope, receive, send):
        if answered:
            await answer(send)
        else:
            await read_body(receive)

    async with connected(loop, app, timeout_head=0.5, timeout_body=0.5) as client:
        head = post(None)
        await client.send(head + b"1\r\na\r\n")
        if answered:
            assert (await client.response())[0] == 200
        reading = asyncio.ensure_future(client.reader.read())
        with contextlib.suppress(ConnectionError):
            for i in range(100):
                await client.send(dripped[i : i + 1])
                await asyncio.wait([reading], timeout=0.1)
                if reading.done():
                    break
        assert reading.done()
        got = await reading
        assert got == b"" if answered else got.startswith(b"HTTP/1.1 408 ")


async def test_trailers_give_the_next_request_no_less_time(loop):
    app = app_of(START, body(b"ok"))
    async with connected(loop, app, post(None), timeout_head=0.3, timeout_body=0.3) as client:
        await client.response()
        for piece in (b"1\r\na\r\n", b"0\r\n", b"a: b\r\n", b"\r\n"):
            await client.send(piece)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        assert (await client.request(get()))[2] == b"ok"


async def test_the_first_head_is_timed_from_the_beginning(loop):
    """The time starts with the connection: the first byte does not extend it."""
    async with connected(loop, app_of(START, body(b"ok")), timeout_head=2) as client:
        began = loop.time()
        await asyncio.sleep(1)
        await client.send(b"GET / HT")
        assert (await client.response())[0] == 408
        assert 1.9 < loop.time() - began < 2.9


@pytest.mark.parametrize("line", [b"\r\n", b"\r"], ids=["whole", "half"])
@pytest.mark.parametrize("ends", [False, True], ids=["serving", "shutdown"])
async def test_an_empty_line_behind_a_request_begins_no_head(loop, line, ends):
    config = {} if ends else {"timeout_keep_alive": 0.2}
    async with connected(loop, app_of(START, body(b"ok")), **config) as client:
        assert (await client.request(get() + line))[2] == b"ok"
        if ends:
            client.site.begin_shutdown()
        await asyncio.wait_for(client.ended(), 5)


async def test_the_first_head_is_timed_from_the_beginning_though_an_empty_line_comes(loop):
    async with Serving(loop, app_of(), timeout_head=0.3) as serving:
        client = await serving.connect(b"\r\n")
        await asyncio.wait_for(client.ended(), 5)
        client = await serving.connect(b"\r\n")
        await asyncio.sleep(0.02)
        await client.send(b"GET")
        assert (await asyncio.wait_for(client.response(), 5))[0] == 408


@pytest.mark.parametrize("ends", [False, True], ids=["serving", "shutdown"])
async def test_a_head_that_begins_where_another_ends_is_timed(loop, ends):
    async with connected(loop, app_of(START, body(b"ok")), b"GET / HT", timeout_head=0.3) as client:
        await support.wait_until(lambda: client.site.connections)
        await asyncio.sleep(0.02)  # the first piece has been read
        await client.send(b"TP/1.1\r\nHost: a\r\n\r\nGET /2 HT")
        assert (await client.response())[2] == b"ok"
        if ends:
            client.site.begin_shutdown()
            await asyncio.wait_for(client.ended(), 5)
        else:
            assert (await asyncio.wait_for(client.response(), 5))[0] == 408


async def test_a_client_that_does_not_read_is_disconnected(loop):
    ended = loop.create_future()

    async def app(scope, receive, send):
        await send(START)
        try:
            while True:
                await send(body(bytes(1 << 20), True))
        except OSError:
            ended.set_result(True)

    async with raw_client(loop, app, get(), buffer=262_144, timeout_write=3) as sock:
        await asyncio.sleep(1)
        for _ in range(10):
            await loop.sock_recv(sock, 65536)
        began = loop.time()
        assert await asyncio.wait_for(ended, 20)
        # The time starts at the last progress, and is not extended by earlier progress.
        assert 2.9 < loop.time() - began < 4.5


@pytest.mark.parametrize(
    "request_",
    [
        get(),
        # The last response, while the client may still be sending.
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 9\r\n\r\nabc",
    ],
    ids=["kept", "the last"],
)
async def test_a_slow_client_gets_the_whole_response(loop, request_):
    """It takes longer than the timeout, and than the server's wait after the last response."""
    missing = 8 << 20
    app = sized(bytes(missing))
    async with raw_client(loop, app, request_, buffer=65536, timeout_write=1) as sock:
        began = loop.time()
        while missing > 0 and (data := await loop.sock_recv(sock, 40_000)):
            missing -= len(data)
            await asyncio.sleep(0.015)
        assert missing < 0  # by the head
        assert loop.time() - began > 2.5


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("case", ["idle", "the last", "cut short", "shutdown"])
async def test_a_client_that_does_not_read_a_small_response(
    loop, case, over_tls, server_ssl_context, client_ssl_context
):
    """The response is too small to suspend the application, and the kernel does not accept it."""
    size = 500_000 if over_tls else 50_000  # a client over TLS reads in advance

    async def app(scope, receive, send):
        await send(START)
        await send(body(bytes(size), True))
        assert case != "cut short"
        await send(body())

    idle = 0.1 if case == "idle" else 0
    async with Serving(loop, app, timeout_write=0.4, timeout_keep_alive=idle) as serving:
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        accepting = loop.connect_accepted_socket(
            serving.site.connection, ours, ssl=server_ssl_context if over_tls else None
        )
        accepting = asyncio.ensure_future(accepting)
        tls = {"ssl": client_ssl_context, "server_hostname": "localhost"} if over_tls else {}
        client, _ = await loop.create_connection(asyncio.Protocol, sock=theirs, **tls)
        client.pause_reading()
        await accepting
        client.write(get("/", *["Connection: close"] * (case == "the last")))
        await support.wait_until(lambda: serving.site.requests and not serving.site.in_flight)
        if case == "shutdown":
            serving.site.begin_shutdown()
        await asyncio.wait_for(serving.site.wait_drained(), 5)
        client.abort()


async def test_a_client_that_sends_during_the_last_response_gets_all_of_it(loop):
    """The server must not answer with a reset, which would overtake the rest of the response."""
    missing = 4 << 20
    app = sized(bytes(missing))
    async with raw_client(loop, app, get("/", "Connection: close"), buffer=65536) as sock:
        missing -= len(await loop.sock_recv(sock, 10))
        await loop.sock_sendall(sock, b"\r\n")
        while data := await loop.sock_recv(sock, 40_000):
            missing -= len(data)
            await asyncio.sleep(0)
        assert missing < 0  # by the head


async def test_data_after_the_last_request_does_not_reset_the_response(loop):
    """The server closes with unread data, while the response is still in the kernel."""
    payload = bytes(60_000)

    async def app(scope, receive, send):
        sock.send(b"\r\n")
        await answer(send, payload)

    async with raw_client(loop, app, get("/", "Connection: close"), buffer=4096) as sock:
        got = b""
        while data := await loop.sock_recv(sock, 40_000):
            got += data
    assert got.endswith(payload)


async def test_a_client_that_has_just_read_a_response_is_not_idle(loop):
    payload = bytes(4 << 20)
    app = sized(payload)
    async with connected(
        loop, app, get(), limit=65536, timeout_keep_alive=1, timeout_write=5
    ) as client:
        await asyncio.sleep(1.7)  # longer than the keep-alive timeout
        assert (await client.response())[2] == payload
        await asyncio.sleep(0.6)
        assert (await client.request(get()))[2] == payload


async def test_a_client_that_is_reading_a_response_is_not_idle(loop):
    payload = bytes(4 << 20)
    app = sized(payload)
    async with connected(
        loop, app, get(), limit=65536, timeout_keep_alive=0.2, timeout_write=2
    ) as client:
        await client.head()
        await asyncio.sleep(0.7)
        await client.reader.readexactly(len(payload) - 10_000)
        await client.send(get())
        await client.reader.readexactly(10_000)
        assert (await client.response())[2] == payload
        await asyncio.wait_for(client.ended(), 5)


async def test_a_slow_application_is_not_timed(loop):
    async def app(scope, receive, send):
        await asyncio.sleep(0.5)
        await answer(send, b"slow")

    everything = dict.fromkeys(("timeout_head", "timeout_body", "timeout_keep_alive"), 0.1)
    async with Serving(loop, app, **everything) as serving:
        assert (await serving.one(get()))[2] == b"slow"


# --- the end -------------------------------------------------------------------------------------


async def test_draining(loop):
    """Idle connections close immediately, the others after their response."""
    go_on = asyncio.Event()

    async def app(scope, receive, send):
        if scope["path"] == "/wait":
            await go_on.wait()
        await answer(send, b"ok")

    async with Serving(loop, app) as serving:
        idle, busy = await serving.connect(), await serving.connect()
        await idle.request(get())
        await busy.send(get("/wait"))
        await support.wait_until(lambda: serving.site.in_flight >= 1)
        serving.site.begin_shutdown()
        await idle.ended()
        drained = loop.create_task(serving.site.wait_drained())
        await asyncio.sleep(0.05)
        assert not drained.done()
        go_on.set()
        status, headers, got = await busy.response()
        assert (status, headers["connection"], got) == (200, "close", b"ok")
        await busy.ended()
        await drained


async def test_draining_closes_after_a_response_that_had_begun(loop):
    """That response could not announce that it would be the last."""
    go_on = asyncio.Event()

    async def app(scope, receive, send):
        await send(START)
        await send(body(b"o", True))
        await go_on.wait()
        await send(body(b"k"))

    async with connected(loop, app, get()) as client:
        await client.reader.readuntil(b"1\r\no")
        client.site.begin_shutdown()
        go_on.set()
        await client.reader.readuntil(b"0\r\n\r\n")
        await asyncio.wait_for(client.ended(), 5)


async def test_draining_waits_for_a_body_that_nobody_wants_and_no_longer(loop):
    async with connected(loop, app_of(START, body(b"ok")), post(10, body=b"abc")) as client:
        assert (await client.response())[2] == b"ok"
        client.site.begin_shutdown()
        await client.send(b"defghij")
        await client.ended()


async def test_cancelling(loop):
    cancelled = []

    async def app(scope, receive, send):
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(scope["path"])
            raise

    async with Serving(loop, app) as serving:
        await serving.connect(get("/x"))
        await support.wait_until(lambda: serving.site.in_flight >= 1)
        serving.site.begin_shutdown()
        serving.site.cancel_all()
        await asyncio.wait_for(serving.site.wait_drained(), 10)
        assert cancelled == ["/x"]


async def test_the_access_log(loop):
    log = Log()
    async with Serving(loop, app_of(START, body(b"hello")), access_log=log) as serving:
        await serving.one(get("/a"))
        await serving.one(get("/b"))
    assert log == [("/a", 200, 5), ("/b", 200, 5)]


async def test_the_access_log_of_what_is_cut_short(loop, caplog):
    log = Log()
    left = asyncio.Event()

    async def app(scope, receive, send):
        await send(START)
        await send(body(b"x", True))
        if scope["path"] == "/raises":
            raise ValueError
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()
        await send(body(b"x", True))

    async with Serving(loop, app, access_log=log) as serving:
        client = await serving.connect(get("/raises"))
        await client.head()
        client = await serving.connect(get("/left"))
        await client.head()
        client.writer.transport.abort()
        await left.wait()
    assert log == [("/raises", 200, 1), ("/left", 200, 1)]
    assert len(logged(caplog)) == 1


async def test_the_access_log_of_a_stream_whose_client_has_left(loop):
    """The line is written when the client disconnects, and only once."""
    log = Log()
    ended = asyncio.Event()

    async def app(scope, receive, send):  # which does not call receive()
        await send(START)
        await send(body(b"hello", True))
        await support.wait_until(lambda: log)
        await send(body(b"hello", True))
        ended.set()

    async with connected(loop, app, get("/left"), access_log=log) as client:
        await client.head()
        client.writer.transport.abort()
        await ended.wait()
    assert log == [("/left", 200, 5)]


async def test_the_access_log_of_what_is_refused(loop):
    """The log has the server's status, once, whatever the application does on the disconnect."""
    log = Log()
    go_on = asyncio.Event()

    async def app(scope, receive, send):
        if scope["path"] == "/waits":
            await go_on.wait()
            await answer(send, b"ok")
        else:
            await send(START)
            while (await receive())["type"] != "http.disconnect":
                pass

    limits = {"limit_concurrency": 1, "limit_request_body": 5}
    async with Serving(loop, app, access_log=log, **limits) as serving:
        waits = await serving.connect(get("/waits"))
        await support.wait_until(lambda: serving.site.in_flight)
        assert (await serving.one(get("/busy")))[0] == 503
        go_on.set()
        await waits.response()
        post = b"POST /large HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await serving.one(post + b"9\r\n123456789\r\n0\r\n\r\n"))[0] == 413
        client = await serving.connect(post.replace(b"large", b"later") + b"5\r\n12345\r\n")
        assert (await client.head())[0] == 200  # the head was sent before the refusal
        await client.send(b"1\r\n6\r\n0\r\n\r\n")
        await client.ended()
    assert [(path, status, nbytes > 0) for path, status, nbytes in log] == [
        ("/busy", 503, True),
        ("/waits", 200, True),
        ("/large", 413, True),
        ("/later", 200, False),
    ]


@pytest.mark.parametrize("first", [[], [START, body(b"ok")]], ids=len)
async def test_an_application_that_returns_something(loop, caplog, first):
    async def app(scope, receive, send):
        for message in first:
            await send(message)
        return "something"

    async with Serving(loop, app) as serving:
        status, _, text = await serving.one(get())
        assert (status, text) == ((200, b"ok") if len(first) == 2 else (500, text))
    assert logged(caplog) == ["ASGI callable should return None, but returned 'something'."]


def futures():
    gc.collect()
    return sum(type(each) is asyncio.Future for each in gc.get_objects())


@pytest.mark.parametrize("cancelled", ["the task", "the future"])
async def test_waiting_that_is_cancelled_leaves_nothing(loop, cancelled):
    kept = []

    async def give_up(call):
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        assert not task.done()
        (task if cancelled == "the task" else task._fut_waiter).cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def app(scope, receive, send):
        await receive()
        await send(START)
        before = futures()
        for _ in range(100):
            await give_up(receive())
        kept.append(futures() - before)
        large = asyncio.create_task(send(body(bytes(20_000_000), True)))
        await asyncio.sleep(0)
        before = futures()
        for _ in range(100):
            await give_up(send(body(b"x", True)))
        kept.append(futures() - before)
        await large
        await send(body())

    async with connected(loop, app, get(), limit=1 << 16) as client:
        await support.wait_until(lambda: len(kept) == 2)
        assert len((await client.response())[2]) == 20_000_100
    assert max(kept) < 10, kept


async def test_nothing_grows(loop):
    async def app(scope, receive, send):
        await answer(send, await read_body(receive))

    async with connected(loop, app) as client:
        for _ in range(2000):
            assert (await client.request(get()))[0] == 200
        site = client.site
        assert (site.requests, site.in_flight, len(site.running)) == (2000, 0, 0)
