# SPDX-License-Identifier: GPL-2.0-only
"""Streams of valid and invalid requests, split anywhere: the result is the same and h11 agrees.

A server that parses a stream differently from the proxy in front of it may take one request for
two. So h11, an independent implementation of the RFC, must read the same requests that the server
accepts. The server must refuse whatever h11 refuses, except for the differences listed below.

MGLOOP_FUZZ_EXAMPLES sets the number of streams (a million is a long run).
"""

import asyncio
import itertools
import logging
import os
import re
import types
import urllib.parse

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sites import DEFAULTS, answer
from smuggling import CASES

from mgloop.http.wire._connection import Connection
from mgloop.http.wire._site import Site
from mgloop.http.wire._wsgirequest import WsgiRunner

h11 = pytest.importorskip("h11")

EXAMPLES = int(os.environ.get("MGLOOP_FUZZ_EXAMPLES", "100"))


class Memory(asyncio.Transport):
    """A transport that records the written data."""

    def __init__(self):
        super().__init__()
        self.closing = False

    def write(self, data):
        assert not self.closing
        self.written = getattr(self, "written", b"") + data

    def can_write_eof(self):
        return True

    def write_eof(self):
        pass

    def close(self):
        self.closing = True

    abort = close

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


class Understood:
    """The requests of a stream that the application received, an ASGI or a WSGI one."""

    def __init__(self, loop, *, wsgi=False):
        self.loop = loop
        self.requests = []
        config = types.SimpleNamespace(**DEFAULTS | {"timeout_keep_alive": 0, "timeout_head": 0})
        self.site = Site(loop, self.app, config, connection=Connection)
        if wsgi:
            self.site.wsgi = WsgiRunner(self.site, self.wsgi_app, 0)

    def wsgi_app(self, environ, start_response):
        path = environ["PATH_INFO"].encode("latin-1")
        query = environ["QUERY_STRING"].encode("latin-1")
        body = environ["wsgi.input"].read()
        assert int(environ.get("CONTENT_LENGTH") or 0) == len(body)
        self.requests.append([environ["REQUEST_METHOD"], path, query, headers_of(environ), body])
        start_response("200 OK", [])
        return [b"ok"]

    async def app(self, scope, receive, send):
        request = [scope["method"], scope["raw_path"], scope["query_string"], scope["headers"], b""]
        self.requests.append(request)
        while True:
            message = await receive()
            if message["type"] != "http.request":
                request.append("cut")
                return
            request[4] += message["body"]
            if not message["more_body"]:
                break
        await answer(send, b"ok")

    def turn(self, count):
        for _ in range(count):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def read(self, pieces):
        """Return (the complete requests, the status of a refusal or None)."""
        transport = Memory()
        connection = self.site.connection()
        connection.connection_made(transport)
        self.requests = []
        for piece in pieces:
            if transport.closing:
                break
            # A WSGI application expects that the loop runs.
            self.loop.call_soon(connection.data_received, piece)
            self.turn(1)
            if self.site.in_flight:
                self.turn(2)
        self.turn(16)
        written = getattr(transport, "written", b"")
        connection.connection_lost(None)
        self.turn(4)
        statuses = [
            int(line[9:12]) for line in written.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")
        ]
        refusal = next((status for status in statuses if status >= 400), None)
        return [tuple(request) for request in self.requests if len(request) == 5], refusal


def headers_of(environ):
    """Return the headers of an environ as it has them: {name: value}."""
    return {
        name: value.encode("latin-1")
        for name, value in environ.items()
        if name.startswith("HTTP_") or name == "CONTENT_TYPE"
    }


def as_in_an_environ(request):
    """Return a request that an ASGI application has received in the form of WSGI."""
    method, path, query, headers, body = request
    found = {}
    for name, value in headers:
        # In an environ, an underscore looks like a hyphen.
        if b"_" not in name and name != b"content-length":
            key = "CONTENT_TYPE" if name == b"content-type" else "HTTP_"
            key += name.decode("latin-1").upper().replace("-", "_") if key == "HTTP_" else ""
            found[key] = found[key] + b"," + value if key in found else value
    return method, urllib.parse.unquote_to_bytes(path), query, found, body


def read_by_h11(data):
    """Return (the requests that h11 reads, whether it accepts everything after them).

    RFC 9112 allows an empty line before a request; it is removed because h11 refuses it.
    """
    requests = []
    try:
        while True:
            connection = h11.Connection(h11.SERVER)
            connection.receive_data(data.removeprefix(b"\r\n"))
            connection.receive_data(b"")
            request = None
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    request = [event.method, event.target, list(event.headers), b""]
                elif isinstance(event, h11.Data):
                    request[3] += bytes(event.data)
                else:
                    return requests, True
            requests.append(tuple(request))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return requests, True
            data = connection.trailing_data[0]
    except h11.RemoteProtocolError:
        return requests, False


# --- streams -------------------------------------------------------------------------------------

