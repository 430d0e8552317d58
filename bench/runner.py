# SPDX-License-Identifier: GPL-2.0-only
"""The order of measurements, their progress, and the handling of failed measurements.

Rounds are the outermost loop: every round measures every workload, in several short windows. During
a round the subjects' servers stay up and the subjects take turns, window by window, in alternating
direction (A B C, C B A, ...). The two values of a ratio are thus measured a fraction of a second
apart, because on a shared machine speed changes from one second to the next. Each workload's
samples are spread over the whole run. Servers are restarted in each round, and Ctrl-C after two
rounds leaves two rounds of everything.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from . import measure
from .errors import BenchError, MissingToolError, RunError, UnsupportedError, scrub
from .loops import Loop
from .measure import Bench
from .registry import METRICS, Workload
from .results import Results

FLOOR = Loop("floor", "", "", version="C, epoll")
# The maximum number of windows per round for workloads whose windows take a second or more.
DEAR_WINDOWS = 3


@dataclass
class Item:
    """A workload (or several that one process runs) and the subjects to measure at it.

    ``run(subject)`` yields (workload name, sample) pairs. With ``lasting``, it yields one pair per
    window, and its processes run until the last window. Otherwise it is called once per window, and
    all its pairs belong to that window. ``seconds`` is an estimate of a window's duration.
    """

    name: str
    subjects: Sequence[Loop]
    run: Callable[[Loop], Iterator[tuple[str, dict]]]
    workloads: Sequence[Workload]
    seconds: float
    windows: int = 1
    lasting: bool = False


class Progress:
    """The progress line on stderr: the current measurement and the estimated time left."""

    def __init__(self, items: Sequence[Item], rounds: int, out=sys.stderr):
        self.total = sum(len(item.subjects) * item.windows for item in items) * rounds
        self.guess = sum(len(i.subjects) * i.windows * i.seconds for i in items) * rounds
        self.out = out
        self.tty = out.isatty()
        self.done = 0
        self.guessed_done = 0.0
        self.begun = time.monotonic()

    def step(self, text: str, seconds: float) -> None:
        """Count a finished measurement whose estimated duration was *seconds*."""
        self.done += 1
        self.guessed_done += seconds
        self.say(text)

    def left(self) -> float:
        """Return the seconds until the end, corrected by the error of the estimates so far."""
        spent = time.monotonic() - self.begun
        if self.guessed_done <= 0:
            return self.guess
        return max(0.0, (self.guess - self.guessed_done) * spent / self.guessed_done)

    def say(self, text: str) -> None:
        line = f"[{self.done}/{self.total}, {_minutes(self.left())} left] {text}"
        if self.tty:
            self.out.write(f"\r\x1b[K{line[:150]}")
        else:
            self.out.write(line + "\n")
        self.out.flush()

    def end(self) -> None:
        """Clear the line."""
        if self.tty:
            self.out.write("\r\x1b[K")
            self.out.flush()


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def plan(
    bench: Bench, workloads: Sequence[Workload], subjects: Sequence[Loop], *, floor: bool
) -> list[Item]:
    """Return the items of the loop suites: micro workloads together, the others one by one."""
    settings = bench.settings
    items = []
    for workload in workloads:
        if workload.kind not in measure.MEASURES:
            continue
        run = measure.MEASURES[workload.kind]
        who = [subject for subject in subjects if subject.takes_part(workload.suite)]
        if not who:
            continue
        if floor and workload.floor is not None:
            who.append(FLOOR)
        idle = workload.client.get("idle", 0)
        # A pipe has one pair of ends, memory grows only once, the driver is a client itself, and
        # slow clients use CPU time while others are measured.
        fresh = bool(
            idle
            or workload.kind == "driver"
            or workload.client.get("kind") == "pipe"
            or "crowd" in workload.client
        )
        windows, seconds = settings.windows, settings.warmup + settings.seconds + 0.02
        if idle or workload.kind in ("driver", "wrk"):
            windows = min(windows, DEAR_WINDOWS)
            seconds = max(1.1, seconds) + idle / 5000
        items.append(
            Item(
                workload.name,
                who,
                lambda s, w=workload, r=run, n=1 if fresh else windows: r(bench, w, s, n),
                [workload],
                seconds + 0.4 / (1 if fresh else windows),
                windows,
                lasting=not fresh,
            )
        )
    return items


class Runner:
    """Runs a plan and stores the results; see :meth:`run`."""

    def __init__(
        self,
        items: Sequence[Item],
        results: Results,
        settings: measure.Settings,
        save: Callable[[], None],
    ):
        self.items = items
        self.results = results
        self.settings = settings
        self.save = save
        self.dropped: set[tuple[str, str]] = set()
        self.metrics = {w["name"]: w["metric"] for w in results.workloads}
        self.skipped: set[str] = set()

    def run(self) -> None:
        """Run all rounds. Ctrl-C ends them early; the results are kept and marked."""
        previous = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._run()
        finally:
            signal.signal(signal.SIGINT, previous)

    def _interrupt(self, _number: int, _frame: object) -> None:
        # The exception is lost if it is raised while a generator is being collected. The runner
        # therefore also checks the flag between measurements.
        self.results.interrupted = True
        raise KeyboardInterrupt

    def _run(self) -> None:
        progress = Progress(self.items, self.settings.rounds)
        begun = time.monotonic()
        try:
            for number in range(self.settings.rounds):
                if number and self._out_of_time(begun, number):
                    break
                for item in self.items:
                    self._turn(item, number, progress)
                    self.save()
        except KeyboardInterrupt:
            self.results.interrupted = True
        finally:
            progress.end()
            self.save()

    def _out_of_time(self, begun: float, rounds_done: int) -> bool:
        """Return whether another round, as long as the previous ones, would exceed the limit."""
        limit = self.settings.time_limit
        spent = time.monotonic() - begun
        return limit is not None and spent + spent / rounds_done > limit

    def _turn(self, item: Item, number: int, progress: Progress) -> None:
        """Run all windows of a round. Window numbers continue through all rounds."""
        with contextlib.ExitStack() as started:
            runs = {}
            for window in range(number * item.windows, (number + 1) * item.windows):
                order = item.subjects if window % 2 == 0 else list(reversed(item.subjects))
                for subject in order:
                    if self.results.interrupted:
                        raise KeyboardInterrupt
                    if item.name in self.skipped or (item.name, subject.name) in self.dropped:
                        progress.step(f"{item.name} {subject.name}: left out", item.seconds)
                        continue
                    if subject.name not in runs:
                        run = item.run(subject)
                        if item.lasting:
                            runs[subject.name] = run
                            started.callback(run.close)
                    else:
                        run = runs[subject.name]
                    text = self._measure(item, subject, window, run)
                    progress.step(
                        f"{item.name} {window + 1}/{item.windows * self.settings.rounds} "
                        f"{subject.name}: {text}",
                        item.seconds,
                    )

    def _measure(
        self, item: Item, subject: Loop, number: int, run: Iterator[tuple[str, dict]]
    ) -> str:
        shown = ""
        try:
            for name, sample in run:
                self._add(name, subject, number, sample)
                shown = self._shown(name, sample)
                if item.lasting:
                    break
        except UnsupportedError as exc:
            self._record_rest(item, subject, number, "unsupported", str(exc))
            self.dropped.add((item.name, subject.name))
            return f"cannot ({exc})"
        except RunError as exc:
            self._record_rest(item, subject, number, "failed", str(exc))
            self._fail(item.name, subject, number, str(exc))
            self.dropped.add((item.name, subject.name))
            return f"failed ({exc})"
        except BenchError as exc:
            # The machine lacks something for this workload: none of the subjects can do it.
            self.skipped.add(item.name)
            missing = isinstance(exc, MissingToolError)
            told = self.results.skipped if missing else self.results.failures
            if str(exc) not in told:
                told.append(str(exc))
            return f"skipped ({exc})"
        return shown if len(item.workloads) == 1 else f"{len(item.workloads)} workloads"

    def _record_rest(self, item: Item, subject: Loop, number: int, status: str, note: str) -> None:
        """Record *status* for those workloads of *item* without a sample in this round."""
        done = {
            s["workload"]
            for s in self.results.samples
            if s["subject"] == subject.name and s["round"] == number
        }
        for workload in item.workloads:
            if workload.name not in done:
                self._add(workload.name, subject, number, {"status": status, "note": note})

    def _add(self, name: str, subject: Loop, number: int, sample: dict) -> None:
        if "note" in sample:
            sample["note"] = scrub(sample["note"])
        self.results.samples.append(
            {"workload": name, "subject": subject.name, "round": number, **sample}
        )

    def _fail(self, name: str, subject: Loop, number: int, note: str) -> None:
        self.results.failures.append(f"{name}, {subject.name}, window {number + 1}: {scrub(note)}")

    def _shown(self, name: str, sample: dict) -> str:
        if sample.get("value") is None:
            return f"{sample['status']}: {sample.get('note', '')}"
        unit = METRICS[self.metrics[name]][1]
        bound = " (client-bound)" if sample.get("client_bound") else ""
        return f"{sample['value']:.4g} {unit}{bound}"
