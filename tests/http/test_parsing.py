# SPDX-License-Identifier: GPL-2.0-only
"""Valid and invalid requests, whole and byte by byte: RFC 9112, and stricter."""

import asyncio
import time

import pytest
import support
from sites import Recording, Serving, WsgiRecording, answer, connected, get

HEAD = "Host: a\r\n"


def post(*headers, body=""):
    return "\r\n".join(["POST / HTTP/1.1", "Host: a", *headers, "", body]).encode()


CHUNKED = "Transfer-Encoding: chunked"

VALID = {
    "plain": (get("/x?y=1"), "GET", "/x", b"y=1", b""),
    "an empty line before": (b"\r\n" + get("/"), "GET", "/", b"", b""),
    "without a Host in 1.0": (b"GET / HTTP/1.0\r\n\r\n", "GET", "/", b"", b""),
    "absolute form": (get("http://b:80/p/q?r"), "GET", "/p/q", b"r", b""),
    "absolute form without a path": (get("http://b?r"), "GET", "/", b"r", b""),
    "a Host of IPv6": (get(host="[::1]:8000"), "GET", "/", b"", b""),
    "a Host with much in it": (get(host="a-b_c.%41~!$&'()*+;=:"), "GET", "/", b"", b""),
    "asterisk": (f"OPTIONS * HTTP/1.1\r\n{HEAD}\r\n".encode(), "OPTIONS", "*", b"", b""),
    "fragment": (get("/a?b#c"), "GET", "/a", b"b", b""),
    "encoded": (get("/%C3%A4%2F%zz?%41"), "GET", "/ä/%zz", b"%41", b""),
    "invalid utf-8": (get("/%ff"), "GET", "/\ufffd", b"", b""),
    "many slashes": (get("//a//b"), "GET", "//a//b", b"", b""),
    "a method that nobody knows": (
        get("/pot").replace(b"GET", b"BREW-IT"),
        *("BREW-IT", "/pot", b"", b""),
    ),
    "a body": (post("Content-Length: 5", body="hello"), "POST", "/", b"", b"hello"),
    "chunks": (
        post(
            "Transfer-Encoding: Chunked",
            body="5;x=y\r\nhello\r\n000010\r\n world and more.\r\n0\r\nX-Trailer: 1\r\n\r\n",
        ),
        *("POST", "/", b"", b"hello world and more."),
    ),
    "blanks that mean nothing": (
        post(
            CHUNKED,
            body='5 ; some = "a ; b" ;\tmore\r\nhello\r\n6\r\n world\r\n0 ;x\r\n\r\n',
        ),
        *("POST", "/", b"", b"hello world"),
    ),
    "a coding of the application's": (
        post("Transfer-Encoding: gzip, chunked", body="1\r\nz\r\n0\r\n\r\n"),
        *("POST", "/", b"", b"z"),
    ),
    "an upgrade that is not spoken": (
        get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAA"),
        *("GET", "/", b"", b""),
    ),
}


#: The handshakes of WebSockets, which are ordinary requests to a WSGI application.
WEBSOCKETS = ("a handshake with a body", "a handshake in chunks")


@pytest.fixture(params=[Recording, WsgiRecording])
def app(request):
    """Return an application that records its requests, for ASGI and for WSGI."""
    return request.param()


