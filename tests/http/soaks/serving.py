# SPDX-License-Identifier: GPL-2.0-only
"""The server of a soak: its process, its resources, and the checks when it ends."""

import contextlib
import os
import pathlib
import queue
import re
import socket
import time
from urllib.parse import urlsplit

from commands import Command
from soaking import resident

HERE = pathlib.Path(__file__).parent

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"

#: Messages that no client should be able to provoke.
OWN_FAULTS = re.compile(
    r"Exception in callback|never retrieved|was destroyed|ignored|MemoryError|rror on transport"
)


class SoakError(Exception):
    """A check of the soak failed."""


def check(holds, *words):
    if not holds:
        raise SoakError(" ".join(map(str, words)))


def mib(size):
    return f"{size / 2**20:.1f} MiB"


class Server(Command):
    """`mgloop serve` with an application of this folder."""

    def __init__(self, *options, application="application:app"):
        arguments = ["serve", application, "--port", 0, "--no-access-log", *options]
        super().__init__(*arguments, cwd=HERE)
        try:
            self.address = self.url()
            self.port = urlsplit(self.address).port
            self.listen_only = self.descriptors()
        except BaseException:
            self.__exit__()
            raise

    def memory(self):
        return resident(self.pid)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def said(self):
        """Return the lines of its output so far, without waiting for more."""
        with contextlib.suppress(queue.Empty):
            while (line := self._queue.get_nowait()) is not None:
                self.lines.append(line)
        return self.lines

    def let_go(self, patience=60.0):
        """Wait until all of the server's connections are closed."""
        deadline = time.monotonic() + patience
        while (left := self.descriptors() - self.listen_only) > 0:
            check(time.monotonic() < deadline, left, "descriptors are left over")
            time.sleep(0.1)

    def finish(self):
        """End the server in order; its log must not contain faults of its own."""
        status = self.stop()
        check(status == 0, "exit status", status, self.lines[-5:])
        for number, line in enumerate(self.lines):
            check(not OWN_FAULTS.search(line), "in the log:", self.lines[number : number + 40])
        # Check that all other exceptions are the application's; show the lines that follow.
        for number, line in enumerate(self.lines):
            if line.startswith("Traceback (most recent call last)"):
                rest = self.lines[number + 1 :]
                named = next((line for line in rest if not line.startswith(" ")), "nothing")
                check(named == "application.DeliberateError", "in the log:", rest[:40])

    def connect(self, number=0):
        return self.connect_to(self.port, number)

    @staticmethod
    def connect_to(port, number=0):
        """Return a blocking socket, bound to one of many addresses."""
        sock = socket.socket()
        try:
            sock.settimeout(60)
            # Each address has only 28,000 ports.
            sock.bind((f"127.0.0.{number % 200 + 1}", 0))
            sock.connect(("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return sock

    def response_size(self):
        """Return the size of the response to GET, which is always the same."""
        with self.connect() as sock:
            sock.sendall(GET)
            size = len(sock.recv(65536))
            with contextlib.suppress(TimeoutError):
                sock.settimeout(0.2)
                check(not sock.recv(1), "a response in two pieces")
        return size
