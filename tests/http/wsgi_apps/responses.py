# SPDX-License-Identifier: GPL-2.0-only
"""Applications that respond in all ways that PEP 3333 allows, and in ways that it forbids."""

import io
import json
import sys
import tempfile
from wsgiref.validate import validator

from wsgi_apps.common import BIG, HELLO, PLAIN, Body, answer, generator, note, unchecked


def hello(environ, start_response):
    return answer(start_response, HELLO)


# --- shapes --------------------------------------------------------------------------------------


class Sized(Body):
    def __len__(self):
        return 1


SHAPES = {
    "list": lambda: [HELLO],
    "tuple": lambda: (HELLO,),
    "set": lambda: {HELLO},
    "sized": lambda: Sized("sized", [HELLO]),
    "two": lambda: [HELLO, HELLO],
    "generator": lambda: generator(HELLO),
    "map": lambda: map(bytes, [HELLO, b"", HELLO]),
    "iterator": lambda: iter([HELLO]),
    "nothing": list,
    "no-piece": lambda: generator(),
    "one-empty": lambda: [b""],
    "empty-pieces": lambda: generator(b"", b"", b""),
    "empty-first": lambda: generator(b"", HELLO),
    "empty-between": lambda: generator(HELLO, b"", b"", HELLO, b""),
    "many": lambda: generator(*[b"%d;" % number for number in range(1000)]),
    "big": lambda: [BIG],
    "big-pieces": lambda: (BIG[at : at + 300_000] for at in range(0, len(BIG), 300_000)),
}


def shape(environ, start_response):
    """Answer with one of SHAPES."""
    start_response("200 OK", PLAIN)
    return SHAPES[environ["QUERY_STRING"]]()


#: The same as an iterator: the validator returns one, whatever it gets.
iterated_shape = validator(shape)


@validator
def fixed(environ, start_response):
    """Like iterated_shape, with the Content-Length."""
    body = b"".join(SHAPES[environ["QUERY_STRING"]]())
    start_response("200 OK", [*PLAIN, ("Content-Length", str(len(body)))])
    return SHAPES[environ["QUERY_STRING"]]()


def lazy(environ, start_response):
    """Call start_response() when the first piece is asked for."""

    def pieces():
        start_response("200 OK", PLAIN)
        yield b"lazy"

    return pieces()


# --- the examples of PEP 3333 --------------------------------------------------------------------


def simple_app(environ, start_response):
    """Simplest possible application object"""
    status = "200 OK"
    response_headers = [("Content-type", "text/plain")]
    start_response(status, response_headers)
    return [HELLO]


class AppClass:
    """Produce the same output, but using a class"""

    def __init__(self, environ, start_response):
        self.environ = environ
        self.start = start_response

    def __iter__(self):
        status = "200 OK"
        response_headers = [("Content-type", "text/plain")]
        self.start(status, response_headers)
        yield HELLO


class LatinIter:
    """Transform iterated output to piglatin, if it's okay to do so"""

    def __init__(self, result, transform_ok):
        if hasattr(result, "close"):
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
                if name.lower() == "content-type" and value == "text/plain":
                    transform_ok.append(True)
                    # Strip content-length if present, else it'll be wrong
                    response_headers = [
                        (name, value)
                        for name, value in response_headers
                        if name.lower() != "content-length"
                    ]
                    break
            write = start_response(status, response_headers, exc_info)
            if transform_ok:

                def write_latin(data):
                    write(data.upper())

                return write_latin
            return write

        return LatinIter(self.application(environ, start_latin), transform_ok)


pep_simple = simple_app
pep_class = AppClass
pep_middleware = Latinator(simple_app)


def pep_exc_info(environ, start_response):
    try:
        raise ValueError("before the response")
    except ValueError:
        start_response("500 Something Else", [("content-type", "text/plain")], sys.exc_info())
        return [b"error body goes here"]


def pep_writing(environ, start_response):
    """Use write() and exc_info as the example in "The start_response() Callable" does."""
    try:
        write = start_response("200 Froody", [("content-type", "text/plain")])
        write(b"response ")
        return [b"body"]
    except Exception:
        start_response("500 Oops", [("content-type", "text/plain")], sys.exc_info())
        return [b"error body goes here"]


# --- start_response() ----------------------------------------------------------------------------


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
    """Call start_response() with exc_info after the head was sent, which raises that exception."""
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


@unchecked  # start_response() is not called
def never(environ, start_response):
    return [b"never sent"]


@unchecked  # start_response() is not called
def never_empty(environ, start_response):
    return []


def none_as_exc_info(environ, start_response):
    start_response("200 OK", PLAIN, None)
    return [HELLO]


@unchecked  # arguments of start_response() are positional
def keywords(environ, start_response):
    start_response(status="200 OK", headers=PLAIN, exc_info=None)
    return [HELLO]


def headers_changed(environ, start_response):
    """Go on using the list of headers, as PEP 3333 allows, although the server owns it."""
    headers = [*PLAIN]
    start_response("200 OK", headers)
    headers.clear()
    return [HELLO]


# --- write() -------------------------------------------------------------------------------------


