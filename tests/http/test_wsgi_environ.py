# SPDX-License-Identifier: GPL-2.0-only
"""The environ of a WSGI application: every key, over real connections."""

import contextlib
import json
import ssl

import certificates
import pytest
from commands import connect
from commands import get as fetch
from wsgi_apps.common import BIG
from wsgi_servers import chunked, get, post


@pytest.fixture
def server(every_server):
    return every_server


def strings(server, data):
    """Send a request to /environ; return the values of the environ that are str."""
    found = server.exchange(data)
    assert found.status == 200, found
    return json.loads(found.body)


def test_every_key(server):
    body = b"12345"
    fields = ("Content-Type: a/b; c=d", "X-One: 1", "Accept: */*", "User-Agent: test")
    with server.connect(post("/environ/a%20b?c=%20d&e", body, *fields)) as client:
        port = client.sock.getsockname()[1]
        found = json.loads(client.answer().body)
    software = found.pop("SERVER_SOFTWARE")
    assert software.startswith("gunicorn" if server.kind == "gunicorn" else "mgloop")
    expected = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/environ/a b",
        "QUERY_STRING": "c=%20d&e",
        "RAW_URI": "/environ/a%20b?c=%20d&e",
        "CONTENT_TYPE": "a/b; c=d",
        "CONTENT_LENGTH": "5",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": str(server.address[1]),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_PORT": str(port),
        "HTTP_HOST": "a.example",
        "HTTP_X_ONE": "1",
        "HTTP_ACCEPT": "*/*",
        "HTTP_USER_AGENT": "test",
        "wsgi.url_scheme": "http",
    }
    if server.kind != "gunicorn":
        expected["REQUEST_URI"] = expected["RAW_URI"]  # gunicorn has only RAW_URI
    assert found == expected


def test_types_and_flags(server):
    found = json.loads(server.get("/typed").body)
    assert found["wsgi.version"] == [1, 0]
    assert found["wsgi.multithread"] is (server.kind != "inline")
    assert found["wsgi.multiprocess"] is False
    assert found["wsgi.run_once"] is False
    assert found["wsgi.input_terminated"] is True
    for name in ("wsgi.input", "wsgi.errors", "wsgi.file_wrapper"):
        assert name in found


def test_a_request_without_a_body(server):
    found = strings(server, get("/environ"))
    assert found["QUERY_STRING"] == ""
    # PEP 3333: both may be empty or absent.
    assert not found.get("CONTENT_TYPE")
    assert not found.get("CONTENT_LENGTH")
    assert not [name for name in found if name.startswith("HTTP_CONTENT")]


def test_variables_of_the_process_do_not_get_into_the_environ(server):
    """CGI programs have the request and the process's variables in one place; servers must not."""
    assert set(json.loads(server.get("/process").body).values()) == {None}


def test_the_length_of_a_chunked_body(server):
    """The server has received the whole body, unless the application reads it as it comes."""
    found = strings(server, chunked("/environ", b"abc", b"de")).get("CONTENT_LENGTH")
    if server.kind in ("gunicorn", "streaming"):
        assert found in (None, "5")
    else:
        assert found == "5"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/environ/%C3%A9", "/environ/\xc3\xa9", ""),
        ("/environ/%e2%82%ac?%e2%82%ac", "/environ/\xe2\x82\xac", "%e2%82%ac"),
        ("/environ/%FF%00", "/environ/\xff\0", ""),
        ("/environ/a%2Fb%2f..", "/environ/a/b/..", ""),
        ("/environ/a%0Ab", "/environ/a\nb", ""),
        ("/environ/%zz%2", "/environ/%zz%2", ""),
        ("/environ/a+b?a+b", "/environ/a+b", "a+b"),
        ("/environ/./../x//y", "/environ/./../x//y", ""),
        ("/environ??a?", "/environ", "?a?"),
        ("/environ?", "/environ", ""),
        ("/environ/;p=1?a=%26&b", "/environ/;p=1", "a=%26&b"),
        ("/environ/?a#fragment", "/environ/", "a"),
    ],
)
def test_paths_and_queries(server, target, path, query):
    found = strings(server, get(target))
    assert (found["PATH_INFO"], found["QUERY_STRING"]) == (path, query)
    assert found["RAW_URI"] == target
    if server.kind != "gunicorn":
        assert found["REQUEST_URI"] == target


def test_an_absolute_target(server):
    target = "http://b.example:82/environ/x?y"
    found = strings(server, get(target))
    assert (found["PATH_INFO"], found["QUERY_STRING"]) == ("/environ/x", "y")
    if server.kind != "gunicorn":  # which ignores the host of the target
        assert (found["HTTP_HOST"], found["REQUEST_URI"]) == ("b.example:82", target)


