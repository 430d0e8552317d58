# SPDX-License-Identifier: GPL-2.0-only
"""Files, early hints, large and streamed bodies, and environs of WSGI, over real connections."""

import contextlib
import http.client
import json
import os
import random
import re
import socket
import ssl

import certificates
import pytest
from commands import Command, UnixConnection, connect, get, write_app

CONTENT = random.Random(1).randbytes(1_500_000)

APPLICATION = """
import io, json, os, sys, threading

CLOSED = threading.Semaphore(0)
kept = None

def bad_hints(environ):
    '''Return values that wsgi.early_hints has to refuse, by their names.'''
    class Liar(str):
        def encode(self, *arguments):
            return b"x\\r\\nX-B: liar"
    def fails():
        yield "X-A", "b"
        raise RuntimeError
    def value(value, name="X-A"):
        return [("X-First", "valid"), (name, value)]
    return {
        "CR LF": value("b\\r\\nX-B: c"), "LF": value("b\\nX-B: c"), "CR": value("b\\rX-B: c"),
        "NUL": value("b\\0c"), "control": value("b\\x07"), "DEL": value("b\\x7f"),
        "response": value("b\\r\\n\\r\\nHTTP/1.1 200 OK\\r\\n"), "bytes LF": value(b"b\\nc"),
        "number": value(1), "None": value(None), "bytearray": value(bytearray(b"b")),
        "beyond latin": value("\\u20ac"), "surrogate": value("\\ud800"), "liar": value(Liar("a")),
        "name with blank": value("b", "X A"), "name with LF": value("b", "X\\nA"),
        "name with colon": value("b", "X:A"), "no name": value("b", ""), "no text": value("b", 1),
        "length": value("1", "Content-Length"), "length in bytes": value("1", b"content-length"),
        "coding": value("chunked", "transfer-encoding"), "connection": value("close", "Connection"),
        "a single": [("X-A",)], "three": [("X-A", "b", "c")], "a str": "ab", "no pairs": [1],
        "nothing": None, "no iterable": 1, "fails": fails(),
    }

class Closing(io.FileIO):
    def close(self):
        if not self.closed:
            CLOSED.release()
        super().close()

def app(environ, start_response):
    path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
    wrapper = environ["wsgi.file_wrapper"]
    if path.startswith("/environ"):
        start_response("200 OK", [])
        return [json.dumps({k: v for k, v in environ.items() if type(v) is str}).encode()]
    if path == "/file":
        kind, position, length = query.split(",")
        headers = [("Content-Length", length)] if length else []
        start_response("200 OK", headers)
        if kind == "memory":
            with open("content", "rb") as file:
                source = io.BytesIO(file.read())
        else:
            file = Closing("content") if kind == "closing" else io.FileIO("content")
            source = io.BufferedReader(file)
        source.read(int(position))
        return wrapper(source)
    if path == "/small":
        start_response("200 OK", [])
        return wrapper(open("small", "rb"))
    if path == "/closed":
        start_response("200 OK", [])
        return [b"%d" % CLOSED.acquire(timeout=20)]
    if path == "/hints":
        hints = environ["wsgi.early_hints"]
        hints([("Link", "</style.css>; rel=preload")])
        hints([(b"X-Bytes", b" value ")])
        start_response("200 OK", [("X-After", "1")])
        def body():
            yield b"first"
            hints([("X-Late", "too late")])
            yield b"second"
        return body()
    if path == "/bad-hints":
        failures = {}
        for name, headers in bad_hints(environ).items():
            try:
                environ["wsgi.early_hints"](headers)
            except Exception as exc:
                failures[name] = type(exc).__name__
        start_response("200 OK", [])
        return [json.dumps(failures).encode()]
    if path == "/hints-within-hints":
        hints = environ["wsgi.early_hints"]
        def outer():
            yield "X-A", "outer"
            hints([("X-B", "inner")])
        hints(outer())
        start_response("200 OK", [("X-C", "final")])
        hints([("X-D", "between")])
        return [b"body"]
    if path == "/hints-of-another-request":
        global kept
        before, kept = kept, environ["wsgi.early_hints"]
        if before is not None:
            before([("X-Late", "1")])
        start_response("200 OK", [])
        return [b"body"]
    if path == "/first-line":
        line = environ["wsgi.input"].readline()
        print("the first line has arrived", file=environ["wsgi.errors"])
        start_response("200 OK", [])
        return [line]
    if path == "/unread":
        start_response("200 OK", [])
        return [b"not read"]
    if path == "/read":
        stream = environ["wsgi.input"]
        if query:
            print("begins to read", file=environ["wsgi.errors"])
        try:
            total = sum(map(len, iter(lambda: stream.read(100_000), b"")))
        except OSError as exc:
            print("cannot read:", type(exc).__name__, file=environ["wsgi.errors"])
            raise
        start_response("200 OK", [])
        return [f"{total} {environ.get('CONTENT_LENGTH')}".encode()]
"""

