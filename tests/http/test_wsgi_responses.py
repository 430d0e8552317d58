# SPDX-License-Identifier: GPL-2.0-only
"""The responses of WSGI applications: start_response(), write(), the iterable and its close(), and
the framing of the body.
"""

import os
import socket
import struct

import pytest
from wsgi_servers import get, post

APPLICATION = r"""
BIG = bytes(range(256)) * 10_000
HELLO = b"Hello, World!"

class Body:
    '''An iterable that notes the calls of its close().'''

    def __init__(self, name, pieces, length=None):
        self.name, self.pieces, self.closed = name, iter(pieces), 0

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.pieces)

    def close(self):
        self.closed += 1
        note(self.name, f"closed {self.closed}")

class Sized(Body):
    def __len__(self):
        return 1

# --- shapes ---

@checked
def hello(environ, start_response):
    return answer(start_response, HELLO)

@checked
def echo(environ, start_response):
    return answer(start_response, environ["wsgi.input"].read(-1))

@checked
def shape(environ, start_response):
    '''Answer with one of SHAPES.'''
    start_response("200 OK", PLAIN)
    return SHAPES[environ["QUERY_STRING"]]()

def generator(*pieces):
    yield from pieces

SHAPES = {
    "list": lambda: [HELLO],
    "tuple": lambda: (HELLO,),
    "set": lambda: {HELLO},
    "sized": lambda: Sized("sized", [HELLO]),
    "two": lambda: [HELLO, HELLO],
    "generator": lambda: generator(HELLO),
    "map": lambda: map(bytes, [HELLO, b"", HELLO]),
    "iterator": lambda: iter([HELLO]),
    "nothing": lambda: [],
    "no-piece": lambda: generator(),
    "one-empty": lambda: [b""],
    "empty-pieces": lambda: generator(b"", b"", b""),
    "empty-first": lambda: generator(b"", HELLO),
    "empty-between": lambda: generator(HELLO, b"", b"", HELLO, b""),
    "many": lambda: generator(*[b"%d;" % number for number in range(1000)]),
    "big": lambda: [BIG],
    "big-pieces": lambda: (BIG[at : at + 300_000] for at in range(0, len(BIG), 300_000)),
}

def bare_shape(environ, start_response):
    '''The same without the validator, which returns an iterator instead of a list.'''
    start_response("200 OK", PLAIN)
    return SHAPES[environ["QUERY_STRING"]]()

@checked
def fixed(environ, start_response):
    '''Like shape, with the Content-Length.'''
    body = b"".join(SHAPES[environ["QUERY_STRING"]]())
    start_response("200 OK", [*PLAIN, ("Content-Length", str(len(body)))])
    return SHAPES[environ["QUERY_STRING"]]()

@checked
def lazy(environ, start_response):
    '''start_response() is called when the first piece is asked for.'''
    def pieces():
        start_response("200 OK", PLAIN)
        yield b"lazy"
    return pieces()

# --- PEP 3333 ---

def simple_app(environ, start_response):
    '''Simplest possible application object'''
    status = '200 OK'
    response_headers = [('Content-type', 'text/plain')]
    start_response(status, response_headers)
    return [HELLO]

class AppClass:
    '''Produce the same output, but using a class'''

    def __init__(self, environ, start_response):
        self.environ = environ
        self.start = start_response

    def __iter__(self):
        status = '200 OK'
        response_headers = [('Content-type', 'text/plain')]
        self.start(status, response_headers)
        yield HELLO

class LatinIter:
    '''Transform iterated output to piglatin, if it's okay to do so'''

    def __init__(self, result, transform_ok):
        if hasattr(result, 'close'):
            self.close = result.close
        self._next = iter(result).__next__
        self.transform_ok = transform_ok

    def __iter__(self):
        return self

    def __next__(self):
        data = self._next()
        return data.upper() if self.transform_ok else data

class Latinator:
    transform = False

    def __init__(self, application):
        self.application = application

    def __call__(self, environ, start_response):
        transform_ok = []

        def start_latin(status, response_headers, exc_info=None):
            del transform_ok[:]
            for name, value in response_headers:
                if name.lower() == 'content-type' and value == 'text/plain':
                    transform_ok.append(True)
                    # Strip content-length if present, else it'll be wrong
                    response_headers = [
                        (name, value) for name, value in response_headers
                        if name.lower() != 'content-length'
                    ]
                    break
            write = start_response(status, response_headers, exc_info)
            if transform_ok:
                def write_latin(data):
                    write(data.upper())
                return write_latin
            return write

        return LatinIter(self.application(environ, start_latin), transform_ok)

pep_simple = checked(simple_app)
pep_class = checked(AppClass)
pep_middleware = checked(Latinator(simple_app))

def pep_exc_info(environ, start_response):
    try:
        raise ValueError("before the response")
    except ValueError:
        start_response("500 Something Else", [("content-type", "text/plain")], sys.exc_info())
        return [b"error body goes here"]

# --- start_response ---

@checked
def replaced(environ, start_response):
    start_response("200 OK", [*PLAIN, ("X-First", "1"), ("Content-Length", "3")])
    return mended(start_response, environ["QUERY_STRING"])

def mended(start_response, empty):
    if empty:
        yield b""
    try:
        raise ValueError("before the first piece")
    except ValueError:
        start_response("503 Mended", [*PLAIN, ("X-Second", "1")], sys.exc_info())
    yield b"mended"

def too_late(environ, start_response):
    '''start_response() with exc_info after the head was sent raises that exception.'''
    start_response("200 OK", PLAIN)
    yield b"begun"
    try:
        raise ValueError("too late")
    except ValueError:
        try:
            start_response("500 Not Sent", PLAIN, sys.exc_info())
        except ValueError:
            note("too-late-" + environ["QUERY_STRING"], "raised")
            raise
    yield b"never sent"

def twice(environ, start_response):
    start_response("200 OK", PLAIN)
    start_response("200 OK", PLAIN)
    return [b"never sent"]

def twice_caught(environ, start_response):
    start_response("200 OK", PLAIN)
    try:
        start_response("404 Not Found", PLAIN)
    except AssertionError:
        return [b"the first one counts"]

def never(environ, start_response):
    return [b"never sent"]

def never_empty(environ, start_response):
    return []

def none_as_exc_info(environ, start_response):
    start_response("200 OK", PLAIN, None)
    return [HELLO]

def keywords(environ, start_response):
    start_response(status="200 OK", headers=PLAIN, exc_info=None)
    return [HELLO]

def tuple_of_headers(environ, start_response):
    start_response("200 OK", tuple(PLAIN))
    return [HELLO]

def headers_changed(environ, start_response):
    '''The list belongs to the server, but the application may go on using it (PEP 3333).'''
    headers = [*PLAIN]
    start_response("200 OK", headers)
    headers.clear()
    return [HELLO]

# --- write() ---

@checked
def write(environ, start_response):
    write = start_response("201 Created", PLAIN)
    write(b"by ")
    write(b"")
    write(b"write")
    return [b" and", b" return"]

@checked
def write_only(environ, start_response):
    write = start_response("200 OK", [*PLAIN, ("Content-Length", "10")])
    write(b"12345")
    write(b"67890")
    return []

def write_big(environ, start_response):
    write = start_response("200 OK", PLAIN)
    for at in range(0, len(BIG), 100_000):
        write(BIG[at : at + 100_000])
    return []

def write_str(environ, start_response):
    write = start_response("200 OK", PLAIN)
    write("text")
    return []

def write_later(environ, start_response):
    '''write() while the iterable is iterated is forbidden to applications, not to servers.'''
    write = start_response("200 OK", PLAIN)
    def pieces():
        write(b"a")
        yield b"b"
        write(b"c")
    return pieces()

# --- no body ---

@checked
def status(environ, start_response):
    '''Answer with the status of the query and without a body, as PEP 3333 wants it.'''
    code = environ["QUERY_STRING"]
    headers = [] if code in ("204", "304") else PLAIN
    start_response(f"{code} Status", headers)
    return Body(f"status-{code}", [])

def with_body(environ, start_response):
    code, _, name = environ["QUERY_STRING"].partition("&")
    headers = [("Content-Length", "13")] if name == "length" else []
    start_response(f"{code} Status", headers)
    return Body(f"with-body-{code}-{name}", [HELLO])

def interim(environ, start_response):
    start_response(f"{environ['QUERY_STRING']} Interim", [])
    return []

# --- lengths ---

def length(environ, start_response):
    '''Announce a length, and send pieces of five bytes.'''
    announced, pieces, name = environ["QUERY_STRING"].split("&")
    start_response("200 OK", [*PLAIN, ("Content-Length", announced)])
    return Body(name, [b"12345"] * int(pieces))

def large(environ, start_response):
    start_response("200 OK", [*PLAIN, ("Content-Length", "20000000")])
    return Body(environ["QUERY_STRING"], [bytes(20_000_000)])

def length_write(environ, start_response):
    write = start_response("200 OK", [*PLAIN, ("Content-Length", "7")])
    write(b"12345")
    write(b"67890")
    write(b"abcde")
    return []

# --- wrong types ---

WRONG = {
    "str": lambda: ["text"],
    "bare-str": lambda: "text",
    "bare-bytes": lambda: b"bytes",
    "none": lambda: None,
    "int": lambda: 5,
    "list-of-none": lambda: [None],
    "list-of-int": lambda: [5],
    "nested": lambda: [[b"a"]],
    "late-str": lambda: generator(b"begun", "text"),
    "late-int": lambda: generator(b"begun", 5),
}

def wrong(environ, start_response):
    start_response("200 OK", PLAIN)
    return WRONG[environ["QUERY_STRING"]]()

# --- close() ---

def closing(environ, start_response):
    '''An iterable whose close() is noted, in one of CASES.'''
    case, _, name = environ["QUERY_STRING"].partition("&")
    if case != "never-started":
        start_response("200 OK", PLAIN)
    return Body(name, CASES[case]())

def raising(*pieces):
    yield from pieces
    raise ValueError("in mid-response")

CASES = {
    "normal": lambda: [HELLO, HELLO],
    "empty": lambda: [],
    "raises": lambda: raising(HELLO, HELLO),
    "raises-first": lambda: raising(),
    "str": lambda: [HELLO, "text"],
    "never-started": lambda: [HELLO],
    "endless": lambda: iter(lambda: bytes(65536), None),
}

def close_raises(environ, start_response):
    start_response("200 OK", PLAIN)
    class Raises(Body):
        def close(self):
            raise ValueError("raised in close()")
    return Raises("", [HELLO, HELLO])

def close_is_none(environ, start_response):
    start_response("200 OK", PLAIN)
    class Odd(Body):
        close = None
    return Odd("", [HELLO])

def close_thread(environ, start_response):
    '''close() runs in the thread of the application.'''
    start_response("200 OK", PLAIN)
    thread = threading.get_ident()
    name = environ["QUERY_STRING"]
    class Here(Body):
        def close(self):
            note(name, thread == threading.get_ident())
    return Here("", [HELLO])
"""

