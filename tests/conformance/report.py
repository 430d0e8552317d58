# SPDX-License-Identifier: GPL-2.0-only
"""The results of a run: results of one loop, their comparison with the control, and the report.

This module decides which failures count. A test that fails over the standard library's loop in the
same environment is a *control failure* and does not count against the loop. If a test made a loop
with the control but not with the loop under test, it has not tested that loop and counts as failed.
"""

import sys
from collections import Counter

BAD = ("failed", "hung", "crashed")


class Run:
    """The results of one loop, by test id."""

    def __init__(self, loop: str) -> None:
        self.loop = loop
        self.results: dict[str, dict] = {}
        self.planned = 0
        self.python = ""
        self.loop_class = ""
        self.version = ""

    def start(self, plan: dict) -> None:
        """Store the worker's plan."""
        self.planned = plan["tests"]
        self.python = plan["python"]
        self.loop_class = plan["loop"]
        self.version = plan["version"]
        print(
            f"{self.loop} {self.version} ({self.loop_class}), CPython {self.python}: "
            f"{self.planned} tests",
            flush=True,
        )

    def add(self, result: dict) -> None:
        """Store one result of the worker."""
        self.results[result["id"]] = result


def progress(run: Run, result: dict, verbose: bool) -> None:
    """Print a line for a bad result, for every result if *verbose*; otherwise sometimes a count."""
    done = len(run.results)
    if verbose or result["outcome"] in BAD:
        print(
            f"  [{done}/{run.planned}] {result['outcome']:8} {result['seconds']:7.2f} s ",
            result["id"],
            flush=True,
        )
    elif done % 500 == 0:
        print(f"  [{done}/{run.planned}]", flush=True)


def to_compare(run: Run) -> list[str]:
    """Return the ids of the tests whose result needs a comparison with the control.

    These are the tests that failed, skipped themselves, passed without making a loop, or printed
    warnings. The control cannot change the verdict about any other test.
    """
    return [
        test_id
        for test_id, result in run.results.items()
        if result["outcome"] not in ("passed", "listed")
        or (result["outcome"] == "passed" and not result["loops"])
        or result.get("warnings")
    ]


class Verdict:
    """The loop under test compared with the control (None: no control was run)."""

    def __init__(self, subject: Run, control: Run | None) -> None:
        self.subject = subject
        self.control = control
        self.ours: list[dict] = []
        self.control_failures: list[dict] = []
        self.only_skipped_here: list[dict] = []
        self.more_warnings: list[dict] = []
        for test_id, result in subject.results.items():
            self._judge(result, control.results.get(test_id) if control else None)

    def _judge(self, result: dict, control: dict | None) -> None:
        control_loops = control.get("loops", 0) if control else 0
        if result["outcome"] == "passed" and control_loops and not result["loops"]:
            result["outcome"] = "failed"
            result["text"] = f"passed without the loop under test: the control made {control_loops}"
        if result["outcome"] == "passed" and result["strays"]:
            result["outcome"] = "failed"
            result["text"] = f"{result['strays']} loops of the standard library were made"
        if result["outcome"] in BAD:
            if control and control["outcome"] in BAD:
                self.control_failures.append(result)
            else:
                self.ours.append(result)
        elif result["outcome"] == "skipped" and control and control["outcome"] == "passed":
            self.only_skipped_here.append(result)
        if control and result.get("warnings", 0) > control.get("warnings", 0):
            self.more_warnings.append(result)

    @property
    def ok(self) -> bool:
        """Return whether no test failed, hung or crashed that succeeds with the control."""
        return not self.ours

    def table(self) -> dict[str, Counter]:
        """Return outcomes by suite; ``no_loop`` counts the passed tests that made no loop."""
        rows: dict[str, Counter] = {}
        mine = {id(result) for result in self.ours}
        for result in self.subject.results.values():
            row = rows.setdefault(result["suite"], Counter())
            outcome = result["outcome"]
            if outcome in BAD and id(result) not in mine:
                outcome = "control"
            row[outcome] += 1
            if outcome == "passed" and not result["loops"]:
                row["no_loop"] += 1
        return rows

    def print(self) -> None:
        """Print the report: failures with their texts, then the table by suite."""
        for result in self.ours:
            print(f"\n=== {result['outcome'].upper()} {result['id']} ({result['seconds']} s)")
            print(result["text"].rstrip())
            if result.get("output"):
                print("--- output\n" + result["output"].rstrip())
        _section("fail over the standard library's loop too (not counted)", self.control_failures)
        _section(
            "skip themselves over this loop but run over the standard library's",
            self.only_skipped_here,
            with_text=True,
        )
        _section(
            "in the skip table",
            [result for result in self.subject.results.values() if result["outcome"] == "listed"],
            with_text=True,
        )
        _section("print more warnings than over the standard library's loop", self.more_warnings)
        columns = ("passed", "no_loop", "failed", "hung", "crashed", "skipped", "listed", "control")
        rows = self.table()
        total: Counter = sum(rows.values(), Counter())
        print(f"\n{'suite':16}" + "".join(f"{column:>9}" for column in columns))
        for name, row in [*rows.items(), ("total", total)]:
            print(f"{name:16}" + "".join(f"{row[column]:9}" for column in columns))
        print(
            "(no_loop: passed without making a loop; listed: in the skip table; "
            "control: fails over the standard library's loop too)"
        )
        verdict = "ok" if self.ok else "NOT OK"
        print(
            f"{verdict}: {self.subject.loop} {self.subject.version} "
            f"on CPython {self.subject.python}: "
            f"{total['passed']} passed, {total['failed']} failed, {total['hung']} hung, "
            f"{total['crashed']} crashed, {total['skipped']} skipped, "
            f"{total['listed']} in the skip table"
        )
        sys.stdout.flush()

    def as_json(self) -> dict:
        """Return all results for a file."""
        return {
            "loop": self.subject.loop,
            "version": self.subject.version,
            "python": self.subject.python,
            "control": bool(self.control),
            "ok": self.ok,
            "suites": {name: dict(row) for name, row in self.table().items()},
            "results": self.subject.results,
            "control_results": self.control.results if self.control else {},
        }


def _section(title: str, results: list[dict], with_text: bool = False) -> None:
    if results:
        print(f"\n{len(results)} {title}:")
        for result in results:
            text = f"  ({result['text'].strip()})" if with_text else ""
            print(f"  {result['outcome']:8} {result['id']}{text}")
