# SPDX-License-Identifier: GPL-2.0-only
"""WSGI applications that raise, exit, block, fork and start threads, and clients that are slow: the
server goes on, logs each event once, and loses no thread.
"""

import contextlib
import json
import re
import select
import threading
import time

import pytest
from commands import write_app
from wsgi_servers import KINDS, OURS, PREAMBLE, THREADS, WsgiServer, get, post

APPLICATION = r"""
import contextvars, json, signal, subprocess

VARIABLE = contextvars.ContextVar("variable", default="unset")
LOCK = threading.Lock()
INSIDE = MOST = 0

class DeliberateError(Exception):
    pass

class Unprintable(Exception):
    def __str__(self):
        raise DeliberateError("in __str__")

def die(kind):
    match kind:
        case "exception":
            raise DeliberateError("deliberate")
        case "exit":
            sys.exit("the application exits")
        case "exit-0":
            sys.exit(0)
        case "keyboard":
            raise KeyboardInterrupt
        case "base":
            raise BaseException("deliberate")
        case "generator-exit":
            raise GeneratorExit
        case "stop-iteration":
            raise StopIteration
        case "memory":
            raise MemoryError
        case "recursion":
            return die(kind)
        case "unprintable":
            raise Unprintable

@checked
def index(environ, start_response):
    return answer(start_response, "well")

def before(environ, start_response):
    die(environ["QUERY_STRING"])

def during(environ, start_response):
    '''Raise between start_response() and the first piece.'''
    start_response("200 OK", PLAIN)
    die(environ["QUERY_STRING"])

def first(environ, start_response):
    '''Raise as the first piece is asked for.'''
    start_response("200 OK", PLAIN)
    return killed([], environ["QUERY_STRING"])

def after(environ, start_response):
    start_response("200 OK", PLAIN)
    return killed([b"begun"], environ["QUERY_STRING"])

def last(environ, start_response):
    '''Raise after all the body that was announced.'''
    start_response("200 OK", [*PLAIN, ("Content-Length", "5")])
    return killed([b"begun"], environ["QUERY_STRING"])

class killed:
    def __init__(self, pieces, kind):
        self.pieces, self.kind = iter(pieces), kind

    def __iter__(self):
        return self

    def __next__(self):
        for piece in self.pieces:
            return piece
        die(self.kind)
        raise StopIteration

def in_close(environ, start_response):
    start_response("200 OK", PLAIN)
    class Dies:
        def __iter__(self):
            return iter([b"whole"])
        def close(self):
            die(environ["QUERY_STRING"])
    return Dies()

def threads(environ, start_response):
    found = sorted(thread.name for thread in threading.enumerate())
    return answer(start_response, json.dumps(found))

def thread(environ, start_response):
    return answer(start_response, threading.current_thread().name)

@checked
def waits(environ, start_response):
    '''Wait until there is a file with the name of the query; note how many wait.'''
    global INSIDE, MOST
    name = environ["QUERY_STRING"]
    with LOCK:
        INSIDE += 1
        MOST = max(MOST, INSIDE)
        note(f"{name}-{INSIDE}", "yes")
    wait_for_file(name)
    with LOCK:
        INSIDE -= 1
    return answer(start_response, "waited")

def wait_for_file(name):
    while not os.path.exists(name):
        time.sleep(0.01)

def most(environ, start_response):
    return answer(start_response, str(MOST))

@checked
def variable(environ, start_response):
    found = VARIABLE.get()
    VARIABLE.set("set by a request")
    def pieces():
        # The iterable and its close() are in the request's context.
        yield f"{found}, {VARIABLE.get()}".encode()
    start_response("200 OK", PLAIN)
    return pieces()

def starts_threads(environ, start_response):
    '''Threads that outlive the request, and one that uses start_response() and write().'''
    for _ in range(20):
        threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()
    write = start_response("200 OK", PLAIN)
    other = threading.Thread(target=write, args=(b"from another thread",))
    other.start()
    other.join()
    return []

def forks(environ, start_response):
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    _, status = os.waitpid(pid, 0)
    return answer(start_response, str(os.waitstatus_to_exitcode(status)))

def forks_and_returns(environ, start_response):
    '''The child goes on as if it were the server, until it ends by itself.'''
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        # It must not disturb the connections of its parent.
        signal.alarm(20)
        try:
            import gc
            gc.collect()
            os.write(writer, b"the child has lived")
        finally:
            os._exit(0)
    os.close(writer)
    found = os.read(reader, 100)
    os.close(reader)
    os.waitpid(pid, 0)
    return answer(start_response, found)

def runs_a_program(environ, start_response):
    done = subprocess.run([sys.executable, "-c", "print(42)"], capture_output=True, text=True)
    return answer(start_response, done.stdout.strip())

def closes_slowly(environ, start_response):
    start_response("200 OK", [*PLAIN, ("Content-Length", "4")])
    name = environ["QUERY_STRING"]
    class Slow:
        def __iter__(self):
            return iter([b"slow"])
        def close(self):
            note(f"{name}-closing", "yes")
            wait_for_file(name)
            note(f"{name}-closed", "yes")
    return Slow()

def endless(environ, start_response):
    start_response("200 OK", PLAIN)
    name = environ["QUERY_STRING"]
    def pieces():
        try:
            while True:
                yield bytes(65536)
        finally:
            note(name, "closed")
    return pieces()

def endless_write(environ, start_response):
    '''Call write() for ever; note the exception that ends it.'''
    write = start_response("200 OK", PLAIN)
    try:
        while True:
            write(b"a short part")
    except Exception as exc:
        note(environ["QUERY_STRING"], type(exc).__name__)
        raise

def endless_parts(environ, start_response):
    start_response("200 OK", PLAIN)
    name = environ["QUERY_STRING"]
    def parts():
        try:
            while True:
                yield b"a short part"
        finally:
            note(name, "closed")
    return parts()

def big(environ, start_response):
    return answer(start_response, bytes(20_000_000))

def upload(environ, start_response):
    return answer(start_response, str(len(environ["wsgi.input"].read())))

def gc_and_cycle(environ, start_response):
    '''Leave a cycle of everything that the request consists of, for the collector to find.'''
    import gc
    cycle = [environ, start_response, environ["wsgi.input"]]
    cycle.append(cycle)
    start_response("200 OK", PLAIN)
    gc.collect()
    return [b"cycle"]

KEPT = []

def keeps(environ, start_response):
    '''Use the parts of earlier requests after they have ended.'''
    kept, found = KEPT[:], []
    KEPT[:] = [environ, start_response, start_response("200 OK", PLAIN)]
    if kept:
        old, start, write = kept
        for call in (
            lambda: old["wsgi.input"].read(),
            lambda: old["wsgi.input"].readline(),
            lambda: list(old["wsgi.input"]),
            lambda: start("200 OK", PLAIN),
            lambda: write(b"late"),
        ):
            try:
                found.append(repr(call()))
            except Exception as exc:
                found.append(type(exc).__name__)
    return [json.dumps(found).encode()]

def signals(environ, start_response):
    '''A signal arrives while a thread is in the application.'''
    os.kill(os.getpid(), signal.SIGCHLD)
    return answer(start_response, "signalled")
"""

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