HELLO = b"Hello, World!"
BIG = bytes(range(256)) * 10_000

BODIES = {
    "list": HELLO,
    "tuple": HELLO,
    "set": HELLO,
    "sized": HELLO,
    "two": HELLO * 2,
    "generator": HELLO,
    "map": HELLO * 2,
    "iterator": HELLO,
    "nothing": b"",
    "no-piece": b"",
    "one-empty": b"",
    "empty-pieces": b"",
    "empty-first": HELLO,
    "empty-between": HELLO * 2,
    "many": b"".join(b"%d;" % number for number in range(1000)),
    "big": BIG,
    "big-pieces": BIG,
}


# --- shapes and framing --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", BODIES)
@pytest.mark.parametrize("path", ["/shape", "/bare-shape", "/fixed"])
def test_bodies_of_any_shape(server, shape, path):
    with server.connect() as client:
        for _ in range(2):
            found = client.request(get(f"{path}?{shape}"))
            assert (found.status, found.body) == (200, BODIES[shape])
            assert found.complete
            if path == "/fixed":
                assert found.get("content-length") == str(len(BODIES[shape]))
                assert found.get("transfer-encoding") is None


@pytest.mark.parametrize("shape", ["list", "tuple", "two", "nothing", "one-empty", "big"])
def test_the_length_of_a_short_list_is_known(ours, shape):
    found = ours.get(f"/bare-shape?{shape}")
    assert found.get("content-length") == str(len(BODIES[shape]))
    assert found.get("transfer-encoding") is None


