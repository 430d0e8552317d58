# SPDX-License-Identifier: GPL-2.0-only
"""The conformance harness itself: it detects a loop's faults and checks which loop it tests.

Each test runs the command line over a loop that is broken on purpose. The loop is derived from the
standard library's in a module written for the test. A few fast tests of CPython's suites show the
fault.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[2]

if (
    importlib.util.find_spec("test") is None
    or importlib.util.find_spec("test.test_asyncio") is None
):
    pytest.skip("this interpreter comes without test.test_asyncio", allow_module_level=True)

LOOPS = """
    import asyncio
    import os
    import time

    Stdlib = asyncio.SelectorEventLoop

    class Good(Stdlib):
        pass

    class NoTimers(Stdlib):
        def call_at(self, when, callback, *args, context=None):
            return super().call_at(when + 1e6, callback, *args, context=context)

    class NoServers(Stdlib):
        async def create_server(self, *args, **kwargs):
            raise TypeError("no servers today")

    class Deadly(Stdlib):
        def call_later(self, *args, **kwargs):
            os.abort()

    IMPORTED_BY = os.getpid()

    def turncoat():
        return Good() if os.getpid() == IMPORTED_BY else Stdlib()
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the command line over a loop: status, output, results."""
    (tmp_path / "broken_loops.py").write_text(textwrap.dedent(LOOPS))

    def run(loop, *arguments):
        summary = tmp_path / "summary.json"
        summary.unlink(missing_ok=True)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.conformance",
                "--loop",
                loop,
                "--json",
                str(summary),
                "--timeout",
                str(support.PATIENCE),
                *arguments,
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": support.python_path(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=50 * support.SLOWNESS,
            check=False,
        )
        results = json.loads(summary.read_text())["results"] if summary.exists() else {}
        return done.returncode, done.stdout, results

    return run


def outcomes(results):
    """Count the results of each outcome."""
    found = {}
    for result in results.values():
        found[result["outcome"]] = found.get(result["outcome"], 0) + 1
    return found


def test_a_sound_loop_passes(run):
    status, output, results = run("broken_loops:Good", "--suite", "server", "runners")
    assert status == 0, output
    assert outcomes(results)["passed"] > 20
    # The control runs only the tests whose result needs a comparison.
    planned, compared = map(int, re.findall(r": (\d+) tests$", output, re.MULTILINE))
    assert compared < planned == len(results)
    assert "failed" not in outcomes(results)
    assert all(
        result["loops"]
        for result in results.values()
        if result["suite"] == "server" and result["outcome"] == "passed"
    )


def test_a_failure_is_ours_and_not_the_controls(run):
    status, output, results = run(
        "broken_loops:NoServers",
        "--suite",
        "server",
        "-k",
        "SelectorStartServerTests.test_start_server_1",
    )
    assert status == 1
    assert set(outcomes(results)) == {"failed"}
    assert "no servers today" in output
    assert "not counted" not in output


def test_a_hang_is_reported_and_the_run_goes_on(run):
    status, output, results = run(
        "broken_loops:NoTimers",
        "--suite",
        "waitfor",
        "--timeout",
        "1.5",
        "--no-control",
        "-k",
        "*WaitForTest.test_wait_for_*s*",
    )
    assert status == 1
    assert outcomes(results)["hung"] >= 1
    assert outcomes(results)["passed"] >= 1
    assert "no end within 1.5 s" in output
    assert "select" in output, "the stacks of a test that hangs are shown"


def test_a_crash_is_reported_and_the_run_goes_on(run):
    status, output, results = run(
        "broken_loops:Deadly", "--suite", "events", "-k", "*EPollEventLoopTests.test_call_*"
    )
    assert status == 1
    assert outcomes(results)["crashed"] >= 1
    assert outcomes(results)["passed"] >= 1
    assert "SIGABRT" in output


def test_a_test_that_fails_over_the_standard_loop_too_is_not_ours(run, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import asyncio; asyncio.Queue.full = None")
    status, output, results = run("broken_loops:Good", "--suite", "queues", "-k", "QueueBasicTests")
    assert status == 0, output
    assert outcomes(results)["failed"] >= 1
    assert "fail over the standard library's loop too (not counted)" in output


def test_the_standard_loop_under_another_name_is_refused(run):
    status, output, _ = run("broken_loops:Stdlib", "--suite", "queues")
    assert status == 2
    assert "made the standard library's" in output


def test_a_loop_of_another_class_is_noticed(run):
    status, output, results = run(
        "broken_loops:turncoat",
        "--suite",
        "server",
        "--no-control",
        "-k",
        "SelectorStartServerTests.test_start_server_1",
    )
    assert status == 1, output
    assert set(outcomes(results)) == {"failed"}


def test_an_invalid_command_line_is_reported(run):
    status, output, _ = run("no_such_loop_module:factory")
    assert status == 2
    assert "cannot load" in output
    status, output, _ = run("broken_loops:Good", "--suite", "nosuchsuite")
    assert status == 2
    assert "no such suite" in output
    status, output, _ = run("broken_loops:Good", "--suite", "queues", "-k", "matches-nothing")
    assert status == 2
    assert "no test matches" in output
