# SPDX-License-Identifier: GPL-2.0-only
"""The environ of a WSGI application: every key, over real connections."""

import json
import socket

import pytest
from commands import Command, write_app
from wsgi_servers import OURS, PREAMBLE, THREADS, Client, get, post

APPLICATION = """
import json
from wsgiref.util import request_uri

@checked
def environ(environ, start_response):
    assert type(environ) is dict
    found = {name: value for name, value in environ.items() if type(value) is str}
    assert all(max(value, default=" ") <= "\\xff" for value in found.values())
    return answer(start_response, json.dumps(found))

# (The validator replaces wsgi.input and wsgi.errors by wrappers of its own.)
def typed(environ, start_response):
    assert type(environ) is dict
    return answer(start_response, json.dumps({
        name: value if isinstance(value, (bool, tuple)) else type(value).__name__
        for name, value in environ.items()
    }))

@checked
def process(environ, start_response):
    named = {name: environ.get(name) for name in ("PATH", "HOME", "MARK_OF_THE_PROCESS")}
    return answer(start_response, json.dumps(named))

@checked
def changed(environ, start_response):
    '''Change all that can be changed; answer with the names that the request before left.'''
    left = [name for name in environ if name.startswith("left.")]
    environ["left.behind"] = environ["wsgi.url_scheme"] = "gopher"
    environ.pop("SERVER_NAME")
    return answer(start_response, json.dumps(left))

@checked
def errors(environ, start_response):
    stream = environ["wsgi.errors"]
    stream.write("written by write()\\n")
    stream.writelines(["written by ", "writelines()\\n"])
    stream.flush()
    print("written by print(), 20 \\u20ac", file=stream)
    return answer(start_response)

@checked
def uri(environ, start_response):
    return answer(start_response, request_uri(environ))

@checked
def pep_3333(environ, start_response):
    return answer(start_response, pep_3333_url(environ))

def pep_3333_url(environ):
    '''The algorithm of PEP 3333, section "URL Reconstruction".'''
    from urllib.parse import quote

    url = environ["wsgi.url_scheme"] + "://"
    if environ.get("HTTP_HOST"):
        url += environ["HTTP_HOST"]
    else:
        url += environ["SERVER_NAME"]
        if environ["wsgi.url_scheme"] == "https":
            if environ["SERVER_PORT"] != "443":
                url += ":" + environ["SERVER_PORT"]
        elif environ["SERVER_PORT"] != "80":
            url += ":" + environ["SERVER_PORT"]
    url += quote(environ.get("SCRIPT_NAME", ""))
    url += quote(environ.get("PATH_INFO", ""))
    if environ.get("QUERY_STRING"):
        url += "?" + environ["QUERY_STRING"]
    return url
"""


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
    """The server has received the whole body. (gunicorn has not, and sets no length.)"""
    data = get("/environ", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n"
    found = strings(server, data)
    assert found.get("CONTENT_LENGTH") == (None if server.kind == "gunicorn" else "3")


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
    ],
)
def test_paths_and_queries(server, target, path, query):
    found = strings(server, get(target))
    assert (found["PATH_INFO"], found["QUERY_STRING"]) == (path, query)
    assert found["RAW_URI"] == target


def test_an_absolute_target(server):
    found = strings(server, get("http://b.example/environ/x?y"))
    assert (found["PATH_INFO"], found["QUERY_STRING"]) == ("/environ/x", "y")


def test_values_are_latin_1(server):
    found = strings(server, get("/environ", "X-Name: caf\xe9 \xff"))
    assert found["HTTP_X_NAME"] == "caf\xe9 \xff"


def test_white_space_around_a_value_is_not_part_of_it(server):
    found = strings(server, get("/environ", "X-Name: \t a  b \t", "X-Empty:"))
    assert (found["HTTP_X_NAME"], found["HTTP_X_EMPTY"]) == ("a  b", "")


def test_headers_that_come_twice_are_joined(server):
    found = strings(server, get("/environ", "X-Name: a", "X-Other: b", "x-name: c", "X-NAME: d"))
    assert found["HTTP_X_NAME"].replace(", ", ",") == "a,c,d"
    assert found["HTTP_X_OTHER"] == "b"


def test_cookies_that_come_twice_are_joined_as_cookies(ours):
    """RFC 9113, section 8.2.3. (gunicorn joins them with a comma, which is part of the value.)"""
    assert strings(ours, get("/environ", "Cookie: a=1", "Cookie: b=2"))["HTTP_COOKIE"] == "a=1; b=2"


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
    assert (found["REMOTE_ADDR"], found["wsgi.url_scheme"]) == ("192.0.2.7", "https")
    assert found["HTTPS"] == "on"


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


def test_several_workers_are_several_processes(with_options):
    server = with_options("--workers", 2)
    assert json.loads(server.get("/typed").body)["wsgi.multiprocess"] is True


@pytest.mark.parametrize("kind", OURS)
def test_a_unix_socket(kind, tmp_path):
    write_app(tmp_path, PREAMBLE + APPLICATION)
    path = tmp_path / "a.sock"
    arguments = ("serve", "main:app", "--interface", "wsgi", "--uds", path)
    with Command(
        *arguments, "--wsgi-threads", 0 if kind == "inline" else THREADS, cwd=tmp_path
    ) as command:
        command.wait_for("Serving on")
        client = Client.__new__(Client)
        client.sock, client.data = socket.socket(socket.AF_UNIX), bytearray()
        with client:
            client.sock.connect(str(path))
            client.send(get("/environ"))
            found = json.loads(client.answer().body)
        assert found["HTTP_HOST"] == "a.example"
        # PEP 3333: never empty.
        assert found["SERVER_NAME"]
        assert found["SERVER_PORT"]
        assert command.stop() == 0