@pytest.mark.parametrize("shape", BODIES)
@pytest.mark.parametrize("path", ["/shape", "/fixed"])
def test_http_1_0(server, shape, path):
    found = server.exchange(f"GET {path}?{shape} HTTP/1.0\r\n\r\n".encode())
    assert (found.status, found.body) == (200, BODIES[shape])
    assert found.get("transfer-encoding") is None


def test_http_1_0_is_kept_alive_if_the_length_is_known(ours):
    data = b"GET %b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    with ours.connect(data % b"/fixed?many") as client:
        found = client.answer()
        assert found.get("connection").lower() == "keep-alive"
        assert client.request(data % b"/bare-shape?list").body == HELLO
        assert client.request(data % b"/shape?many").body == BODIES["many"]
        assert client.ended()


def test_the_client_ends_the_connection(server):
    for path in ("/hello", "/shape?many"):
        with server.connect(get(path, "Connection: close")) as client:
            assert client.answer().get("connection") == "close"
            assert client.ended()


def test_one_piece_and_its_head_are_one_segment(ours):
    with ours.connect() as client:
        before = segments(client.sock)
        assert client.request(get("/bare-shape?list")).body == HELLO
        assert segments(client.sock) - before == 1


def segments(sock):
    """Return the number of segments with data that have come in (tcpi_data_segs_in)."""
    information = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return struct.unpack_from("I", information, 152)[0]


