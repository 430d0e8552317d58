# SPDX-License-Identifier: GPL-2.0-only
"""The threads of a WSGI application: when they start, and that none of them is ever lost."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from commands import Command, connect, get, write_app

THREADS = 4

APPLICATION = """
import contextvars, json, os, sys, threading, time

GATE = threading.Event()
WAITING = threading.Semaphore(0)
SEEN = contextvars.ContextVar("seen", default=0)

class Slow:
    def __iter__(self):
        return iter([b"slow"])
    def close(self):
        time.sleep(0.2)

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/raises":
        raise KeyError("before start_response()")
    start_response("200 OK", [("Content-Type", "text/plain")])
    if path == "/raises-after":
        raise KeyError("after start_response()")
    if path == "/yields-text":
        return ["text"]
    if path == "/exits":
        sys.exit(3)
    if path == "/none":
        return None
    if path == "/closes-slowly":
        return Slow()
    if path == "/forks":
        pid = os.fork()
        if pid == 0:
            sys.exit(7)
        return [b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
    if path == "/starts-a-thread":
        threading.Thread(target=SEEN.set, args=(1,)).start()
        return [b""]
    if path == "/waits":
        WAITING.release()
        GATE.wait(30)
        return [b"waited"]
    if path == "/opens":
        for _ in range(int(environ["QUERY_STRING"])):
            WAITING.acquire(timeout=30)
        GATE.set()
        return [b"open"]
    if path == "/context":
        SEEN.set(SEEN.get() + 1)
        return [b"%d" % SEEN.get()]
    names = [each.name for each in threading.enumerate() if each.name.startswith("mgloop-wsgi")]
    told = {"threads": sorted(names), "own": threading.current_thread().name}
    return [json.dumps(told).encode()]
"""


@pytest.fixture
def command(tmp_path):
    write_app(tmp_path, APPLICATION)
    with Command(
        "serve", "main:app", "--interface", "wsgi", "--wsgi-threads", THREADS, "--port", 0,
        cwd=tmp_path,
    ) as command:  # fmt: skip
        yield command


@pytest.fixture
def url(command):
    return command.url()


def threads(url):
    return json.loads(get(url, "/threads"))


def test_a_fast_application_stays_on_one_thread(url):
    for _ in range(20):
        assert threads(url) == {"threads": ["mgloop-wsgi-1"], "own": "mgloop-wsgi-1"}


def test_threads_start_while_all_others_are_busy(url):
    with ThreadPoolExecutor(THREADS - 1) as clients:
        waiting = [clients.submit(get, url, "/waits") for _ in range(THREADS - 1)]
        assert get(url, f"/opens?{THREADS - 1}") == "open"
        assert [each.result() for each in waiting] == ["waited"] * (THREADS - 1)
    assert threads(url)["threads"] == [f"mgloop-wsgi-{n + 1}" for n in range(THREADS)]


def test_requests_wait_while_all_threads_are_busy(url):
    with ThreadPoolExecutor(2 * THREADS) as clients:
        others = [clients.submit(get, url, "/waits") for _ in range(THREADS - 1)]
        opens = clients.submit(get, url, f"/opens?{THREADS - 1}")
        others += [clients.submit(get, url, "/waits") for _ in range(THREADS)]
        assert opens.result() == "open"
        assert {each.result() for each in others} == {"waited"}
    assert len(threads(url)["threads"]) == THREADS


@pytest.mark.parametrize(
    "path",
    ["/raises", "/raises-after", "/yields-text", "/exits", "/none", "/forks", "/closes-slowly",
     "/starts-a-thread"],
)  # fmt: skip
def test_no_thread_is_lost(url, path):
    for _ in range(2 * THREADS):
        with contextlib.closing(connect(url)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
    assert response.status == (500 if body == b"Internal Server Error" else 200)
    if path == "/forks":
        assert body == b"7"
    test_threads_start_while_all_others_are_busy(url)


def test_each_request_has_a_context_of_its_own(url):
    assert {get(url, "/context") for _ in range(10)} == {"1"}


def test_the_loops_thread_runs_the_application_without_threads(tmp_path):
    write_app(tmp_path, APPLICATION)
    arguments = ("serve", "main:app", "--wsgi-threads", 0, "--port", 0)
    with Command(*arguments, cwd=tmp_path) as command:
        url = command.url()
        assert threads(url) == {"threads": [], "own": threading.main_thread().name}
        assert {get(url, "/context") for _ in range(3)} == {"1"}
