# SPDX-License-Identifier: GPL-2.0-only
"""Compiled HTTP handlers: requests in C strings, in front of an ASGI or WSGI application."""

import asyncio
import os
import sys

import pytest
import support
from commands import complaints, serve
from commands import get as fetch
from sites import Recording, Serving, WsgiRecording, answer, get, post

from mgloop.http import Config, ConfigError, Server, StartError
from mgloop.http.proxy import TrustedProxies
from mgloop.http.wire._handled import HandlerRunner

pytestmark = pytest.mark.mgloop_only


def serving(loop, app, handler, **config):
    """Return a Serving with the handler in front of the application."""
    result = Serving(loop, app, **config)
    result.site.handler = HandlerRunner(result.site, handler)
    return result


class Application(Recording):
    """An application that says that it has answered, and that needs no body to do so."""

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        await answer(send, b"application")


@pytest.fixture
def scripted(handlers):
    """Return a function that makes a handler of a Python function."""
    return handlers.Scripted


def text(body=b"answered", status=200, *headers):
    """Return a script that answers each request in the same way."""

    def script(call):
        call.set_status(status)
        for name, value in headers:
            call.add_header(name, value)
        call.write(body)
        return True

    return script


# --- answers -------------------------------------------------------------------------------------


async def test_an_answer(loop, handlers):
    async with serving(loop, Application(), handlers.Hello(), server_header=True) as server:
        client = await server.connect()
        for _ in range(3):
            status, headers, body = await client.request(get())
            assert (status, body) == (200, b"hello")
            assert headers == {
                "content-type": "text/plain", "content-length": "5", "server": "mgloop",
            }  # fmt: skip
        assert (await client.request(get("/other")))[2] == b"application"
        assert server.site.requests == 4
        assert server.site.in_flight == 0
        assert not server.site.running


async def test_pipelined_requests(loop, handlers):
    async with serving(loop, Application(), handlers.Hello()) as server:
        client = await server.connect(get() * 3 + get("/other") + get() * 200)
        bodies = [(await client.response())[2] for _ in range(204)]
        assert bodies == [b"hello"] * 3 + [b"application"] + [b"hello"] * 200


async def test_a_response_of_many_parts(loop, scripted):
    def script(call):
        for number in range(300):
            call.add_header(b"X-Number", b"%d" % number)
            call.write(b"x" * number)
        call.write(b"")
        return True

    async with serving(loop, Application(), scripted(script)) as server:
        client = await server.connect(get())
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.count(b"X-Number: ") == 300
        assert len(await client.reader.readexactly(44850)) == 44850


async def test_parts_without_bytes(loop, scripted):
    """Memory that does not exist yet must not be copied to."""

    def script(call):
        call.write_size(0)
        assert call.headers()[0] == (b"user-agent", b"")
        return True

    async with serving(loop, Application(), scripted(script)) as server:
        client = await server.connect(b"GET / HTTP/1.1\r\nUser-Agent:\r\nHost: a\r\n\r\n")
        assert (await client.response())[2] == b""


async def test_a_large_response(loop, scripted):
    body = support.pattern(3_000_000)
    async with serving(loop, Application(), scripted(text(body))) as server:
        client = await server.connect()
        for _ in range(2):
            assert (await client.request(get()))[2] == body


@pytest.mark.parametrize(
    ("method", "status", "length"), [("HEAD", 200, "8"), ("GET", 204, None), ("GET", 304, None)]
)
async def test_a_response_without_a_body(loop, scripted, method, status, length):
    request = get().replace(b"GET", method.encode())
    async with serving(loop, Application(), scripted(text(status=status))) as server:
        client = await server.connect()
        for _ in range(2):
            found, headers, _ = await client.request(request, method=method)
            assert (found, headers.get("content-length")) == (status, length)


async def test_http_10(loop, handlers):
    async with serving(loop, Application(), handlers.Hello()) as server:
        client = await server.connect()
        response = await client.request(get("/", "Connection: keep-alive", version="1.0"))
        assert response[1]["connection"] == "keep-alive"
        assert (await client.request(get(version="1.0")))[1]["connection"] == "close"
        await client.ended()