def test_a_large_response_with_a_length_ends_though_the_client_reads_slowly(ours):
    """The iterable is closed, though nothing of the request is left to be sent."""
    name = f"large-{ours.kind}"
    with ours.connect(get(f"/large?{name}")) as client:
        assert client.head().status == 200
        assert len(client.exactly(20_000_000)) == 20_000_000
    assert ours.note(name) == "closed 1"


def test_pipelined_requests_are_answered_in_order(server):
    paths = [*(f"/shape?{shape}" for shape in BODIES), "/hello", "/write"]
    expected = [*BODIES.values(), HELLO, b"by write and return"]
    with server.connect(b"".join(map(get, paths * 2))) as client:
        assert [client.answer().body for _ in paths * 2] == expected * 2


def test_pipelined_posts(server):
    bodies = [b"number %d" % number for number in range(100)]
    with server.connect(b"".join(post("/echo", body) for body in bodies)) as client:
        assert [client.answer().body for _ in bodies] == bodies


def test_start_response_may_be_called_with_the_first_piece(server):
    assert server.get("/lazy").text == "lazy"


@pytest.mark.parametrize(
    ("path", "body"),
    [("/pep-simple", HELLO), ("/pep-class", HELLO), ("/pep-middleware", HELLO.upper())],
)
def test_the_examples_of_pep_3333(server, path, body):
    found = server.get(path)
    assert (found.status, found.body) == (200, body)
    assert found.get("content-type") == "text/plain"