methods = st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "BREW", "get", "G T"])
targets = st.sampled_from(
    ["/", "/a?b=c", "/%20%zz", "*", "http://h/p?q", "//x", "/a b", "/\x7f", ""]
)
versions = st.sampled_from(["HTTP/1.1"] * 6 + ["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "HTP/1.1", ""])
names = st.sampled_from(
    [
        "X-A",
        "x-b",
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "Host",
        "Expect",
        "X ",
        "",
        "Ä",
    ]
)
values = st.sampled_from(
    [
        *("1", "5", "0", "005", "+5", "-1", "5,5", "chunked", "Chunked", " chunked "),
        *("gzip, chunked", "chunked, chunked", ",chunked", "identity", "close", "keep-alive"),
        *("a", "", "a\tb", "a\x0bb", "a\0b", "100-continue", "x" * 50, "\xe4"),
    ]
)
line_ends = st.sampled_from(["\r\n"] * 12 + ["\n", "\r", "\r\r\n", "\r\n "])
bodies = st.sampled_from(
    [
        *(
            "",
            "hello",
            "5\r\nhello\r\n0\r\n\r\n",
            "0\r\n\r\n",
            "5;a=b\r\nhello\r\n0\r\nT: 1\r\n\r\n",
        ),
        *("5\r\nhello0\r\n\r\n", "5\nhello\n0\n\n", "G\r\n", "0\r\nX"),
        *("1\r\na\r\n00\r\n\r\n", "-1\r\n"),
    ]
)


@st.composite
def messages(draw):
    end = draw(line_ends)
    head = " ".join([draw(methods), draw(targets), draw(versions)]) + end
    for _ in range(draw(st.sampled_from([1, 1, 1, 1, 0, 2]))):
        head += "Host: h" + draw(line_ends)
    for _ in range(draw(st.integers(0, 3))):
        head += draw(names) + draw(st.sampled_from([":", ": ", ":\t"])) + draw(values)
        head += draw(line_ends)
    return (head + end + draw(bodies)).encode("latin-1")


@st.composite
def good_messages(draw):
    """Draw valid messages, so that the stream contains a request after them."""
    method, target = draw(st.sampled_from([("GET", "/"), ("POST", "/p?q"), ("OPTIONS", "*")]))
    head = f"{method} {target} HTTP/1.1\r\nHost: h\r\n"
    body = draw(st.sampled_from(["", "hello", "x" * 300]))
    if draw(st.booleans()):
        head += f"Content-Length: {len(body)}\r\n"
    elif body:
        head += "Transfer-Encoding: chunked\r\n"
        body = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
    return (head + "\r\n" + body).encode()


streams = st.lists(st.one_of(messages(), good_messages()), min_size=1, max_size=4).map(b"".join)


@st.composite
def broken_streams(draw):
    """Draw a stream in which bytes are changed, removed or inserted."""
    data = bytearray(draw(streams))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        what = draw(st.sampled_from(["change", "remove", "insert"]))
        byte = draw(st.sampled_from(b"\r\n \t:;,0159aZ\0\x80\xff"))
        if what == "change" and data:
            data[at] = byte
        elif what == "remove":
            del data[at : at + 1]
        else:
            data.insert(at, byte)
    return bytes(data)


@pytest.fixture
def understood(loop):
    logging.getLogger("mgloop.http").setLevel(logging.CRITICAL)
    yield Understood(loop), Understood(loop, wsgi=True)
    logging.getLogger("mgloop.http").setLevel(logging.NOTSET)


def read_by_us(understood, data, cuts):
    """Return the same as Understood.read(), for both interfaces and any way to cut the stream."""
    asgi, wsgi = understood
    whole = asgi.read([data])
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert asgi.read(pieces) == whole, "it depends on where the stream is cut"
    as_wsgi = [as_in_an_environ(request) for request in whole[0]], whole[1]
    assert wsgi.read([data]) == as_wsgi, "WSGI and ASGI differ"
    assert wsgi.read(pieces) == as_wsgi, "WSGI depends on where the stream is cut"
    return whole


def check(understood, data, cuts):
    requests, _ = read_by_us(understood, data, cuts)
    theirs, _ = read_by_h11(data)
    if strictly_ours(data):
        return
    for i, (method, path, query, headers, body) in enumerate(requests):
        assert i < len(theirs), f"h11 refuses request {i}, or finds it incomplete"
        their_method, target, their_headers, their_body = theirs[i]
        assert method.encode() == their_method
        assert body == their_body
        lowered = [framing_lowered(header) for header in headers]
        assert lowered == with_host_of(target, their_headers)
        assert path + (b"?" + query if query or b"?" in target else b"") in (
            target,
            target.partition(b"#")[0],
            b"/" + target.partition(b"//")[2].partition(b"/")[2],
            b"/?" + target.partition(b"?")[2],
        )


def with_host_of(target, headers):
    """Return the headers with the Host of a target that is a URL, which h11 does not evaluate."""
    url = re.match(rb"[^/*][^/]*//([^/?#]*)", target)
    if url is None:
        return headers
    return [(b"host", url[1]), *(header for header in headers if header[0] != b"host")]


def framing_lowered(header):
    """Return the header as h11 reports it."""
    name, value = header
    return (name, value.lower()) if name == b"transfer-encoding" else header


def strictly_ours(data):
    """Return whether h11 is stricter than the RFC requires, or accepts more than it allows."""
    return any(part in data for part in (b"gzip", b"identity", b"xpect", b"hunked, chunked"))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=broken_streams(), cuts=st.lists(st.integers(0, 600), max_size=8))
@pytest.mark.mgloop_only
@pytest.mark.timeout(60 if EXAMPLES <= 1000 else 0)
def test_streams(understood, data, cuts):
    check(understood, data, cuts)


@settings(
    max_examples=EXAMPLES // 3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=broken_streams())
@pytest.mark.mgloop_only
@pytest.mark.timeout(60 if EXAMPLES <= 1000 else 0)
def test_streams_bytewise(understood, data):
    check(understood, data, range(len(data)))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.mgloop_only
def test_smuggled_requests(understood, case):
    """An ASGI and a WSGI application get the same requests, wherever the stream is cut."""
    data = CASES[case].encode("latin-1")
    for cuts in ((), range(0, len(data), 7), range(len(data))):
        requests, refusal = read_by_us(understood, data, cuts)
        assert refusal or requests
