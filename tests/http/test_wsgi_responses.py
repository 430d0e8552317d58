# SPDX-License-Identifier: GPL-2.0-only
"""The responses of WSGI applications: start_response(), write(), the iterable and its close(), and
the framing of the body.
"""

import socket
import struct

import pytest
from wsgi_apps.common import BIG, HELLO
from wsgi_servers import THREADS, get, post

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
@pytest.mark.parametrize("path", ["/iterated-shape", "/shape", "/fixed"])
def test_bodies_of_any_shape(server, shape, path):
    with server.connect() as client:
        for _ in range(2):
            found = client.request(get(f"{path}?{shape}"))
            assert (found.status, found.body) == (200, BODIES[shape])
            assert found.complete
            if path == "/fixed":
                assert found.get("content-length") == str(len(BODIES[shape]))
                assert found.get("transfer-encoding") is None
            elif shape == "many":
                assert found.get("transfer-encoding") == "chunked"


@pytest.mark.parametrize("shape", ["list", "tuple", "two", "nothing", "one-empty", "big"])
def test_the_length_of_a_short_list_is_known(ours, shape):
    found = ours.get(f"/shape?{shape}")
    assert found.get("content-length") == str(len(BODIES[shape]))
    assert found.get("transfer-encoding") is None


@pytest.mark.parametrize("shape", BODIES)
@pytest.mark.parametrize("path", ["/iterated-shape", "/shape", "/fixed"])
def test_http_1_0(server, shape, path):
    found = server.exchange(f"GET {path}?{shape} HTTP/1.0\r\n\r\n".encode())
    assert (found.status, found.body) == (200, BODIES[shape])
    assert found.get("transfer-encoding") is None


def test_http_1_0_is_kept_alive_if_the_length_is_known(ours):
    data = b"GET %b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    with ours.connect(data % b"/fixed?many") as client:
        found = client.answer()
        assert found.get("connection").lower() == "keep-alive"
        assert client.request(data % b"/shape?list").body == HELLO
        assert client.request(data % b"/iterated-shape?many").body == BODIES["many"]
        assert client.ended()


def test_the_client_ends_the_connection(server):
    for path in ("/hello", "/iterated-shape?many"):
        with server.connect(get(path, "Connection: close")) as client:
            assert client.answer().get("connection") == "close"
            assert client.ended()


def test_one_piece_and_its_head_are_one_segment(ours):
    with ours.connect() as client:
        before = segments(client.sock)
        assert client.request(get("/shape?list")).body == HELLO
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
    paths = [*(f"/iterated-shape?{shape}" for shape in BODIES), "/hello", "/write"]
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
    [
        ("/pep-simple", HELLO),
        ("/pep-class", HELLO),
        ("/pep-middleware", HELLO.upper()),
        ("/pep-writing", b"response body"),
    ],
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
        for path in ("/iterated-shape", "/shape", "/fixed"):
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


def test_a_list_that_is_longer_than_was_announced(ours):
    for _ in range(2 * THREADS):
        assert ours.get("/length-list?100").text == "1234512345"
        ours.wait_for("Response body longer than its Content-Length; dropped the rest.")


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
def test_an_invalid_body_is_a_500(server, wrong):
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
def test_an_invalid_part_after_the_first_one_cuts_the_response(server, wrong):
    found = server.get(f"/wrong?{wrong}")
    assert (found.status, found.text, found.complete) == (200, "begun", False)
    server.wait_for("TypeError")


# --- close() -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["normal", "empty", "raises", "raises-first", "str"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_iterable_is_closed_once(server, case, method):
    """close() runs in the thread that ran the application (Body)."""
    name = f"close-{server.kind}-{case}-{method}"
    path = "/closing-wrong" if case == "str" else "/closing"
    server.exchange(get(f"{path}?{case}&{name}", method=method), method)
    assert server.note(name) == "closed 1"


def test_the_iterable_is_closed_without_a_start_response(server):
    name = f"close-{server.kind}-never-started"
    assert server.get(f"/closing-wrong?never-started&{name}").status == 500
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


def test_many_connections(server):
    """There are many more connections than threads at the same time."""
    requests = [get("/iterated-shape?big-pieces"), get("/hello"), post("/echo", BIG[:100_000])]
    bodies = [BIG, HELLO, BIG[:100_000]]
    clients = [server.connect(request) for request in requests * 10]
    for client, body in zip(clients, bodies * 10, strict=True):
        with client:
            assert client.answer().body == body
    assert server.process.poll() is None