async def test_the_server_decides_about_the_connection(loop, scripted):
    closing = text(b"x", 200, (b"Connection", b"close"))
    async with serving(loop, Application(), scripted(closing)) as server:
        client = await server.connect()
        assert (await client.request(get()))[1] == {"content-length": "1", "connection": "close"}
        await client.ended()
    upgrade = text(b"x", 426, (b"connection", b"upgrade"), (b"upgrade", b"websocket"))
    async with serving(loop, Application(), scripted(upgrade)) as server:
        client = await server.connect()
        assert (await client.request(get()))[1]["connection"] == "upgrade"
        client.writer.write(get("/", "Connection: close"))
        assert (await client.head())[1]["connection"] == "close"


async def test_headers_of_the_handler_replace_those_of_the_server(loop, scripted):
    script = text(b"x", 200, (b"Server", b"mine"), (b"Date", b"today"), (b"Content-Length", b"1"))
    options = {"server_header": True, "date_header": True, "headers": [("X-All", "1")]}
    async with serving(loop, Application(), scripted(script), **options) as server:
        response = await server.one(get())
        assert response[1] == {
            "server": "mine", "date": "today", "content-length": "1", "x-all": "1",
        }  # fmt: skip


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytewise", [False, True])
async def test_the_parts_of_a_request(loop, scripted, bytewise):
    calls = []

    def script(call):
        calls.append([call.text(part) for part in ("method", "target", "path", "query", "body")])
        calls.append(call.headers())
        calls.append([call.header(name) for name in (b"HOST", b"x-two", b"X-None", b"x-tw")])
        return text()(call)

    headers = ("Host: a", "Cookie: b", "X-Two: 1", "x-two: 2", "X-Empty:", "Content-Length: 4")
    request = "\r\n".join(["POST /a%20b?c=d&e HTTP/1.1", *headers, "", "body"]).encode()
    async with serving(loop, Application(), scripted(script)) as server:
        assert (await server.one(request, bytewise=bytewise))[2] == b"answered"
    parts, pairs, found = calls
    assert parts == [b"POST", b"/a%20b?c=d&e", b"/a%20b", b"c=d&e", b"body"]
    assert pairs == [
        (b"host", b"a"), (b"cookie", b"b"), (b"x-two", b"1"), (b"x-two", b"2"), (b"x-empty", b""),
        (b"content-length", b"4"),
    ]  # fmt: skip
    assert found == [b"a", b"1", None, None]


async def test_a_target_in_absolute_form(loop, scripted):
    calls = []

    def script(call):
        calls.append([call.text(part) for part in ("target", "path", "query")])
        calls.append(call.headers())
        return call.text("query") != b"pass"

    app = Recording()
    async with serving(loop, app, scripted(script)) as server:
        client = await server.connect()
        await client.request(get("http://b:80", "X-A: 1", host="a"))
        await client.request(get("http://b:80/c?pass", "X-A: 1", host="a"))
    assert calls[0] == [b"http://b:80", b"/", b""]
    assert calls[1] == [(b"x-a", b"1"), (b"host", b"b:80")]
    assert app.scopes[0]["path"] == "/c"
    assert app.scopes[0]["headers"] == [(b"host", b"b:80"), (b"x-a", b"1")]


