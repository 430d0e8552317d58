# SPDX-License-Identifier: GPL-2.0-only
"""The process from which the tests are forked: it imports everything once, then forks per test.

``python -m tests.conformance`` starts it as ``python -m tests.conformance.worker`` with one JSON
object as its standard input. It prints one JSON object per line: first the plan, then a result for
each test as it ends. A fork of a process that has already imported the tests takes milliseconds, a
fresh interpreter a third of a second. Forking is safe because this process stays single-threaded
and makes no loop once its imports and its self-check are done.

Each child is the leader of its own session and process group, works in its own empty folder, and is
killed with its whole group when its time is up.
"""

import faulthandler
import fnmatch
import gc
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest
from asyncio import events
from collections.abc import Iterator
from dataclasses import dataclass

from tests.conformance import binding, subjects, suites

_TAIL = 6000
_DUMP_SIGNAL = signal.SIGUSR2
_WARNING = re.compile(
    r"(ResourceWarning|Exception ignored in|was never awaited|was never retrieved)"
)


@dataclass
class Running:
    """A test that runs in a child: its pid, its output, and its deadline."""

    test_id: str
    suite: str
    pid: int
    pidfd: int
    result_fd: int
    output_path: str
    folder: str
    started: float
    deadline: float


def _outcome(test: unittest.TestCase, counts: binding.Counts) -> dict:
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)
    gc.collect()
    text = "\n".join(trace for _, trace in result.errors + result.failures)
    if text:
        outcome = "failed"
    elif result.unexpectedSuccesses:
        outcome, text = "failed", "unexpected success"
    elif result.skipped:
        outcome, text = "skipped", result.skipped[0][1]
    elif result.testsRun != 1:
        outcome, text = "failed", f"{result.testsRun} tests were run instead of one"
    else:
        outcome = "passed"
    if counts.wrong and outcome == "passed":
        outcome, text = "failed", f"loops of another class were made: {counts.wrong}"
    return {
        "outcome": outcome,
        "text": text[-_TAIL:],
        "loops": counts.made,
        "strays": counts.strays,
    }


def _child(
    test_id: str,
    test: unittest.TestCase,
    counts: binding.Counts,
    folder: str,
    output_fd: int,
    result_fd: int,
) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.close(output_fd)
    os.chdir(folder)
    tempfile.tempdir = None
    os.environ["TMPDIR"] = folder
    # The fd belongs to the child: a test that counts or closes descriptors sees it like any other.
    faulthandler.register(_DUMP_SIGNAL, file=2, all_threads=True)
    # As after any earlier test: in a fresh process 3.12's policy would make a loop on demand.
    events.set_event_loop(None)
    binding.swap_for_module(test_id.partition(".")[0], suites.needs_fake_clock(test_id))
    try:
        report = _outcome(test, counts)
    except BaseException:
        report = {
            "outcome": "failed",
            "text": traceback.format_exc()[-_TAIL:],
            "loops": counts.made,
            "strays": counts.strays,
        }
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(result_fd, json.dumps(report).encode())


