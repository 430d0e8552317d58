# SPDX-License-Identifier: GPL-2.0-only
"""Files that WSGI applications return by wsgi.file_wrapper, and early hints."""

import json
import re

import pytest
from wsgi_apps.common import BIG, HELLO
from wsgi_servers import THREADS, get


@pytest.fixture
def server(every_server):
    return every_server


@pytest.mark.parametrize("kind", ["plain", "read", "memory"])
@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, None), (0, len(BIG)), (0, 100), (1000, None), (1000, len(BIG) - 1000), (1000, 5000),
     (0, 0), (1000, 0)],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_file_is_sent_from_its_position(server, kind, offset, length, method):
    name = f"file-{server.kind}-{kind}-{offset}-{length}-{method}"
    if server.kind == "gunicorn" and kind == "read":
        kind = "plain"  # gunicorn takes the position of the descriptor, which is read ahead
    path = f"/file?{kind}&{offset}&{'' if length is None else length}&{name}"
    expected = BIG[offset:][:length]
    with server.connect() as client:
        found = client.request(get(path, method=method), method)
        assert found.status == 200
        assert found.body == (expected if method == "GET" else b"")
        plain = server.kind != "gunicorn" and kind != "memory"
        if length is not None or (plain and method == "GET"):
            assert found.get("content-length") == str(len(expected))
        assert client.request(get("/hello")).body == HELLO
    assert server.note(name) == "closed"


def test_files_for_http_1_0(server):
    name = f"file-{server.kind}-1.0"
    found = server.exchange(f"GET /file?plain&10&&{name} HTTP/1.0\r\n\r\n".encode())
    assert found.body == BIG[10:]
    if server.kind != "gunicorn":
        assert found.get("content-length") == str(len(BIG) - 10)
    assert server.note(name) == "closed"


def test_the_connection_stays_open_after_a_file(server):
    with server.connect() as client:
        for _ in range(2):
            assert client.request(get("/small-file")).body == BIG[:1000]
            assert client.request(get("/file?plain&0&&again")).body == BIG
        assert client.request(get("/hello")).body == HELLO


@pytest.mark.parametrize("path", ["/file?memory&0&&none", "/file-example"])
def test_files_that_are_none(server, path):
    assert server.get(path).body == BIG


def test_a_file_that_middleware_iterates(server):
    assert server.get("/file-iterated").text == "abc|def|gh|"


def test_a_client_that_goes_while_a_file_is_sent(server):
    for number in range(2 * THREADS):
        name = f"file-gone-{server.kind}-{number}"
        with server.connect(get(f"/file?plain&0&&{name}")) as client:
            client.head()
        assert server.note(name) == "closed"


def test_a_file_that_is_shorter_than_announced(ours):
    with ours.connect(get("/short-file")) as client:
        found = client.answer()
        assert found.status == 500 or (found.text, found.complete) == ("12345", False)
        assert client.ended()
    ours.wait_for("5 bytes shorter than its Content-Length")


# --- early hints ---------------------------------------------------------------------------------


def test_early_hints(server):
    with server.connect(get("/hints", "Connection: close")) as client:
        first, second, final, body = client.rest().split(b"\r\n\r\n", 3)
    assert first == b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload"
    assert b" ".join(second.split()) == b"HTTP/1.1 103 Early Hints X-Bytes: value"
    assert final.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"X-After: 1" in final.split(b"\r\n")
    assert b"X-Late" not in body
    assert b"first" in body
    assert b"second" in body


def test_early_hints_are_not_sent_to_http_1_0(server):
    with server.connect(b"GET /hints HTTP/1.0\r\n\r\n") as client:
        assert re.match(rb"HTTP/1\.[01] 200 OK\r\n", client.rest())


TYPE_ERRORS = {"number", "None", "bytearray", "no text", "no pairs", "nothing", "no iterable"}
OTHER_ERRORS = {"beyond latin": "UnicodeEncodeError", "surrogate": "UnicodeEncodeError"}


def test_invalid_early_hints(ours):
    """Nothing of them is sent, and the connection can be used further."""
    with ours.connect() as client:
        found = client.request(get("/wrong-hints"))
        assert found.status == 200
        assert not [name for name, _ in found.headers if name.startswith("x-")]
        assert client.request(get("/hello")).body == HELLO
    failures = json.loads(found.body)
    assert len(failures) == 30
    for name, failure in failures.items():
        usual = "TypeError" if name in TYPE_ERRORS else "ValueError"
        assert failure == {"fails": "RuntimeError", **OTHER_ERRORS}.get(name, usual), name


def test_early_hints_within_early_hints(ours):
    with ours.connect(get("/hints-within-hints", "Connection: close")) as client:
        inner, outer, between, final, body = client.rest().split(b"\r\n\r\n")
    assert inner == b"HTTP/1.1 103 Early Hints\r\nX-B: inner"
    assert outer == b"HTTP/1.1 103 Early Hints\r\nX-A: outer"
    assert between == b"HTTP/1.1 103 Early Hints\r\nX-D: between"
    assert final.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nX-C: final\r\n" in final
    assert body == b"body"


def test_early_hints_of_a_request_that_has_ended(ours):
    path = "/hints-of-another-request"
    with ours.connect(get(path) * 3 + get(path, "Connection: close")) as client:
        answers = client.rest()
    assert answers.count(b"HTTP/1.1 200 OK") == 4
    assert b"103" not in answers
    assert b"X-Late" not in answers