def test_the_example_of_exc_info(server):
    found = server.get("/pep-exc-info")
    assert (found.status, found.reason) == (500, "Something Else")
    assert found.text == "error body goes here"


# --- start_response() ----------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?after-an-empty-piece"])
def test_exc_info_replaces_a_head_that_was_not_sent(ours, query):
    """(gunicorn keeps the first Content-Length, and sends the head with an empty piece.)"""
    found = ours.get(f"/replaced{query}")
    assert (found.status, found.reason, found.text) == (503, "Mended", "mended")
    assert found.get("x-second") == "1"
    assert found.get("x-first") is None
    assert found.get("content-length") in (None, "6")


def test_exc_info_is_raised_after_the_head_was_sent(server):
    found = server.get(f"/too-late?{server.kind}")
    assert (found.status, found.text, found.complete) == (200, "begun", False)
    assert server.note(f"too-late-{server.kind}") == "raised"
    server.wait_for("ValueError: too late")


@pytest.mark.parametrize("path", ["/twice", "/never"])
def test_start_response_is_called_once(server, path):
    found = server.get(path)
    assert found.status == 500
    assert "never sent" not in found.text
    server.wait_for("Error|raise")


def test_no_start_response_and_no_body(ours):
    assert ours.get("/never-empty").status == 500


def test_a_second_start_response_raises_an_assertion_error(server):
    assert server.get("/twice-caught").text == "the first one counts"


@pytest.mark.parametrize("path", ["/none-as-exc-info", "/keywords", "/headers-changed"])
def test_ways_to_call_start_response(server, path):
    found = server.get(path)
    assert (found.status, found.body) == (200, HELLO)
    assert found.get("content-type") == "text/plain"


# --- write() -------------------------------------------------------------------------------------


def test_write(server):
    found = server.get("/write")
    assert (found.status, found.text) == (201, "by write and return")
    found = server.get("/write-only")
    assert (found.get("content-length"), found.text) == ("10", "1234567890")
    assert server.get("/write-big").body == BIG
    assert server.get("/write-later").text == "abc"


def test_write_takes_bytes_only(server):
    fails_before_the_body(server, "/write-str")


# --- responses without a body --------------------------------------------------------------------


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body(server, status):
    with server.connect() as client:
        for path in (f"/status?{status}", f"/with-body?{status}", f"/with-body?{status}&length"):
            found = client.request(get(path))
            assert found.status == status
            assert found.get("transfer-encoding") is None
            if status == 204:
                assert found.get("content-length") is None
        assert client.request(get("/hello")).body == HELLO
    assert server.note(f"with-body-{status}-length").startswith("closed")


@pytest.mark.parametrize("status", [205, 404, 500, 999])
def test_statuses_with_an_empty_body(server, status):
    with server.connect() as client:
        found = client.request(get(f"/status?{status}"))
        assert (found.status, found.reason, found.body) == (status, "Status", b"")
        assert client.request(get("/hello")).body == HELLO


@pytest.mark.parametrize("shape", BODIES)
def test_head(server, shape):
    with server.connect() as client:
        for path in ("/shape", "/fixed"):
            found = client.request(get(f"{path}?{shape}", method="HEAD"), "HEAD")
            assert found.status == 200
            if path == "/fixed":
                assert found.get("content-length") == str(len(BODIES[shape]))
        assert client.request(get("/hello")).body == HELLO


def test_head_and_write(server):
    with server.connect() as client:
        assert client.request(get("/write", method="HEAD"), "HEAD").status == 201
        assert client.request(get("/hello")).body == HELLO


@pytest.mark.parametrize("status", [100, 101, 103, 199])
def test_an_interim_status_is_no_response(ours, status):
    """A client would go on waiting for the response."""
    assert ours.get(f"/interim?{status}").status == 500