def write(environ, start_response):
    write = start_response("201 Created", PLAIN)
    write(b"by ")
    write(b"")
    write(b"write")
    return [b" and", b" return"]


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


@unchecked  # a body of str
def write_str(environ, start_response):
    write = start_response("200 OK", PLAIN)
    write("text")
    return []


def write_later(environ, start_response):
    """Call write() while the iterable is iterated.

    That is forbidden to applications, not to servers.
    """
    write = start_response("200 OK", PLAIN)

    def pieces():
        write(b"a")
        yield b"b"
        write(b"c")

    return pieces()


# --- no body -------------------------------------------------------------------------------------


def status(environ, start_response):
    """Answer with the status of the query and without a body."""
    code = environ["QUERY_STRING"]
    headers = [] if code in ("204", "304") else PLAIN
    start_response(f"{code} Status", headers)
    return Body(f"status-{code}", [])


def with_body(environ, start_response):
    code, _, name = environ["QUERY_STRING"].partition("&")
    headers = [("Content-Length", "13")] if name == "length" else []
    start_response(f"{code} Status", headers)
    return Body(f"with-body-{code}-{name}", [HELLO])


@unchecked  # a status that no response has
def interim(environ, start_response):
    start_response(f"{environ['QUERY_STRING']} Interim", [])
    return []


# --- lengths -------------------------------------------------------------------------------------


def length(environ, start_response):
    """Announce a length, and send pieces of five bytes."""
    announced, pieces, name = environ["QUERY_STRING"].split("&")
    start_response("200 OK", [*PLAIN, ("Content-Length", announced)])
    return Body(name, [b"12345"] * int(pieces))


def length_list(environ, start_response):
    """Return a list that is longer than announced."""
    start_response("200 OK", [*PLAIN, ("Content-Length", "10")])
    return [b"12345"] * int(environ["QUERY_STRING"])


def length_write(environ, start_response):
    write = start_response("200 OK", [*PLAIN, ("Content-Length", "7")])
    write(b"12345")
    write(b"67890")
    write(b"abcde")
    return []


def large(environ, start_response):
    start_response("200 OK", [*PLAIN, ("Content-Length", "20000000")])
    return Body(environ["QUERY_STRING"], [bytes(20_000_000)])


# --- wrong types ---------------------------------------------------------------------------------

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


@unchecked  # the body has a wrong type
def wrong(environ, start_response):
    start_response("200 OK", PLAIN)
    return WRONG[environ["QUERY_STRING"]]()


# --- close() -------------------------------------------------------------------------------------


def raising(*pieces):
    yield from pieces
    raise ValueError("in mid-response")


CASES = {
    "normal": lambda: [HELLO, HELLO],
    "empty": list,
    "raises": lambda: raising(HELLO, HELLO),
    "raises-first": lambda: raising(),
    "str": lambda: [HELLO, "text"],
    "never-started": lambda: [HELLO],
    "endless": lambda: iter(lambda: bytes(65536), None),
}


def closing(environ, start_response):
    """Answer with an iterable whose close() is noted, in one of CASES."""
    case, _, name = environ["QUERY_STRING"].partition("&")
    if case != "never-started":
        start_response("200 OK", PLAIN)
    return Body(name, CASES[case]())


@unchecked  # a piece of str, or no call of start_response()
def closing_wrong(environ, start_response):
    return closing(environ, start_response)


def close_raises(environ, start_response):
    start_response("200 OK", PLAIN)

    class Raises(Body):
        def close(self):
            raise ValueError("raised in close()")

    return Raises("", [HELLO, HELLO])


# --- statuses and headers ------------------------------------------------------------------------


def sent_status(environ, start_response):
    """Answer with the status that is the body, a JSON value."""
    return answer(start_response, "sent", json.loads(environ["wsgi.input"].read(-1)))


def sent_headers(environ, start_response):
    """Answer with the headers that are the body, a JSON value."""
    headers = map(tuple, json.loads(environ["wsgi.input"].read(-1)))
    return answer(start_response, HELLO, headers=headers)


@unchecked  # no status, or one of bytes, which the body has as a list of their numbers
def wrong_status(environ, start_response):
    status = json.loads(environ["wsgi.input"].read())
    start_response(bytes(status) if isinstance(status, list) else status, PLAIN)
    return [b"sent"]


@unchecked  # headers that the validator rejects
def any_headers(environ, start_response):
    return sent_headers(environ, start_response)


WRONG_HEADERS = {
    "none": lambda: None,
    "str": lambda: "text",
    "bytes-name": lambda: [(b"X-A", "a")],
    "bytes-value": lambda: [("X-A", b"a")],
    "int-value": lambda: [("Content-Length", 13)],
    "none-value": lambda: [("X-A", None)],
    "one": lambda: [("X-A",)],
    "three": lambda: [("X-A", "a", "b")],
    "euro": lambda: [("X-A", "\u20ac")],
    "int": lambda: 5,
}


@unchecked  # headers of a wrong type
def headers_type(environ, start_response):
    start_response("200 OK", WRONG_HEADERS[environ["QUERY_STRING"]]())
    return [HELLO]