class Warm:
    """Runs tests in forked children, at most *jobs* at a time."""

    def __init__(self, counts: binding.Counts, base: str, limit: float, jobs: int) -> None:
        self._counts = counts
        self._base = base
        self._limit = limit
        self._jobs = jobs
        self._running: dict[int, Running] = {}
        self._poll = select.poll()

    def run(self, planned: list[tuple[str, str, unittest.TestCase]]) -> None:
        """Run *planned* (suite, id, test); emit each result as it arrives."""
        try:
            self._run(iter(planned))
        finally:
            for job in self._running.values():
                _kill_group(job.pid)

    def _run(self, waiting: Iterator[tuple[str, str, unittest.TestCase]]) -> None:
        exhausted = False
        while True:
            while not exhausted and len(self._running) < self._jobs:
                try:
                    suite, test_id, test = next(waiting)
                except StopIteration:
                    exhausted = True
                else:
                    self._start(suite, test_id, test)
            if not self._running:
                return
            self._wait()

    def _start(self, suite: str, test_id: str, test: unittest.TestCase) -> None:
        folder = tempfile.mkdtemp(dir=self._base, prefix="t")
        # Outside the folder, because the test may list, fill or remove the folder.
        output_path = f"{folder}.out"
        output_fd = os.open(output_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                os.close(read_fd)
                _child(test_id, test, self._counts, folder, output_fd, write_fd)
                status = 0
            finally:
                os._exit(status)
        os.close(output_fd)
        os.close(write_fd)
        now = time.monotonic()
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = Running(
            test_id, suite, pid, pidfd, read_fd, output_path, folder, now, now + self._limit
        )
        self._poll.register(pidfd, select.POLLIN)

    def _wait(self) -> None:
        now = time.monotonic()
        nearest = min(job.deadline for job in self._running.values())
        for pidfd, _ in self._poll.poll(max(0.0, nearest - now) * 1000 + 1):
            self._finish(self._running[pidfd], hung=False)
        now = time.monotonic()
        for job in [job for job in self._running.values() if job.deadline <= now]:
            # Ask for the stacks first, because they show where the test hangs.
            os.kill(job.pid, _DUMP_SIGNAL)
            time.sleep(0.3)
            self._finish(job, hung=True)

    def _finish(self, job: Running, hung: bool) -> None:
        # Until the child is reaped, no other process group can have its number.
        _kill_group(job.pid)
        _, status = os.waitpid(job.pid, 0)
        self._poll.unregister(job.pidfd)
        os.close(job.pidfd)
        del self._running[job.pidfd]

        os.set_blocking(job.result_fd, False)
        payload = b""
        try:
            while chunk := os.read(job.result_fd, 65536):
                payload += chunk
        except BlockingIOError:
            pass
        os.close(job.result_fd)
        with open(job.output_path, errors="replace") as file:
            output = file.read()
        os.unlink(job.output_path)
        shutil.rmtree(job.folder, ignore_errors=True)

        if hung:
            report = {"outcome": "hung", "text": f"no end within {self._limit:g} s"}
        elif payload:
            report = json.loads(payload)
        else:
            report = {"outcome": "crashed", "text": _death(status)}
        report |= {
            "event": "result",
            "suite": job.suite,
            "id": job.test_id,
            "seconds": round(time.monotonic() - job.started, 3),
            "warnings": len(_WARNING.findall(output)),
        }
        if report["outcome"] not in ("passed", "skipped") or report["warnings"]:
            report["output"] = output[-_TAIL:]
        emit(report)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # The child was just forked, and is not the leader of its own group yet.
        os.kill(pid, signal.SIGKILL)


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"the process died of {signal.Signals(os.WTERMSIG(status)).name}"
    return f"the process exited with {os.WEXITSTATUS(status)} and no result"


def emit(message: dict) -> None:
    """Send one line to the parent process."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def plan(
    names: list[str], pattern: str | None, only: list[str] | None, with_skips: bool
) -> tuple[list[tuple[str, str, unittest.TestCase]], list[dict]]:
    """Return the tests of the suites *names* that match *pattern* and are among *only*.

    The first list contains the tests to run, the second one those that the skip table names.
    """
    to_run, skipped = [], []
    wanted = None if only is None else set(only)
    for suite in names:
        for test_id, test in suites.tests_of(suite).items():
            if pattern and not fnmatch.fnmatchcase(test_id, pattern):
                continue
            if wanted is not None and test_id not in wanted:
                continue
            reason = suites.skip_reason(test_id) if with_skips else None
            if reason is None:
                to_run.append((suite, test_id, test))
            else:
                skipped.append(
                    {
                        "event": "result",
                        "suite": suite,
                        "id": test_id,
                        "outcome": "listed",
                        "text": reason,
                        "seconds": 0.0,
                    }
                )
    return to_run, skipped


def _prefer_installed() -> None:
    """Look for the loop among the installed packages before the current folder.

    If this was started from the top of the sources, that folder has the loop's sources without its
    native modules.
    """
    here = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)] + [here]


def main() -> int:
    """Run what standard input describes; the exit status shows only whether a run was possible."""
    options = json.load(sys.stdin)
    # Run the clean-up on SIGTERM, so that the children are ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _prefer_installed()
    name = options["loop"]
    if options["streams"]:
        import mgloop
    expected = subjects.loop_type(name)
    counts = binding.swap(subjects.resolve(name), expected)
    if options["streams"]:
        mgloop.streams.use()
    to_run, skipped = plan(
        options["suites"], options["pattern"], options["only"], with_skips=name != "asyncio"
    )
    binding.use_public_close()
    emit(
        {
            "event": "plan",
            "tests": len(to_run) + len(skipped),
            "python": sys.version.split()[0],
            "loop": f"{expected.__module__}.{expected.__qualname__}",
            "version": subjects.version(name),
        }
    )
    for report in skipped:
        emit(report)
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="conformance-") as base:
        Warm(counts, base, options["timeout"], options["jobs"]).run(to_run)
    emit({"event": "end"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
