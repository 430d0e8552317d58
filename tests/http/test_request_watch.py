# SPDX-License-Identifier: GPL-2.0-only
"""--timeout-request: slow requests are logged, counted, and make their process be replaced."""

import asyncio
import contextlib
import signal
import threading
import time
import types

import pytest
from commands import PATIENCE, connect, get, pending, serve

from mgloop.http.request_watch import RequestWatch

pytestmark = [pytest.mark.timeout(4 * PATIENCE), pytest.mark.mgloop_only]


class Pool:
    """A stand-in for WorkPool: {thread: when its request began}."""

    queued = 0

    def __init__(self):
        self.began = {}

    def running(self):
        now = time.monotonic()
        return [(ident, now - began) for ident, began in self.began.items()]


def make_site(pool, connected=()):
    requests = [types.SimpleNamespace(connected=each) for each in connected]
    config = types.SimpleNamespace(wsgi_threads=2)
    return types.SimpleNamespace(
        wsgi=pool,
        config=config,
        connections=0,
        running=requests,
    )


def make_watch(site, slow, left, stopping=False):
    return RequestWatch(
        site,
        100.0,
        on_slow=slow.append,
        stopping=lambda: stopping,
        leave=lambda: left.append(True),
    )


def checked(site, slow, left, times=1, **options):
    """Let a watch with a limit of 100 s check the site; return it."""

    async def main():
        watch = make_watch(site, slow, left, **options)
        for _ in range(times):
            watch._check()
            watch.stop()
        return watch

    return asyncio.run(main())


def test_a_slow_request_is_reported_once_with_its_stack(caplog):
    pool, slow, left = Pool(), [], []
    ident = threading.get_ident()
    pool.began = {ident: time.monotonic() - 101, ident + 1: time.monotonic() - 99}
    watch = checked(make_site(pool, [True, True]), slow, left, times=3)
    assert watch.count == 1
    assert slow == ["timeout_request (100 seconds)"]
    (record,) = caplog.records
    assert "Request has been running for 101." in record.getMessage()
    assert "Stack of thread MainThread:" in record.getMessage()
    assert "in test_a_slow_request_is_reported_once_with_its_stack" in record.getMessage()
    assert left == []


def test_the_next_slow_request_of_a_thread_is_another(caplog):
    pool, slow, left = Pool(), [], []
    pool.began = {1: time.monotonic() - 300}
    site = make_site(pool, [True])

    async def main():
        watch = make_watch(site, slow, left)
        watch._check()
        watch.stop()
        pool.began = {1: time.monotonic() - 101}
        watch._check()
        watch.stop()
        return watch.count

    assert asyncio.run(main()) == 2
    assert len(slow) == 1  # one replacement is enough
    assert "(the thread has ended)" in caplog.text


@pytest.mark.parametrize(
    ("changes", "connected", "leaves"),
    [
        ({}, [True], True),
        ({"connections": 1}, [True], True),
        ({"stopping": False}, [True], False),
        # Another request is being received, or runs in another thread.
        ({}, [True, True], False),
        ({"second": 1.0}, [True, True], False),
        # The response of another request is on its way to its client.
        ({"connections": 2}, [True], False),
        # The client of the slow request has left, and the connection is that of another one.
        ({"connections": 1}, [False], False),
        # A request that is queued waits for a free thread, unless no thread gets free.
        ({"queued": 1}, [True, True], False),
        ({"queued": 1, "second": 200.0}, [True] * 3, True),
    ],
)
def test_it_leaves_when_only_slow_requests_are_left(changes, connected, leaves):
    pool, left = Pool(), []
    pool.began = {1: time.monotonic() - 200}
    site = make_site(pool, connected)
    changes = dict(changes)
    stopping = changes.pop("stopping", True)
    if "second" in changes:
        pool.began[2] = time.monotonic() - changes.pop("second")
    pool.queued = changes.pop("queued", 0)
    vars(site).update(changes)
    checked(site, [], left, stopping=stopping)
    assert left == []  # a connection may have been accepted, and not be known to the site
    checked(site, [], left, times=2, stopping=stopping)
    assert left == [True] * leaves


# --- processes -----------------------------------------------------------------------------------

APPLICATION = """
    import os, threading
    from wsgiref.validate import validator

    def block_for_ever():
        threading.Event().wait()

    def app(environ, start_response):
        return validator(respond)(environ, start_response)

    def respond(environ, start_response):
        if environ["PATH_INFO"] == "/stuck":
            block_for_ever()
        body = b"%d" % os.getpid()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [body]
"""

OPTIONS = ("--no-access-log", "--timeout-request", 1)


def test_a_single_process_logs_and_goes_on(folder):
    with serve(folder, *OPTIONS) as command:
        url = command.url()
        with pending(url, "/stuck"):
            command.wait_for("Stack of thread mgloop-wsgi-1:")
            command.wait_for("in block_for_ever")
            assert get(url) == str(command.pid)
            command.send(signal.SIGTERM)
            command.wait_for("Leaving 1 request")
        assert command.end() == 0
        assert command.output.count("timeout request exceeded. Stack") == 1


def test_a_worker_is_replaced_without_an_end_of_its_other_requests(folder):
    options = ("--workers", 2, "--timeout-keep-alive", 60)
    with serve(folder, *OPTIONS, *options) as command:
        url = command.url()
        with pending(url, "/stuck"), contextlib.ExitStack() as stack:
            others = [stack.enter_context(contextlib.closing(connect(url))) for _ in range(8)]
            for other in others:
                other.putrequest("POST", "/")
                other.putheader("Content-Length", "2")
                other.endheaders(b"1")
            command.wait_for("timeout request exceeded")
            command.wait_for(r"Replacing worker \[\d+\]: reached timeout_request")
            command.wait_for("Shutting down")
            pids = set()
            for other in others:
                other.send(b"2")
                response = other.getresponse()
                pids.add(response.read().decode())
                assert response.status == 200
            command.wait_for("Leaving 1 request")
            assert 1 <= len(pids) <= 2
        assert command.stop() == 0