# --- files ---------------------------------------------------------------------------------------


class Noted:
    """A file that notes its close()."""

    def __init__(self, stream, name):
        self.stream, self.name = stream, name

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def close(self):
        self.stream.close()
        note(self.name, "closed")


def file_of(content):
    """Return a temporary file with that content, at its beginning."""
    stream = tempfile.TemporaryFile()  # noqa: SIM115 (the server closes it)
    stream.write(content)
    stream.seek(0)
    return stream


def file(environ, start_response):
    """Answer with the rest of a file, or of a stream in memory, from a position."""
    kind, offset, length, name = environ["QUERY_STRING"].split("&")
    stream = io.BytesIO(BIG) if kind == "memory" else file_of(BIG)
    if kind == "read":
        stream.read(int(offset))
    else:
        stream.seek(int(offset))
    start_response("200 OK", [*PLAIN, ("Content-Length", length)] if length else PLAIN)
    return environ["wsgi.file_wrapper"](Noted(stream, name), 50_000)


def small_file(environ, start_response):
    start_response("200 OK", PLAIN)
    return environ["wsgi.file_wrapper"](file_of(BIG[:1000]))


def file_iterated(environ, start_response):
    """Iterate the result of the wrapper, as middleware may do."""
    start_response("200 OK", PLAIN)
    wrapped = environ["wsgi.file_wrapper"](io.BytesIO(b"abcdefgh"), 3)
    return (piece + b"|" for piece in wrapped)


@validator
def file_example(environ, start_response):
    """Use the example of PEP 3333, which has a fallback."""
    filelike, block_size = io.BytesIO(BIG), 4096
    start_response("200 OK", PLAIN)
    if "wsgi.file_wrapper" in environ:
        return environ["wsgi.file_wrapper"](filelike, block_size)
    return iter(lambda: filelike.read(block_size), b"")


def short_file(environ, start_response):
    """Answer with a file that is shorter than announced."""
    start_response("200 OK", [*PLAIN, ("Content-Length", "10")])
    return environ["wsgi.file_wrapper"](file_of(b"12345"))


# --- early hints ---------------------------------------------------------------------------------


def hints(environ, start_response):
    hints = environ["wsgi.early_hints"]
    hints([("Link", "</style.css>; rel=preload")])
    hints([(b"X-Bytes", b" value ")])
    start_response("200 OK", [*PLAIN, ("X-After", "1")])

    def body():
        yield b"first"
        hints([("X-Late", "too late")])
        yield b"second"

    return body()


class Liar(str):
    """Text that encode() turns into other bytes."""

    def encode(self, *arguments):
        return b"x\r\nX-B: liar"


def failing():
    yield "X-A", "b"
    raise RuntimeError


def hint(value, name="X-A"):
    return [("X-First", "valid"), (name, value)]


WRONG_HINTS = {
    "CR LF": hint("b\r\nX-B: c"),
    "LF": hint("b\nX-B: c"),
    "CR": hint("b\rX-B: c"),
    "NUL": hint("b\0c"),
    "control": hint("b\x07"),
    "DEL": hint("b\x7f"),
    "response": hint("b\r\n\r\nHTTP/1.1 200 OK\r\n"),
    "bytes LF": hint(b"b\nc"),
    "number": hint(1),
    "None": hint(None),
    "bytearray": hint(bytearray(b"b")),
    "beyond latin": hint("\u20ac"),
    "surrogate": hint("\ud800"),
    "liar": hint(Liar("a")),
    "name with blank": hint("b", "X A"),
    "name with LF": hint("b", "X\nA"),
    "name with colon": hint("b", "X:A"),
    "no name": hint("b", ""),
    "no text": hint("b", 1),
    "length": hint("1", "Content-Length"),
    "length in bytes": hint("1", b"content-length"),
    "coding": hint("chunked", "transfer-encoding"),
    "connection": hint("close", "Connection"),
    "a single": [("X-A",)],
    "three": [("X-A", "b", "c")],
    "a str": "ab",
    "no pairs": [1],
    "nothing": None,
    "no iterable": 1,
}


def wrong_hints(environ, start_response):
    """Answer with the classes of the exceptions that wrong hints raise."""
    failures = {}
    for name, headers in [*WRONG_HINTS.items(), ("fails", failing())]:
        try:
            environ["wsgi.early_hints"](headers)
        except Exception as exc:
            failures[name] = type(exc).__name__
    return answer(start_response, json.dumps(failures))


def hints_within_hints(environ, start_response):
    hints = environ["wsgi.early_hints"]

    def outer():
        yield "X-A", "outer"
        hints([("X-B", "inner")])

    hints(outer())
    start_response("200 OK", [*PLAIN, ("X-C", "final")])
    hints([("X-D", "between")])
    return [b"body"]


KEPT_HINTS = []


def hints_of_another_request(environ, start_response):
    for hints in KEPT_HINTS:
        hints([("X-Late", "1")])
    KEPT_HINTS[:] = [environ["wsgi.early_hints"]]
    return answer(start_response, "body")