def test_values_are_latin_1(server):
    found = strings(server, get("/environ", "X-Name: caf\xe9 \xff"))
    assert found["HTTP_X_NAME"] == "caf\xe9 \xff"


def test_white_space_around_a_value_is_not_part_of_it(server):
    found = strings(server, get("/environ", "X-Name: \t a  b \t", "X-Empty:"))
    assert (found["HTTP_X_NAME"], found["HTTP_X_EMPTY"]) == ("a  b", "")


def test_headers_that_come_twice_are_joined(server):
    fields = ("X-Name: a", "X-Other: b", "x-name: c", "X_Name: no", "X-NAME: \xe4", "X-A.B: dot")
    found = strings(server, get("/environ", *fields))
    assert found["HTTP_X_NAME"].replace(", ", ",") == "a,c,\xe4"
    assert (found["HTTP_X_OTHER"], found["HTTP_X_A.B"]) == ("b", "dot")


def test_names_that_the_server_knows_and_others(ours):
    """In one read, and in pieces that end in the middle of names and values."""
    long = "X-" + "Long-" * 20 + "Name"
    names = ["ACCEPT", "accept-Encoding", "X-Forwarded-PORT", "X-Mine", long]
    data = get("/environ", *(f"{name}: of {name}" for name in names))
    with ours.connect() as client:
        for size in (len(data), 7):
            for at in range(0, len(data), size):
                client.send(data[at : at + size])
            found = json.loads(client.answer().body)
            for name in names:
                assert found["HTTP_" + name.upper().replace("-", "_")] == f"of {name}"


def test_the_host_of_an_absolute_target_replaces_the_header(ours):
    """RFC 9112, section 3.2.2."""
    assert strings(ours, get("http://b.example/environ"))["HTTP_HOST"] == "b.example"


def test_cookies_that_come_twice_are_joined_as_cookies(ours):
    """RFC 9113, section 8.2.3. (gunicorn joins them with a comma, which is part of the value.)"""
    assert strings(ours, get("/environ", "Cookie: a=1", "COOKIE: b=2"))["HTTP_COOKIE"] == "a=1; b=2"


def test_a_header_with_an_underscore_is_not_taken_for_another(server):
    found = strings(server, get("/environ", "X_User: root", "X-User: nobody", "Y_User: root"))
    assert found["HTTP_X_USER"] == "nobody"
    assert "HTTP_Y_USER" not in found


@pytest.mark.parametrize(
    "name", ["Content_Length", "Content_Type", "Transfer_Encoding", "Script_Name"]
)
def test_a_header_with_an_underscore_is_none_of_cgi(server, name):
    found = server.exchange(get("/environ", f"{name}: 5"))
    if found.status == 200:
        values = json.loads(found.body)
        assert "5" not in values.values()
    else:
        assert found.status >= 400


def test_headers_that_frame_the_body_twice(server):
    found = server.exchange(post("/environ", b"12345", "Content-Length: 6"))
    assert found.status == 400


def test_http_1_0(server):
    found = strings(server, b"GET /environ HTTP/1.0\r\n\r\n")
    assert found["SERVER_PROTOCOL"] == "HTTP/1.0"
    assert "HTTP_HOST" not in found


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "OPTIONS", "PROPFIND"])
def test_methods(server, method):
    data = get("/typed", "Content-Length: 0", method=method)
    assert server.exchange(data).status == 200


def test_each_request_has_an_environ_of_its_own(server):
    with server.connect() as client:
        for _ in range(3):
            assert client.request(get("/changed")).text == "[]"
        found = json.loads(client.request(get("/environ")).body)
    assert (found["wsgi.url_scheme"], found["SERVER_NAME"]) == ("http", "127.0.0.1")


def test_wsgi_errors_is_the_log(server):
    assert server.get("/errors").status == 200
    for text in ("written by write()", "written by writelines()", "written by print(), 20 \u20ac"):
        server.wait_for(text.replace("(", r"\(").replace(")", r"\)"))


@pytest.mark.parametrize("path", ["/uri", "/pep-3333"])
def test_the_address_can_be_rebuilt(server, path):
    assert server.get(f"{path}/a%20b?c=d").text == f"http://a.example{path}/a%20b?c=d"
    host, port = server.address
    found = server.exchange(f"GET {path}/%21 HTTP/1.0\r\n\r\n".encode())
    assert found.text == f"http://{host}:{port}{path}/%21"


# --- servers with options ------------------------------------------------------------------------


