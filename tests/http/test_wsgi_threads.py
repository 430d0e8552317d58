# SPDX-License-Identifier: GPL-2.0-only
"""The threads of WSGI applications: when they start, and that none is lost or held by a client."""

import contextlib
import json
import re
import select
import threading
import time

import commands
import pytest
from test_wsgi_hostile import DEATHS
from wsgi_servers import KINDS, THREADS, get

TRACED = """
import sys, threading

def observe(frame, event, argument):
    return None

threading.settrace(observe)
threading.setprofile(observe)

def app(environ, start_response):
    start_response("200 OK", [])
    return [b"%d %d" % (sys.gettrace() is observe, sys.getprofile() is observe)]
"""


@pytest.fixture(params=[kind for kind in KINDS if kind != "inline"])
def threaded(request, servers):
    """Return a server with a pool of threads."""
    return servers[request.param]


@pytest.fixture
def gate(servers, request):
    """Return a gate: its `name` is for /waits, its open() lets the requests go on."""
    gate = Gate(servers.folder, re.sub(r"\W", "-", request.node.name))
    yield gate
    gate.open()


class Gate:
    def __init__(self, folder, name):
        self.path, self.name = folder / name, name

    def open(self):
        self.path.touch()


def pool(server):
    """Return the names of the threads of the server's pool."""
    return [name for name in json.loads(server.get("/threads").body) if "mgloop-wsgi" in name]


def blocked(stack, server, gate, count):
    """Return clients whose requests block at the gate."""
    clients = []
    for number in range(1, count + 1):
        clients.append(stack.enter_context(server.connect(get(f"/waits?{gate.name}"))))
        if number < THREADS:
            assert server.note(f"{gate.name}-{number}") == "yes"
    return clients


def readable(*clients, within):
    return select.select([client.sock for client in clients], [], [], within)[0]


def test_the_application_has_a_thread_of_its_own(threads):
    assert re.fullmatch(r"mgloop-wsgi-\d+", threads.get("/thread").text)


def test_a_thread_has_the_trace_functions_of_threading(tmp_path):
    """Debuggers and coverage set them."""
    commands.write_app(tmp_path, TRACED)
    with commands.serve(tmp_path, "--interface", "wsgi") as command:
        assert commands.get(command.url()) == "1 1"
        assert command.stop() == 0


def test_inline_is_the_thread_of_the_loop(servers):
    assert servers["inline"].get("/thread").text == "MainThread"
    assert not pool(servers["inline"])


def test_requests_that_block_are_served_side_by_side(threaded, gate):
    """As many as there are threads run; the others wait, and none of them is lost."""
    with contextlib.ExitStack() as stack:
        clients = blocked(stack, threaded, gate, THREADS - 1)
        assert threaded.get("/").text == "well"
        clients += [stack.enter_context(threaded.connect(get(f"/waits?{gate.name}")))]
        clients += [stack.enter_context(threaded.connect(get("/"))) for _ in range(10)]
        assert not readable(*clients, within=0.3)
        gate.open()
        texts = [client.answer().text for client in clients]
        assert texts == ["waited"] * THREADS + ["well"] * 10
    assert int(threaded.get(f"/most?{gate.name}").text) == THREADS


def test_a_client_that_goes_before_its_turn_is_not_served(threads, gate):
    """Its request is in the queue; running the application would be in vain."""
    with contextlib.ExitStack() as stack:
        clients = blocked(stack, threads, gate, THREADS)
        for _ in range(20):
            threads.connect(get("/endless?queued")).sock.close()
        last = stack.enter_context(threads.connect(get("/")))
        assert not readable(last, within=0.3)
        gate.open()
        assert [client.answer().text for client in clients] == ["waited"] * THREADS
        assert last.answer().text == "well"
    assert pool(threads)


def test_a_client_that_goes_while_the_application_blocks(threads, gate):
    with contextlib.ExitStack() as stack:
        for client in blocked(stack, threads, gate, THREADS - 1):
            client.sock.close()
        assert threads.get("/").text == "well"
        gate.open()
    for _ in range(3 * THREADS):
        assert threads.get("/").text == "well"


def test_close_that_blocks_does_not_delay_the_response(threads, gate):
    with threads.connect(get(f"/closes-slowly?{gate.name}")) as client:
        assert client.answer().text == "slow"
        assert threads.note(f"{gate.name}-closing") == "yes"
        assert threads.get(f"/notes/{gate.name}-closed").text == ""
        gate.open()
        assert threads.note(f"{gate.name}-closed") == "yes"
        assert client.request(get("/")).text == "well"


def test_threads_are_started_only_when_all_are_busy(start, tmp_path):
    server = start()
    with server.connect() as client:
        for _ in range(20):
            assert client.request(get("/thread")).text == "mgloop-wsgi-1"
    assert pool(server) == ["mgloop-wsgi-1"]
    gate = Gate(tmp_path, "gate")
    with contextlib.ExitStack() as stack:
        clients = blocked(stack, server, gate, THREADS - 1)
        assert pool(server) == [f"mgloop-wsgi-{n + 1}" for n in range(THREADS)]
        gate.open()
        assert [client.answer().text for client in clients] == ["waited"] * (THREADS - 1)