def check_entries(server, expected):
    """Check that the log has one traceback per expected entry, and no other error."""
    for entry in expected:
        server.wait_for(re.escape(entry))
    assert server.get("/").text == "well"
    fresh = server.logged().split("\n")[server.mark :]
    if server.kind != "gunicorn":
        assert sum("ERROR" in line for line in fresh) == len(expected), "\n".join(fresh)


@pytest.fixture(autouse=True)
def mark(request):
    """Remember where the log of the server was when the test began."""
    for name in {"server", "ours"} & set(request.fixturenames):
        server = request.getfixturevalue(name)
        server.logged()
        server.mark = len(server.lines)


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
            check_entries(server, [DEATHS[kind]])
            server.mark = len(server.lines)


def test_an_application_that_raises_in_mid_response_cuts_it(server):
    for kind in deaths(server):
        with server.connect(get(f"/after?{kind}")) as client:
            found = client.answer()
            if kind == "stop-iteration":
                assert (found.text, found.complete) == ("begun", True)
                continue
            assert (found.status, found.text, found.complete) == (200, "begun", False), kind
            assert client.ended()
        check_entries(server, [DEATHS[kind]])
        server.mark = len(server.lines)


def test_an_application_that_raises_after_the_body_is_logged(server):
    for kind in deaths(server):
        if kind == "stop-iteration":
            continue
        found = server.get(f"/last?{kind}")
        assert (found.status, found.text, found.complete) == (200, "begun", True), kind
        check_entries(server, [DEATHS[kind]])
        server.mark = len(server.lines)


def test_close_that_raises_is_logged(server):
    for kind in deaths(server):
        found = server.get(f"/in-close?{kind}")
        assert (found.status, found.text) == (200, "whole"), kind
        check_entries(server, [DEATHS[kind]])
        server.mark = len(server.lines)


def test_an_interrupt_in_the_thread_of_the_loop_ends_the_server(tmp_path):
    write_app(tmp_path, PREAMBLE + APPLICATION)
    with WsgiServer("inline", tmp_path) as server:
        with server.started().connect(get("/before?keyboard")) as client:
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


# --- threads -------------------------------------------------------------------------------------


@pytest.fixture
def threads(servers):
    """Return mgloop's server with a pool of threads."""
    return servers["threads"]


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
    assert int(threaded.get("/most").text) == THREADS


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


