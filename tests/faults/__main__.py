# SPDX-License-Identifier: GPL-2.0-only
"""The command line: ``python -m tests.faults [--quick] [--only PATTERN ...]``.

Exit status: 0 when nothing is worse over mgloop, or when strace cannot be had; 1 when something is
worse; 2 when a program does not even work without faults.
"""

import argparse
import dataclasses
import fnmatch
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests.faults import matrix, outcome, programs, report

LOOPS = ("asyncio", "mgloop")
DEADLINE = 3.0


class NoStraceError(Exception):
    """Nothing can be injected here; the message is the sentence that says why."""


class RunError(Exception):
    """A program failed without any fault, or the worker did."""


class Worker:
    """A process that makes one run after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def run(
        self, program: str, loop: str, cell: matrix.Cell | None, at_birth: bool, deadline: float
    ):
        """One run; what the worker saw."""
        spec = {
            "program": program,
            "loop": loop,
            "injection": cell.injection if cell else None,
            "at_birth": at_birth,
            "deadline": deadline,
        }
        self._process.stdin.write(json.dumps(spec) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RunError(f"the worker ended during {spec}")
        answer = json.loads(line)
        if "refused" in answer:
            raise NoStraceError(f"No faults without ptrace: {answer['refused']}")
        if "failed" in answer:
            raise RunError(f"{spec}\n{answer['failed']}")
        answer["counts"] = Counter(answer["counts"])
        return answer

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Campaign:
    """All the runs: those without faults first, then cell by cell."""

    def __init__(self, jobs: int, verbose: bool) -> None:
        self.verbose = verbose
        self.usual: dict[tuple[str, str, bool], Counter] = {}
        self.results: report.Results = {}
        self.total = 0
        self._workers = [Worker() for _ in range(jobs)]
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()

    def _share(self, tasks: list, function) -> None:
        """Call ``function(worker, task)`` for each task, by a thread for each worker."""
        waiting: queue.SimpleQueue = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        failures: list[BaseException] = []

        def work(worker: Worker) -> None:
            while not failures:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    function(worker, task)
                except BaseException as exc:
                    failures.append(exc)

        crew = [threading.Thread(target=work, args=(worker,)) for worker in self._workers]
        for thread in crew:
            thread.start()
        try:
            for thread in crew:
                thread.join()
        except BaseException as exc:
            failures.append(exc)
            raise
        if failures:
            raise failures[0]

    def measure(self, names: list[str]) -> None:
        """Run every program without faults: it has to work, and its calls are counted."""
        births = [matrix.SETUP_PROGRAM] if matrix.SETUP_PROGRAM in names else []
        tasks = [(name, loop, False) for name in names for loop in LOOPS]
        tasks += [(name, loop, True) for name in births for loop in LOOPS]
        self._share(tasks, self._measure)

    def _measure(self, worker: Worker, task: tuple[str, str, bool]) -> None:
        name, loop, at_birth = task
        run = worker.run(name, loop, None, at_birth, DEADLINE * 3)
        seen = outcome.judge(run, programs.PROGRAMS[name])
        if seen.word != "ok":
            raise RunError(f"{name} over {loop}, without faults: {seen.detail}\n{seen.output}")
        self.usual[task] = run["counts"]

    def concerned(self, cell: matrix.Cell) -> bool:
        """Whether the fault would hit anything over one of the loops."""
        least = {"tenth": 10, "set-up 2": 2}.get(cell.often, 1)
        return any(
            self.usual[cell.program, loop, cell.at_birth][cell.call] >= least for loop in LOOPS
        )

    def make(self, cells: list[matrix.Cell]) -> None:
        """Run the cells."""
        self.total = len(cells)
        self._share(cells, self._make)
        self.results = {cell: self.results[cell] for cell in cells if cell in self.results}

    def _outcome(self, worker: Worker, cell: matrix.Cell, loop: str, deadline: float):
        run = worker.run(cell.program, loop, cell, cell.at_birth, deadline)
        usual = self.usual[cell.program, loop, cell.at_birth]
        return outcome.judge(run, programs.PROGRAMS[cell.program], usual)

    def _make(self, worker: Worker, cell: matrix.Cell) -> None:
        asyncio, mgloop = (self._outcome(worker, cell, loop, DEADLINE) for loop in LOOPS)
        if mgloop.is_worse_than(asyncio):
            # Where a fault hits is a matter of chance: it has to be worse than the worst of
            # asyncio's, and, should it have been slow only, with more patience.
            patience = DEADLINE * 2
            mgloop = outcome.worst(
                self._outcome(worker, cell, "mgloop", patience) for _ in range(2)
            )
            for when in (cell.when, cell.when, "3+3"):
                if mgloop.is_worse_than(asyncio):
                    # Where asyncio makes fewer such calls, the tenth may never come.
                    fault = cell if asyncio.injected else dataclasses.replace(cell, when=when)
                    again = self._outcome(worker, fault, "asyncio", patience)
                    asyncio = outcome.worst((asyncio, again))
        if not asyncio.injected and not mgloop.injected:
            return
        with self._lock:
            self.results[cell] = asyncio, mgloop
            done = len(self.results)
            bad = mgloop.is_worse_than(asyncio)
            if bad or self.verbose:
                print(f"  [{done}/{self.total}] {cell}: {asyncio} / {mgloop}", flush=True)
                if self.verbose:
                    print(f"    {asyncio.detail}\n    {mgloop.detail}")
            elif done % 50 == 0:
                print(f"  [{done}/{self.total}]", flush=True)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The options, with their defaults."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Programs whose system calls fail, over asyncio's loop and over mgloop.",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="only cells that match program/call/error/often; a part of it, or a pattern with *",
    )
    parser.add_argument("--quick", action="store_true", help="one cell of each kind")
    parser.add_argument("--list", action="store_true", help="print the cells and stop")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument(
        "--markdown", type=Path, default=None, metavar="FILE", help="write the table to FILE"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every cell")
    return parser.parse_args(argv)


def chosen(arguments: argparse.Namespace) -> list[matrix.Cell]:
    """The cells that the command line asks for."""
    cells = list(matrix.cells(list(programs.PROGRAMS)))
    if arguments.quick:
        cells = [cell for cell in cells if matrix.is_quick(cell)]
    if arguments.only:
        patterns = [text if "*" in text else f"*{text}*" for text in arguments.only]
        cells = [
            cell
            for cell in cells
            if any(fnmatch.fnmatchcase(str(cell), pattern) for pattern in patterns)
        ]
    return cells


def require_strace() -> None:
    """Complain unless there is an strace that can inject faults."""
    if shutil.which("strace") is None:
        raise NoStraceError("No faults without strace: install the package of that name.")
    done = subprocess.run(["strace", "--help"], capture_output=True, text=True, check=False)
    if "inject" not in done.stdout:
        raise NoStraceError("No faults: this strace is too old to inject any (4.16 can).")


def main(argv: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit status."""
    arguments = parse_arguments(argv)
    cells = chosen(arguments)
    if arguments.list:
        print("\n".join(map(str, cells)))
        return 0
    names = list(dict.fromkeys(cell.program for cell in cells))
    for sentence in filter(None, map(programs.missing_packages, names)):
        print(sentence)
    names = [name for name in names if not programs.missing_packages(name)]
    if not names:
        print("no cell matches", file=sys.stderr)
        return 2
    try:
        require_strace()
    except NoStraceError as exc:
        print(exc)
        return 0

    began = time.monotonic()
    campaign = Campaign(arguments.jobs, arguments.verbose)
    try:
        campaign.measure(names)
        campaign.make([c for c in cells if c.program in names and campaign.concerned(c)])
    except NoStraceError as exc:
        print(exc)
        return 0
    except RunError as exc:
        print(exc, file=sys.stderr)
        return 2
    finally:
        campaign.close()

    results = campaign.results
    print(report.text(results))
    print("\nasyncio / mgloop.", report.LEGEND)
    if arguments.markdown:
        arguments.markdown.write_text(report.markdown(results))
    bad = report.worse(results)
    for cell in bad:
        asyncio, mgloop = results[cell]
        print(f"\nWORSE {cell}: {asyncio} / {mgloop}")
        print(f"  asyncio: {asyncio.detail}\n  mgloop:  {mgloop.detail}")
        if arguments.verbose and mgloop.output:
            print(mgloop.output.rstrip())
    verdict = f"NOT OK: {len(bad)} cells are worse over mgloop" if bad else "ok"
    print(f"\n{verdict}: {len(results)} cells in {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
