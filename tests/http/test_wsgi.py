# SPDX-License-Identifier: GPL-2.0-only
"""WSGI applications in `mgloop serve`: real ones over real connections."""

import contextlib
import http.client
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from commands import Command, connect, get, write_app

BODY = os.urandom(3_000_000)

APPLICATION = """
import json, sys, threading

NOTES = {}
GUARD = threading.Condition()

def note(name, value):
    with GUARD:
        NOTES[name] = value
        GUARD.notify_all()

def app(environ, start_response):
    path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
    plain = [("Content-Type", "text/plain")]
    if path == "/environ":
        start_response("200 OK", plain)
        told = {name: value for name, value in environ.items() if isinstance(value, str)}
        return [json.dumps(told).encode()]
    if path == "/echo":
        body = environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Length", str(len(body))), *plain])
        return [body]
    if path == "/lines":
        start_response("200 OK", plain)
        return [line[::-1] for line in environ["wsgi.input"]]
    if path == "/pieces":
        return pieces(environ, start_response, 10, "pieces")
    if path == "/for-ever":
        return pieces(environ, start_response, None, query)
    if path == "/too-much":
        start_response("200 OK", [("Content-Length", "10")])
        return [b"12345"] * 100
    if path == "/write":
        write = start_response("201 Created", plain)
        write(b"by ")
        write(b"write")
        return [b" and return"]
    if path == "/mended":
        start_response("200 OK", plain)
        return mended(start_response, plain)
    if path == "/raises":
        raise KeyError("secret")
    if path == "/breaks":
        start_response("200 OK", plain)
        return breaks()
    if path == "/swallow":
        try:
            size = len(environ["wsgi.input"].read())
        except OSError as exc:
            note(query, "cut short")
            raise
        note(query, f"{size} bytes")
        start_response("200 OK", [])
        return []
    if path == "/notes":
        with GUARD:
            start_response("200 OK", plain)
            return [json.dumps([name for name in NOTES if name in ("whole", "short")]).encode()]
    if path.startswith("/notes/"):
        with GUARD:
            GUARD.wait_for(lambda: path[7:] in NOTES, 30)
        start_response("200 OK", plain)
        return [NOTES.get(path[7:], "never").encode()]
    start_response("404 Not Found", [])
    return []

def pieces(environ, start_response, count, name):
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    number = 0
    try:
        while count is None or number < count:
            yield b"%d;" % number if count else bytes(65536)
            number += 1
    finally:
        note(name, "closed")

def mended(start_response, headers):
    try:
        raise ValueError("before the first piece")
    except ValueError:
        start_response("500 Mended", headers, sys.exc_info())
    yield b"mended"

def breaks():
    yield b"begun"
    raise ValueError("in mid-response")
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wsgi")
    write_app(folder, APPLICATION)
    with Command(
        "serve", "main:app", "--interface", "wsgi", "--port", 0, "--root-path", "/mounted",
        cwd=folder,
    ) as command:  # fmt: skip
        yield command


@pytest.fixture(scope="module")
def url(command):
    return command.url()


def exchange(url, method, path, body=None, headers=()):
    """Send one request on a new connection; return status, headers and body."""
    with contextlib.closing(connect(url)) as connection:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def test_environ(url):
    headers = {"X-One": "1", "Content-Type": "a/b"}
    status, _, body = exchange(url, "POST", "/environ?a=%20b", b"12345", headers)
    told = json.loads(body)
    port = url.rpartition(":")[2]
    assert status == 200
    expected = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "/mounted",
        "PATH_INFO": "/environ",
        "QUERY_STRING": "a=%20b",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": port,
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_X_ONE": "1",
        "HTTP_HOST": f"127.0.0.1:{port}",
        "CONTENT_TYPE": "a/b",
        "CONTENT_LENGTH": "5",
        "wsgi.url_scheme": "http",
    }
    assert {name: told.get(name) for name in expected} == expected


def test_a_header_with_an_underscore_is_not_taken_for_another(url):
    headers = {"X_User": "root", "X-User": "nobody", "Y_User": "root"}
    told = json.loads(exchange(url, "GET", "/environ", headers=headers)[2])
    assert told["HTTP_X_USER"] == "nobody"
    assert "HTTP_Y_USER" not in told


@pytest.mark.parametrize("body", [b"", b"a", BODY], ids=len)
def test_a_body_is_read(url, body):
    assert exchange(url, "POST", "/echo", body)[2] == body


def test_a_chunked_body_is_read(url):
    pieces = [BODY[:100_000], b"b", BODY[:100_000]]
    assert exchange(url, "POST", "/echo", iter(pieces))[2] == b"".join(pieces)


def test_a_body_is_read_by_lines(url):
    assert exchange(url, "POST", "/lines", b"ab\ncd\nef")[2] == b"\nba\ndcfe"


def test_a_generator_is_streamed_and_closed(url):
    status, headers, body = exchange(url, "GET", "/pieces")
    assert (status, body) == (200, b"0;1;2;3;4;5;6;7;8;9;")
    assert headers["transfer-encoding"] == "chunked"
    assert get(url, "/notes/pieces") == "closed"


def test_write(url):
    status, _, body = exchange(url, "GET", "/write")
    assert (status, body) == (201, b"by write and return")


def test_many_at_once(url):
    """There are more requests than the server has threads."""
    with ThreadPoolExecutor(30) as pool:
        bodies = [BODY[start : start + 100_000] for start in range(30)]
        answers = list(pool.map(lambda body: exchange(url, "POST", "/echo", body)[2], bodies))
    assert answers == bodies


def test_an_error_is_a_500_that_tells_nothing(command, url):
    status, _, body = exchange(url, "GET", "/raises")
    assert (status, body) == (500, b"Internal Server Error")
    command.wait_for("KeyError: 'secret'")


def test_an_error_in_mid_response_cuts_it(command, url):
    with contextlib.closing(connect(url)) as connection:
        connection.request("GET", "/breaks")
        response = connection.getresponse()
        assert response.status == 200
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            response.read()
    command.wait_for("ValueError: in mid-response")


def test_more_than_was_announced_is_an_error(command, url):
    """There are more requests than threads: no thread is lost."""
    for _ in range(12):
        with contextlib.closing(connect(url)) as connection:
            connection.request("GET", "/too-much")
            command.wait_for("Response body longer than its Content-Length; dropped the rest.")
            assert len(connection.getresponse().read()) == 10
    assert exchange(url, "POST", "/echo", b"a")[2] == b"a"


def clients_that_go(url, count):
    """Begin endless downloads, and disconnect."""
    for number in range(count):
        with contextlib.closing(connect(url)) as connection:
            connection.request("GET", f"/for-ever?gone-{number}")
            assert len(connection.getresponse().read(1_000_000)) == 1_000_000
        yield f"gone-{number}"


def test_a_generator_is_closed_when_the_client_goes(url):
    """There are more clients than threads: no thread is lost."""
    for name in clients_that_go(url, 12):
        assert get(url, f"/notes/{name}") == "closed"


def test_the_application_does_not_start_before_the_whole_body_has_arrived(url):
    with contextlib.closing(connect(url)) as connection:
        connection.putrequest("POST", "/swallow?whole")
        connection.putheader("Content-Length", "4")
        connection.endheaders(b"12")
        with contextlib.closing(connect(url)) as short:
            short.putrequest("POST", "/swallow?short")
            short.putheader("Content-Length", "1000")
            short.endheaders(b"not as many")
        assert get(url, "/notes") == "[]"
        connection.send(b"34")
        connection.getresponse().read()
    assert get(url, "/notes/whole") == "4 bytes"
    assert get(url, "/notes") == '["whole"]'


@pytest.mark.parametrize("signals", [1, 2])
def test_it_ends_while_a_generator_is_read(tmp_path, signals):
    write_app(tmp_path, APPLICATION)
    arguments = ("serve", "main:app", "--interface", "wsgi", "--port", 0)
    deadline = ("--timeout-graceful-shutdown", 1) if signals == 1 else ()
    with Command(*arguments, *deadline, cwd=tmp_path) as command:
        url = command.url()
        with contextlib.closing(connect(url)) as connection:
            connection.request("GET", "/for-ever?end")
            assert connection.getresponse().read(1000)
            command.send(signal.SIGTERM)
            command.wait_for("Shutting down")
            if signals == 2:
                command.send(signal.SIGTERM)
            assert command.end() == 0, command.output
