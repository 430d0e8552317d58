# SPDX-License-Identifier: GPL-2.0-only
"""When the loop and the threads of a WSGI application wake each other."""

import asyncio
import contextlib
import socket
import threading
from pathlib import Path

import pytest
from commands import PATIENCE, Command, connect, get, pending, write_app
from sites import Serving
from sites import get as request

from mgloop.http.wire._wsgirequest import WsgiRunner

pytestmark = pytest.mark.timeout(4 * PATIENCE)

APPLICATION = """
import pathlib, time

def app(environ, start_response):
    name = environ["PATH_INFO"][1:]
    if name:
        pathlib.Path(name + ".runs").touch()
        while not pathlib.Path(name + ".ends").exists():
            time.sleep(0.01)
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]
"""


@pytest.fixture
def serve(tmp_path):
    write_app(tmp_path, APPLICATION)

    def serve(threads):
        return Command(
            *("serve", "main:app", "--interface", "wsgi", "--wsgi-threads", threads),
            *("--health-path", "/health", "--port", 0),
            cwd=tmp_path,
        )

    return serve


def wait_for(condition):
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


@pytest.mark.mgloop_only
def test_an_answer_does_not_wait_for_the_next_request_of_its_thread(serve, tmp_path):
    with serve(threads=1) as command, contextlib.ExitStack() as stack:
        url = command.url()
        first, second, third = (
            stack.enter_context(pending(url, path)) for path in ("/first", "/", "/third")
        )
        wait_for((tmp_path / "first.runs").exists)
        for _ in range(2):
            get(url, "/health")  # the loop has queued the other requests by then
        (tmp_path / "first.ends").touch()
        assert first() == second() == (200, "hello")
        wait_for((tmp_path / "third.runs").exists)
        (tmp_path / "third.ends").touch()
        assert third() == (200, "hello")


def voluntary_switches(pid):
    """Return how often the threads of a process have waited for anything."""
    texts = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/status")]
    name = "\nvoluntary_ctxt_switches:"
    return sum(int(text.partition(name)[2].split()[0]) for text in texts)


@pytest.mark.mgloop_only
def test_neither_the_loop_nor_the_thread_waits_for_the_gil(serve):
    requests = 200

    def ask():
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"hello"

    with serve(threads=2) as command, contextlib.closing(connect(command.url())) as connection:
        for _ in range(10):
            ask()
        before = voluntary_switches(command.pid)
        for _ in range(requests):
            ask()
        # The loop waits for the request and for its answer, and the thread for its job.
        assert (voluntary_switches(command.pid) - before) / requests < 3.5


def test_the_application_starts_although_the_loop_stops(loop):
    begun = threading.Semaphore(0)

    def app(environ, start_response):
        begun.release()
        start_response("200 OK", [("Content-Length", "5")])
        return [b"hello"]

    def step():
        loop.call_soon(loop.stop)
        loop.run_forever()

    serving = Serving(loop, app)
    site = serving.site
    site.wsgi = WsgiRunner(site, app, 1)
    loop.run_until_complete(serving.__aenter__())
    with socket.create_connection(("127.0.0.1", serving.port), PATIENCE) as client:
        for number in (1, 2):
            client.sendall(request())
            while site.requests < number:
                step()
            assert begun.acquire(timeout=PATIENCE)
            while site.in_flight:
                loop.run_until_complete(asyncio.sleep(0.01))
            assert client.recv(4096).endswith(b"hello")
    loop.run_until_complete(serving.__aexit__(None))
    site.wsgi.close()
    wait_for(lambda: site.wsgi.threads == 0)