def test_threads_are_started_only_when_all_are_busy(tmp_path):
    write_app(tmp_path, PREAMBLE + APPLICATION)
    with WsgiServer("threads", tmp_path) as server:
        server.started()
        with server.connect() as client:
            for _ in range(20):
                assert client.request(get("/")).text == "well"
        assert pool(server) == ["mgloop-wsgi-1"] or len(pool(server)) == 1
        with contextlib.ExitStack() as stack:
            gate = Gate(tmp_path, "gate")
            blocked(stack, server, gate, THREADS - 1)
            assert len(pool(server)) == THREADS
            gate.open()
        assert server.stop() == 0, server.output


def test_no_thread_is_lost(threads, gate):
    """After everything that can happen to a request, all threads take requests."""
    paths = [f"/{place}?{kind}" for place in ("before", "during", "after", "in-close")
             for kind in DEATHS]  # fmt: skip
    paths += ["/starts-threads", "/forks", "/gc-and-cycle", "/keeps", "/signals"]
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


# --- slow clients --------------------------------------------------------------------------------


def test_bodies_that_come_slowly_hold_no_thread(ours):
    """Ten times as many as there are threads."""
    count = 10 * THREADS
    with contextlib.ExitStack() as stack:
        head = get("/upload", f"Content-Length: {count}", method="POST")
        slow = [stack.enter_context(ours.connect(head)) for _ in range(count)]
        for number in range(count):
            for client in slow:
                client.send(b"x")
            if number % 5 == 0:
                begun = time.monotonic()
                assert ours.get("/").text == "well"
                assert time.monotonic() - begun < 5
        for client in slow:
            assert client.answer().text == str(count)


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


def test_clients_that_do_not_read_a_stream(tmp_path):
    """A thread waits for them at most as long as --timeout-write."""
    write_app(tmp_path, PREAMBLE + APPLICATION)
    with WsgiServer("threads", tmp_path, "--timeout-write", 1) as server:
        server.started()
        with contextlib.ExitStack() as stack:
            for number in range(2 * THREADS):
                stack.enter_context(server.connect(get(f"/endless?slow-{number}")))
            for number in range(2 * THREADS):
                assert server.note(f"slow-{number}") == "closed"
        assert server.stop() == 0, server.output


def test_clients_that_do_not_read_a_stream_inline(tmp_path):
    """The application waits without a thread, and others are served."""
    write_app(tmp_path, PREAMBLE + APPLICATION)
    with WsgiServer("inline", tmp_path, "--timeout-write", 1) as server:
        server.started()
        with contextlib.ExitStack() as stack:
            for number in range(5):
                stack.enter_context(server.connect(get(f"/endless?slow-{number}")))
            assert server.get("/").text == "well"
            for number in range(5):
                assert server.note(f"slow-{number}") == "closed"
        assert server.stop() == 0, server.output


@pytest.mark.parametrize(
    ("path", "end"), [("endless-parts", "closed"), ("endless-write", "ClientDisconnected")]
)
def test_clients_that_go_during_a_stream(ours, path, end):
    """Nothing more is written to the transport, which would log a warning of each write."""
    for number in range(5):
        name = f"{path}-{ours.kind}-{number}"
        with ours.connect(get(f"/{path}?{name}")) as client:
            client.head()
        assert ours.note(name) == end
    assert "raised exception" not in "\n".join(ours.logged().split("\n")[ours.mark :])


def test_too_many_requests_are_refused(tmp_path):
    write_app(tmp_path, PREAMBLE + APPLICATION)
    gate = Gate(tmp_path, "gate")
    with WsgiServer("threads", tmp_path, "--limit-concurrency", THREADS + 3) as server:
        server.started()
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
        assert server.stop() == 0, server.output


@pytest.mark.parametrize("kind", OURS)
def test_the_access_log(kind, tmp_path):
    write_app(tmp_path, PREAMBLE + APPLICATION)
    with WsgiServer(kind, tmp_path) as server:
        server.started()
        server.get("/?a=b")
        server.wait_for(r'"GET /\?a=b HTTP/1.1" 200')
        server.get("/before?exception")
        server.wait_for(r'"GET /before\?exception HTTP/1.1" 500')
        assert server.stop() == 0, server.output


def test_waiting_ends_with_the_gate(threads, gate):
    """Requests that come while all threads block are served in the order of their arrival."""
    with contextlib.ExitStack() as stack:
        blocked(stack, threads, gate, THREADS)
        sender = stack.enter_context(threads.connect(get("/thread") * 50))
        assert not readable(sender, within=0.3)
        threading.Timer(0.1, gate.open).start()
        assert {sender.answer().status for _ in range(50)} == {200}
