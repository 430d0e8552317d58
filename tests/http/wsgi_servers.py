# SPDX-License-Identifier: GPL-2.0-only
"""Servers of the applications in wsgi_apps, and a client that sees every byte of an answer.

The same test runs against `mgloop serve` with the application on the loop's thread (`inline`), with
a pool of threads (`threads`), with bodies that are read as they come (`streaming`), and against
gunicorn's gthread worker (`gunicorn`) as the control. A test that fails with gunicorn is probably
wrong.
"""

import contextlib
import dataclasses
import importlib.util
import queue
import re
import signal
import socket
import threading
from pathlib import Path

from commands import PATIENCE, Command
from support import python_path

#: The number of threads of each server that has a pool.
THREADS = 4

OURS = ("inline", "threads")
KINDS = (*OURS, "gunicorn") if importlib.util.find_spec("gunicorn") else OURS

#: Messages that no application should be able to provoke.
OWN_FAULTS = re.compile(
    r"Exception in callback|never retrieved|was destroyed|Exception ignored|SystemError|"
    r"Fatal Python|Segmentation|closed file|garbage collected without being closed|"
    r"socket\.send\(\) raised exception"
)


@dataclasses.dataclass
class Answer:
    """A response: `headers` is a list of pairs, with the names in lower case."""

    version: str
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    complete: bool = True

    def all(self, name):
        """Return the values of all headers called `name`."""
        return [value for key, value in self.headers if key == name]

    def get(self, name):
        """Return the value of the only header called `name`, or None."""
        values = self.all(name)
        assert len(values) < 2, self.headers
        return values[0] if values else None

    @property
    def text(self):
        return self.body.decode("latin-1")


class Client:
    """One connection to a server, whose address is a pair or the path of a socket."""

    head_end = rb"\r\n\r\n"

    def __init__(self, address, timeout=PATIENCE):
        if isinstance(address, str):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(timeout)
            self.sock.connect(address)
        else:
            self.sock = socket.create_connection(address, timeout)
        self.data = bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data)

    def _more(self):
        with contextlib.suppress(ConnectionError):
            if piece := self.sock.recv(1 << 20):
                self.data += piece
                return True
        return False

    def _take(self, size):
        found = bytes(self.data[:size])
        del self.data[:size]
        return found

    def until(self, end):
        """Return the data up to the end of a match of the pattern `end`."""
        while not (found := re.search(end, self.data)):
            if not self._more():
                raise EOFError(f"the connection ended after {bytes(self.data)!r}")
        return self._take(found.end())

    def exactly(self, size):
        while len(self.data) < size:
            if not self._more():
                raise EOFError(f"the connection ended after {len(self.data)} of {size} bytes")
        return self._take(size)

    def rest(self):
        """Return everything up to the end of the connection."""
        while self._more():
            pass
        return self._take(len(self.data))

    def quiet(self):
        """Return whether nothing has come that was not read, and the connection has not failed."""
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.data += self.sock.recv(65536)
        self.sock.settimeout(PATIENCE)
        return not self.data

    def head(self):
        """Return the next response without its body."""
        lines = self.until(self.head_end).decode("latin-1").rstrip("\r\n").split("\r\n")
        version, status, reason = lines[0].split(" ", 2)
        pairs = [line.split(":", 1) for line in lines[1:]]
        headers = [(name.lower(), value.strip(" \t")) for name, value in pairs]
        return Answer(version, int(status), reason, headers)

    def chunks(self):
        """Yield the chunks of a chunked body."""
        while size := int(self.until(b"\r\n"), 16):
            yield self.exactly(size)
            assert self.exactly(2) == b"\r\n"
        assert self.exactly(2) == b"\r\n"

    def answer(self, method="GET"):
        """Return the next response. Its `complete` is false if the connection ended early."""
        found = self.head()
        pieces = []
        try:
            if method == "HEAD" or found.status in (204, 304) or found.status < 200:
                pass
            elif found.get("transfer-encoding") == "chunked":
                assert found.get("content-length") is None
                for chunk in self.chunks():  # the pieces before an error count
                    pieces.append(chunk)
            elif (length := found.get("content-length")) is not None:
                pieces.append(self.exactly(int(length)))
            else:
                pieces.append(self.rest())
        except EOFError:
            found.complete = False
            pieces.append(self.rest() if not found.get("transfer-encoding") else b"")
        found.body = b"".join(pieces)
        return found

    def request(self, data, method="GET"):
        self.send(data)
        return self.answer(method)

    def ended(self):
        """Return whether the server closes the connection and sends nothing more before."""
        return self.rest() == b""


