# SPDX-License-Identifier: GPL-2.0-only
"""What became of a run, in one word, and when one word is worse than another.

    ok        everything arrived
    refused   the loop could not be made, and its constructor said so
    noted     everything arrived, and an error was reported on the way
    error     the program ended early, or without something, and reported the reason
    stuck     the program reported an error, but did not end in time
    hung      the program did not end in time, and reported nothing
    lost      the program ended, something did not arrive, and nothing was reported
    spun      whatever else: it made many times the system calls that it takes
    crashed   a signal ended the process

A run is worse than another if less arrives or less is reported, or if it spins and the other does
not, or if it crashes and the other does not. `noted` is as good as `ok`: whether a fault that did
no harm is worth a word is the loop's business. So is `refused`: loops need different things to be
made of, and both refuse for want of theirs. And `hung` is as bad as `lost`.
"""

import dataclasses
import signal
from collections import Counter
from collections.abc import Iterable

from tests.faults.programs import Program

#: The severity of a result; spinning and crashes are separate properties.
RANKS = {"ok": 0, "refused": 0, "noted": 0, "error": 1, "stuck": 2, "hung": 3, "lost": 3}
WORDS = (*RANKS, "spun", "crashed")

#: A run has spun if it makes this many system calls more than a run without faults.
SPIN_CALLS = 500
SPIN_FACTOR = 4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a run: *end* is that of the program, *spun* and *crashed* of the process."""

    end: str
    spun: bool
    crashed: bool
    injected: int
    detail: str
    output: str

    @property
    def word(self) -> str:
        """Return the worst of the three as a word."""
        return "crashed" if self.crashed else "spun" if self.spun else self.end

    def is_worse_than(self, other: "Outcome") -> bool:
        """Whether this has a fault that *other* has not."""
        return (
            self.crashed > other.crashed
            or self.spun > other.spun
            or RANKS[self.end] > RANKS[other.end]
        )

    def __str__(self) -> str:
        return self.word if self.injected else f"{self.word}·"


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst outcome of the runs of a cell."""
    seen = list(outcomes)
    lowest = max(seen, key=lambda outcome: (outcome.crashed, RANKS[outcome.end], outcome.spun))
    return dataclasses.replace(
        lowest,
        spun=any(outcome.spun for outcome in seen),
        injected=max(outcome.injected for outcome in seen),
    )


def judge(run: dict, program: Program, usual: Counter | None = None) -> Outcome:
    """Judge the observations of the worker; *usual* are the calls without faults."""
    subject = run["subject"] or {"how": "gone", "errors": [], "lost": [], "reached": 0}
    peer = run["peer"] or {"errors": [], "lost": [], "reached": 0}
    if run["killed"] or subject["how"] in ("deadline", "gone"):
        # The peer then observes the end of the process.
        peer = peer | {"errors": [], "lost": []}
    errors = subject["errors"] + [f"peer: {text}" for text in peer["errors"]]
    lost = subject["lost"] + [f"peer: {text}" for text in peer["lost"]]
    reached = (peer if program.peer_decides else subject)["reached"]
    ended = not run["killed"] and subject["how"] not in ("deadline", "gone")
    if program.peer_decides and run["peer"] is None:
        ended = subject["how"] == "raised"
    calls = sum(run["counts"].values())
    if subject["how"] == "refused":
        end = "refused"
    elif not ended:
        end = "stuck" if errors else "hung"
    elif reached == program.goals and not lost:
        end = "noted" if errors else "ok"
    else:
        end = "error" if errors else "lost"
    detail = [f"{calls} calls, {reached} of {program.goals} reached, {subject['how']}"]
    if run["signal"]:
        detail.append(signal.Signals(run["signal"]).name)
    if run["killed"]:
        detail.append("did not even end itself")
    detail += lost + errors
    return Outcome(
        end,
        usual is not None and calls > SPIN_CALLS + SPIN_FACTOR * usual.total(),
        bool(run["signal"]),
        run["injected"],
        "; ".join(detail)[:600],
        run["output"],
    )