async def test_a_chunked_body(loop, scripted):
    bodies = []

    def script(call):
        bodies.append(call.text("body"))
        return text()(call)

    async with serving(loop, Application(), scripted(script)) as server:
        client = await server.connect()
        for bytewise in (False, True):
            request = post(None, body=b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
            assert (await client.request(request, bytewise=bytewise))[2] == b"answered"
    assert bodies == [b"abcde"] * 2


async def test_a_client_that_waits_for_100_continue(loop, scripted):
    bodies = []

    def script(call):
        bodies.append(call.text("body"))
        return text()(call)

    async with serving(loop, Application(), scripted(script)) as server:
        client = await server.connect(post(4, "Expect: 100-continue"))
        assert (await client.head())[0] == 100
        assert (await client.request(b"body"))[2] == b"answered"
    assert bodies == [b"body"]


async def test_an_index_without_a_header(loop, scripted):
    def script(call):
        for index in (-1, 1, sys.maxsize):
            with pytest.raises(IndexError):
                call.header_at(index)
        return text()(call)

    async with serving(loop, Application(), scripted(script)) as server:
        assert (await server.one(get()))[0] == 200


# --- requests that the handler does not answer ---------------------------------------------------


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize("kind", [Recording, WsgiRecording])
@pytest.mark.parametrize("size", [0, 5, 65_536, 65_537, 300_000])
async def test_the_application_gets_the_same_request(loop, scripted, kind, bytewise, size):
    """Whether the handler has seen it or not, and with a body of any size."""
    body = support.pattern(size)
    calls = []

    def script(call):
        call.set_status(404)
        call.add_header(b"x-dropped", b"1")
        call.write(b"dropped")
        calls.append(call.text("body"))
        return False

    headers = ["Cookie: a", "X-Two: 1", "x-two: 2", "Content-Type: text/plain"]
    request = post(size, *headers, body=body)
    plain, app = kind(), kind()
    async with Serving(loop, plain) as server:
        await server.one(request)
    async with serving(loop, app, scripted(script)) as server:
        client = await server.connect()
        for _ in range(2):
            status, found, content = await client.request(request, bytewise=bytewise)
            assert (status, content) == (200, body)
            assert "x-dropped" not in found
    for scope in plain.scopes + app.scopes:
        scope.pop("client", None)
        scope.pop("server", None)
    assert app.bodies == [body] * 2
    assert app.scopes == plain.scopes * 2
    assert calls == ([body] * 2 if size <= 65_536 else [])


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize("kind", [Recording, WsgiRecording])
@pytest.mark.parametrize("size", [16, 17, 100])
async def test_a_chunked_body_of_the_limit(loop, scripted, kind, bytewise, size):
    calls = []
    app = kind()
    chunks = b"".join(b"1\r\n%c\r\n" % (97 + n % 26) for n in range(size)) + b"0\r\n\r\n"

    def script(call):
        calls.append(len(call.text("body")))
        return False

    async with serving(loop, app, scripted(script), body_buffer=16) as server:
        request = post(None, body=chunks)
        assert len((await server.one(request, bytewise=bytewise))[2]) == size
    assert set(calls) <= {16}


async def test_a_large_body_that_waits_for_100_continue(loop, scripted):
    app = Application()
    async with serving(loop, app, scripted(text()), body_buffer=16) as server:
        client = await server.connect(post(17, "Expect: 100-continue"))
        status, headers, body = await client.response()
        assert (status, body) == (200, b"application")  # without a response 100
        assert headers["connection"] == "close"


async def test_health_checks_belong_to_the_server(loop, scripted):
    config = Config(app=Application(), port=0, health_path="/health", lifespan="off")
    async with Server(config) as server:
        handler = scripted(lambda call: call.text("path") != b"/app" and text()(call))
        server.site.handler = HandlerRunner(server.site, handler)
        assert await body_of(server, "/health") == b"ok\n"
        assert await body_of(server, "/healthy") == b"answered"
        assert await body_of(server, "/app") == b"application"


async def body_of(server, path):
    host, port = server.sockets[0].getsockname()[:2]
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(get(path, "Connection: close"))
    content = await reader.read()
    writer.close()
    await writer.wait_closed()
    return content.partition(b"\r\n\r\n")[2]


async def test_a_websocket_belongs_to_the_application(loop, scripted):
    async def app(scope, receive, send):
        assert scope["type"] == "websocket"
        assert (b"x-a", b"1") in scope["headers"]
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})

    headers = ["Upgrade: websocket", "Connection: upgrade", "Sec-WebSocket-Version: 13"]
    headers += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "X-A: 1"]
    options = {"ws_max_size": 99, "ws_max_queue": 9, "ws_ping_interval": 0, "ws_ping_timeout": 0}
    options["ws_per_message_deflate"] = False
    async with serving(loop, app, scripted(text()), **options) as server:
        client = await server.connect(get("/", *headers))
        assert (await client.head())[0] == 101


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("bad target"), 400),
        (get("/#"), 200),
        (get("/", "Content-Length: x"), 400),
        (get("/", host=None), 400),
        (get("/", "X: " + "a" * 9000), 431),
        (post(1000), 413),
        (post(None, body=b"3e8\r\n" + b"x" * 1000), 413),
    ],
)
async def test_the_server_refuses_the_same_requests(loop, scripted, request_, status):
    log = []
    options = {"limit_request_body": 999, "access_log": lambda *args: log.append(args[1])}
    async with serving(loop, Application(), scripted(text()), **options) as server:
        assert (await server.one(request_))[0] == status