#: The options of mgloop's server, by its kind.
OPTIONS = {
    "inline": ("--interface", "wsgi", "--wsgi-threads", 0),
    "threads": ("--interface", "wsgi", "--wsgi-threads", THREADS),
    "streaming": ("--interface", "wsgi", "--wsgi-threads", THREADS, "--wsgi-stream-input"),
    "asgi": ("--interface", "asgi3"),
}


class WsgiServer(Command):
    """A server of the kind `kind` in `folder`, by default with the applications in wsgi_apps."""

    def __init__(self, kind, folder, *options, app="wsgi_apps:app", env=None):
        self.kind = kind
        self.mark = 0
        env = {"PYTHONPATH": python_path(Path(__file__).parent), **(env or {})}
        if kind == "gunicorn":
            super().__init__(
                *("-k", "gthread", "--threads", THREADS, "-b", "127.0.0.1:0"),
                *("--keep-alive", 60, *options, app),
                cwd=folder,
                env=env,
                module="gunicorn",
            )
        else:
            super().__init__(
                *("serve", app, "--port", 0, *OPTIONS[kind], *options),
                cwd=folder,
                env=env,
            )

    def started(self):
        """Wait until the server listens; set its `base`, a URL, and its `address`."""
        if self.kind == "gunicorn":
            self.base = self.wait_for(r"Listening at: (http://\S+)")[1]
            self.wait_for("Booting worker")
        else:
            self.base = self.url()
        if self.base.startswith("unix:"):
            self.address = self.base.removeprefix("unix:")
        else:
            host, _, port = self.base.partition("//")[2].rpartition(":")
            self.address = (host, int(port))
        return self

    def connect(self, data=b"", timeout=PATIENCE):
        """Send the data on a new connection, and return the connection."""
        client = Client(self.address, timeout)
        if self.kind == "gunicorn":
            # gunicorn passes its error page through textwrap.dedent(), which removes the "\r" of an
            # empty line on CPython 3.14 and later.
            client.head_end = rb"\r\n\r?\n"
        client.send(data)
        return client

    def exchange(self, data, method="GET"):
        """Send one request on a new connection; return its response."""
        with self.connect(data) as client:
            return client.answer(method)

    def get(self, path, *headers):
        return self.exchange(get(path, *headers))

    def note(self, name):
        """Wait until the application has made the note `name`; return its value."""
        pause = threading.Event()
        for _ in range(int(PATIENCE * 20)):
            if value := self.get(f"/notes/{name}").text:
                return value
            pause.wait(0.05)
        raise AssertionError(f"the application has not noted {name!r}:\n{self.output}")

    def logged(self):
        """Return the new lines of output, if need be without those that a thread is writing."""
        with contextlib.suppress(queue.Empty):
            while (line := self._queue.get_nowait()) is not None:
                self.lines.append(line)
            self._queue.put(None)
        return self.lines[self.mark :]

    def pass_over(self):
        """Let wait_for() and logged() not find the output so far."""
        self.logged()
        self._seen = self.mark = len(self.lines)


class Servers:
    """The servers that tests share, started when a test first asks for them."""

    def __init__(self, folder):
        self.folder = folder
        self.running = {}

    def __getitem__(self, kind):
        """Return the server of that kind, whose earlier output the test does not see."""
        if kind not in self.running or self.running[kind].process.poll() is not None:
            self.running[kind] = WsgiServer(kind, self.folder).started()
        self.running[kind].pass_over()
        return self.running[kind]

    def finish(self):
        """End all servers, which must exit in order and have logged no fault of their own."""
        try:
            for server in self.running.values():
                status = server.stop(signal.SIGTERM)
                assert status == 0, server.output
                if server.kind != "gunicorn":
                    found = OWN_FAULTS.search(server.output)
                    assert not found, server.output[max(0, found.start() - 2000) :][:4000]
        finally:
            for server in self.running.values():
                server.__exit__()


def get(path="/", *headers, version="1.1", method="GET"):
    lines = [f"{method} {path} HTTP/{version}", "Host: a.example", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def post(path, body, *headers, version="1.1", length=None):
    length = len(body) if length is None else length
    fields = (f"Content-Length: {length}", *headers)
    return get(path, *fields, method="POST", version=version) + body


def chunked(path, *chunks, end=b"0\r\n\r\n", headers=()):
    data = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return get(path, "Transfer-Encoding: chunked", *headers, method="POST") + data + end
