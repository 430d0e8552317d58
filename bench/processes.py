# SPDX-License-Identifier: GPL-2.0-only
"""Start, pin, watch and end the processes of a benchmark.

This module owns every child that a run starts. A child is pinned to its core before it runs a
single instruction of its own. It gets its own session, so that Ctrl-C reaches only the parent,
which then ends its children in order. The kernel kills the child if the parent dies. The module is
single-threaded on purpose, because ``preexec_fn`` is safe only without threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import RunError, UnsupportedError

_PR_SET_PDEATHSIG = 1
_CPUCLOCK_SCHED = 2
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Cores:
    """The cores of server and client, as sets of CPU numbers. Equal sets mean that they share."""

    server: frozenset[int]
    client: frozenset[int]

    @property
    def all(self) -> frozenset[int]:
        """Return both sets together, for servers of several processes."""
        return self.server | self.client

    @property
    def shared(self) -> bool:
        """Return whether server and client compete for a core, which distorts throughput."""
        return bool(self.server & self.client)


def _siblings(cpu: int) -> set[int]:
    """Return the CPU numbers of the hyper-threads of *cpu*'s core, including *cpu* itself."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        text = path.read_text().strip()
    except OSError:
        return {cpu}
    found = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


def choose_cores(server: int | None = None, client: int | None = None) -> Cores:
    """Choose one core for server and client each, on different physical cores if possible."""
    usable = sorted(os.sched_getaffinity(0))
    first = usable[0] if server is None else server
    if client is None:
        others = [c for c in usable if c != first]
        apart = [c for c in others if c not in _siblings(first)]
        client = (apart or others or [first])[0]
    return Cores(frozenset({first}), frozenset({client}))


def _prepare(cores: frozenset[int]) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.sched_setaffinity(0, cores)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass
class Child:
    """A process that a benchmark started, and the file that receives its stderr."""

    name: str
    process: subprocess.Popen
    stderr: tempfile._TemporaryFileWrapper
    ready: dict = field(default_factory=dict)
    unread: bytes = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def complaint(self) -> str:
        """Return the last line that the child wrote to stderr, or how it ended."""
        self.stderr.flush()
        self.stderr.seek(0)
        lines = self.stderr.read().decode(errors="replace").strip().splitlines()
        status = self.process.poll()
        ended = "is still running" if status is None else f"exit status {status}"
        return f"{ended}: {lines[-1]}" if lines else ended

    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Kill the child's whole session and reap it. Do nothing if it has already ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdout, self.process.stdin):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.stderr.close()


def spawn(
    name: str,
    command: Sequence[str],
    cores: frozenset[int],
    *,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
    talk: bool = False,
) -> Child:
    """Start *command* pinned to *cores*, with stdout as a pipe and stderr kept for complaints.

    *talk*: stdin is a pipe too.
    """
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the child closes it in stop()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=lambda: _prepare(cores),
        )
    except OSError as exc:
        stderr.close()
        raise RunError(f"{name} could not be started: {exc}") from exc
    return Child(name, process, stderr)


def lines(child: Child, timeout: float) -> Iterator[str]:
    """Yield the lines of *child* until it closes stdout. RunError if that takes *timeout* s."""
    fd = child.process.stdout.fileno()
    os.set_blocking(fd, False)
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            # Take one line at a time: the caller may stop here, and the rest must not be lost.
            while b"\n" in child.unread:
                line, _, child.unread = child.unread.partition(b"\n")
                yield line.decode(errors="replace")
            left = deadline - time.monotonic()
            if left <= 0:
                raise RunError(f"{child.name} hangs: no answer within {timeout:.0f} s")
            if not selector.select(left):
                continue
            data = os.read(fd, 65536)
            if not data:
                return
            child.unread += data


def wait_ready(child: Child, timeout: float = 20.0) -> dict:
    """Return a server's first JSON line: its port and pid. UnsupportedError or RunError if none."""
    for line in lines(child, timeout):
        if not line.startswith("{"):
            continue
        child.ready = json.loads(line)
        if "unsupported" in child.ready:
            raise UnsupportedError(child.ready["unsupported"])
        if "error" in child.ready:
            raise RunError(f"{child.name} failed: {child.ready['error']}")
        return child.ready
    child.process.wait()
    raise RunError(f"{child.name} died before it listened ({child.complaint()})")


@contextlib.contextmanager
def running(child: Child) -> Iterator[Child]:
    """Stop *child* when the block ends, normally or by an exception."""
    try:
        yield child
    finally:
        child.stop()


@contextlib.contextmanager
def crowd(cores: frozenset[int], port: int, kind: str, count: int) -> Iterator[Child]:
    """Run slow clients during the block, which begins when each has sent its first request.

    *kind*, *count*: see :mod:`bench.wsgi.crowd`.
    """
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-P", "-m", "bench.wsgi.crowd", str(port), kind, str(count)]
    child = spawn("the crowd of slow clients", command, cores, env={"PYTHONPATH": root})
    with running(child):
        wait_ready(child)
        yield child


def free_port() -> int:
    """Return a port on loopback that is free at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def session_pids(leader: int) -> list[int]:
    """Return the processes of *leader*'s session: a server and its workers."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(entry))
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU seconds of *pids*, including ended threads, exact to the scheduler's tick.

    The function reads the processes' CPU clocks. A clock's number is Linux's encoding of (process,
    scheduler time), as clock_getcpuclockid(3) computes it. Python does not offer that function.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)
    return total / 1e9


def rss_kib(pids: Sequence[int]) -> int:
    """Return the total resident size of *pids* in KiB."""
    total = 0
    page = os.sysconf("SC_PAGE_SIZE") // 1024
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
    return total
