# SPDX-License-Identifier: GPL-2.0-only
"""What memory that runs out does to a WSGI request: it ends nevertheless. `make nomem` lets each
allocation of the server fail; these are the failures that it has found.
"""

import contextlib

import pytest
from commands import Command, connect, write_app

APPLICATION = """
import logging, threading

def app(environ, start_response):
    if environ["PATH_INFO"] == "/raises":
        raise KeyError("before start_response()")
    start_response("200 OK", [("Content-Length", "4")])
    return [b"well"]
"""

#: What happens in CPython's own start of a thread: the thread ends before it calls its function,
#: and start() does not raise.
LOST_THREAD = """
lost = []

def run(self, original=threading.Thread.run):
    if self.name.startswith("mgloop-wsgi") and not lost:
        lost.append(self.name)
        del self._target, self._args, self._kwargs
        raise MemoryError
    original(self)

threading.Thread.run = run
"""

NO_LOG = """
def fail(record):
    raise MemoryError("the log fails")

logging.getLogger("mgloop.http").addFilter(
    lambda record: fail(record) if record.levelno >= logging.ERROR else True)
"""


@contextlib.contextmanager
def serving(folder, addition, threads):
    write_app(folder, APPLICATION + addition)
    options = ("--interface", "wsgi", "--wsgi-threads", threads, "--port", 0)
    with Command("serve", "main:app", *options, cwd=folder) as command:
        yield command, command.url()
        assert command.stop() == 0, command.output


def status_of(url, path):
    with contextlib.closing(connect(url)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


def test_a_thread_that_ends_before_it_has_begun_is_replaced(tmp_path):
    with serving(tmp_path, LOST_THREAD, 4) as (command, url):
        assert status_of(url, "/") == 200
        command.wait_for("^.*MemoryError")  # the thread still reports it, beside the request


@pytest.mark.parametrize("threads", [0, 1])
def test_a_request_ends_though_its_exception_cannot_be_logged(tmp_path, threads):
    with serving(tmp_path, NO_LOG, threads) as (command, url):
        for _ in range(2):  # more often than there are threads
            assert status_of(url, "/raises") == 500
        assert status_of(url, "/") == 200
    assert "the log fails" in command.output
