# SPDX-License-Identifier: GPL-2.0-only
"""The processes of WSGI applications: signals, deadlines, replacements and limits under load.

test_supervisor.py runs its tests of replacements with a WSGI application, too.
"""

import contextlib
import os
import re
import signal
import threading
import time

import pytest
from commands import PATIENCE, Command, fails, wait_gone, write_app
from commands import get as fetch
from support import eventually
from wsgi_servers import OURS, PREAMBLE, THREADS, Client, WsgiServer, get, post

pytestmark = pytest.mark.timeout(4 * PATIENCE)

#: Seconds for a shutdown in which no deadline passes, on a loaded machine.
SOON = 7.0

APPLICATION = r"""
import atexit

atexit.register(print, "the interpreter has ended", flush=True)

@checked
def index(environ, start_response):
    return answer(start_response, b"%d" % os.getpid())

@checked
def echo(environ, start_response):
    pid = [("X-Pid", str(os.getpid()))]
    return answer(start_response, environ["wsgi.input"].read(-1), headers=pid)

@checked
def waits(environ, start_response):
    '''Wait until there is the file "go".'''
    os.write(1, b"begun\n")
    while not os.path.exists("go"):
        time.sleep(0.01)
    return answer(start_response, "waited")

def blocks(environ, start_response):
    '''Never return.'''
    os.write(1, b"begun\n")
    threading.Event().wait()

def streams(environ, start_response):
    '''Answer without an end; print the end of the generator.'''
    start_response("200 OK", PLAIN)
    def pieces():
        try:
            while True:
                yield b"more\n"
                time.sleep(0.05)
        finally:
            print("the generator was closed", flush=True)
    return pieces()

def stalls(environ, start_response):
    '''Send a piece, and then none.'''
    write = start_response("200 OK", PLAIN)
    write(b"begun")
    while not os.path.exists("go"):
        time.sleep(0.01)
    return [b" and ended"]

def terminates(environ, start_response):
    '''Send a signal to the server from within a request.'''
    os.kill(os.getpid(), signal_named(environ["QUERY_STRING"]))
    time.sleep(0.3)
    return answer(start_response, "answered")

def signal_named(name):
    import signal
    return getattr(signal, name)
"""


@pytest.fixture
def folder(tmp_path):
    write_app(tmp_path, PREAMBLE + APPLICATION)
    return tmp_path


@pytest.fixture
def start(folder):
    """Return a function that starts mgloop's server, by default with threads."""
    running = []

    def start(*options, kind="threads", **more):
        server = WsgiServer(kind, folder, *options, **more)
        running.append(server)
        return server.started()

    yield start
    for server in running:
        server.__exit__()


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


# --- under load ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_cuts_no_request(start, kind, number):
    server = start(kind=kind)
    with Load(server.address, until_refused=True) as load:
        load.each_answered(10)
        begun = time.monotonic()
        assert server.stop(number) == 0, server.output
        assert time.monotonic() - begun < SOON
    assert "the interpreter has ended" in server.output
    assert "Traceback" not in server.output


@pytest.mark.parametrize("kind", OURS)
def test_sighup_under_load_fails_no_request(start, kind):
    server = start("--workers", 2, kind=kind)
    server.wait_for("is ready")
    with Load(server.address) as load:
        for _ in range(2):
            server.send(signal.SIGHUP)
            server.wait_for("All workers have been restarted")
        load.answered_by(4)
    assert server.stop() == 0
    assert "Traceback" not in server.output


@pytest.mark.parametrize("kind", OURS)
def test_recycling_under_load_fails_no_request(start, kind):
    server = start("--workers", 2, "--limit-max-requests", 100, kind=kind)
    with Load(server.address) as load:
        load.answered_by(6)
    assert server.stop() == 0
    assert "reached limit_max_requests (100)" in server.output
    assert "Traceback" not in server.output


@pytest.mark.parametrize("kind", OURS)
def test_a_single_process_ends_at_its_limit(start, kind):
    server = start("--limit-max-requests", 50, kind=kind)
    with Load(server.address, until_refused=True):
        assert server.end() == 0
    assert "Traceback" not in server.output


def test_threads_of_loops_have_pools_of_their_own(start):
    server = start("--threads", 2)
    with Load(server.address, clients=6) as load:
        load.each_answered(30)
    assert server.stop() == 0, server.output


def test_changed_code_is_served(start, folder):
    server = start("--reload", "--reload-delay", 0.05)
    assert server.get("/").text.isdigit()
    write_app(folder, PREAMBLE + APPLICATION.replace('b"%d"', 'b"new %d"'))
    server.wait_for("is ready")
    assert server.get("/").text.startswith("new")
    assert server.stop(signal.SIGINT) == 0


def in_flight(server):
    """Return the number of requests that all processes of the server have in progress."""
    metrics = re.search(r"Serving metrics on (\S+)/metrics", server.output)[1]
    samples = re.findall(r"\nmgloop_http_requests_in_flight{.*} (\d+)", fetch(metrics, "/metrics"))
    return sum(map(int, samples))


# --- deadlines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", [(), ("--workers", 2)])
def test_requests_are_answered_before_the_end(start, folder, number, options):
    """Those in the threads, and those that wait for a thread."""
    server = start("--metrics-port", 0, *options)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect(get("/waits"))) for _ in range(THREADS)]
        for _ in clients:
            server.wait_for("begun")
        clients += [stack.enter_context(server.connect(get("/waits"))) for _ in range(THREADS)]
        eventually(lambda: in_flight(server) == 2 * THREADS)  # they are in the queue, too
        server.send(number)
        server.wait_for("Shutting down")
        (folder / "go").touch()
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


def test_a_second_signal_ends_what_blocks(start):
    server = start()
    with server.connect(get("/blocks")):
        server.wait_for("begun")
        server.send(signal.SIGINT)
        server.wait_for("Shutting down")
        server.send(signal.SIGINT)
        assert server.end() == 0, server.output


@pytest.mark.parametrize("kind", OURS)
def test_a_stream_without_an_end_is_closed(start, kind):
    server = start("--timeout-graceful-shutdown", 0.5, kind=kind)
    with server.connect(get("/streams")) as client:
        client.until(b"more\n")
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


def test_a_worker_that_is_killed_is_replaced(start):
    server = start("--workers", 2)
    victim = int(server.get("/").text)
    os.kill(victim, signal.SIGKILL)
    wait_gone(victim)
    server.wait_for("starting a replacement")
    for _ in range(20):
        assert server.get("/").text != str(victim)
    assert server.stop() == 0


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
def test_numbers_of_threads_that_are_none(folder, value):
    arguments = ("serve", "main:app", "--port", 0, f"--wsgi-threads={value}")
    assert "--wsgi-threads" in fails(*arguments, cwd=folder, status=2)[-1]


def test_the_interface_is_detected(folder):
    with Command("serve", "main:app", "--port", 0, cwd=folder) as command:
        assert fetch(command.url()).isdigit()
        assert command.stop() == 0
