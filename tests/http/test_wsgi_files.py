# SPDX-License-Identifier: GPL-2.0-only
"""Files that WSGI applications return by wsgi.file_wrapper, over real connections."""

import pytest
from wsgi_servers import get

HELLO = b"Hello, World!"
BIG = bytes(range(256)) * 10_000

APPLICATION = r"""
import io, tempfile

HELLO = b"Hello, World!"
BIG = bytes(range(256)) * 10_000

def hello(environ, start_response):
    return answer(start_response, HELLO)

# --- files ---

def file(environ, start_response):
    offset, length, name = environ["QUERY_STRING"].split("&")
    stream = tempfile.TemporaryFile()
    stream.write(BIG)
    stream.seek(int(offset))
    headers = [*PLAIN, ("Content-Length", length)] if length else PLAIN
    start_response("200 OK", headers)
    original = stream.close
    wrapped = environ["wsgi.file_wrapper"](Noted(stream, name), 50_000)
    return wrapped

class Noted:
    '''A file that notes its close().'''

    def __init__(self, stream, name):
        self.stream, self.name = stream, name

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def close(self):
        self.stream.close()
        note(self.name, "closed")

def memory_file(environ, start_response):
    start_response("200 OK", PLAIN)
    return environ["wsgi.file_wrapper"](io.BytesIO(BIG))

@checked
def file_iterated(environ, start_response):
    '''Middleware may iterate what the wrapper returns.'''
    start_response("200 OK", PLAIN)
    wrapped = environ["wsgi.file_wrapper"](io.BytesIO(b"abcdefgh"), 3)
    return (piece + b"|" for piece in wrapped)

@checked
def file_example(environ, start_response):
    '''The example of PEP 3333, which has a fallback.'''
    filelike, block_size = io.BytesIO(BIG), 4096
    start_response("200 OK", PLAIN)
    if "wsgi.file_wrapper" in environ:
        return environ["wsgi.file_wrapper"](filelike, block_size)
    return iter(lambda: filelike.read(block_size), b"")

def file_grows_short(environ, start_response):
    '''A file that is shorter than announced.'''
    stream = tempfile.TemporaryFile()
    stream.write(b"12345")
    stream.seek(0)
    start_response("200 OK", [*PLAIN, ("Content-Length", "10")])
    return environ["wsgi.file_wrapper"](stream)
"""


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, None), (0, len(BIG)), (1000, None), (1000, len(BIG) - 1000), (1000, 5000), (0, 0)],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_files(server, offset, length, method):
    name = f"file-{server.kind}-{offset}-{length}-{method}"
    path = f"/file?{offset}&{'' if length is None else length}&{name}"
    expected = BIG[offset:][:length]
    with server.connect() as client:
        found = client.request(get(path, method=method), method)
        assert found.status == 200
        assert found.body == (expected if method == "GET" else b"")
        if length is not None:
            assert found.get("content-length") == str(len(expected))
        assert client.request(get("/hello")).body == HELLO
    assert server.note(name) == "closed"


def test_files_for_http_1_0(server):
    name = f"file-{server.kind}-1.0"
    found = server.exchange(f"GET /file?10&&{name} HTTP/1.0\r\n\r\n".encode())
    assert found.body == BIG[10:]
    assert server.note(name) == "closed"


@pytest.mark.parametrize("path", ["/memory-file", "/file-example"])
def test_files_that_are_none(server, path):
    assert server.get(path).body == BIG


def test_a_file_that_middleware_iterates(server):
    assert server.get("/file-iterated").text == "abc|def|gh|"


def test_a_client_that_goes_while_a_file_is_sent(server):
    for number in range(6):
        name = f"file-gone-{server.kind}-{number}"
        with server.connect(get(f"/file?0&&{name}")) as client:
            client.head()
        assert server.note(name) == "closed"


def test_a_file_that_is_shorter_than_announced(ours):
    with ours.connect(get("/file-grows-short")) as client:
        found = client.answer()
        assert found.status == 500 or (found.text, found.complete) == ("12345", False)
        assert client.ended()
