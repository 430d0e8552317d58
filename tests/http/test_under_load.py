# SPDX-License-Identifier: GPL-2.0-only
"""Processes that end or are replaced while clients send requests: no request fails.

The application is ASGI, or WSGI on the loop's thread or in a pool of threads.
"""

import re
import signal
import threading
import time

import pytest
from commands import PATIENCE, wait_gone, write_app
from support import eventually
from wsgi_servers import Client, post

pytestmark = pytest.mark.timeout(4 * PATIENCE)

#: Seconds for a shutdown in which no deadline passes, on a loaded machine.
SOON = 7.0

WSGI = """
import wsgi_apps

VERSION = 1

def app(environ, start_response):
    if environ["PATH_INFO"] == "/version":
        return wsgi_apps.common.answer(start_response, str(VERSION))
    return wsgi_apps.app(environ, start_response)
"""

ASGI = """
import atexit, os

VERSION = 1
atexit.register(print, "the interpreter has ended", flush=True)

async def app(scope, receive, send):
    assert scope["type"] == "http"
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    if scope["path"] == "/version":
        body = b"%d" % VERSION
    headers = [(b"content-length", b"%d" % len(body)), (b"x-pid", b"%d" % os.getpid())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""


@pytest.fixture(params=["asgi", "inline", "threads"])
def serve(request, start, tmp_path):
    """Return a function that starts a server of the application in main.py."""
    write_app(tmp_path, ASGI if request.param == "asgi" else WSGI)
    return lambda *options: start(*options, kind=request.param, app="main:app")


class Load:
    """Clients that send requests, one after another, until the block ends. No request may fail.

    A connection may end between requests, or after a response that announced it. With
    `until_refused` a client ends when a connection ends before a response has begun.
    """

    def __init__(self, address, clients=4, until_refused=False):
        self.address = address
        self.until_refused = until_refused
        self.going = threading.Event()
        self.failures = []
        self.processes = set()
        self.counts = [0] * clients
        self.threads = [
            threading.Thread(target=self.run, args=(number,)) for number in range(clients)
        ]

    def run(self, number):
        try:
            while not self.going.is_set():
                self.use_connection(number)
        except (ConnectionError, EOFError) as exc:
            # EOFError: the connection ended before the response to a request began.
            if not self.until_refused:
                self.failures.append(exc)
        except Exception as exc:
            self.failures.append(exc)

    def use_connection(self, number):
        with Client(self.address) as client:
            for turn in range(20):
                if self.going.is_set() or (turn and not self.open(client)):
                    return
                body = b"x" * (turn * 1000)
                client.send(post("/echo", body))
                found = client.answer()
                assert (found.status, found.body, found.complete) == (200, body, True), found
                self.processes.add(int(found.get("x-pid")))
                self.counts[number] += 1
                if found.get("connection") == "close":
                    return

    @staticmethod
    def open(client):
        client.sock.setblocking(False)
        try:
            return bool(client.sock.recv(1))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        finally:
            client.sock.settimeout(PATIENCE)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc_info):
        self.going.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        if exc_info[0] is None:
            assert not self.failures
            # A server that ends at a limit may not have served all clients.
            assert self.until_refused or min(self.counts) > 0

    def answered_by(self, number):
        """Wait until `number` processes have answered."""
        eventually(lambda: len(self.processes) >= number or self.failures)

    def each_answered(self, number):
        """Wait until each client has `number` responses."""
        eventually(lambda: min(self.counts) >= number or self.failures)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_cuts_no_request(serve, number):
    server = serve()
    with Load(server.address, until_refused=True) as load:
        load.each_answered(10)
        begun = time.monotonic()
        assert server.stop(number) == 0, server.output
        assert time.monotonic() - begun < SOON
    assert "the interpreter has ended" in server.output
    assert "Traceback" not in server.output


def test_sighup_under_load_fails_no_request(serve):
    server = serve("--workers", 2)
    server.wait_for("is ready")
    with Load(server.address) as load:
        for _ in range(2):
            server.send(signal.SIGHUP)
            server.wait_for("All workers have been restarted")
        load.answered_by(4)
    pids = [int(pid) for pid in re.findall(r"Worker \[(\d+)\] is ready", server.output)]
    assert len(set(pids)) == 6
    for pid in pids[:4]:
        wait_gone(pid)
    assert {int(server.get("/echo").get("x-pid")) for _ in range(20)} <= set(pids[4:])
    assert server.stop() == 0
    assert "Traceback" not in server.output


def test_recycling_under_load_fails_no_request(serve):
    server = serve("--workers", 2, "--limit-max-requests", 100)
    with Load(server.address) as load:
        load.answered_by(6)
    assert server.stop() == 0
    assert "reached limit_max_requests (100)" in server.output
    assert "Traceback" not in server.output


def test_a_single_process_ends_at_its_limit(serve):
    server = serve("--limit-max-requests", 50)
    with Load(server.address, until_refused=True):
        assert server.end() == 0
    assert "Traceback" not in server.output


def test_threads_of_loops_serve_side_by_side(serve):
    server = serve("--threads", 2)
    with Load(server.address, clients=6) as load:
        load.each_answered(30)
    assert server.stop() == 0, server.output


def test_a_reload_under_load_fails_no_request(serve, tmp_path):
    server = serve("--reload", "--reload-delay", 0.05)
    with Load(server.address) as load:
        load.answered_by(1)
        for number in (2, 3):
            code = (tmp_path / "main.py").read_text()
            write_app(tmp_path, code.replace(f"VERSION = {number - 1}", f"VERSION = {number}"))
            load.answered_by(number)
    assert server.get("/version").text == "3"
    assert server.stop(signal.SIGINT) == 0
    assert "Traceback" not in server.output
