# SPDX-License-Identifier: GPL-2.0-only
"""The parts that all applications of the WSGI tests use."""

import os
import threading
import time

PLAIN = [("Content-Type", "text/plain")]
HELLO = b"Hello, World!"
BIG = bytes(range(256)) * 10_000

#: The notes of applications, for which a test waits at /notes/NAME.
NOTES = {}


def note(name, value):
    NOTES[name] = str(value)


def answer(start_response, body=b"", status="200 OK", headers=()):
    if isinstance(body, str):
        body = body.encode("latin-1")
    start_response(status, [*PLAIN, *headers])
    return [body]


def unchecked(application):
    """Exempt an application from wsgiref's validator. A comment gives the reason."""
    application.unchecked = True
    return application


def unknown(environ, start_response):
    return answer(start_response, status="404 Not Found")


def notes(environ, start_response):
    return answer(start_response, NOTES.get(environ["PATH_INFO"][7:], ""))


def print_at_once(text):
    """Print a line that no other thread or process can divide."""
    os.write(1, f"{text}\n".encode())


def wait_for_file(name):
    while not os.path.exists(name):
        time.sleep(0.01)


class Body:
    """An iterable that notes the calls of its close()."""

    def __init__(self, name, pieces):
        self.name, self.pieces, self.closed = name, iter(pieces), 0
        self.thread = threading.get_ident()

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.pieces)

    def close(self):
        self.closed += 1
        elsewhere = "" if threading.get_ident() == self.thread else " in another thread"
        note(self.name, f"closed {self.closed}{elsewhere}")


def generator(*pieces):
    yield from pieces
