# SPDX-License-Identifier: GPL-2.0-only
"""wsgi.input over real connections: what an application reads of a request's body, and when."""

import contextlib
import os
import threading

import pytest
from support import eventually
from wsgi_servers import chunked, get, post

BODY = os.urandom(3_000_000)
TEXT = b"one\ntwo two\n\nthree\r\nlast"


@pytest.fixture
def server(every_server):
    return every_server


@pytest.fixture(params=["length", "chunks"])
def send(request):
    """Return a function that makes a request with a body, of a known length or chunked."""
    if request.param == "length":
        return lambda path, body: post(path, body)
    return lambda path, body: chunked(
        path, *(body[start : start + 70_000] for start in range(0, len(body), 70_000))
    )


@pytest.mark.parametrize("size", [0, 1, 65_536, 100_000, 1 << 20, (1 << 20) + 1, len(BODY)])
@pytest.mark.parametrize("path", ["/echo", "/read-all"])
def test_a_body_is_read(server, send, size, path):
    with server.connect() as client:
        sender = threading.Thread(target=client.send, args=(send(path, BODY[:size]),))
        sender.start()
        found = client.answer()
        sender.join()
        assert (found.status, found.body) == (200, BODY[:size])
        if server.kind != "gunicorn":  # which closes the connection after some
            assert client.request(get("/nothing")).text == "nothing read"


@pytest.mark.parametrize(
    ("body", "size"), [(TEXT, 1), (TEXT, 3), (TEXT, 24), (TEXT, 100), (BODY, 100_000)]
)
def test_a_body_is_read_in_pieces_and_never_past_its_end(server, send, body, size):
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    with server.connect(send(f"/pieces?{size}", body) + get("/nothing")) as client:
        assert client.answer().body == b"|".join(pieces)
        assert client.answer().text == "nothing read"


@pytest.mark.parametrize("path", ["/lines", "/readlines"])
def test_a_body_is_read_by_lines(server, send, path):
    assert server.exchange(send(path, TEXT)).body == b"one\n|two two\n|\n|three\r\n|last"


def test_lines_have_a_greatest_size(server, send):
    body = server.exchange(send("/readline?2,-1,3,100,100,0,100,100,100", TEXT)).body
    assert body == b"on|e\n|two| two\n|\n||three\r\n|last|"


def test_ways_of_reading_are_mixed(server, send):
    body = server.exchange(send("/mixed", b"a\nbcdefg\nh\ni\njk")).body
    # PEP 3333 lets servers ignore the hint of readlines(), as gunicorn does.
    rest = b"h\n|i\n|jk|" if server.kind == "gunicorn" else b"h\n|i\njk"
    assert body == b"a\n|bc|de|fg\n|" + rest


def test_long_lines(server, send):
    body = b"a" * 100_000 + b"\n" + b"b" * 200_000 + b"\n\n" + b"c" * 70_000
    assert server.exchange(send("/readlines", body)).body == body.replace(b"\n", b"\n|")