MODES = {
    "threads": ["--wsgi-threads", 2],
    "inline": ["--wsgi-threads", 0],
    "streaming": ["--wsgi-threads", 2, "--wsgi-stream-input"],
}


@contextlib.contextmanager
def serving(folder, *options, **arguments):
    write_app(folder, APPLICATION)
    (folder / "content").write_bytes(CONTENT)
    (folder / "small").write_bytes(CONTENT[:1000])
    with Command(
        "serve", "main:app", "--interface", "wsgi", "--port", 0, *options, cwd=folder, **arguments
    ) as command:
        yield command


@pytest.fixture(scope="module", params=MODES)
def command(request, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("wsgi"), *MODES[request.param]) as command:
        yield command


@pytest.fixture(scope="module")
def url(command):
    return command.url()


@pytest.fixture(scope="module")
def streaming(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("wsgi"), *MODES["streaming"]) as command:
        yield command, command.url()


def exchange(url, method, path, body=None, headers=(), **how):
    """Send one request on a new connection; return status, headers and body."""
    with contextlib.closing(connect(url)) as connection:
        connection.request(method, path, body, dict(headers), **how)
        response = connection.getresponse()
        return response.status, response.headers, response.read()


@contextlib.contextmanager
def raw(url, data):
    """Send the data; yield the socket, and a binary file for the response."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 30) as sock, sock.makefile("rb") as received:
        sock.sendall(data)
        yield sock, received


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "memory"])
@pytest.mark.parametrize("position", [0, 1000])
@pytest.mark.parametrize("length", [None, 0, 100, 1_400_000])
def test_a_file_is_sent_from_its_position(url, kind, position, length):
    end = len(CONTENT) if length is None else position + length
    path = f"/file?{kind},{position},{'' if length is None else length}"
    status, headers, body = exchange(url, "GET", path)
    assert (status, body) == (200, CONTENT[position:end])
    if kind != "memory":
        assert headers["content-length"] == str(len(body))


def test_a_small_file(url):
    status, headers, body = exchange(url, "GET", "/small")
    assert (status, headers["content-length"], body) == (200, "1000", CONTENT[:1000])


def test_a_file_for_http_10_and_for_head(url):
    with raw(url, b"GET /file?plain,0, HTTP/1.0\r\n\r\n") as (_, received):
        head, _, body = received.read().partition(b"\r\n\r\n")
        assert b"content-length: 1500000" in head
        assert body == CONTENT
    assert exchange(url, "HEAD", "/file?plain,0,1500000")[2] == b""


def test_the_connection_stays_open_after_a_file(url):
    with contextlib.closing(connect(url)) as connection:
        for path in ("/file?plain,0,", "/small", "/file?plain,5,10", "/small"):
            connection.request("GET", path)
            connection.getresponse().read()
        connection.request("GET", "/unread")
        assert connection.getresponse().read() == b"not read"


def test_a_file_is_closed(url):
    exchange(url, "GET", "/file?closing,0,")
    assert get(url, "/closed") == "1"


def test_a_file_that_is_too_short_cuts_the_response(command, url):
    with contextlib.closing(connect(url)) as connection:
        connection.request("GET", "/file?plain,0,2000000")
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            connection.getresponse().read()
    command.wait_for("500000 bytes shorter than its Content-Length")


def test_a_client_that_goes_during_a_file(url):
    for _ in range(8):
        with raw(url, b"GET /file?plain,0, HTTP/1.1\r\nHost: a\r\n\r\n") as (_, received):
            received.read(1000)
    assert get(url, "/unread") == "not read"


# --- early hints ---------------------------------------------------------------------------------


def test_early_hints(url):
    with raw(url, b"GET /hints HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") as (_, received):
        first, second, final, body = received.read().split(b"\r\n\r\n", 3)
    assert first == b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload"
    assert second == b"HTTP/1.1 103 Early Hints\r\nX-Bytes: value"
    assert final.startswith(b"HTTP/1.1 200 OK\r\nX-After: 1\r\n")
    assert b"X-Late" not in body
    assert b"first" in body
    assert b"second" in body


def test_early_hints_are_not_sent_to_http_10(url):
    with raw(url, b"GET /hints HTTP/1.0\r\n\r\n") as (_, received):
        assert received.read().startswith(b"HTTP/1.1 200 OK\r\n")


TYPE_ERRORS = {"number", "None", "bytearray", "no text", "no pairs", "nothing", "no iterable"}
OTHER_ERRORS = {"beyond latin": "UnicodeEncodeError", "surrogate": "UnicodeEncodeError"}


def test_invalid_early_hints(url):
    """Nothing of them is sent, and the connection can be used further."""
    request = b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n"
    with raw(url, request % (b"/bad-hints", b"")) as (sock, received):
        assert received.readline() == b"HTTP/1.1 200 OK\r\n"
        head = b"".join(iter(received.readline, b"\r\n"))
        assert b"X-" not in head
        length = int(re.search(rb"content-length: (\d+)", head)[1])
        failures = json.loads(received.read(length))
        sock.sendall(request % (b"/unread", b"Connection: close\r\n"))
        assert received.read().startswith(b"HTTP/1.1 200 OK\r\n")
    assert len(failures) == 30
    for name, failure in failures.items():
        usual = "TypeError" if name in TYPE_ERRORS else "ValueError"
        assert failure == {"fails": "RuntimeError", **OTHER_ERRORS}.get(name, usual), name


def test_early_hints_within_early_hints(url):
    with raw(url, b"GET /hints-within-hints HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") as (
        _,
        received,
    ):
        inner, outer, between, final, body = received.read().split(b"\r\n\r\n")
    assert inner == b"HTTP/1.1 103 Early Hints\r\nX-B: inner"
    assert outer == b"HTTP/1.1 103 Early Hints\r\nX-A: outer"
    assert between == b"HTTP/1.1 103 Early Hints\r\nX-D: between"
    assert final.startswith(b"HTTP/1.1 200 OK\r\nX-C: final\r\n")
    assert body == b"body"


def test_early_hints_of_a_request_that_has_ended(url):
    request = b"GET /hints-of-another-request HTTP/1.1\r\nHost: a\r\n"
    with raw(url, (request + b"\r\n") * 3 + request + b"Connection: close\r\n\r\n") as (
        _,
        received,
    ):
        answers = received.read()
    assert answers.count(b"HTTP/1.1 200 OK") == 4
    assert b"103" not in answers
    assert b"X-Late" not in answers


CHUNKED = (
    b"POST /read HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
)

# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 100_000, 3_000_000])
def test_a_body_with_a_length(url, length):
    body = exchange(url, "POST", "/read", bytes(length))[2]
    assert body == b"%d %d" % (length, length)


@pytest.mark.parametrize("count", [0, 1, 3, 60])
def test_a_chunked_body(url, count):
    body = exchange(url, "POST", "/read", [bytes(50_000)] * count, encode_chunked=True)[2]
    assert body.split()[0] == b"%d" % (50_000 * count)


def test_the_length_of_a_chunked_body_is_known_once_it_has_arrived(url, request):
    with raw(url, CHUNKED) as (sock, received):
        sock.sendall(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        length = received.read().split()[-1]
    # A streamed body may not have arrived when the application starts.
    assert length == b"5" or (length == b"None" and "streaming" in request.node.name)


def test_a_body_that_the_client_sends_after_100_continue(url):
    head = b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    with raw(url, head) as (sock, received):
        assert received.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert received.readline() == b"\r\n"
        sock.sendall(b"12345")
        assert received.readline() == b"HTTP/1.1 200 OK\r\n"


def test_an_unread_body(url):
    with contextlib.closing(connect(url)) as connection:
        for _ in range(3):
            connection.request("POST", "/unread", bytes(300_000))
            assert connection.getresponse().read() == b"not read"


def test_a_body_that_cannot_be_stored(tmp_path):
    missing = str(tmp_path / "temporary")
    os.mkdir(missing)
    with serving(tmp_path, env={"TMPDIR": missing}) as command:
        url = command.url()
        assert exchange(url, "POST", "/read", bytes(3_000_000))[0] == 200
        os.rmdir(missing)
        with contextlib.closing(connect(url)) as connection:
            with contextlib.suppress(ConnectionError):
                connection.request("POST", "/read", bytes(3_000_000))
            with contextlib.suppress(ConnectionError):
                assert connection.getresponse().status == 507
        command.wait_for("Cannot store a request body.")
        assert exchange(url, "POST", "/read", b"123")[2] == b"3 3"


def test_a_streamed_body_is_read_before_its_end(streaming):
    command, url = streaming
    head = b"POST /first-line HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nline\n"
    with raw(url, head) as (_, received):
        command.wait_for("the first line has arrived")
        assert received.readline() == b"HTTP/1.1 200 OK\r\n"


def test_the_application_of_a_streamed_body_asks_for_it(streaming):
    _, url = streaming
    head = b"POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    with raw(url, head) as (_, received):
        assert received.readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_streamed_body_that_is_cut_short(streaming):
    command, url = streaming
    for _ in range(3):
        with raw(url, b"POST /read?slow HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12"):
            command.wait_for("begins to read")
        command.wait_for("cannot read: ClientDisconnected")
    assert exchange(url, "POST", "/read", b"123")[2] == b"3 3"


def test_shutdown_during_a_streamed_body(tmp_path):
    with serving(tmp_path, *MODES["streaming"], "--timeout-graceful-shutdown", 1) as command:
        url = command.url()
        with raw(url, b"POST /read?slow HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12"):
            command.wait_for("begins to read")
            assert command.stop() == 0
        command.wait_for("cannot read: ClientDisconnected")


# --- environs ------------------------------------------------------------------------------------


def environ(url, target="/environ", *headers, method="GET"):
    lines = [
        f"{method} {target} HTTP/1.1",
        "Host: example:81",
        "Connection: close",
        *headers,
        "",
        "",
    ]
    with raw(url, "\r\n".join(lines).encode("latin-1")) as (_, received):
        return json.loads(received.read().partition(b"\r\n\r\n")[2])


def test_the_path(url):
    told = environ(url, "/environ/%C3%A4%2f%zz?a=%C3%A4#fragment")
    assert told["PATH_INFO"] == "/environ/\xc3\xa4/%zz"
    assert told["QUERY_STRING"] == "a=%C3%A4"
    assert told["RAW_URI"] == told["REQUEST_URI"] == "/environ/%C3%A4%2f%zz?a=%C3%A4#fragment"


def test_a_target_in_absolute_form_replaces_the_host(url):
    told = environ(url, "http://other:82/environ")
    assert (told["HTTP_HOST"], told["PATH_INFO"]) == ("other:82", "/environ")
    assert told["REQUEST_URI"] == "http://other:82/environ"


def test_headers(url):
    told = environ(
        url, "/environ", "X-Two: 1", "Cookie: a=1", "x-two: 1", "COOKIE: b=2", "X-Two: \xe4",
        "X_Two: 5", "X-Strange.Name: 1", "Content-Type: a/b",
    )  # fmt: skip
    assert told["HTTP_X_TWO"] == "1,1,\xe4"
    assert told["HTTP_COOKIE"] == "a=1; b=2"
    assert told["HTTP_X_STRANGE.NAME"] == "1"
    assert told["CONTENT_TYPE"] == "a/b"
    assert "HTTP_CONTENT_TYPE" not in told


def test_the_server_and_the_peer(url):
    told = environ(url)
    assert (told["SERVER_NAME"], told["SERVER_PORT"]) == ("127.0.0.1", url.rpartition(":")[2])
    assert told["REMOTE_ADDR"] == "127.0.0.1"
    assert int(told["REMOTE_PORT"]) > 0
    assert told["wsgi.url_scheme"] == "http"
    assert told["SERVER_SOFTWARE"].startswith("mgloop/")


def test_forwarded_headers(url):
    told = environ(url, "/environ", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: https")
    assert (told["REMOTE_ADDR"], told["REMOTE_PORT"]) == ("1.2.3.4", "")
    assert (told["wsgi.url_scheme"], told["HTTPS"]) == ("https", "on")
    told = environ(url, "/environ", 'Forwarded: for="1.2.3.4:56";proto=https')
    assert (told["REMOTE_ADDR"], told["REMOTE_PORT"], told["HTTPS"]) == ("1.2.3.4", "56", "on")


def test_forwarded_headers_of_others(tmp_path):
    with serving(tmp_path, "--forwarded-allow-ips", "10.0.0.1") as command:
        told = environ(
            command.url(), "/environ", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: https"
        )
    assert told["REMOTE_ADDR"] == "127.0.0.1"
    assert (told["wsgi.url_scheme"], told.get("HTTPS")) == ("http", None)


def test_a_proxy_header(tmp_path):
    with serving(tmp_path, "--proxy-protocol") as command:
        proxy = b"PROXY TCP4 1.2.3.4 5.6.7.8 90 443\r\n"
        request = b"GET /environ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        with raw(command.url(), proxy + request) as (_, received):
            told = json.loads(received.read().partition(b"\r\n\r\n")[2])
    assert (told["REMOTE_ADDR"], told["REMOTE_PORT"]) == ("1.2.3.4", "90")
    assert (told["SERVER_NAME"], told["SERVER_PORT"]) == ("5.6.7.8", "443")


def test_a_unix_socket(tmp_path):
    path = str(tmp_path / "socket")
    with serving(tmp_path, "--uds", path) as command:
        command.wait_for("Serving on")
        with contextlib.closing(UnixConnection(path)) as connection:
            connection.request("GET", "/environ", headers={"Host": "example"})
            told = json.loads(connection.getresponse().read())
    assert (told["SERVER_NAME"], told["SERVER_PORT"]) == ("example", "80")
    assert (told["REMOTE_ADDR"], told["REMOTE_PORT"]) == ("", "")


def test_the_variables_of_tls(tmp_path, certificate_authority):
    certificates.write(tmp_path, certificate_authority)
    (tmp_path / "ca.pem").write_bytes(certificate_authority.cert_pem.bytes())
    options = ["--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem"]
    options += ["--ssl-cert-reqs", 1, "--ssl-ca-certs", "ca.pem"]
    context = certificates.trusting(certificate_authority)
    with serving(tmp_path, *options) as command:
        url = command.url()
        told = json.loads(get(url, "/environ", context=context))
        assert (told["wsgi.url_scheme"], told["HTTPS"]) == ("https", "on")
        assert (told["SSL_PROTOCOL"], told["SSL_CLIENT_VERIFY"]) == ("TLSv1.3", "NONE")
        assert int(told["SSL_CIPHER_USEKEYSIZE"]) >= 128
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        told = json.loads(get(url, "/environ", context=context))
        assert (told["SSL_CLIENT_VERIFY"], told["SSL_CLIENT_SAN_DNS_0"]) == ("SUCCESS", "localhost")
        assert told["SSL_CLIENT_I_DN"]
        assert ssl.PEM_cert_to_DER_cert(told["SSL_CLIENT_CERT"])
        with contextlib.closing(connect(url, context)) as connection:
            connection.request("GET", "/file?plain,1000,100000")
            assert connection.getresponse().read() == CONTENT[1000:101_000]