# --- exceptions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyError, SystemExit, asyncio.CancelledError, MemoryError])
async def test_a_handler_that_raises(loop, scripted, caplog, kind):
    def script(call):
        call.write(b"dropped")
        raise kind("the reason")

    async with serving(loop, Application(), scripted(script)) as server:
        client = await server.connect()
        status, headers, body = await client.request(get())
        assert (status, body) == (500, b"Internal Server Error")
        assert headers["connection"] == "close"
        await client.ended()
        assert server.site.in_flight == 0
    assert [record.message for record in caplog.records] == ["Exception in compiled handler\n"]
    assert caplog.records[0].exc_info[0] is kind


async def test_debug_shows_the_traceback(loop, scripted, caplog):
    async with serving(loop, Application(), scripted(lambda call: 1 / 0), debug=True) as server:
        assert b"ZeroDivisionError" in (await server.one(get()))[2]


async def test_a_result_that_contradicts_the_exception(loop, handlers, caplog):
    handler = handlers.Wrong()
    async with serving(loop, Application(), handler) as server:
        assert (await server.one(get()))[0] == 500
        handler.raises = True
        assert (await server.one(get()))[0] == 500
    errors = [record.exc_info[0] for record in caplog.records]
    assert errors == [SystemError, KeyError]


INVALID = {
    "a status": lambda call: call.set_status(199),
    "a high status": lambda call: call.set_status(600),
    "no name": lambda call: call.add_header(b"", b"a"),
    "a name with a space": lambda call: call.add_header(b"a b", b"a"),
    "a name with a line end": lambda call: call.add_header(b"a\r\nb", b"a"),
    "a value with a line end": lambda call: call.add_header(b"a", b"a\r\nb: c"),
    "a value with a NUL": lambda call: call.add_header(b"a", b"a\0"),
    "a value of negative size": lambda call: call.add_header_of_size(-1),
    "a body of negative size": lambda call: call.write_size(-1),
    "a transfer coding": lambda call: call.add_header(b"Transfer-Encoding", b"chunked"),
    "a length": lambda call: call.add_header(b"Content-Length", b"x"),
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_response(loop, scripted, name):
    """The handler gets an exception, and may answer with something else."""

    def script(call):
        with pytest.raises((ValueError, RuntimeError)):
            INVALID[name](call)
        return text()(call)

    async with serving(loop, Application(), scripted(script)) as server:
        assert await server.one(get()) == (200, {"content-length": "8"}, b"answered")


@pytest.mark.parametrize("length", [b"7", b"9"])
async def test_a_body_of_another_length(loop, scripted, caplog, length):
    script = text(b"answered", 200, (b"Content-Length", length))
    async with serving(loop, Application(), scripted(script)) as server:
        assert (await server.one(get()))[0] == 500
    assert "Content-Length" in str(caplog.records[0].exc_info[1])


async def test_objects_that_are_used_too_late(loop, scripted):
    kept = []

    def script(call):
        kept.append(call)
        return text()(call)

    async with serving(loop, Application(), scripted(script)) as server:
        client = await server.connect()
        for _ in range(3):
            assert (await client.request(get()))[2] == b"answered"
    uses = [lambda call: call.text("path"), lambda call: call.header(b"host")]
    uses += [lambda call: call.headers(), lambda call: call.header_at(0)]
    uses += [lambda call: call.client(), lambda call: call.scheme()]
    uses += [lambda call: call.set_status(200), lambda call: call.add_header(b"a", b"b")]
    uses += [lambda call: call.write(b"x")]
    for call in kept:
        for use in uses:
            with pytest.raises(RuntimeError, match=r"during answer\(\) only"):
                use(call)


async def test_a_handler_that_runs_the_loop(loop, scripted):
    def script(call):
        with pytest.raises(RuntimeError, match="running"):
            loop.run_forever()
        loop.call_soon(called.append, 1)
        return text()(call)

    called = []
    async with serving(loop, Application(), scripted(script)) as server:
        assert (await server.one(get()))[2] == b"answered"
    assert called == [1]


@pytest.mark.parametrize("answers", [True, False])
async def test_a_handler_that_ends_the_server(loop, scripted, answers):
    """The response to the present request is the last one."""

    def script(call):
        server.site.begin_shutdown()
        call.write(b"answered")
        return answers

    async with serving(loop, Application(), scripted(script)) as server:
        client = await server.connect(get())
        _, headers, body = await client.response()
        assert body == (b"answered" if answers else b"application")
        assert headers["connection"] == "close"
        await client.ended()


@pytest.mark.parametrize("answers", [True, False])
async def test_a_handler_that_ends_all_connections(loop, scripted, answers):
    def script(call):
        server.site.cancel_all()
        call.write(b"answered")
        return answers

    async with serving(loop, Application(), scripted(script)) as server:
        client = await server.connect(get())
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.head()
        await support.wait_until(lambda: not server.site.members)
        assert server.site.in_flight == 0


# --- the server around it ------------------------------------------------------------------------


async def test_the_access_log(loop, scripted):
    lines = []

    def log(scope, status, nbytes, seconds):
        assert 0 <= seconds < 60
        client = scope["client"] and scope["client"][0]
        lines.append(
            (client, scope["method"], scope["path"], scope["query_string"], status, nbytes)
        )

    handler = scripted(lambda call: call.text("query") != b"pass" and text(b"x" * 7)(call))
    options = {"access_log": log, "root_path": "/prefix"}
    async with serving(loop, Application(), handler, **options) as server:
        client = await server.connect()
        await client.request(get("/a%20b"))
        await client.request(get("/c?pass"))
        await client.request(get("/d", version="1.0").replace(b"GET", b"HEAD"), method="HEAD")
    assert lines == [
        ("127.0.0.1", "GET", "/prefix/a b", b"", 200, 7),
        ("127.0.0.1", "GET", "/prefix/c", b"pass", 200, 11),
        ("127.0.0.1", "HEAD", "/prefix/d", b"", 200, 0),
    ]


async def test_trusted_proxies(loop, scripted):
    seen, lines = [], []

    def script(call):
        seen.append((call.client(), call.scheme()))
        return text()(call)

    options = {"access_log": lambda scope, *rest: lines.append(scope["client"])}
    options["proxy"] = TrustedProxies("127.0.0.1")
    async with serving(loop, Application(), scripted(script), **options) as server:
        client = await server.connect()
        await client.request(get("/", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: https"))
        await client.request(get())
    assert seen[0] == (("1.2.3.4", 0), "https")
    assert seen[1] == (client.writer.get_extra_info("sockname"), "http")
    assert lines == [client for client, _ in seen]


async def test_the_limit_of_requests(loop, handlers):
    async with serving(loop, Application(), handlers.Hello(), limit_max_requests=2) as server:
        reached = []
        server.site.on_limit = lambda: reached.append(server.site.requests)
        client = await server.connect()
        for _ in range(3):
            await client.request(get())
        assert reached == [2]


async def test_a_body_that_does_not_arrive(loop, scripted):
    log = []
    options = {"timeout_body": 0.05, "access_log": lambda *args: log.append(args[1])}
    async with serving(loop, Application(), scripted(text()), **options) as server:
        client = await server.connect(post(10, body=b"12345"))
        assert (await client.response())[0] == 408
        await support.wait_until(lambda: not server.site.running)
    assert log == [408]


@pytest.mark.parametrize("cancel", ["end_streams", "cancel_all"])
async def test_a_shutdown_cuts_off_a_body_that_does_not_arrive(loop, scripted, cancel):
    async with serving(loop, Application(), scripted(text())) as server:
        client = await server.connect(post(10, body=b"12345"))
        await support.wait_until(lambda: server.site.running)
        server.site.begin_shutdown()
        getattr(server.site, cancel)()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.head()
        await support.wait_until(lambda: not server.site.running and not server.site.members)


async def test_a_shutdown_waits_for_the_body(loop, scripted):
    async with serving(loop, Application(), scripted(text())) as server:
        client = await server.connect(post(10, body=b"12345"))
        await support.wait_until(lambda: server.site.running)
        server.site.begin_shutdown()
        _, headers, body = await client.request(b"67890")
        assert (headers["connection"], body) == ("close", b"answered")


async def test_a_client_that_leaves_before_the_end_of_the_body(loop, scripted):
    async with serving(loop, Application(), scripted(text())) as server:
        client = await server.connect(post(10, body=b"12345"))
        await support.wait_until(lambda: server.site.running)
        client.writer.transport.abort()
        await support.wait_until(lambda: not server.site.members)
        assert not server.site.running


async def test_a_client_that_does_not_read(loop, scripted):
    """Its pipelined requests are not answered before it reads."""
    body = b"x" * 1_000_000
    calls = []

    def script(call):
        calls.append(1)
        return text(body)(call)

    async with serving(loop, Application(), scripted(script)) as server:
        client = await server.connect(get() * 20, limit=1000)
        await support.turns(50)
        assert len(calls) < 20
        for _ in range(20):
            assert (await client.response())[2] == body


# --- options -------------------------------------------------------------------------------------


async def test_the_option(loop, handlers, monkeypatch):
    monkeypatch.setitem(sys.modules, "some_handlers", handlers)
    for handler in (handlers.hello, "some_handlers:hello"):
        config = Config(app=Application(), port=0, lifespan="off", compiled_handler=handler)
        async with Server(config) as server:
            assert await body_of(server, "/") == b"hello"
            assert await body_of(server, "/other") == b"application"


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        ("some_handlers", "must be in format"),
        ("some_handlers:none", "attribute 'none' not found"),
        ("some_handlers:Hello", "is not a compiled handler: expected an instance"),
        (7, "7 is not a compiled handler"),
    ],
)
async def test_an_option_that_is_no_handler(loop, handlers, monkeypatch, handler, says):
    monkeypatch.setitem(sys.modules, "some_handlers", handlers)
    config = Config(app=Application(), port=0, lifespan="off", compiled_handler=handler)
    with pytest.raises(StartError, match=says):
        await Server(config).start()


def test_several_workers_need_an_import_string(handlers):
    with pytest.raises(ConfigError, match="pass the handler as an import string"):
        Config(app="main:app", workers=2, compiled_handler=handlers.hello)


def test_the_command(folder, handlers):
    (folder / "handling.py").write_text(
        "import importlib.machinery, importlib.util\n"
        f"loader = importlib.machinery.ExtensionFileLoader('handlers', {handlers.__file__!r})\n"
        "spec = importlib.util.spec_from_loader('handlers', loader)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "loader.exec_module(module)\n"
        "hello = module.hello\n"
    )
    options = ["--compiled-handler", "handling:hello", "--check"]
    assert complaints(
        ["main:app", *options], ["main:app", "--compiled-handler", "main:app"], cwd=folder
    ) == [
        ("main:app can be served with compiled_handler='handling:hello'.", 0),
        ("ERROR:    'main:app' is not a compiled handler: expected an instance of a subclass of"
         " mgloop.http.HTTPHandler", 1),
    ]  # fmt: skip
    with serve(folder, *options[:2]) as server:
        url = server.url()
        assert fetch(url) == "hello"
        assert fetch(url, "/env/HOME") == os.environ["HOME"]
        assert server.stop() == 0
        assert '"GET / HTTP/1.1" 200' in server.output