@pytest.mark.parametrize("apart", [False, True], ids=["in one piece", "apart"])
async def test_requests_behind_an_upgrade_that_is_not_spoken(loop, app, apart):
    first = get("/1", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 2") + b"ab"
    requests = [first, get("/2", "Connection: Upgrade", "Upgrade: h2c"), get("/3")]
    async with connected(loop, app) as client:
        if not apart:
            await client.send(b"".join(requests))
        for request in requests:
            if apart:
                await client.send(request)
            assert (await client.response())[0] == 200
    assert [scope["path"] for scope in app.scopes] == ["/1", "/2", "/3"]
    assert app.bodies == [b"ab", b"", b""]


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
@pytest.mark.parametrize("case", VALID)
async def test_valid(loop, app, case, bytewise):
    data, method, path, query, body = VALID[case]
    async with connected(loop, app) as client:
        assert await client.request(data, bytewise=bytewise) == (
            200,
            {"content-length": str(len(body))}
            | ({"connection": "close"} if b"HTTP/1.0" in data else {}),
            body,
        )
    (scope,) = app.scopes
    assert (scope["method"], scope["path"], scope["query_string"]) == (method, path, query)
    assert app.bodies == [body]


async def test_an_incomplete_request_is_waited_for(loop):
    head = get("/hello", host="localhost")
    async with Serving(loop, Recording()) as serving:
        clients = []
        for n in range(1, len(head)):
            clients.append(await serving.connect())
            await clients[-1].send(head[:n])
        await asyncio.sleep(0.05)
        for n, client in enumerate(clients, 1):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.read(1), 0.001)
            assert (await client.request(head[n:]))[0] == 200


