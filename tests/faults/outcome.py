# SPDX-License-Identifier: GPL-2.0-only
"""What became of a run, in one word, and when one word is worse than another.

From good to bad:

    ok        everything arrived
    refused   the loop could not be made, and its constructor said so
    noted     everything arrived, and an error was reported on the way
    error     the program ended early, or without something, and somebody was told why
    stuck     somebody was told, but the program did not end in its time
    hung      the program did not end in its time, and nobody was told why
    spun      as hung, or not even that, but many times the system calls that it takes
    lost      the program ended, something did not arrive, and nobody was told
    crashed   a signal ended the process

`noted` is as good as `ok`: whether a fault that did no harm is worth a word is the loop's business.
So is `refused`: loops need different things to be made of, and both refuse for want of theirs.
"""

import dataclasses
import signal
from collections import Counter

from tests.faults.programs import Program

RANKS = {
    "ok": 0,
    "refused": 0,
    "noted": 0,
    "error": 1,
    "stuck": 2,
    "hung": 3,
    "spun": 4,
    "lost": 5,
    "crashed": 6,
}

#: A run that makes more system calls than this, with what it makes without faults, has spun.
SPIN_CALLS = 500
SPIN_FACTOR = 4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One run, judged."""

    word: str
    injected: int
    calls: int
    detail: str
    output: str

    @property
    def rank(self) -> int:
        """The higher the worse."""
        return RANKS[self.word]

    def __str__(self) -> str:
        return self.word if self.injected else f"{self.word}·"


def judge(run: dict, program: Program, usual: Counter | None = None) -> Outcome:
    """Judge what the worker saw; *usual* are the calls that this takes without faults."""
    subject = run["subject"] or {"how": "gone", "errors": [], "lost": [], "reached": 0}
    peer = run["peer"] or {"errors": [], "lost": [], "reached": 0}
    errors = subject["errors"] + [f"peer: {text}" for text in peer["errors"]]
    lost = subject["lost"] + [f"peer: {text}" for text in peer["lost"]]
    reached = (peer if program.peer_decides else subject)["reached"]
    ended = not run["killed"] and subject["how"] not in ("deadline", "gone")
    if program.peer_decides and run["peer"] is None:
        ended = subject["how"] == "raised"
    calls = sum(run["counts"].values())
    if run["signal"]:
        word = "crashed"
    elif usual is not None and calls > SPIN_CALLS + SPIN_FACTOR * usual.total():
        word = "spun"
    elif subject["how"] == "refused":
        word = "refused"
    elif not ended:
        word = "stuck" if errors else "hung"
    elif reached == program.goals and not lost:
        word = "noted" if errors else "ok"
    else:
        word = "error" if errors else "lost"
    detail = [f"{calls} calls, {reached} of {program.goals} reached, {subject['how']}"]
    if run["signal"]:
        detail.append(signal.Signals(run["signal"]).name)
    if run["killed"]:
        detail.append("did not even end itself")
    detail += lost + errors
    return Outcome(word, run["injected"], calls, "; ".join(detail)[:600], run["output"])
