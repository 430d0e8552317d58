# SPDX-License-Identifier: GPL-2.0-only
"""Run `mgloop serve` as a separate process in tests: start it, read its output, signal it, end it.

A test waits only for a line of the output or for the end, with a timeout that a loaded machine does
not reach.
"""

import contextlib
import http.client
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from urllib.parse import urlsplit

#: Seconds for any operation that includes the start of a process.
PATIENCE = 45.0

#: GET / answers with the process id; /gate waits for /open or SIGUSR1; /env/NAME; /stuck blocks.
APPLICATION = """
import asyncio, os, signal, threading

GATE = None

async def app(scope, receive, send):
    global GATE
    if scope["type"] == "lifespan":
        GATE = asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, GATE.set)
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        print("the application has shut down", flush=True)
        await send({"type": "lifespan.shutdown.complete"})
        return
    path = scope["path"]
    body = b"%d" % os.getpid()
    if path == "/gate":
        print(f"in the gate of {os.getpid()}", flush=True)
        try:
            await GATE.wait()
        except asyncio.CancelledError:
            print("the gate was cancelled", flush=True)
            raise
    elif path == "/open":
        GATE.set()
    elif path.startswith("/env/"):
        body = os.environ.get(path[5:], "").encode()
    elif path == "/stuck":
        import time
        time.sleep(600)
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""

#: The same as a WSGI application; the paths wait in a thread.
WSGI_APPLICATION = """
import atexit, os, signal, threading, time
from wsgiref.validate import validator

GATE = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: GATE.set())
atexit.register(print, "the application has shut down", flush=True)

def app(environ, start_response):
    return validator(respond)(environ, start_response)

def respond(environ, start_response):
    path = environ["PATH_INFO"]
    body = b"%d" % os.getpid()
    if path == "/gate":
        print(f"in the gate of {os.getpid()}", flush=True)
        GATE.wait()
    elif path == "/open":
        GATE.set()
    elif path.startswith("/env/"):
        body = os.environ.get(path[5:], "").encode()
    elif path == "/stuck":
        time.sleep(600)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]
"""


def environment(changes=None):
    """Return this process's environment without the variables that configure the server."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MGLOOP_SERVE_", "LISTEN_"))
        and name not in ("WEB_CONCURRENCY", "FORWARDED_ALLOW_IPS", "NO_COLOR", "FORCE_COLOR")
    }
    # Tests wait for lines, which Python would buffer until the end when stdout is a pipe.
    ours = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    return {**kept, **ours, **(changes or {})}


def write_app(folder, source=APPLICATION, name="main.py"):
    path = folder / name
    path.write_text(textwrap.dedent(source))
    return path


def accept_sighup():
    """Undo what nohup has set for the test run, because it is inherited."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Command:
    """`python OPTIONS -m MODULE ARGUMENTS` in `cwd`; a context manager that ends its process."""

    def __init__(self, *arguments, cwd, env=None, module="mgloop", options=(), **popen):
        self.process = subprocess.Popen(
            [sys.executable, *options, "-m", module, *map(str, arguments)],
            cwd=cwd,
            env=environment(env),
            stdin=popen.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C at the terminal of the test run must not reach the command.
            start_new_session=True,
            **{"preexec_fn": accept_sighup, **popen},
        )
        self.pid = self.process.pid
        self.lines = []
        self._seen = 0
        self._queue = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        # End the whole session, including workers, in case the test has failed half-way.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self.process.stdout.close()

    @property
    def output(self):
        return "\n".join(self.lines)

    def wait_for(self, pattern):
        """Read lines until one, new since earlier calls, matches `pattern`; return the match."""
        deadline = time.monotonic() + PATIENCE
        while True:
            while self._seen < len(self.lines):
                line = self.lines[self._seen]
                self._seen += 1
                if match := re.search(pattern, line):
                    return match
            try:
                line = self._queue.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {pattern!r} in:\n{self.output}") from None
            if line is None:
                raise AssertionError(f"ended without a line with {pattern!r}:\n{self.output}")
            self.lines.append(line)

    def url(self):
        """Wait until the command serves; return the address."""
        return self.wait_for(r"Serving on (\S+?),? ")[1]

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        """Wait for the end of the process and of its output; return the exit status."""
        status = self.process.wait(PATIENCE)
        while (line := self._queue.get(timeout=PATIENCE)) is not None:
            self.lines.append(line)
        self._queue.put(None)
        return status

    def stop(self, number=signal.SIGTERM):
        self.send(number)
        return self.end()


def serve(folder, *options, app="main:app", **more):
    """Run `mgloop serve` with the application in main.py of `folder` on a free port."""
    return Command("serve", app, "--port", 0, *options, cwd=folder, **more)


def fails(*arguments, cwd, status, **options):
    """Run a command that must end by itself with `status`; return its lines of output."""
    with Command(*arguments, cwd=cwd, **options) as command:
        assert command.end() == status, command.output
        return command.lines


def complaints(*cases, cwd):
    """Call `mgloop serve` with the arguments of each case; return (line of output, status) of each.

    All run in one process, because each start takes a third of a second.
    """
    program = f"""
from mgloop.http import cli

for arguments in {cases!r}:
    print(cli.main(["serve", *map(str, arguments)]))
"""
    write_app(cwd, program, name="complaints.py")
    lines = fails(module="complaints", cwd=cwd, status=0)
    return list(zip(lines[::2], map(int, lines[1::2]), strict=True))


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def connect(url, context=None):
    """Return an http.client connection to the server at `url`."""
    if url.startswith("unix:"):
        return UnixConnection(url.removeprefix("unix:"))
    parts = urlsplit(url)
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.netloc, timeout=PATIENCE, context=context)
    return http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)


def get(url, path="/", context=None):
    """Send a GET, which must succeed, on a new connection; return the response's body."""
    with contextlib.closing(connect(url, context)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
        assert response.status == 200, (response.status, body)
        return body


@contextlib.contextmanager
def pending(url, path):
    """Send a GET; return a function that waits for its (status, body)."""
    with contextlib.closing(connect(url)) as connection:
        connection.request("GET", path)

        def answer():
            response = connection.getresponse()
            return response.status, response.read().decode()

        yield answer


def wait_gone(pid):
    """Wait until the process `pid`, which is not a child of this process, has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(PATIENCE * 1000), f"process {pid} is still there"
    finally:
        os.close(pidfd)
