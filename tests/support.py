# SPDX-License-Identifier: GPL-2.0-only
"""Helpers that the tests import: audits, sockets, peers in threads, callbacks, subprocesses.

This module does not depend on mgloop and contains no fixtures (those are in conftest.py). loops.py
has the few helpers that programs started by a test also need. Marks for version differences check
for the feature instead of comparing version numbers, so that a backport cannot make a mark wrong.
"""

import array
import asyncio
import contextlib
import functools
import gc
import glob
import inspect
import os
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import threading
import time
import warnings

import pytest
from loops import call_in_a_crowd as call_in_a_crowd
from loops import finish as finish
from loops import kind_of as kind_of
from loops import new_loop as new_loop
from loops import turn as turn

#: A factor for time limits: a free-threaded CPython 3.13 yields its core 1,800 times while it
#: starts and ends, which takes seconds if other processes use that core.
SLOWNESS = 3 if sysconfig.get_config_var("Py_GIL_DISABLED") else 1

#: Seconds after which a helper stops waiting for an event that should take milliseconds.
PATIENCE = 30.0 * SLOWNESS

#: More bytes than the socket buffers of both ends hold: TCP's send buffer grows to 4 MiB.
BIG = 8 * 1024 * 1024

needs_no_dev_mode = pytest.mark.skipif(
    sys.flags.dev_mode, reason="in Python's development mode loops start in debug mode"
)
needs_eager_tasks = pytest.mark.skipif(
    not hasattr(asyncio, "eager_task_factory"), reason="eager tasks came with CPython 3.12"
)
needs_eager_start = pytest.mark.skipif(
    not any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in inspect.signature(asyncio.BaseEventLoop.create_task).parameters.values()
    ),
    reason="create_task passes keywords such as eager_start on since CPython 3.13.3",
)
needs_executor_timeout = pytest.mark.skipif(
    "timeout" not in inspect.signature(asyncio.BaseEventLoop.shutdown_default_executor).parameters,
    reason="shutdown_default_executor(timeout=) came with CPython 3.12",
)
needs_run_loop_factory = pytest.mark.skipif(
    "loop_factory" not in inspect.signature(asyncio.run).parameters,
    reason="asyncio.run(loop_factory=) came with CPython 3.12",
)
needs_popen_that_cleans_up = pytest.mark.skipif(
    not hasattr(subprocess.Popen, "_on_error_fd_closer"),
    reason="this subprocess.Popen leaks the descriptors that it has got when it gets no more",
)


def _communicate_is_silent():
    """Return whether Process.communicate() hides a broken pipe of the child's input.

    asyncio's protocol for the child has a future for that pipe, which is never awaited.
    """
    loop = asyncio.new_event_loop()
    try:
        protocol = asyncio.subprocess.SubprocessStreamProtocol(limit=1, loop=loop)
        protocol.pipe_connection_lost(0, BrokenPipeError())
        closed = protocol._get_close_waiter(None)
        silent = not closed._log_traceback
        closed._log_traceback = False
        return silent
    finally:
        loop.close()


COMMUNICATE_IS_SILENT = _communicate_is_silent()


def _has_ipv6():
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


HAS_IPV6 = _has_ipv6()
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6 loopback")


async def turns(count=3):
    """Let the running loop make some iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


async def wait_until(predicate, timeout=PATIENCE):
    """Wait until ``predicate()`` is true; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, f"still false after {timeout} s: {predicate}"
        await asyncio.sleep(0.001)


def eventually(predicate, timeout=PATIENCE):
    """Wait, without a loop, until ``predicate()`` is true; fail after `timeout` seconds.

    It pauses between the calls, so that the process under test can run. The predicate must not
    change the number that it looks at: a request, for example, opens a connection.
    """
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, f"still false after {timeout} s: {predicate}"
        time.sleep(0.005)


async def settled(value, pause=0.1):
    """Wait until ``value()`` is true and does not change any more; return it."""
    await wait_until(value)
    last = None
    while last != (last := value()):
        await asyncio.sleep(pause)
    return last