@pytest.mark.parametrize("size", [10, 300_000, 3_000_000])
@pytest.mark.parametrize("path", ["/nothing", "/half"])
def test_a_body_that_the_application_leaves(server, path, size):
    """The next request on the connection is answered, if the server has the body.

    mgloop reads at most 1 MiB of a streamed body to reach the next request.
    """
    expected = b"nothing read" if path == "/nothing" else BODY[: size // 2]
    with server.connect() as client:
        for _ in range(3):
            sender = threading.Thread(target=send_quietly, args=(client, post(path, BODY[:size])))
            sender.start()
            found = client.answer()
            sender.join()
            assert found.status == 200
            if server.kind == "gunicorn":
                # It closes the socket although the kernel has data that was not read. The kernel
                # then resets the connection and discards the end of a response that it has not
                # sent yet.
                assert found.body == expected or (not found.complete and size > 10)
                break
            assert found.body == expected
            if server.kind == "streaming" and size > 1 << 20:
                assert client.ended()
                break
    assert server.get("/nothing").text == "nothing read"


def send_quietly(client, data):
    with contextlib.suppress(ConnectionError):
        client.send(data)


@pytest.mark.parametrize("path", ["/by-write", "/lazily"])
def test_the_body_is_read_while_the_response_is_written(server, send, path):
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    end = b"." if path == "/by-write" else b""
    assert server.exchange(send(path, lines)).body == lines + end


def test_a_large_body_is_echoed_while_it_is_read(server):
    """The server must not wait for the client to read before it has all of the body."""
    lines = (b"x" * 99 + b"\n") * 20_000
    with server.connect() as client:
        sender = threading.Thread(target=client.send, args=(post("/lazily", lines),))
        sender.start()
        assert client.answer().body == lines
        sender.join()


def test_trailers_and_extensions_of_chunks_are_not_the_body(server):
    data = get("/echo", "Transfer-Encoding: chunked", "Trailer: X-A", method="POST")
    data += b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nX-A: b\r\n\r\n"
    with server.connect(data + get("/nothing")) as client:
        assert client.answer().body == b"abcde"
        assert client.answer().text == "nothing read"


def test_the_body_comes_byte_by_byte(server):
    data = chunked("/echo", b"abc", b"de")
    with server.connect() as client:
        for number in range(len(data)):
            client.send(data[number : number + 1])
        assert client.answer().body == b"abcde"


@pytest.mark.parametrize("path", ["/echo", "/nothing"])
def test_expect_continue(server, path):
    with server.connect() as client:
        client.send(get(path, "Content-Length: 5", "Expect: 100-continue", method="POST"))
        found = client.head()
        if server.kind != "gunicorn":
            unread = server.kind == "streaming" and path == "/nothing"
            assert found.status == (200 if unread else 100)
        if found.status == 100:
            client.send(b"12345")
            found = client.answer()
        else:  # the application has answered without the body
            assert path == "/nothing"
            found.body = client.exactly(int(found.get("content-length")))
        assert found.text == {"/echo": "12345", "/nothing": "nothing read"}[path]


def test_a_body_that_does_not_wait_for_continue(server):
    data = post("/echo", b"12345", "Expect: 100-continue")
    with server.connect(data + get("/nothing")) as client:
        found = client.answer()
        while found.status == 100:
            found = client.answer()
        assert found.text == "12345"
        assert client.answer().text == "nothing read"


# --- bodies that do not come ---------------------------------------------------------------------


@pytest.mark.parametrize("rest", [b"not as many", b""], ids=["in-the-body", "after-the-head"])
def test_a_body_that_is_cut_short_does_not_start_the_application(ours, rest):
    name = f"short-{ours.kind}-{len(rest)}"
    with ours.connect() as client:
        client.send(get(f"/begun?{name}", "Content-Length: 1000", method="POST") + rest)
    assert ours.get(f"/has?{name}").text == "no such note"
    assert not ours.get(f"/has?{name}-read").text.isdigit()


def test_the_whole_body_starts_the_application(ours):
    name = f"whole-{ours.kind}"
    with ours.connect(get(f"/begun?{name}", "Content-Length: 4", method="POST") + b"12") as client:
        for _ in range(3):
            assert ours.get(f"/has?{name}").text == "no such note"
        client.send(b"34")
        assert client.answer().text == "4"
    assert ours.get(f"/has?{name}").text == "begun"


def test_chunks_that_are_cut_short_do_not_start_the_application(ours):
    name = f"short-chunks-{ours.kind}"
    with ours.connect(chunked(f"/begun?{name}", b"abc", end=b"5\r\nab")) as client:
        assert ours.get(f"/has?{name}").text == "no such note"
        client.sock.shutdown(1)
        client.rest()
    assert ours.get(f"/has?{name}").text == "no such note"


@pytest.mark.parametrize("end", [b"zz\r\n", b"5\r\nabcdefgh", b"-1\r\n", b"0x1\r\na\r\n"])
def test_chunks_that_are_wrong(ours, end):
    found = ours.exchange(chunked("/echo", b"abc", end=end))
    assert found.status == 400


def test_a_body_that_is_too_large(with_options):
    server = with_options("--limit-request-body", "100K")
    assert server.exchange(post("/echo", BODY[: 100 * 1024])).status == 200
    head = get("/echo", "Content-Length: 102401", "Expect: 100-continue", method="POST")
    assert server.exchange(head).status == 413
    with server.connect() as client:
        send_quietly(client, chunked("/echo", BODY[:70_000], BODY[:70_000]))
        assert client.answer().status == 413
    assert server.get("/nothing").text == "nothing read"


def test_large_bodies_leave_no_files(with_options, tmp_path):
    """A body above 1 MiB goes to a file without a name."""
    server = with_options()

    def descriptors():
        return len(os.listdir(f"/proc/{server.pid}/fd"))

    before = descriptors()
    for _ in range(3):
        assert server.exchange(post("/echo", BODY)).body == BODY
    with server.connect(get("/nothing", "Content-Length: 9000000", method="POST")) as client:
        send_quietly(client, BODY)
        assert server.get("/nothing").text == "nothing read"
    # The server may notice a little later that a client has closed its connection.
    eventually(lambda: descriptors() <= before)
    assert not list(tmp_path.iterdir())


def test_a_body_that_cannot_be_stored(with_options, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    server = with_options(env={"TMPDIR": str(folder)})
    assert server.exchange(post("/measured", BODY)).text == f"{len(BODY)} {len(BODY)}"
    folder.rmdir()
    with server.connect() as client:
        send_quietly(client, post("/measured", BODY))
        with contextlib.suppress(EOFError):  # the server closes, though the client still sends
            assert client.answer().status == 507
    server.wait_for("Cannot store a request body.")
    assert server.exchange(post("/measured", b"123")).text == "3 3"


# --- the body as it comes ------------------------------------------------------------------------


def test_the_body_is_read_as_it_comes(streaming):
    with streaming.connect() as client:
        client.send(get("/by-write", "Transfer-Encoding: chunked", method="POST"))
        client.send(b"4\r\none\n\r\n")
        assert client.head().status == 200
        answers = client.chunks()
        assert next(answers) == b"one\n"
        client.send(b"4\r\ntwo\n\r\n0\r\n\r\n")
        assert b"".join(answers) == b"two\n."
    head = get("/first-line", "Content-Length: 1000000", method="POST")
    assert streaming.exchange(head + b"line\n").text == "line\n"


def test_a_client_that_goes_ends_the_reading(streaming):
    for number in range(6):  # more than there are threads
        with streaming.connect() as client:
            head = get(f"/begun?gone-{number}", "Content-Length: 1000", method="POST")
            client.send(head + b"not as many")
            assert streaming.note(f"gone-{number}") == "begun"
        assert streaming.note(f"gone-{number}-read") == "ClientDisconnected"


def test_the_end_of_the_server_ends_the_reading(start):
    server = start("--timeout-graceful-shutdown", 1, kind="streaming")
    with server.connect(get("/begun?stop", "Content-Length: 5", method="POST") + b"12"):
        assert server.note("stop") == "begun"
        assert server.stop() == 0, server.output
    assert "cannot read: ClientDisconnected" in server.output
