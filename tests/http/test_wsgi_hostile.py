# SPDX-License-Identifier: GPL-2.0-only
"""WSGI applications that raise, exit, fork and start threads: the server goes on, and logs each
event once.
"""

import contextlib
import json
import re

import pytest
from wsgi_servers import THREADS, get, post

#: The ways to raise, with a part of the log entry.
DEATHS = {
    "exception": "DeliberateError: deliberate",
    "exit": "SystemExit: the application exits",
    "exit-0": "SystemExit: 0",
    "keyboard": "KeyboardInterrupt",
    "base": "BaseException: deliberate",
    "generator-exit": "GeneratorExit",
    "stop-iteration": "StopIteration",
    "memory": "MemoryError",
    "recursion": "RecursionError",
    "unprintable": "Unprintable",
}

#: gunicorn's thread or process ends by these, or it takes them for the end of the connection.
NOT_WITH_GUNICORN = {"exit", "exit-0", "keyboard", "base", "generator-exit", "stop-iteration"}


def deaths(server):
    """Return the ways to raise that end a request only."""
    if server.kind == "gunicorn":
        return [kind for kind in DEATHS if kind not in NOT_WITH_GUNICORN]
    # A KeyboardInterrupt in the main thread is Ctrl-C, which ends the server (as with ASGI).
    return [kind for kind in DEATHS if kind != "keyboard" or server.kind != "inline"]


def check_entry(server, expected):
    """Check that the log has one traceback, which ends with that text, and no other error."""
    server.wait_for(re.escape(expected))
    assert server.get("/").text == "well"
    fresh = server.logged()
    server.pass_over()
    if server.kind != "gunicorn":
        assert sum("ERROR" in line for line in fresh) == 1, "\n".join(fresh)


# --- applications that raise ---------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before", "during", "first"])
def test_an_application_that_raises_is_answered_500(server, place):
    with contextlib.ExitStack() as stack:
        for kind in deaths(server):
            if place == "first" and kind == "stop-iteration":
                continue  # that is the end of the body
            client = stack.enter_context(server.connect(get(f"/{place}?{kind}")))
            found = client.answer()
            assert found.status == 500, kind
            assert "deliberate" not in found.text
            check_entry(server, DEATHS[kind])


def test_an_application_that_raises_in_mid_response_cuts_it(server):
    for kind in deaths(server):
        with server.connect(get(f"/after?{kind}")) as client:
            found = client.answer()
            if kind == "stop-iteration":
                assert (found.text, found.complete) == ("begun", True)
                continue
            assert (found.status, found.text, found.complete) == (200, "begun", False), kind
            assert client.ended()
        check_entry(server, DEATHS[kind])


def test_an_application_that_raises_after_the_body_is_logged(server):
    for kind in deaths(server):
        if kind == "stop-iteration":
            continue
        found = server.get(f"/last?{kind}")
        assert (found.status, found.text, found.complete) == (200, "begun", True), kind
        check_entry(server, DEATHS[kind])


def test_close_that_raises_is_logged(server):
    for kind in deaths(server):
        found = server.get(f"/in-close?{kind}")
        assert (found.status, found.text) == (200, "whole"), kind
        check_entry(server, DEATHS[kind])


def test_an_interrupt_in_the_thread_of_the_loop_ends_the_server(start):
    server = start(kind="inline")
    with server.connect(get("/before?keyboard")) as client:
        assert client.answer().status == 500
    server.end()
    assert "Shutting down" in server.output


def test_the_server_goes_on_at_once(ours):
    """Many failures at the same time as requests that succeed."""
    clients = [
        ours.connect(get(f"/{place}?{kind}") + get("/"))
        for place in ("before", "during", "after", "in-close")
        for kind in deaths(ours)
    ]
    for client in clients:
        with client:
            client.answer()
    assert ours.get("/").text == "well"
    # A StopIteration after the first piece is the end of the body.
    for _ in clients[1:]:
        ours.wait_for("ERROR")


# --- contexts, threads and processes of applications ----------------------------------------------


def test_each_request_has_a_fresh_context(server):
    with server.connect() as client:
        for _ in range(3 * THREADS):
            found = client.request(get("/variable")).text
            if server.kind != "gunicorn":  # whose threads each have one context for ever
                assert found == "unset, set by a request"


def test_an_application_that_starts_threads(server):
    for _ in range(3):
        assert server.get("/starts-threads").text == "from another thread"


def test_an_application_that_forks(server):
    for _ in range(3):
        assert server.get("/forks").text == "7"
        assert server.get("/forks-and-returns").text == "the child has lived"
        assert server.get("/runs-a-program").text == "42"


def test_parts_of_a_request_in_a_cycle(server):
    for _ in range(5):
        assert server.exchange(post("/gc-and-cycle", b"12345")).text == "cycle"


def test_parts_of_a_request_that_has_ended(ours):
    """They do nothing to the requests of others: an error each, or an empty body."""
    with ours.connect() as client:
        for _ in range(3):
            found = json.loads(client.request(post("/keeps", b"12345\n6789")).body)
        assert client.request(get("/")).text == "well"
    assert not [entry for entry in found if "12345" in entry and entry != repr(b"12345\n6789")]


def test_the_access_log(ours):
    ours.get("/?a=b")
    ours.wait_for(r'"GET /\?a=b HTTP/1.1" 200')
    ours.get("/before?exception")
    ours.wait_for(r'"GET /before\?exception HTTP/1.1" 500')