HANDSHAKE = (
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
INVALID = {
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": get("/", "Host: b"),
    "two Hosts in 1.0": get("/", "Host: b", version="1.0"),
    "version 2.0": (get("/", version="2.0"), 505),
    "version 1.2": get("/", version="1.2"),
    "version 0.9": get("/", version="0.9"),
    "no version": b"GET /\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no method": b" / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a handshake with a body": get("/", *HANDSHAKE, "Content-Length: 5")[:-2] + b"\r\nhello",
    "a handshake in chunks": get("/", *HANDSHAKE, CHUNKED) + b"5\r\nhello\r\n0\r\n\r\n",
    "a method in small letters": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method that is no token": b"G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method without end": b"G" * 30,
    "two empty lines before": b"\r\n\r\n" + get("/"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a relative target": get("x"),
    "an asterisk for GET": get("*"),
    "a URL without a host": get("http:///p"),
    "a URL with a user": get("http://user@a/p"),
    "a URL whose port is none": get("http://a:b/p"),
    "an authority for GET": get("a:80"),
    "a target beyond ASCII": "GET /ä HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
    "two spaces": b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two spaces before the version": b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
    "a tab": b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare CR": b"GET / HTTP/1.1\rHost: a\r\r",
    "space before the colon": get("/", "X : 1"),
    "space before the name": get("/", " X: 1"),
    "a folded line": get("/", "X: 1", " 2"),
    "no name": get("/", ": 1"),
    "a name that is no token": get("/", "X(: 1"),
    "NUL in a value": get("/", "X: a\0b"),
    "CR in a value": get("/", "X: a\rb"),
    "DEL in a value": get("/", "X: a\x7fb"),
    "Content-Length twice": post("Content-Length: 5", "Content-Length: 6", body="hello!"),
    "Content-Length in a list": post("Content-Length: 5, 5", body="hello"),
    "Content-Length with a sign": post("Content-Length: +5", body="hello"),
    "a control character": get("/", "X: test\x07"),
    "something before the method": b"Extra line" + get("/"),
    "CR before a name": get("/", "\rX: y"),
    "Content-Length that is negative": post("Content-Length: -5", body="hello"),
    "Content-Length in hex": post("Content-Length: 0x5", body="hello"),
    "Content-Length without a number": post("Content-Length:", body="hello"),
    "Content-Length beyond 64 bits": post(f"Content-Length: {1 << 64}", body="hello"),
    "Content-Length and chunks": post("Content-Length: 5", CHUNKED, body="0\r\n\r\n"),
    "chunks and Content-Length": post(CHUNKED, "Content-Length: 5", body="0\r\n\r\n"),
    "chunks in 1.0": b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked before the last": post("Transfer-Encoding: chunked, gzip", body="0\r\n\r\n"),
    "an unknown coding": (post("Transfer-Encoding: zzz, chunked", body="0\r\n\r\n"), 501),
    "chunked twice": post("Transfer-Encoding: chunked, chunked", body="0\r\n\r\n"),
    "a coding alone": post("Transfer-Encoding: gzip", body="hello"),
    "xchunked": (post("Transfer-Encoding: xchunked", body="hello"), 501),
    "a name that a gateway may mistake": post("Content_Length: 5", body="hello"),
    "a tunnel": (b"CONNECT b:1 HTTP/1.1\r\nHost: b:1\r\n\r\n", 501),
    **{
        f"Host: {host}": get("/", host=host)
        for host in (
            " ",
            "me@a",
            "a/b",
            "a, b",
            "a b",
            "a?b",
            "a#b",
            "a\\b",
            "<a>",
            "a:b",
            "a:1:2",
            "a:-1",
            ":80",
            "[",
            "[]",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "[::g/1]",
            "::1",
            "\xe4",
        )
    },
    "two types": get("/", "Content-Type: a/b", "Content-Type: c/d"),
    "no chunk size": post(CHUNKED, body="\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with a sign": post(CHUNKED, body="+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size that is negative": post(CHUNKED, body="-1\r\nhello\r\n0\r\n\r\n"),
    "a chunk size in words": post(CHUNKED, body="five\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with 0x": post(CHUNKED, body="0x5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size beyond 64 bits": post(CHUNKED, body="1" + "0" * 16 + "\r\nhello\r\n0\r\n\r\n"),
    "a blank behind a chunk size": post(CHUNKED, body="5 \r\nhello\r\n0\r\n\r\n"),
    "a blank before a chunk size": post(CHUNKED, body=" 5;x=y\r\nhello\r\n0\r\n\r\n"),
    "a blank in an extension": post(CHUNKED, body="5;x y=z\r\nhello\r\n0\r\n\r\n"),
    "a chunk that is longer": post(CHUNKED, body="4\r\nhello\r\n0\r\n\r\n"),
    "a chunk that is shorter": post(CHUNKED, body="6\r\nhello\r\n0\r\n\r\n"),
    "chunks by LF": post(CHUNKED, body="5\nhello\n0\n\n"),
    "a trailer of the framing": post(CHUNKED, body="0\r\nContent-Length: 5\r\n\r\n"),
    "an expectation": (get("/", "Expect: the best"), 417),
    "a long line": (get("/" + "x" * 9000), 414),
    "a long header": (get("/", "X: " + "x" * 9000), 431),
    "a long name": (get("/", "x" * 9000 + ": X"), 431),
    "many headers": (get("/", *["X: 1"] * 101), 431),
    "a large head": (get("/", *["X: " + "x" * 8000] * 9), 431),
    "a large extension": post(CHUNKED, body="5;" + "x" * 5000 + "\r\nhello\r\n0\r\n\r\n"),
    "large extensions of small chunks": post(
        CHUNKED, body=("1;" + "x" * 2000 + "\r\na\r\n") * 9 + "0\r\n\r\n"
    ),
    "a hundred transfer codings": (
        post("Transfer-Encoding: " + "gzip, " * 100 + "chunked", body="0\r\n\r\n"),
        501,
    ),
    "a large extension, in blanks": post(CHUNKED, body="5;" + " " * 5000 + "x\r\nhello\r\n"),
}


@pytest.mark.mgloop_only  # the loop does not see what is invalid
@pytest.mark.parametrize("case", INVALID)
async def test_invalid(loop, app, case, caplog):
    if case in WEBSOCKETS and isinstance(app, WsgiRecording):
        return
    data = INVALID[case]
    data, expected = data if isinstance(data, tuple) else (data, 400)
    for bytewise in (False, True):
        caplog.clear()
        async with connected(loop, app) as client:
            await client.send(data, bytewise=bytewise)
            status, headers, body = await client.response()
            assert (status, headers["connection"]) == (expected, "close")
            assert len(body) < 200
            await client.ended()
        assert app.bodies == []
        if expected < 500:
            logged = [r for r in caplog.records if "Invalid HTTP request" in r.getMessage()]
            assert len(logged) == 1


@pytest.mark.parametrize("line", ["5" + " " * 4000, "5 ;a=" + '"\\' * 2000], ids=[0, 1])
async def test_a_long_chunk_line_takes_no_long_time(loop, line):
    data = post(CHUNKED, body=f"{line}\r\n")
    async with Serving(loop, Recording()) as serving:
        began = time.process_time()
        for _ in range(40):
            assert (await serving.one(data))[0] == 400
        assert time.process_time() - began < 1.5  # 0.1; 2.7 and more with quadratic time


async def test_headers_as_they_came(loop):
    app = Recording()
    async with Serving(loop, app) as serving:
        await serving.one(get("/", "X-Two: 1", "x-tWo:2", "X-Three: \t a b \t ", "Empty:"))
    assert app.scopes[0]["headers"] == [
        (b"host", b"a"),
        (b"x-two", b"1"),
        (b"x-two", b"2"),
        (b"x-three", b"a b"),
        (b"empty", b""),
    ]


async def test_the_host_of_the_target_counts(loop):
    app = Recording()
    async with Serving(loop, app) as serving:
        await serving.one(get("http://b:80/p", "X: 1"))
        await serving.one(get("http://b?q", version="1.0", host=None))
        await serving.one(f"OPTIONS * HTTP/1.1\r\n{HEAD}\r\n".encode())
    assert [scope["headers"] for scope in app.scopes] == [
        [(b"host", b"b:80"), (b"x", b"1")],
        [(b"host", b"b")],
        [(b"host", b"a")],
    ]


async def test_the_scope(loop):
    app = Recording()
    async with Serving(loop, app, state={"pool": 1}, root_path="/api", sendfile=True) as serving:
        client = await serving.connect()
        await client.request(get("/a%20b"))
        await client.request(get("/a%20b"))
        here = client.writer.get_extra_info("sockname")
    scope, other = app.scopes
    assert scope["type"] == "http"
    assert scope["asgi"] == {"version": "3.0", "spec_version": "2.3"}
    assert scope["http_version"] == "1.1"
    assert scope["scheme"] == "http"
    assert (scope["root_path"], scope["path"], scope["raw_path"]) == (
        "/api",
        "/api/a b",
        b"/api/a%20b",
    )
    assert scope["client"] == here
    assert scope["server"] == ("127.0.0.1", serving.port)
    assert scope["state"] == {"pool": 1}
    assert set(scope["extensions"]) == {
        "http.response.pathsend",
        "http.response.zerocopysend",
        "http.response.trailers",
        "http.response.early_hint",
    }
    for key in ("asgi", "state", "extensions", "headers"):
        assert scope[key] == other[key]
        assert scope[key] is not other[key]


async def test_extensions_of_small_chunks_are_allowed_as_far_as_the_body_is_large(loop):
    """Uploads to S3 have a signature of 85 bytes in each chunk."""
    app = Recording()
    chunk = "64;chunk-signature=" + "0" * 64 + "\r\n" + "x" * 100 + "\r\n"
    async with Serving(loop, app) as serving:
        assert (await serving.one(post(CHUNKED, body=chunk * 500 + "0\r\n\r\n")))[0] == 200
    assert app.bodies == [b"x" * 50_000]


async def test_no_scope_shares_the_dicts_of_its_extensions(loop):
    """Earlier requests may still run, have ended, or have stored data in their dicts."""
    seen, go_on = [], asyncio.Event()

    async def app(scope, receive, send):
        extensions = scope["extensions"]
        seen.append([dict(inner) for inner in extensions.values()])
        for inner in extensions.values():
            inner["mine"] = len(seen)
        if scope["path"] == "/wait":
            await go_on.wait()
            assert {inner["mine"] for inner in extensions.values()} == {1}
        await answer(send)

    async with Serving(loop, app) as serving:
        waiting = asyncio.ensure_future(serving.one(get("/wait")))
        await support.wait_until(lambda: seen)
        client = await serving.connect()
        for _ in range(3):
            assert (await client.request(get()))[0] == 200
        go_on.set()
        assert (await waiting)[0] == 200
    assert seen == [[{}] * 2] * 4


async def test_no_scope_has_the_versions_of_another(loop):
    """Earlier requests may have changed the dict, or still have it."""
    seen, kept = [], []

    async def app(scope, receive, send):
        versions = scope["asgi"]
        seen.append(dict(versions))
        if scope["path"] == "/change":
            versions["version"] = "4.0"
        elif scope["path"] == "/add":
            versions["mine"] = True
        elif scope["path"] == "/remove":
            del versions["version"]
        elif scope["path"] == "/keep":
            kept.append(versions)
        await answer(send)

    async with Serving(loop, app) as serving:
        client = await serving.connect()
        for path in ("/", "/", "/change", "/add", "/remove", "/keep", "/keep", "/"):
            assert (await client.request(get(path)))[0] == 200
    assert seen == [{"version": "3.0", "spec_version": "2.3"}] * 8
    assert kept[0] is not kept[1]


async def test_the_names_of_headers_are_in_lower_case(loop):
    """Names that the server knows, and others, in one read and byte by byte."""
    app = Recording()
    long = "X-" + "Long-" * 20 + "Name"
    names = ["ACCEPT", "accept-Encoding", "X-Forwarded-PORT", "X-Mine", "x_y", long]
    data = get("/", *(f"{name}: {name}" for name in names))
    async with Serving(loop, app) as serving:
        client = await serving.connect()
        await client.request(data)
        for byte in data:
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await client.response()
    expected = [(name.lower().encode(), name.encode()) for name in names]
    for scope in app.scopes:
        assert [pair for pair in scope["headers"] if pair[0] != b"host"] == expected


async def test_pathsend_is_not_offered_by_default(loop):
    app = Recording()
    async with Serving(loop, app) as serving:
        await serving.one(get())
    assert set(app.scopes[0]["extensions"]) == {
        "http.response.trailers",
        "http.response.early_hint",
    }


@pytest.mark.parametrize("cut", [1, 7, 40, 1000])
async def test_pipelined(loop, cut):
    """Requests are answered in order, however they are split."""
    data = b"".join(
        get(f"/{i}") if i % 3 else post("Content-Length: 3", body=f"{i:03}") for i in range(20)
    )
    app = Recording()
    async with connected(loop, app) as client:
        for i in range(0, len(data), cut):
            await client.send(data[i : i + cut])
        bodies = [(await client.response())[2] for _ in range(20)]
    assert bodies == [b"" if i % 3 else f"{i:03}".encode() for i in range(20)]


async def test_a_client_that_pipelines_and_does_not_read(loop):
    """The server makes as many responses as fit the buffers; the others when the client reads."""
    began = 0

    async def app(scope, receive, send):
        nonlocal began
        began += 1
        await answer(send, bytes(300_000))

    async with connected(loop, app, get() * 400, limit=4096) as client:
        assert await support.settled(lambda: began) < 100
        for _ in range(400):
            assert len((await client.response())[2]) == 300_000
        assert began == 400


async def test_the_buffer_for_pipelined_data_is_limited(loop):
    """A client that keeps sending during a response fills the kernel's buffers, not ours."""
    go_on = asyncio.Event()

    async def app(scope, receive, send):
        await go_on.wait()
        await Recording()(scope, receive, send)

    one = get("/" + "x" * 1000)
    async with connected(loop, app) as client:
        sent = 0

        async def send_on():
            nonlocal sent
            while True:
                client.writer.write(one * 100)
                sent += 100
                await client.writer.drain()
                assert sent < 100_000

        sending = loop.create_task(send_on())
        assert not (await asyncio.wait([sending], timeout=1))[0]
        sending.cancel()
        go_on.set()
        for _ in range(sent):
            assert (await client.response())[0] == 200
        client.writer.transport.abort()


async def test_requests_sent_ahead_in_many_pieces_take_no_long_time(loop):
    """The test calls data_received() itself, because a paused transport stops reading."""
    go_on = asyncio.Event()

    async def app(scope, receive, send):
        await go_on.wait()
        await answer(send)

    async with connected(loop, app, get()) as client:
        await support.wait_until(lambda: client.site.in_flight)
        (connection,) = client.site.members
        piece = b"GET /"
        connection.data_received(piece)
        began = time.process_time()
        for _ in range(300_000):
            connection.data_received(b"a")
        assert time.process_time() - began < 2  # 0.1; 10 and more with quadratic time
        go_on.set()
        assert (await client.response())[0] == 200
        assert (await client.response())[0] == 431
