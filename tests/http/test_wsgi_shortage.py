# SPDX-License-Identifier: GPL-2.0-only
"""What memory that runs out does to a WSGI request: it ends nevertheless. `make nomem` lets each
allocation of the server fail; these are the failures that it has found.
"""

import contextlib
import http.client
import os

import pytest
from commands import Command, connect, write_app

from mgloop.http.wire import _filewrapper

APPLICATION = """
import logging, threading

def app(environ, start_response):
    if environ["PATH_INFO"] == "/raises":
        raise KeyError("before start_response()")
    start_response("200 OK", [("Content-Length", "4")])
    return [b"well"]
"""

#: A new thread finds no memory when CPython notes its identifier. threading.Thread.start() would
#: wait for it for ever.
LOST_THREAD = """
lost = []

def set_ident(self, original=threading.Thread._set_ident):
    if not lost:
        lost.append(self.name)
        raise MemoryError
    original(self)

threading.Thread._set_ident = set_ident
"""

NO_LOG = """
def fail(record):
    raise MemoryError("the log fails")

logging.getLogger("mgloop.http").addFilter(
    lambda record: fail(record) if record.levelno >= logging.ERROR else True)
"""

#: A module that runs mgloop where every second change of the running loop fails, as it may in
#: CPython 3.11, which allocates an object for it.
NO_RUNNING_LOOP = """
import asyncio, itertools, runpy

def change(loop, original=asyncio._set_running_loop, number=itertools.count()):
    if next(number) % 2 == 0:
        raise MemoryError
    original(loop)

asyncio._set_running_loop = change
runpy.run_module("mgloop", run_name="__main__")
"""

#: A module that runs mgloop where no task can be made that sends a file.
NO_TASK = """
import mgloop, runpy

def create_task(self, coroutine, original=mgloop.Loop.create_task, **options):
    if coroutine.__name__ == "_send":
        raise MemoryError
    return original(self, coroutine, **options)

mgloop.Loop.create_task = create_task
runpy.run_module("mgloop", run_name="__main__")
"""

A_FILE = """
import tempfile

def app(environ, start_response, application=app):
    if environ["PATH_INFO"] != "/file":
        return application(environ, start_response)
    file = tempfile.TemporaryFile()
    file.write(bytes(100_000))
    file.seek(0)
    start_response("200 OK", [("Content-Length", "100000")])
    return environ["wsgi.file_wrapper"](file)
"""


@contextlib.contextmanager
def serving(folder, addition, threads, **how):
    write_app(folder, APPLICATION + addition)
    options = ("--interface", "wsgi", "--wsgi-threads", threads, "--port", 0)
    with Command("serve", "main:app", *options, cwd=folder, **how) as command:
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


def test_the_loop_is_running_again_after_an_application_in_its_thread(tmp_path):
    write_app(tmp_path, NO_RUNNING_LOOP, "short.py")
    with serving(tmp_path, "", 0, module="short") as (_, url):
        assert [status_of(url, "/") for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("threads", [0, 1])
def test_a_connection_ends_if_no_task_can_be_made_for_a_file(tmp_path, threads):
    write_app(tmp_path, NO_TASK, "short.py")
    with serving(tmp_path, A_FILE, threads, module="short") as (command, url):
        with contextlib.closing(connect(url)) as connection:
            connection.request("GET", "/file")
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                connection.getresponse().read()
        assert status_of(url, "/") == 200
    assert "never awaited" not in command.output


def test_no_descriptor_is_lost_if_memory_runs_out_when_a_file_is_prepared(tmp_path):
    testcapi = pytest.importorskip("_testcapi")
    path = tmp_path / "file"
    path.write_bytes(b"content")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(60):
        with open(path, "rb", buffering=0) as file:
            wrapper, found = _filewrapper.FileWrapper(file), None
            with contextlib.suppress(MemoryError):
                testcapi.set_nomemory(number, number + 1)
                try:
                    found = _filewrapper.plain_file(wrapper)
                finally:
                    testcapi.remove_mem_hooks()
            if found is not None:
                found[0].close()
    assert found is not None
    assert len(os.listdir("/proc/self/fd")) == before
