# SPDX-License-Identifier: GPL-2.0-only
"""Compare two results files of the same machine: has a loop become slower?

The comparison uses the loop's ratio to the reference *within* each file, so that a busier machine
or a slower clock in one of the runs cancels out. The noise of both controls sets the band.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import stats
from .errors import BenchError
from .results import Results


@dataclass(frozen=True)
class Change:
    """One workload in two files; ``change`` is B over A, and a value below 1 is slower."""

    workload: str
    before: float | None
    after: float | None
    change: float | None
    band: float
    regression: bool
    note: str = ""


def compare(before: Results, after: Results, loop: str) -> list[Change]:
    """Return the changes of *loop* between two files. BenchError if nothing can be compared."""
    names = [w["name"] for w in before.measured()]
    common = [w for w in after.measured() if w["name"] in names]
    for label, found in (("first", before), ("second", after)):
        if loop not in {s["name"] for s in found.subjects}:
            raise BenchError(f"the {label} file has no loop {loop!r}")
    if not common:
        raise BenchError("the two files have no workload in common")
    if before.reference != after.reference:
        raise BenchError(
            f"the files have different references ({before.reference}, {after.reference})"
        )
    return [_change(before, after, w, loop) for w in common if w["suite"] != "seeds"]


def _change(before: Results, after: Results, workload: dict, loop: str) -> Change:
    name = workload["name"]
    if loop == after.reference_of(workload):
        raise BenchError(f"{loop} is the reference itself: compare another loop")
    had, has = before.ratios(name, loop), after.ratios(name, loop)
    band = math.hypot(before.noise(name), after.noise(name))
    if not has:
        # The workload worked before and fails now, which is worse than slow.
        broken = bool(had)
        note = "no figure any more" if broken else "no figure in either"
        return Change(name, stats.median(had) if had else None, None, None, band, broken, note)
    if not had:
        return Change(name, None, stats.median(has), None, band, False, "no figure before")
    old, new = stats.median(had), stats.median(has)
    change = new / old
    # A median beyond the band is not enough: most rounds of B must be slower than A's median.
    behind = sum(r < old for r in has) >= 0.75 * len(has)
    return Change(name, old, new, change, band, change < 1 - band and behind)


def table(changes: Sequence[Change]) -> str:
    """Return the changes as text, worst first, with the outcome in the last line."""
    ordered = sorted(changes, key=lambda c: math.inf if c.change is None else c.change)
    lines = [f"{'workload':<34}{'A':>8}{'B':>8}{'B/A':>8}{'noise':>9}"]
    for c in ordered:
        state = "REGRESSION" if c.regression else ""
        if not c.regression and c.change is not None and c.change > 1 + c.band:
            state = "better"
        lines.append(
            f"{c.workload:<34}{_number(c.before):>8}{_number(c.after):>8}{_number(c.change):>8}"
            f"{c.band * 100:>7.1f} %  {state} {c.note}".rstrip()
        )
    worse = [c for c in changes if c.regression]
    lines.append(
        f"{len(worse)} regression(s) beyond the noise among {len(changes)} workloads"
        if worse
        else f"no regression beyond the noise among {len(changes)} workloads"
    )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
