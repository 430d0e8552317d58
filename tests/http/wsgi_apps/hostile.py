# SPDX-License-Identifier: GPL-2.0-only
"""Applications that raise, exit, block, fork and start threads, and those that wait."""

import contextvars
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time

from wsgi_apps.common import (
    PLAIN,
    Body,
    answer,
    note,
    print_at_once,
    unchecked,
    wait_for_file,
)

VARIABLE = contextvars.ContextVar("variable", default="unset")
LOCK = threading.Lock()

#: The number of requests in waits(), by the name of the gate, and the greatest so far.
INSIDE, MOST = {}, {}


def index(environ, start_response):
    return answer(start_response, "well")


def pid(environ, start_response):
    return answer(start_response, str(os.getpid()))


# --- exceptions ----------------------------------------------------------------------------------


class DeliberateError(Exception):
    pass


class Unprintable(Exception):  # noqa: N818
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
            die(kind)
        case "unprintable":
            raise Unprintable


class Killed:
    """An iterable that dies after its pieces."""

    def __init__(self, pieces, kind):
        self.pieces, self.kind = iter(pieces), kind

    def __iter__(self):
        return self

    def __next__(self):
        for piece in self.pieces:
            return piece
        die(self.kind)
        raise StopIteration


def before(environ, start_response):
    die(environ["QUERY_STRING"])


def during(environ, start_response):
    """Raise between start_response() and the first piece."""
    start_response("200 OK", PLAIN)
    die(environ["QUERY_STRING"])


def first(environ, start_response):
    """Raise as the first piece is asked for."""
    start_response("200 OK", PLAIN)
    return Killed([], environ["QUERY_STRING"])


def after(environ, start_response):
    start_response("200 OK", PLAIN)
    return Killed([b"begun"], environ["QUERY_STRING"])


def last(environ, start_response):
    """Raise after all the body that was announced."""
    start_response("200 OK", [*PLAIN, ("Content-Length", "5")])
    return Killed([b"begun"], environ["QUERY_STRING"])


def in_close(environ, start_response):
    start_response("200 OK", PLAIN)

    class Dies(Body):
        def close(self):
            die(environ["QUERY_STRING"])

    return Dies("", [b"whole"])


# --- threads -------------------------------------------------------------------------------------


def threads(environ, start_response):
    found = sorted(thread.name for thread in threading.enumerate())
    return answer(start_response, json.dumps(found))


def thread(environ, start_response):
    return answer(start_response, threading.current_thread().name)


def waits(environ, start_response):
    """Wait until there is a file with the name of the query; note how many wait."""
    name = environ["QUERY_STRING"]
    with LOCK:
        INSIDE[name] = inside = INSIDE.get(name, 0) + 1
        MOST[name] = max(MOST.get(name, 0), inside)
    note(f"{name}-{inside}", "yes")
    print_at_once("begun")
    wait_for_file(name)
    with LOCK:
        INSIDE[name] -= 1
    return answer(start_response, "waited")


def most(environ, start_response):
    """Answer with the greatest number of requests that have waited at a gate at a time."""
    return answer(start_response, str(MOST[environ["QUERY_STRING"]]))


def variable(environ, start_response):
    found = VARIABLE.get()
    VARIABLE.set("set by a request")

    def pieces():
        # The iterable is in the request's context, too.
        yield f"{found}, {VARIABLE.get()}".encode()

    start_response("200 OK", PLAIN)
    return pieces()


def starts_threads(environ, start_response):
    """Start threads that outlive the request, and one that calls write()."""
    for _ in range(20):
        threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()
    write = start_response("200 OK", PLAIN)
    other = threading.Thread(target=write, args=(b"from another thread",))
    other.start()
    other.join()
    return []


# --- processes -----------------------------------------------------------------------------------


def exit_code_of(pid):
    _, status = os.waitpid(pid, 0)
    return str(os.waitstatus_to_exitcode(status))


def forks(environ, start_response):
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    return answer(start_response, exit_code_of(pid))


def forks_and_exits(environ, start_response):
    """The SystemExit of the child goes through the server's code."""
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    return answer(start_response, exit_code_of(pid))


def forks_and_returns(environ, start_response):
    """The child goes on as if it were the server, until it ends by itself."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        # It must not disturb the connections of its parent.
        signal.alarm(20)
        try:
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
    done = subprocess.run(
        [sys.executable, "-c", "print(42)"], capture_output=True, text=True, check=True
    )
    return answer(start_response, done.stdout.strip())


def signals(environ, start_response):
    """A signal arrives while a thread is in the application."""
    os.kill(os.getpid(), signal.SIGCHLD)
    return answer(start_response, "signalled")


def terminates(environ, start_response):
    """Send a signal to the server from within a request."""
    os.kill(os.getpid(), getattr(signal, environ["QUERY_STRING"]))
    time.sleep(0.3)
    return answer(start_response, "answered")


# --- applications that take long -----------------------------------------------------------------


def closes_slowly(environ, start_response):
    start_response("200 OK", [*PLAIN, ("Content-Length", "4")])
    name = environ["QUERY_STRING"]

    class Slow(Body):
        def close(self):
            note(f"{name}-closing", "yes")
            wait_for_file(name)
            note(f"{name}-closed", "yes")

    return Slow(name, [b"slow"])


def endless(environ, start_response):
    start_response("200 OK", PLAIN)
    name = environ["QUERY_STRING"]

    def pieces():
        try:
            while True:
                yield bytes(65536)
        finally:
            note(name, "closed")
            print_at_once("the generator was closed")

    return pieces()


def endless_write(environ, start_response):
    """Call write() for ever; note the exception that ends it."""
    write = start_response("200 OK", PLAIN)
    try:
        while True:
            write(b"a short part")
    except Exception as exc:
        note(environ["QUERY_STRING"], type(exc).__name__)
        raise


def endless_parts(environ, start_response):
    start_response("200 OK", PLAIN)
    return Body(environ["QUERY_STRING"], iter(lambda: b"a short part", None))


def slow_stream(environ, start_response):
    """Answer without an end; print the end of the generator."""
    start_response("200 OK", PLAIN)

    def pieces():
        try:
            while True:
                yield b"more\n"
                time.sleep(0.05)
        finally:
            print_at_once("the generator was closed")

    return pieces()


def blocks(environ, start_response):
    """Never return."""
    print_at_once("begun")
    threading.Event().wait()


def stalls(environ, start_response):
    """Send a piece, and then none."""
    write = start_response("200 OK", PLAIN)
    write(b"begun")
    wait_for_file("go")
    return [b" and ended"]


def big(environ, start_response):
    return answer(start_response, bytes(20_000_000))


# --- parts of a request that outlive it ----------------------------------------------------------


@unchecked  # the cycle would consist of the validator's objects
def gc_and_cycle(environ, start_response):
    """Leave a cycle of everything that the request consists of, for the collector to find."""
    cycle = [environ, start_response, environ["wsgi.input"]]
    cycle.append(cycle)
    start_response("200 OK", PLAIN)
    gc.collect()
    return [b"cycle"]


KEPT = []


@unchecked  # calls after the end of a request
def keeps(environ, start_response):
    """Use the parts of earlier requests after they have ended."""
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
