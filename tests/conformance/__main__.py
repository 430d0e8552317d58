# SPDX-License-Identifier: GPL-2.0-only
"""The command line: ``python -m tests.conformance [--loop mgloop] [--suite NAME ...]``.

The command runs the suites over the loop under test, and the tests whose result needs a comparison
over the standard library's loop as well (the control run). It prints the differences. Exit status:
0 if no test failed, hung or crashed that passes in the control run; 1 otherwise; 2 if the run was
not possible (no ``test`` package, or the loop cannot be imported).
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.conformance import report, suites


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options, with their defaults."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="CPython's own asyncio tests, over another event loop.",
    )
    parser.add_argument(
        "--loop",
        default="mgloop",
        help="mgloop (default), asyncio, uvloop, rloop or module:factory",
    )
    parser.add_argument(
        "--suite",
        nargs="+",
        default=None,
        metavar="NAME",
        help="only these suites (--list prints them), or modules such as test_events",
    )
    parser.add_argument(
        "-k",
        dest="pattern",
        default=None,
        metavar="PATTERN",
        help="only tests whose id matches: a part of it, or a pattern with *",
    )
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (default 2)")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="seconds a test may take (default 30)"
    )
    parser.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="write every result to FILE"
    )
    parser.add_argument(
        "--no-control",
        action="store_true",
        help="leave out the run over the standard library's loop",
    )
    parser.add_argument(
        "--streams",
        action="store_true",
        help="use mgloop's compiled streams in the place of asyncio's (not in the control run)",
    )
    parser.add_argument("--list", action="store_true", help="print the suites and stop")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every test")
    arguments = parser.parse_args(argv)
    if arguments.pattern and "*" not in arguments.pattern:
        arguments.pattern = f"*{arguments.pattern}*"
    return arguments


class RunError(Exception):
    """The worker ended before it had run all tests."""


def run_over(
    loop: str, names: list[str], arguments: argparse.Namespace, only: list[str] | None = None
) -> report.Run:
    """Run the suites *names*, or the tests *only* of them, over *loop* in a worker process.

    Print progress as results arrive.
    """
    options = {
        "loop": loop,
        "suites": names,
        "pattern": arguments.pattern,
        "timeout": arguments.timeout,
        "jobs": arguments.jobs,
        "streams": arguments.streams and loop != "asyncio",
        "only": only,
    }
    # A run must not depend on the caller's setting of asyncio's debug mode.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONASYNCIODEBUG"}
    command = [sys.executable, "-m", "tests.conformance.worker"]
    run = report.Run(loop)
    ended = False
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as worker:
        try:
            # If the worker ends before it reads this, its exit status is reported below.
            with contextlib.suppress(BrokenPipeError), worker.stdin:
                worker.stdin.write(json.dumps(options))
            for line in worker.stdout:
                message = json.loads(line)
                if message["event"] == "plan":
                    run.start(message)
                elif message["event"] == "result":
                    run.add(message)
                    report.progress(run, message, arguments.verbose)
                else:
                    ended = True
        except BaseException:
            worker.terminate()
            raise
    if not ended:
        raise RunError(f"the worker for {loop} stopped with status {worker.returncode}")
    return run


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = parse_arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A script's background job ignores SIGINT, and Runner's tests are then skipped.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        suites.require_test_package()
    except suites.MissingTestsError as exc:
        print(exc, file=sys.stderr)
        return 2
    names = suites.available()
    if arguments.list:
        print("\n".join(names))
        return 0
    if arguments.suite:
        wanted = {suite: suites.named(suite) for suite in arguments.suite}
        unknown = [suite for suite, found in wanted.items() if not found]
        if unknown:
            print(
                f"no such suite: {', '.join(unknown)}; there are: {', '.join(names)}",
                file=sys.stderr,
            )
            return 2
        names = [name for name in names if any(name in found for found in wanted.values())]

    try:
        subject = run_over(arguments.loop, names, arguments)
        control = None
        if arguments.loop != "asyncio" and not arguments.no_control:
            control = run_over("asyncio", names, arguments, report.to_compare(subject))
    except RunError as exc:
        print(exc, file=sys.stderr)
        return 2
    if not subject.results:
        print("no test matches", file=sys.stderr)
        return 2

    verdict = report.Verdict(subject, control)
    verdict.print()
    if arguments.json:
        arguments.json.write_text(json.dumps(verdict.as_json(), indent=1) + "\n")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