# --- lengths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [2, 3, 100])
def test_more_than_was_announced_is_not_sent(server, pieces):
    """The rest would be the beginning of the next response."""
    size = 5 * pieces - 3
    name = f"more-{server.kind}-{pieces}"
    with server.connect(get(f"/length?{size}&{pieces}&{name}")) as client:
        found = client.answer()
        assert found.body == (b"12345" * pieces)[:size]
        assert client.quiet()
    assert server.note(name) == "closed 1"


def test_more_by_write_than_was_announced_is_not_sent(server):
    with server.connect(get("/length-write")) as client:
        assert client.answer().text == "1234567"
        assert client.quiet()


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_less_than_was_announced_ends_the_connection(ours, pieces):
    name = f"less-{ours.kind}-{pieces}"
    with ours.connect(get(f"/length?20&{pieces}&{name}")) as client:
        if pieces:
            found = client.answer()
            assert (found.body, found.complete) == (b"12345" * pieces, False)
        else:  # nothing was sent: the response may be an error instead
            found = client.answer()
            assert found.status == 500 or not found.complete
        assert client.ended()
    assert ours.note(name) == "closed 1"
    ours.wait_for("Content-Length")


@pytest.mark.parametrize(
    "wrong",
    ["str", "bare-str", "bare-bytes", "none", "int", "list-of-none", "list-of-int", "nested"],
)
def test_what_is_no_body_is_a_500(server, wrong):
    fails_before_the_body(server, f"/wrong?{wrong}")


def fails_before_the_body(server, path):
    """Send a request that is answered 500. gunicorn has sent the head, and cuts the response."""
    found = server.get(path)
    if server.kind == "gunicorn" and found.status == 200:
        assert (found.body, found.complete) == (b"", False)
    else:
        assert found.status == 500
        assert "Error:" not in found.text
    server.wait_for("TypeError")


@pytest.mark.parametrize("wrong", ["late-str", "late-int"])
def test_what_is_no_body_after_the_first_piece_cuts_the_response(server, wrong):
    found = server.get(f"/wrong?{wrong}")
    assert (found.status, found.text, found.complete) == (200, "begun", False)
    server.wait_for("TypeError")


# --- close() -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["normal", "empty", "raises", "raises-first", "str"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_iterable_is_closed_once(server, case, method):
    name = f"close-{server.kind}-{case}-{method}"
    server.exchange(get(f"/closing?{case}&{name}", method=method), method)
    assert server.note(name) == "closed 1"


def test_the_iterable_is_closed_without_a_start_response(server):
    name = f"close-{server.kind}-never-started"
    assert server.get(f"/closing?never-started&{name}").status == 500
    assert server.note(name) == "closed 1"


def test_the_iterable_is_closed_when_the_client_goes(server):
    for number in range(6):  # more than there are threads
        name = f"gone-{server.kind}-{number}"
        with server.connect(get(f"/closing?endless&{name}")) as client:
            assert client.head().status == 200
            client.exactly(1_000_000)
        assert server.note(name) == "closed 1"


def test_close_that_raises_is_logged_and_the_response_is_whole(server):
    with server.connect() as client:
        assert client.request(get("/close-raises")).body == HELLO * 2
    server.wait_for(r"ValueError: raised in close\(\)")
    assert server.get("/hello").body == HELLO


def test_close_runs_in_the_thread_of_the_application(server):
    server.get(f"/close-thread?thread-{server.kind}")
    assert server.note(f"thread-{server.kind}") == "True"


def test_many_connections(server):
    """There are many more connections than threads at the same time."""
    clients = [server.connect(get("/shape?big-pieces" if n % 2 else "/hello")) for n in range(30)]
    for number, client in enumerate(clients):
        with client:
            assert client.answer().body == (BIG if number % 2 else HELLO)
    assert os.path.exists(f"/proc/{server.pid}")