async def close(thing):
    """Close a server or a stream writer, and wait until it is closed."""
    thing.close()
    await thing.wait_closed()


async def cancel(task):
    """Cancel a task, which must end by that."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def reset_current_loop():
    """Restore the default policy without a current loop; suppress the deprecation warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.set_event_loop(None)
        if hasattr(asyncio, "set_event_loop_policy"):
            asyncio.set_event_loop_policy(None)


# --- descriptors ---------------------------------------------------------------------------------


def children():
    """Return the process ids of the children of this process, zombies included.

    Servers that several tests share are among them.
    """
    found = set()
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path) as file:
            found.update(map(int, file.read().split()))  # else the thread has ended
    return found


def open_fds():
    """Return the process's open descriptors: a dict of number to the file that it refers to."""
    fds = {}
    for name in os.listdir("/proc/self/fd"):
        # The descriptor of the listing itself has been closed by now.
        with contextlib.suppress(FileNotFoundError):
            fds[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return fds


def fds_opened_since(before):
    """Return the descriptors that are not in `before`, after collecting garbage."""
    now = open_fds()
    if len(now) > len(before):
        gc.collect()
        now = open_fds()
    if len(now) <= len(before):
        return {}
    return {fd: what for fd, what in now.items() if before.get(fd) != what}


# --- sockets -------------------------------------------------------------------------------------


@contextlib.contextmanager
def nonblocking_socketpair(family=socket.AF_UNIX, kind=socket.SOCK_STREAM):
    """Yield two connected, non-blocking sockets; close them at the end."""
    left, right = socket.socketpair(family, kind)
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield left, right


@contextlib.contextmanager
def nonblocking_tcp_pair(host="127.0.0.1"):
    """Yield two connected, non-blocking TCP sockets: the connecting end and the accepted end."""
    with listening_socket(host) as listener:
        listener.setblocking(True)
        client = socket.create_connection(listener.getsockname()[:2])
        server, _ = listener.accept()
    with client, server:
        client.setblocking(False)
        server.setblocking(False)
        yield client, server


def listening_socket(host="127.0.0.1", backlog=128):
    """Return a non-blocking TCP socket that listens on a free port of `host`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind((host, 0))
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def refused_address(host="127.0.0.1"):
    """Yield a TCP address on which no socket listens, nor can listen while the context lasts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        yield sock.getsockname()


def fill(sock):
    """Write to non-blocking `sock` until it would block; return the number of bytes written."""
    total = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            total += sock.send(b"x" * 65536)
    return total


def drain(sock):
    """Read from non-blocking `sock` until it would block or ends; return the bytes read."""
    chunks = []
    with contextlib.suppress(BlockingIOError):
        while chunk := sock.recv(65536):
            chunks.append(chunk)
    return b"".join(chunks)


def recv_exactly(sock, count):
    """Read `count` bytes from a blocking socket, or fewer if the stream ends."""
    chunks = []
    while count and (chunk := sock.recv(min(count, 65536))):
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def reset(sock):
    """Close a TCP socket so that its peer gets RST: ECONNRESET, not the end of the stream."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@functools.lru_cache(maxsize=8)
def pattern(size):
    """Return `size` bytes in which a lost, repeated or swapped block is detectable."""
    block = array.array("I", range(min(size, BIG) // 4 + 1)).tobytes()
    return (block * (size // len(block) + 1))[:size]


@contextlib.contextmanager
def in_thread(function, *args):
    """Run ``function(*args)`` in a thread while the block runs; re-raise its exception."""
    failures = []

    def body():
        try:
            function(*args)
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(PATIENCE)
    assert not thread.is_alive(), f"{function} has not ended after {PATIENCE} s"
    if failures:
        raise failures[0]


# --- callbacks ---------------------------------------------------------------------------------


@contextlib.contextmanager
def frequent_collections():
    """Run the garbage collector after every few allocations; other threads run during each."""

    def let_others_in(phase, info):
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.callbacks.append(let_others_in)
    gc.set_threshold(2, 1000, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(let_others_in)


class UntruthfulInt(int):
    """An int whose comparison operators behave as if its value were 250."""

    def __lt__(self, other):
        return other > 250

    def __le__(self, other):
        return other >= 250

    def __gt__(self, other):
        return other < 250

    def __ge__(self, other):
        return other <= 250


class WitnessSocket(socket.socket):
    """A socket whose methods add their names to the class attribute `called`."""

    called = frozenset()

    def accept(self):
        return self.witnessed("accept")

    def connect(self, *args):
        return self.witnessed("connect", *args)

    def recv(self, *args):
        return self.witnessed("recv", *args)

    def recv_into(self, *args):
        return self.witnessed("recv_into", *args)

    def recvfrom(self, *args):
        return self.witnessed("recvfrom", *args)

    def send(self, *args):
        return self.witnessed("send", *args)

    def sendto(self, *args):
        return self.witnessed("sendto", *args)

    def witnessed(self, name, *args):
        type(self).called |= {name}
        return getattr(super(), name)(*args)


class WrappingSocket:
    """An object with the methods of a socket and another class, as gevent and eventlet use."""

    def __init__(self, *args, **kwargs):
        self.inner = socket.socket(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Calls:
    """A callback that counts its calls and may run an action at each."""

    def __init__(self, action=None):
        self.args = []
        self.action = action

    def __call__(self, *args):
        self.args.append(args)
        if self.action:
            self.action()

    def __len__(self):
        return len(self.args)


# --- protocols -----------------------------------------------------------------------------------


class RecordingProtocol(asyncio.Protocol):
    """A protocol that records its calls.

    `events` are the names of the callbacks in order (repeated ``data_received`` are one entry),
    `data` contains the received bytes. `made`, `ended` and `lost` are futures for connection_made
    (the transport), eof_received (None) and connection_lost (its argument). With `keep_open`,
    eof_received asks the transport to stay open.
    """

    def __init__(self, loop, *, keep_open=False):
        self.keep_open = keep_open
        self.transport = None
        self.events = []
        self.data = bytearray()
        self.made = loop.create_future()
        self.ended = loop.create_future()
        self.lost = loop.create_future()

    def connection_made(self, transport):
        self.events.append("connection_made")
        self.transport = transport
        self.made.set_result(transport)

    def data_received(self, data):
        if self.events[-1] != "data_received":
            self.events.append("data_received")
        self.data += data

    def eof_received(self):
        self.events.append("eof_received")
        self.ended.set_result(None)
        return self.keep_open

    def pause_writing(self):
        self.events.append("pause_writing")

    def resume_writing(self):
        self.events.append("resume_writing")

    def connection_lost(self, exc):
        self.events.append("connection_lost")
        self.lost.set_result(exc)

    async def received(self, count):
        """Wait until `data` has `count` bytes; remove and return them."""
        await wait_until(lambda: len(self.data) >= count)
        head = bytes(self.data[:count])
        del self.data[:count]
        return head


# --- subprocesses --------------------------------------------------------------------------------

#: Put before every program of :func:`run_python`: ``new_loop()`` makes the loop under test.
_PREAMBLE = """\
import asyncio, os, signal, socket, sys, threading, time, warnings
sys.path.insert(0, {tests!r})
import loops
from loops import call_in_a_crowd, raised, turn
KIND = {kind!r}
def new_loop(**kwargs):
    return loops.new_loop(KIND, **kwargs)
def run(main, **kwargs):
    with asyncio.Runner(loop_factory=new_loop, **kwargs) as runner:
        return runner.run(main)
"""


def python_path(*folders):
    """Return a value of PYTHONPATH: `folders` before those of this process's own."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def finished(command, **options):
    """Run a command to its end; return its CompletedProcess, whose output is text.

    The options are those of ``subprocess.run``.
    """
    options = {"timeout": 2 * PATIENCE, "check": False, **options}
    return subprocess.run(command, capture_output=True, text=True, **options)


def fork():
    """Call os.fork() in the process of the tests, which may have other threads.

    CPython warns of these. Since 3.15 it raises the warning if warnings are errors, although the
    child exists by then and would remain.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def python_command(kind, code, *options):
    """Return the arguments that run `code` in a fresh interpreter, with a loop of `kind`."""
    preamble = _PREAMBLE.format(tests=os.path.dirname(os.path.abspath(__file__)), kind=kind)
    return [sys.executable, *options, "-c", preamble + textwrap.dedent(code)]


class ForkServer:
    """Runs programs in forks of a process that has imported asyncio: see fork_server.py.

    `environment` contains changes of the environment for that process, and so for the programs.
    """

    def __init__(self, environment=None):
        self.inherited = current_environment()
        self.socket, theirs = socket.socketpair()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server.py")
        with theirs:
            subprocess.run(
                [sys.executable, script, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **(environment or {})},
                check=True,
            )

    def run(self, program):
        """Run a program; return its exit status, standard output and standard error."""
        message = f"{os.getcwd()}\0{program}".encode()
        with (
            open(os.devnull) as nothing,
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as errors,
        ):
            files = [file.fileno() for file in (nothing, out, errors)]
            self.socket.settimeout(PATIENCE)
            socket.send_fds(self.socket, [len(message).to_bytes(8, "big")], files)
            self.socket.sendall(message)
            pid = self.receive_number()
            try:
                status = self.receive_number()
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self.receive_number()
                raise AssertionError(f"no end within {PATIENCE} s:\n{program}") from None
            out.seek(0)
            errors.seek(0)
            return status, out.read(), errors.read()

    def receive_number(self):
        """Receive the process id of a fork, or its exit status."""
        data = recv_exactly(self.socket, 8)
        assert len(data) == 8, "the fork server has ended"
        return int.from_bytes(data, "big", signed=True)

    def close(self):
        """End the process."""
        self.socket.close()


def current_environment():
    """Return the environment without the variable that pytest changes for each test."""
    return {name: os.environ[name] for name in os.environ if name != "PYTEST_CURRENT_TEST"}


#: Return the fork server of this test process; conftest.py starts it before the first test.
fork_server = functools.cache(ForkServer)


def run_python(kind, code, *options, returncode=0, env=None, server=None):
    """Run `code` in an interpreter of its own; return (stdout, stderr) as text.

    The interpreter has ``asyncio``, ``os``, ``signal``, ``socket``, ``sys``, ``threading``,
    ``time`` and ``warnings`` imported, ``raised()`` and ``turn()`` of loops.py, and
    ``new_loop(**kwargs)`` and ``run(coro, debug=None)`` for the loop under test. It is a fork of a
    :class:`ForkServer`, by default that of :func:`fork_server`. With options, or if the environment
    is not that of the fork server, it is a new process.
    """
    command = python_command(kind, code, *options)
    server = server or fork_server()
    if options or env or server.inherited != current_environment():
        env = {**os.environ, **(env or {})}
        done = finished(command, stdin=subprocess.DEVNULL, timeout=PATIENCE, env=env)
        status, out, errors = done.returncode, done.stdout, done.stderr
    else:
        status, out, errors = server.run(command[-1])
    assert status == returncode, f"exit status {status}, not {returncode}\n{out}\n{errors}"
    return out, errors


class Program:
    """Runs `code` in a fresh interpreter and communicates with it line by line.

    A context manager, which kills the program at the end if it still runs. The program has the same
    names as with :func:`run_python`.
    """

    def __init__(self, kind, code, *options):
        self.process = subprocess.Popen(
            python_command(kind, code, "-u", *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C at the terminal of the test run must not reach the program.
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def expect(self, line):
        """Read one line of output, which must be `line`."""
        got = self.process.stdout.readline().rstrip("\n")
        if got != line:
            self.process.kill()
            _, errors = self.process.communicate()
            raise AssertionError(f"expected {line!r}, got {got!r}; stderr:\n{errors}")

    def signal(self, number=signal.SIGINT):
        self.process.send_signal(number)

    def wait(self):
        """Wait for the end; return (exit status, rest of stdout, stderr)."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err
