# SPDX-License-Identifier: GPL-2.0-only
"""The command line: ``python -m tests.faults [--quick] [--only PATTERN ...]``.

Exit status: 0 when nothing is worse over mgloop, or when strace cannot be had; 1 when something is
worse; 2 when a program does not even work without faults.
"""

import argparse
import dataclasses
import fnmatch
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests.faults import matrix, outcome, programs, report
from tests.workers import RefusedError, Worker, WorkerError, share

LOOPS = ("asyncio", "mgloop")
DEADLINE = 3.0


def ask(
    worker: Worker,
    program: str,
    loop: str,
    cell: matrix.Cell | None,
    at_birth: bool,
    deadline: float,
) -> dict:
    """Make one run; return the worker's observations."""
    answer = worker.ask(
        {
            "program": program,
            "loop": loop,
            "injection": cell.injection if cell else None,
            "at_birth": at_birth,
            "deadline": deadline,
        }
    )
    answer["counts"] = Counter(answer["counts"])
    return answer


class Campaign:
    """Make all runs: first those without faults, then those of each cell."""

    def __init__(self, jobs: int, verbose: bool, deadline: float) -> None:
        self.verbose = verbose
        self.deadline = deadline
        self.usual: dict[tuple[str, str, bool], Counter] = {}
        self.results: report.Results = {}
        self.total = 0
        self._workers = [Worker("tests.faults.worker") for _ in range(jobs)]
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()

    def measure(self, names: list[str]) -> None:
        """Run every program without faults: it has to work, and its calls are counted."""
        births = [matrix.SETUP_PROGRAM] if matrix.SETUP_PROGRAM in names else []
        tasks = [(name, loop, False) for name in names for loop in LOOPS]
        tasks += [(name, loop, True) for name in births for loop in LOOPS]
        share(self._workers, tasks, self._measure)

    def _measure(self, worker: Worker, task: tuple[str, str, bool]) -> None:
        name, loop, at_birth = task
        run = ask(worker, name, loop, None, at_birth, self.deadline * 3)
        seen = outcome.judge(run, programs.PROGRAMS[name])
        if seen.word != "ok":
            raise WorkerError(f"{name} over {loop}, without faults: {seen.detail}\n{seen.output}")
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
        share(self._workers, cells, self._make)
        self.results = {cell: self.results[cell] for cell in cells if cell in self.results}

    def _outcome(self, worker: Worker, cell: matrix.Cell, loop: str, deadline: float):
        run = ask(worker, cell.program, loop, cell, cell.at_birth, deadline)
        usual = self.usual[cell.program, loop, cell.at_birth]
        return outcome.judge(run, programs.PROGRAMS[cell.program], usual)

    def _make(self, worker: Worker, cell: matrix.Cell) -> None:
        asyncio, mgloop = (self._outcome(worker, cell, loop, self.deadline) for loop in LOOPS)
        if mgloop.is_worse_than(asyncio):
            # Where a fault hits is a matter of chance: it has to be worse than the worst of
            # asyncio's, and, should it have been slow only, with more patience.
            patience = self.deadline * 2
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
    """Return the options of the command line."""
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
    parser.add_argument(
        "--deadline",
        type=float,
        default=DEADLINE,
        metavar="SECONDS",
        help="how long a run may take (default %(default)s); on a busy machine it needs more",
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument(
        "--markdown", type=Path, default=None, metavar="FILE", help="write the table to FILE"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every cell")
    return parser.parse_args(argv)


def chosen(arguments: argparse.Namespace) -> list[matrix.Cell]:
    """Return the cells that the options select."""
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
    """Raise an error if there is no strace that can inject faults."""
    if shutil.which("strace") is None:
        raise RefusedError("No faults without strace: install the package of that name.")
    done = subprocess.run(["strace", "--help"], capture_output=True, text=True, check=False)
    if "inject" not in done.stdout:
        raise RefusedError("No faults: this strace is too old to inject any (4.16 can).")


def main(argv: list[str] | None = None) -> int:
    """Run the cells that the command line selects; return the exit status."""
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
    except RefusedError as exc:
        print(exc)
        return 0

    began = time.monotonic()
    campaign = Campaign(arguments.jobs, arguments.verbose, arguments.deadline)
    try:
        campaign.measure(names)
        campaign.make([c for c in cells if c.program in names and campaign.concerned(c)])
    except RefusedError as exc:
        print(exc)
        return 0
    except WorkerError as exc:
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
