# SPDX-License-Identifier: GPL-2.0-only
"""The statuses and headers of WSGI applications: sent unchanged, or refused."""

import json

import pytest
from wsgi_apps.common import HELLO
from wsgi_servers import get, post

#: A response of a hostile application must not contain this as a line of its own.
INJECTED = "X-Injected"


@pytest.mark.parametrize("reason", ["OK", "Totally Fine", "caf\xe9", "", "a  b"])
def test_the_reason_is_that_of_the_application(server, reason):
    found = server.exchange(post("/sent-status", json.dumps(f"299 {reason}").encode()))
    assert (found.status, found.reason, found.text) == (299, reason, "sent")


@pytest.mark.parametrize(
    "status",
    [
        "200 OK\r\nX-Injected: 1",
        "200 OK\nX-Injected: 1",
        "200 OK\rX-Injected: 1",
        "200 OK\0",
        "200 O\x7fK",
        "200\r\nX-Injected: 1",
        "\r\n200 OK",
        "2000 OK",
        "20 OK",
        "2x0 OK",
        "-20 OK",
        " 200 OK",
        "\u0662\u0660\u0660 OK",
        "200 \u20ac",
        "OK",
        "",
        200,
        None,
        list(b"200 OK"),
    ],
)
def test_statuses_that_are_none(server, status):
    with server.connect() as client:
        found = client.request(post("/wrong-status", json.dumps(status).encode()))
        assert found.status == 500
        assert found.get(INJECTED.lower()) is None
        assert found.get("content-length") is not None
    server.wait_for("Error")


def test_headers_are_those_of_the_application(server):
    headers = [
        *(["X-Name", "a  b"], ["x-name", "c"], ["Set-Cookie", "a=1"], ["Set-Cookie", "b=2"]),
        *(["X-Latin", "caf\xe9 \xff"], ["X-Empty", ""], ["!#$%&'*+-.^_`|~9aZ", "token"]),
        *(["X-Long", "x" * 20_000], ["X-Tab", "a\tb"]),
    ]
    found = server.exchange(post("/any-headers", json.dumps(headers).encode()))
    assert found.status == 200
    expected = [("content-type", "text/plain"), *((name.lower(), v) for name, v in headers)]
    names = {name for name, _ in expected}
    assert [pair for pair in found.headers if pair[0] in names] == expected


def test_headers_keep_their_case(server):
    with server.connect(post("/sent-headers", b'[["X-CaSe", "1"]]')) as client:
        assert b"\r\nX-CaSe: 1\r\n" in client.until(client.head_end)


def test_the_server_adds_date_and_server_once(server):
    found = server.get("/hello")
    assert found.get("date").endswith("GMT")
    assert found.get("server")
    headers = [["Date", "Thu, 01 Jan 1970 00:00:00 GMT"], ["Server", "mine"]]
    found = server.exchange(post("/sent-headers", json.dumps(headers).encode()))
    if server.kind != "gunicorn":  # which ignores them
        assert (found.get("date"), found.get("server")) == (headers[0][1], "mine")


@pytest.mark.parametrize(
    "header",
    [
        ["X-A", "a\r\nX-Injected: 1"],
        ["X-A", "a\nX-Injected: 1"],
        ["X-A", "a\rX-Injected: 1"],
        ["X-A", "a\r\n\r\n<html>"],
        ["X-A", "a\0b"],
        ["X-A", "a\x7f"],
        ["X-A", "a\x01"],
        ["X-A\r\nX-Injected", "1"],
        ["X-A:", "a"],
        ["X A", "a"],
        [" X-A", "a"],
        ["X-A\n", "a"],
        ["", "a"],
        ["X-\xe9", "a"],
        ["Set-Cookie", "a=1\r\nX-Injected: 1"],
    ],
)
def test_headers_that_are_none(server, header):
    with server.connect(post("/any-headers", json.dumps([header]).encode())) as client:
        head = client.until(client.head_end)
        assert head.startswith(b"HTTP/1.1 500 ")
        assert INJECTED.encode() not in head
    server.wait_for("Error|Invalid")


@pytest.mark.parametrize(
    "case",
    [
        *("none", "int", "str", "bytes-name", "bytes-value", "int-value", "none-value"),
        *("one", "three", "euro"),
    ],
)
def test_headers_of_a_wrong_type(server, case):
    assert server.get(f"/headers-type?{case}").status == 500
    server.wait_for("Error|Invalid")


@pytest.mark.parametrize(
    "lengths", [["abc"], ["-1"], ["+13"], ["13, 13"], ["13", "14"], [""], ["1_3"], ["0x0d"]]
)
def test_lengths_that_are_none(ours, lengths):
    headers = [["Content-Length", length] for length in lengths]
    found = ours.exchange(post("/any-headers", json.dumps(headers).encode()))
    assert found.status == 500


@pytest.mark.parametrize(
    "header",
    [
        ["Connection", "keep-alive"],
        ["Transfer-Encoding", "chunked"],
        ["Transfer-Encoding", "gzip"],
        ["Keep-Alive", "timeout=5"],
        ["Upgrade", "h2c"],
        ["TE", "trailers"],
        ["Trailer", "X-A"],
        ["Proxy-Authenticate", "Basic"],
    ],
)
def test_headers_of_the_connection_are_not_the_applications(server, header):
    """PEP 3333 forbids them. The response must be framed by the server alone, or be a 500."""
    with server.connect() as client:
        found = client.request(post("/any-headers", json.dumps([header]).encode()))
        assert len(found.all("transfer-encoding")) + len(found.all("content-length")) == 1
        if found.status == 200:
            assert found.body == HELLO
            assert client.request(get("/hello")).body == HELLO
        else:
            assert found.status == 500
