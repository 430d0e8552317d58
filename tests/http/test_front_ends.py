# SPDX-License-Identifier: GPL-2.0-only
"""Real proxies: no client can make proxy and server count requests differently.

The proxies keep their connections to the server and use them for several clients. If the server
treated bytes as a request that the proxy treats as a body, a later client would get the wrong
response. So each case is followed by requests of other clients, which must get their own responses.

A test is skipped if its proxy is not installed.
"""

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import time

import pytest
from commands import PATIENCE, serve, write_app
from smuggling import CASES

APPLICATION = """
import json

seen = []

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message["body"])
        if not message["more_body"]:
            break
    seen.append(scope["path"])
    told = {"path": scope["path"], "length": length, "client": scope["client"]}
    if scope["path"] == "/seen":
        told["seen"] = seen
    body = json.dumps(told).encode()
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
"""

WSGI_APPLICATION = """
import json
from wsgiref.validate import validator

seen = []

def app(environ, start_response):
    return validator(respond)(environ, start_response)

def respond(environ, start_response):
    length = len(environ["wsgi.input"].read(-1))
    seen.append(environ["PATH_INFO"])
    client = environ["REMOTE_ADDR"], environ["REMOTE_PORT"]
    told = {"path": environ["PATH_INFO"], "length": length, "client": client}
    if environ["PATH_INFO"] == "/seen":
        told["seen"] = seen
    body = json.dumps(told).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("200 OK", headers)
    return [body]
"""

#: Application and options by its interface.
INTERFACES = {
    "ASGI": (APPLICATION, ()),
    "WSGI": (WSGI_APPLICATION, ("--interface", "wsgi", "--wsgi-threads", 2)),
}

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream server {{ server 127.0.0.1:{server}; keepalive 4; }}
    server {{
        listen 127.0.0.1:{front};
        ignore_invalid_headers off;
        underscores_in_headers on;
        location / {{
            proxy_pass http://server;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
        }}
    }}
}}
"""

HAPROXY = """
global
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    option http-keep-alive
    http-reuse always
frontend front
    bind 127.0.0.1:{front}
    option accept-invalid-http-request
    default_backend server
backend server
    server one 127.0.0.1:{server}
"""

CADDY = """
{{
    admin off
    auto_https off
    storage file_system {folder}/caddy
}}
http://:{front} {{
    bind 127.0.0.1
    reverse_proxy 127.0.0.1:{server}
}}
"""

FRONTS = {
    "nginx": (NGINX, ["-c", "{file}", "-p", "{folder}"]),
    "haproxy": (HAPROXY, ["-f", "{file}", "-db"]),
    "caddy": (CADDY, ["run", "--config", "{file}", "--adapter", "caddyfile"]),
}


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextlib.contextmanager
def front_end(name, folder, server):
    """Start a proxy for the server on port `server`; yield the proxy's port."""
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip(f"{name} is not installed")
    settings, arguments = FRONTS[name]
    file = folder / f"{name}.conf"
    # If root starts nginx, its workers run as another user.
    folder.chmod(0o755)
    for _ in range(5):  # another process may get the port first
        front = free_port()
        file.write_text(settings.format(folder=folder, server=server, front=front))
        if name == "nginx" and os.geteuid() == 0:
            file.write_text("user root;" + file.read_text())
        process = subprocess.Popen(
            [program, *(argument.format(file=file, folder=folder) for argument in arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if listens(front, process):
                yield front
                return
        finally:
            process.terminate()
            process.wait(PATIENCE)
    pytest.fail(f"{name} could not be started")


def listens(port, process):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", port)),
        ):
            return True
        time.sleep(0.02)
    return False


def exchange(port, data, patience):
    """Return all data until the other end closes, or is silent for `patience` seconds."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        sock.sendall(data.encode("latin-1"))
        sock.settimeout(patience)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while piece := sock.recv(65536):
                answer += piece
    return answer


def ask(port, path):
    """Return the application's answer to a well-formed request."""
    request = f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = exchange(port, request, PATIENCE)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.fixture(
    scope="module",
    params=itertools.product(FRONTS, INTERFACES),
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def front(request, tmp_path_factory):
    """Return the port of a proxy that forwards to `mgloop serve`."""
    proxy, interface = request.param
    source, options = INTERFACES[interface]
    folder = tmp_path_factory.mktemp(proxy)
    write_app(folder, source)
    with serve(folder, "--no-access-log", "--timeout-keep-alive", 60, *options) as command:
        server = int(command.url().rpartition(":")[2])
        with front_end(proxy, folder, server) as port:
            yield port


numbers = itertools.count()


@pytest.mark.mgloop_only
@pytest.mark.parametrize("case", CASES)
def test_nothing_desynchronises(front, case):
    before = ask(front, "/seen")["seen"].count("/smuggled")
    answer = exchange(front, CASES[case], 0.3)
    for _ in range(4):
        path = f"/probe{next(numbers)}"
        assert ask(front, path)["path"] == path
    # If the proxy itself saw a second request, its sender has received the response.
    smuggled = ask(front, "/seen")["seen"].count("/smuggled") - before
    assert smuggled == answer.count(b'"/smuggled"')


@pytest.mark.mgloop_only
def test_the_proxy_keeps_its_connections(front):
    """Without this the cases above would prove nothing."""
    ends = {tuple(ask(front, "/")["client"]) for _ in range(4)}
    assert len(ends) == 1
