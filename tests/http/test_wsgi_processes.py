# SPDX-License-Identifier: GPL-2.0-only
"""The processes of WSGI applications: signals, deadlines and wrong options.

test_under_load.py and test_supervisor.py have the tests of replacements and limits.
"""

import contextlib
import re
import signal
import time
from pathlib import Path

import pytest
from commands import PATIENCE, fails, serve, write_app
from commands import get as fetch
from support import eventually, python_path
from wsgi_servers import THREADS, get

pytestmark = pytest.mark.timeout(4 * PATIENCE)

#: Seconds for a shutdown in which no deadline passes, on a loaded machine.
SOON = 7.0


def in_flight(server):
    """Return the number of requests that all processes of the server have in progress."""
    metrics = re.search(r"Serving metrics on (\S+)/metrics", server.output)[1]
    samples = re.findall(r"\nmgloop_http_requests_in_flight{.*} (\d+)", fetch(metrics, "/metrics"))
    return sum(map(int, samples))


# --- deadlines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", [(), ("--workers", 2)])
def test_requests_are_answered_before_the_end(start, tmp_path, number, options):
    """Those in the threads, and those that wait for a thread."""
    server = start("--metrics-port", 0, *options)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect(get("/waits?go"))) for _ in range(THREADS)]
        for _ in clients:
            server.wait_for("begun")
        clients += [stack.enter_context(server.connect(get("/waits?go"))) for _ in range(THREADS)]
        eventually(lambda: in_flight(server) == 2 * THREADS)  # they are in the queue, too
        server.send(number)
        server.wait_for("Shutting down")
        (tmp_path / "go").touch()
        for client in clients:
            assert client.answer().text == "waited"
        assert server.end() == 0, server.output
    assert "Traceback" not in server.output


@pytest.mark.parametrize("path", ["/blocks", "/stalls"])
@pytest.mark.parametrize("options", [(), ("--workers", 2)])
def test_an_application_that_blocks_does_not_hold_up_the_end(start, path, options):
    """A thread cannot be ended; the process can."""
    server = start("--timeout-graceful-shutdown", 0.5, *options)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect(get(path))) for _ in range(2 * THREADS)]
        if path == "/stalls":
            assert clients[0].head().status == 200
        else:
            server.wait_for("begun")
        begun = time.monotonic()
        assert server.stop() == 0, server.output
        assert time.monotonic() - begun < SOON
        for client in clients:
            assert not client.rest().endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("path", "number"), [("/blocks", signal.SIGINT), ("/endless?second", signal.SIGTERM)]
)
def test_a_second_signal_ends_what_blocks(start, path, number):
    """An application, and a thread that waits for a client that does not read."""
    server = start()
    with server.connect(get(path)) as client:
        if path == "/blocks":
            server.wait_for("begun")
        else:
            client.exactly(1000)
        server.send(number)
        server.wait_for("Shutting down")
        server.send(number)
        assert server.end() == 0, server.output


@pytest.mark.parametrize("path", ["/slow-stream", "/endless?closed"])
def test_a_stream_without_an_end_is_closed(with_options, path):
    """One whose client reads, and one whose client does not."""
    server = with_options("--timeout-graceful-shutdown", 0.5)
    with server.connect(get(path)) as client:
        client.until(client.head_end)
        client.until(b"\n")
        begun = time.monotonic()
        assert server.stop() == 0, server.output
        assert time.monotonic() - begun < SOON
        assert not client.rest().endswith(b"0\r\n\r\n")
    assert "the generator was closed" in server.output


def test_a_body_that_does_not_come_does_not_hold_up_the_end(start):
    server = start("--timeout-stream-shutdown", 0.5)
    head = get("/echo", "Content-Length: 1000", method="POST")
    with server.connect(head + b"x") as client:
        server.get("/")
        begun = time.monotonic()
        assert server.stop() == 0, server.output
        assert time.monotonic() - begun < SOON
        assert b" 200 " not in client.rest()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_application_that_signals_its_server(start, name):
    server = start()
    assert server.get(f"/terminates?{name}").text == "answered"
    assert server.end() == 0, server.output


# --- wrong use -----------------------------------------------------------------------------------


ASGI = """
async def app(scope, receive, send):
    pass
"""


@pytest.mark.parametrize(
    "options", [("--wsgi-threads", 4), ("--wsgi-stream-input",)], ids=lambda options: options[0]
)
def test_options_of_wsgi_with_an_asgi_application(tmp_path, options):
    write_app(tmp_path, ASGI)
    lines = fails("serve", "main:app", "--port", 0, *options, cwd=tmp_path, status=2)
    assert options[0] in lines[-1]
    assert "Traceback" not in "\n".join(lines)


@pytest.mark.parametrize("value", ["-1", "x", ""])
def test_numbers_of_threads_that_are_none(tmp_path, value):
    arguments = ("serve", "main:app", "--port", 0, f"--wsgi-threads={value}")
    assert "--wsgi-threads" in fails(*arguments, cwd=tmp_path, status=2)[-1]


def test_the_interface_is_detected(tmp_path):
    write_app(tmp_path, "from wsgi_apps import app")
    env = {"PYTHONPATH": python_path(Path(__file__).parent)}
    with serve(tmp_path, env=env) as command:
        assert fetch(command.url()) == "well"
        assert command.stop() == 0