def test_no_thread_is_lost(threads, gate):
    """After everything that can happen to a request, all threads take requests."""
    places = ("before", "during", "after", "in-close")
    paths = [f"/{place}?{kind}" for place in places for kind in DEATHS]
    paths += ["/starts-threads", "/forks", "/gc-and-cycle", "/keeps", "/signals"]
    paths += ["/wrong?str", "/wrong?none"]
    for path in paths:
        with threads.connect(get(path)) as client:
            client.answer()
        threads.connect(get(path)).sock.close()
    for number in range(2 * THREADS):
        with threads.connect(get(f"/endless?lost-{number}")) as client:
            client.head()
        assert threads.note(f"lost-{number}") == "closed"
    with contextlib.ExitStack() as stack:
        clients = blocked(stack, threads, gate, THREADS)
        assert not readable(*clients, within=0.3)
        gate.open()
        assert [client.answer().text for client in clients] == ["waited"] * THREADS
    names = pool(threads)
    assert len(names) == len(set(names)) == THREADS


def test_a_child_that_exits_takes_no_thread_along(threads, gate):
    for _ in range(2 * THREADS):
        assert threads.get("/forks-and-exits").text == "7"
    with contextlib.ExitStack() as stack:
        clients = blocked(stack, threads, gate, THREADS)
        gate.open()
        assert [client.answer().text for client in clients] == ["waited"] * THREADS


# --- slow clients --------------------------------------------------------------------------------


def test_bodies_that_come_slowly_hold_no_thread(ours):
    """Ten times as many as there are threads."""
    count = 10 * THREADS
    with contextlib.ExitStack() as stack:
        head = get("/measured", f"Content-Length: {count}", method="POST")
        slow = [stack.enter_context(ours.connect(head)) for _ in range(count)]
        for number in range(count):
            for client in slow:
                client.send(b"x")
            if number % 5 == 0:
                begun = time.monotonic()
                assert ours.get("/").text == "well"
                assert time.monotonic() - begun < 5
        for client in slow:
            assert client.answer().text == f"{count} {count}"


def test_clients_that_do_not_read_hold_no_thread(ours):
    """A response of one piece is the loop's as soon as the application has returned it."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(ours.connect(get("/big"))) for _ in range(3 * THREADS)]
        for client in slow:
            client.head()
        for _ in range(THREADS):
            assert ours.get("/").text == "well"
        for client in slow:
            assert len(client.exactly(20_000_000)) == 20_000_000


def test_clients_that_do_not_read_a_stream(start):
    """A thread waits for them at most as long as --timeout-write."""
    server = start("--timeout-write", 1)
    with contextlib.ExitStack() as stack:
        for number in range(2 * THREADS):
            stack.enter_context(server.connect(get(f"/endless?slow-{number}")))
        for number in range(2 * THREADS):
            assert server.note(f"slow-{number}") == "closed"


def test_clients_that_do_not_read_a_stream_inline(start):
    """The application waits without a thread, and others are served."""
    server = start("--timeout-write", 1, kind="inline")
    with contextlib.ExitStack() as stack:
        for number in range(5):
            stack.enter_context(server.connect(get(f"/endless?slow-{number}")))
        assert server.get("/").text == "well"
        for number in range(5):
            assert server.note(f"slow-{number}") == "closed"


@pytest.mark.parametrize(
    ("path", "end"), [("endless-parts", "closed 1"), ("endless-write", "ClientDisconnected")]
)
def test_clients_that_go_during_a_stream(ours, path, end):
    """Nothing more is written to the transport, which would log a warning of each write."""
    for number in range(5):
        name = f"{path}-{ours.kind}-{number}"
        with ours.connect(get(f"/{path}?{name}")) as client:
            client.head()
        assert ours.note(name) == end
    assert "raised exception" not in "\n".join(ours.logged())


def test_too_many_requests_are_refused(start, tmp_path):
    gate = Gate(tmp_path, "gate")
    server = start("--limit-concurrency", THREADS + 3)
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(server.connect(get("/waits?gate"))) for _ in range(THREADS + 3)
        ]
        assert not readable(*clients, within=0.3)
        for _ in range(5):
            found = server.get("/")
            assert found.status == 503
            assert int(found.get("retry-after")) > 0
        gate.open()
        for client in clients:
            assert client.answer().text == "waited"
    assert server.get("/").text == "well"


def test_waiting_ends_with_the_gate(threads, gate):
    """Requests that come while all threads block are served in the order of their arrival."""
    with contextlib.ExitStack() as stack:
        blocked(stack, threads, gate, THREADS)
        sender = stack.enter_context(threads.connect(get("/thread") * 50))
        assert not readable(sender, within=0.3)
        threading.Timer(0.1, gate.open).start()
        assert {sender.answer().status for _ in range(50)} == {200}
