# SPDX-License-Identifier: GPL-2.0-only
"""The command line: ``python -m tests.nomem [--quick] [--only PROGRAM ...]``.

Exit status: 0 if no run over mgloop ends worse than the control allows, or if this interpreter
lacks ``_testcapi``; 1 if one does; 2 if a program fails while it has memory.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tests.nomem import programs, worker
from tests.workers import Worker, WorkerError, share

LOOPS = ("asyncio", "mgloop")
MODES = ("one", "burst", "limit")
#: Ends of a run that are in order, and those that are not.
GOOD = ("success", "MemoryError", "crash of Python")
BAD = ("crash", "hang", "leak", "wrong data", "broken")
#: How much of its RLIMIT_AS a process has left, in bytes.
ROOMS = [0, *(1 << power for power in range(12, 22)), *(3 << power for power in range(12, 20))]
#: Runs of a program in each mode, with --quick.
QUICK = 12


class Run(NamedTuple):
    """The description of a run."""

    program: str
    loop: str
    mode: str
    at: int

    def __str__(self) -> str:
        return f"{self.program}/{self.mode}/{self.at}"


class Campaign:
    """Make all runs with a number of workers."""

    def __init__(self, jobs: int, verbose: bool, deadline: float) -> None:
        self.verbose = verbose
        self.deadline = deadline
        self.outcomes: dict[Run, dict] = {}
        self._workers = [Worker("tests.nomem.worker") for _ in range(jobs)]

    def close(self) -> None:
        """End the workers."""
        for process in self._workers:
            process.close()

    def make(self, runs: list[Run]) -> dict[Run, dict]:
        """Make these runs; return their outcomes."""
        share(self._workers, runs, self._make)
        return {run: self.outcomes[run] for run in runs}

    def _make(self, process: Worker, run: Run) -> None:
        outcome = process.ask(run._asdict() | {"deadline": self.deadline})
        self.outcomes[run] = outcome
        if self.verbose and outcome["how"] in BAD and run.loop == "mgloop":
            print(f"{run}: {outcome['how']} {outcome['detail']}", flush=True)


def counted(campaign: Campaign, names: list[str], loops: list[str]) -> dict[tuple[str, str], int]:
    """Count the allocations that each program makes over each loop."""
    runs = [Run(name, loop, "count", 0) for name in names for loop in loops]
    found = {}
    for run, outcome in campaign.make(runs).items():
        if outcome["how"] != "success":
            raise WorkerError(f"{run.program} fails over {run.loop}: {outcome}")
        found[run.program, run.loop] = outcome["used"]
    return found


def _some(values: list[int], limit: int | None) -> list[int]:
    """Return at most *limit* of the values, evenly spread."""
    if limit is None or len(values) <= limit:
        return values
    return [values[len(values) * number // limit] for number in range(limit)]


def planned(used: dict[tuple[str, str], int], modes: list[str], limit: int) -> Iterator[Run]:
    """Yield the runs to make. At most *limit* for a program, a loop and a mode."""
    for (program, loop), number in used.items():
        # The count varies a little from one run to the next.
        places = {"one": list(range(number + 10)), "burst": list(range(number)), "limit": ROOMS}
        for mode in modes:
            for at in _some(places[mode], limit):
                yield Run(program, loop, mode, at)


def summary(outcomes: dict[Run, dict]) -> list[str]:
    """Return a line for each program, mode and loop."""
    lines = []
    groups: dict[tuple[str, str, str], Counter] = {}
    for run, outcome in outcomes.items():
        groups.setdefault((run.program, run.mode, run.loop), Counter())[outcome["how"]] += 1
    for (program, mode, loop), words in groups.items():
        ends = ", ".join(f"{words[word]} {word}" for word in GOOD + BAD if words[word])
        lines.append(f"{program:14}{mode:6} {loop:8} {words.total():5} runs: {ends}")
    return lines


def _kind(run: Run, outcome: dict) -> tuple[str, str, str]:
    """Return the key by which a bad run is compared with the control.

    Python's own leaks and lost errors do not depend on the program: few runs show them.
    """
    program = "" if outcome["how"] in ("leak", "broken") else run.program
    return program, run.mode, outcome["how"]


def worse(outcomes: dict[Run, dict]) -> list[Run]:
    """Return the bad runs over mgloop of a kind that the control does not have."""
    excused = {_kind(run, outcome) for run, outcome in outcomes.items() if run.loop == "asyncio"}
    return [
        run
        for run, outcome in outcomes.items()
        if run.loop == "mgloop" and outcome["how"] in BAD and _kind(run, outcome) not in excused
    ]


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.nomem", description=programs.__doc__)
    parser.add_argument("--only", nargs="+", choices=programs.PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--loop", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--quick", action="store_true", help="a few runs of each kind")
    parser.add_argument("--limit", type=int, help="at most so many runs of each kind", default=100)
    parser.add_argument(
        "--deadline",
        type=float,
        default=worker.DEADLINE,
        metavar="SECONDS",
        help="how long a run may take (%(default)s); on a busy machine it needs more",
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (%(default)s)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what went wrong")
    return parser.parse_args()


def main() -> int:
    """Make the runs, print the summary."""
    options = parse()
    if worker._testcapi is None:
        print("No allocation can be made to fail: this interpreter has no _testcapi.")
        return 0
    names = options.only or list(programs.PROGRAMS)
    if programs.make_contexts() is None:
        names = [name for name in names if not programs.PROGRAMS[name].needs_tls]
    campaign = Campaign(options.jobs, options.verbose, options.deadline)
    limit = QUICK if options.quick else options.limit
    try:
        used = counted(campaign, names, options.loop)
        outcomes = {}
        for name in names:
            of_program = {key: number for key, number in used.items() if key[0] == name}
            ended = campaign.make(list(planned(of_program, options.mode, limit)))
            print("\n".join(summary(ended)), flush=True)
            outcomes |= ended
    except WorkerError as exc:
        print(exc)
        return 2
    finally:
        campaign.close()
    bad = worse(outcomes)
    for run in bad:
        print(f"worse than asyncio: {run}: {outcomes[run]['how']}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