def test_the_root_path(with_options):
    """As with ASGI, the proxy has removed it from the target."""
    server = with_options("--root-path", "/mounted")
    found = strings(server, get("/environ/x"))
    assert (found["SCRIPT_NAME"], found["PATH_INFO"]) == ("/mounted", "/environ/x")
    assert found["RAW_URI"] == "/environ/x"
    assert server.get("/uri/y").text == "http://a.example/mounted/uri/y"


def test_a_trusted_proxy(with_options):
    server = with_options("--forwarded-allow-ips", "127.0.0.1")
    fields = ("X-Forwarded-For: 192.0.2.7", "X-Forwarded-Proto: https")
    found = strings(server, get("/environ", *fields))
    assert (found["REMOTE_ADDR"], found["REMOTE_PORT"]) == ("192.0.2.7", "")
    assert (found["wsgi.url_scheme"], found["HTTPS"]) == ("https", "on")
    found = strings(server, get("/environ", 'Forwarded: for="192.0.2.7:56";proto=https'))
    assert (found["REMOTE_ADDR"], found["REMOTE_PORT"]) == ("192.0.2.7", "56")
    assert (found["wsgi.url_scheme"], found["HTTPS"]) == ("https", "on")


def test_a_trusted_proxy_that_adds_lines(with_options):
    """The lines of a client precede those of the proxy."""
    server = with_options("--forwarded-allow-ips", "127.0.0.1")
    fields = ('Forwarded: for="192.0.2.1', "Forwarded: for=192.0.2.7;proto=https", "X-Other: a")
    found = strings(server, get("/environ", *fields))
    assert (found["REMOTE_ADDR"], found["wsgi.url_scheme"]) == ("192.0.2.7", "https")
    assert found["HTTP_FORWARDED"] == 'for="192.0.2.1,for=192.0.2.7;proto=https'


def test_a_proxy_that_is_not_trusted(with_options):
    server = with_options("--forwarded-allow-ips", "192.0.2.1")
    fields = ("X-Forwarded-For: 192.0.2.7", "X-Forwarded-Proto: https")
    found = strings(server, get("/environ", *fields))
    assert (found["REMOTE_ADDR"], found["wsgi.url_scheme"]) == ("127.0.0.1", "http")
    assert "HTTPS" not in found


def test_proxy_protocol(with_options):
    server = with_options("--proxy-protocol")
    line = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n"
    found = strings(server, line + get("/environ"))
    assert (found["REMOTE_ADDR"], found["REMOTE_PORT"]) == ("192.0.2.7", "4711")
    assert (found["SERVER_NAME"], found["SERVER_PORT"]) == ("198.51.100.1", "443")


def test_several_workers_are_several_processes(with_options):
    server = with_options("--workers", 2)
    assert json.loads(server.get("/typed").body)["wsgi.multiprocess"] is True


def test_a_unix_socket(with_options, tmp_path):
    server = with_options("--uds", tmp_path / "a.sock")
    found = strings(server, get("/environ"))
    # PEP 3333: the name and the port are never empty.
    assert (found["SERVER_NAME"], found["SERVER_PORT"]) == (found["HTTP_HOST"], "80")
    assert (found["REMOTE_ADDR"], found["REMOTE_PORT"]) == ("", "")


def test_the_variables_of_tls(start, tmp_path, certificate_authority):
    certificates.write(tmp_path, certificate_authority)
    (tmp_path / "ca.pem").write_bytes(certificate_authority.cert_pem.bytes())
    options = ["--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem"]
    options += ["--ssl-cert-reqs", 1, "--ssl-ca-certs", "ca.pem"]
    context = certificates.trusting(certificate_authority)
    url = start(*options).base
    found = json.loads(fetch(url, "/environ", context=context))
    assert (found["wsgi.url_scheme"], found["HTTPS"]) == ("https", "on")
    assert (found["SSL_PROTOCOL"], found["SSL_CLIENT_VERIFY"]) == ("TLSv1.3", "NONE")
    assert int(found["SSL_CIPHER_USEKEYSIZE"]) >= 128
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    found = json.loads(fetch(url, "/environ", context=context))
    assert (found["SSL_CLIENT_VERIFY"], found["SSL_CLIENT_SAN_DNS_0"]) == ("SUCCESS", "localhost")
    assert found["SSL_CLIENT_I_DN"]
    assert ssl.PEM_cert_to_DER_cert(found["SSL_CLIENT_CERT"])
    with contextlib.closing(connect(url, context)) as connection:
        connection.request("GET", "/file?plain&1000&100000&over-tls")
        assert connection.getresponse().read() == BIG[1000:101_000]
