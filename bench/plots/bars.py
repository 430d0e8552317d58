# SPDX-License-Identifier: GPL-2.0-only
"""Horizontal bars: ratios to the reference, workload by workload, and the first seed.

A bar is a median, its whisker goes from the smallest to the largest of the windows, and the grey
band around 1 is the control's noise: a bar that ends inside the band shows no difference. A bar
that is longer than the axis ends in an arrow, with its figure next to it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..loops import DEFAULT_LOOPS
from ..registry import METRICS, SUITES
from ..results import Results
from ..stats import Summary
from . import canvas
from .canvas import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Suites that are too long for one picture: the workloads of each picture, and its title.
PARTS = {
    "echo": (
        ("protocol", ("protocol", "buffered"), "Protocol and BufferedProtocol"),
        ("streams", ("streams", "sock"), "streams and sock_*()"),
        ("other", (), "other transports, one way, sendfile"),
    ),
}
# The workloads in README's picture, with shorter names. It is drawn if four of them have results.
SUMMARY = {
    "echo/protocol-1k-c100": "echo by Protocol\n1 KiB x 100 connections",
    "echo/streams-1k-c100": "echo by streams\n1 KiB x 100",
    "echo/udp-1k-c50": "echo by UDP\n1 KiB x 50",
    "tls/protocol-1k-c100": "echo by TLS\n1 KiB x 100",
    "http/uvicorn-c50": "uvicorn\nplaintext x 50",
    "http/aiohttp-c50": "aiohttp server\nJSON x 50",
    "scale/active50-idle10000": "50 active connections\namong 10,000 idle ones",
}
SUMMARY_ENOUGH = 4
# Inches: minimum and maximum height of a bar, gap between rows, height of everything else.
THIN, THICK, GAP, REST = 0.068, 0.15, 0.09, 1.5
# A label longer than LONG characters is split in two if its row is higher than ROOM inches.
LONG, ROOM = 36, 0.3
TITLES = {
    "micro": "micro: what the loop does by itself",
    "echo": "echo",
    "http": "http: servers and clients in Python",
    "tls": "tls: echo, handshakes, HTTPS",
    "scale": "scale: many connections",
    "threads": "threads: several loops behind one port",
    "asgi": "asgi: whole servers",
    "wsgi": "wsgi: whole servers",
}


@dataclass
class Row:
    """A workload's label, its noise, and for each subject a summary or why it is missing."""

    label: str
    band: float
    found: dict[str, Summary | str]

    def summaries(self) -> Iterator[Summary]:
        return (s for s in self.found.values() if isinstance(s, Summary))


def pictures(results: Results, colours: dict[str, str]) -> Iterator[Picture]:
    """Yield the pictures of all suites except the seeds, which compare requests per second."""
    yield from _summary(results, colours)
    for suite in SUITES:
        if suite != "seeds":
            yield from _suite(results, suite, colours)
    yield from _first_seed(results, colours)


def _suite(results: Results, suite: str, colours: dict[str, str]) -> Iterator[Picture]:
    workloads = [w for w in results.measured() if w["suite"] == suite]
    left = list(workloads)
    for name, stems, title in PARTS.get(suite, (("", (), ""),)):
        part = [w for w in left if not stems or _stem(w) in stems]
        left = [w for w in left if w not in part]
        yield from _part(results, suite, name, title, part, colours)


def _stem(workload: dict) -> str:
    return workload["name"].partition("/")[2].partition("-")[0]


def _part(
    results: Results,
    suite: str,
    name: str,
    title: str,
    workloads: Sequence[dict],
    colours: dict[str, str],
) -> Iterator[Picture]:
    """Yield one picture, or several if one would be higher than a screen."""
    hidden = results.controls()
    rows, shown, references = [], set(), []
    for w in workloads:
        found = {s: x for s in results.subjects_of(w["name"]) if (x := _cell(results, w, s))}
        found = {s: x for s, x in found.items() if s not in hidden}
        if any(isinstance(x, Summary) for x in found.values()):
            references.append(results.reference_of(w))
            rows.append(Row(w["title"], results.noise(w["name"]), found))
            shown |= {s for s, x in found.items() if isinstance(x, Summary)}
    if not rows:
        return
    reference = max(references, key=references.count)
    for row, other in zip(rows, references, strict=True):
        if other != reference:
            row.label += f" (to {other})"
    subjects = [s["name"] for s in results.subjects if s["name"] in shown]
    fit = max(1, int((canvas.TALLEST - REST) / (THIN * len(subjects) + GAP)))
    count = -(-len(rows) // fit)
    each = -(-len(rows) // count)
    heading = f"{TITLES[suite]}: {title}" if title else TITLES[suite]
    for number in range(count):
        figure = _ratios(
            rows[number * each : (number + 1) * each],
            subjects,
            reference,
            heading,
            colours,
        )
        stem = "-".join(["bars", suite, *([name] if name else [])])
        last = f"-{number + 1}" if count > 1 else ""
        yield Picture(f"{stem}{last}", suite, f"{heading}, relative to {reference}", figure)


def _cell(results: Results, workload: dict, subject: str) -> Summary | str | None:
    """Return the ratios of *subject* or ``cannot``; None for the reference or untried subjects."""
    if subject == results.reference_of(workload):
        return None
    if ratios := results.ratios(workload["name"], subject):
        return Summary.of(ratios)
    statuses = {s["status"] for s in results.of(workload["name"], subject)}
    return "cannot" if statuses == {"unsupported"} else None


def _ratios(
    rows: Sequence[Row],
    subjects: Sequence[str],
    reference: str,
    title: str,
    colours: dict[str, str],
    *,
    numbers: bool = False,
):
    """Draw the figure: *rows* from top to bottom, with the *subjects* in each."""
    from matplotlib.patches import Patch

    bar = (canvas.TALLEST - REST) / len(rows) - GAP
    bar = min(THICK, max(THIN, bar / len(subjects)))
    row_height = bar * len(subjects) + GAP
    figure, grid = canvas.blank(REST + row_height * len(rows))
    axes = grid[0, 0]
    end = canvas.axis_end(
        [s.median for row in rows for s in row.summaries()],
        [s.high for row in rows for s in row.summaries()],
    )
    for at, row in enumerate(rows):
        axes.fill_betweenx(
            [at - 0.47, at + 0.47], 1 - row.band, 1 + row.band, color="#e4e4e4", linewidth=0
        )
        for place, subject in enumerate(subjects):
            y = at + (place - (len(subjects) - 1) / 2) * bar / row_height
            found = row.found.get(subject)
            if isinstance(found, Summary):
                _bar(axes, y, bar / row_height, bar * 72, found, end, colours[subject])
                if numbers:
                    _inside(axes, y, bar * 72, canvas.number(found.median), colours[subject])
            elif found:
                axes.text(
                    0.01 * end,
                    y,
                    found,
                    size=min(8, bar * 54),
                    va="center_baseline",
                    color=canvas.PALE,
                )
    axes.axvline(1, color="black", linewidth=0.9)
    labels = [_wrapped(row.label) if row_height > ROOM else row.label for row in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_xlim(0, end)
    said = f"ratio to {reference}, which is the black line (more is better)"
    axes.set_xlabel(said, size=9, color=canvas.INK)
    canvas.finish(
        figure,
        title,
        "median of the windows; whiskers: the smallest and the largest; grey: noise of the "
        "control; arrow: further, to the figure beside it",
        [Patch(color=colours[s], label=canvas.NAMES.get(s, s)) for s in subjects],
    )
    return figure


def _wrapped(label: str) -> str:
    """Split a long label into two lines of similar length, keeping numbers and units together."""
    if "\n" in label or len(label) <= LONG:
        return label
    whole = re.sub(r"(?<=\d) (?=[KM]?i?B\b)|(?<=B) (?=x \d)|(?<=\bx) (?=\d)", "\xa0", label)
    for width in range(len(label) // 2, len(label)):
        lines = textwrap.wrap(whole, width, break_long_words=False)
        if len(lines) <= 2:
            return "\n".join(lines)
    return label


def _bar(
    axes: Axes, y: float, height: float, points: float, found: Summary, end: float, colour: str
) -> None:
    """Draw a bar *points* high, its whisker, and the marks of parts that are cut off at *end*."""
    axes.barh(y, min(found.median, end), height * 0.94, color=colour, linewidth=0)
    cap = height * 0.25
    pieces = [([found.low, min(found.high, end)], [y, y])] if found.low < end else []
    if found.high > found.low:
        pieces += [([x, x], [y - cap, y + cap]) for x in (found.low, found.high) if x <= end]
    # White below the ink, because the ink alone would be invisible on a dark bar.
    for ink, width in (("white", 1.8), (canvas.INK, 0.8)):
        for xs, ys in pieces:
            axes.plot(xs, ys, color=ink, linewidth=width, solid_capstyle="butt")
    if found.high > end or found.median > end:
        axes.plot(end, y, marker=">", color=canvas.INK, markersize=points * 0.55, clip_on=False)
        axes.annotate(
            canvas.number(found.median if found.median > end else found.high),
            (end, y),
            (5, 0),
            textcoords="offset points",
            size=min(8, points * 0.9),
            va="center",
            color=canvas.INK,
            annotation_clip=False,
        )
    if found.median > end:
        # The bar itself is cut off: a gap in it shows that.
        for x in (0.93, 0.945):
            gap = {"color": "white", "markersize": points, "markeredgewidth": 1.5}
            axes.plot(x * end, y, marker=[(-0.4, -1), (0.4, 1)], **gap)


def _inside(axes: Axes, y: float, points: float, text: str, colour: str) -> None:
    """Draw a figure at the foot of a bar, in dark or white ink, whichever is readable."""
    light = sum(int(colour[at : at + 2], 16) for at in (1, 3, 5)) > 400
    axes.annotate(
        text,
        (0, y),
        (4, 0),
        textcoords="offset points",
        size=min(8, points * 0.75),
        va="center_baseline",
        color=canvas.INK if light else "white",
    )


def _summary(results: Results, colours: dict[str, str]) -> Iterator[Picture]:
    """Yield README's picture: a few workloads, with mgloop first and the reference included."""
    measured = {w["name"]: w for w in results.measured()}
    hidden = results.controls()
    rows, shown = [], set()
    for name, label in SUMMARY.items():
        if name not in measured:
            continue
        found: dict[str, Summary | str] = {}
        for subject in results.subjects_of(name):
            if subject == results.reference:
                found[subject] = Summary(1.0, 1.0, 1.0, 1)
            elif subject not in hidden and (cell := _cell(results, measured[name], subject)):
                found[subject] = cell
        rows.append(Row(label, results.noise(name), found))
        shown |= found.keys()
    if len(rows) < SUMMARY_ENOUGH or "mgloop" not in shown:
        return
    reference = results.reference
    wanted = shown & {*DEFAULT_LOOPS, reference, "floor"}
    subjects = [s["name"] for s in results.subjects if s["name"] in wanted]
    subjects.sort(key=lambda name: name != "mgloop")
    title = f"Work per CPU second of the server, {reference} = 1 (longer is better)"
    figure = _ratios(rows, subjects, reference, title, colours, numbers=True)
    yield Picture("summary", "", title, figure)


def _first_seed(results: Results, colours: dict[str, str]) -> Iterator[Picture]:
    """Yield the requests per second of the first seed, with a bar for each system."""
    name = "seeds/1-hello"
    if name not in {w["name"] for w in results.measured()}:
        return
    rows = [
        (s, summary)
        for s in results.subjects_of(name)
        if (summary := Summary.of(results.values(name, s).values()))
    ]
    if not rows:
        return
    figure, grid = canvas.blank(1.4 + 0.3 * len(rows))
    axes = grid[0, 0]
    end = canvas.axis_end([s.median for _, s in rows], [s.high for _, s in rows])
    for at, (subject, summary) in enumerate(rows):
        _bar(axes, at, 0.7, 0.7 * 0.3 * 72, summary, end, colours[subject])
    axes.set_yticks(range(len(rows)), [s for s, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, end)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(METRICS["rate"][0].replace("operations", "requests"), size=9)
    title = "Seed 1: a JSON greeting, wrk -t4 -c100"
    canvas.finish(figure, title, "median; whiskers: the smallest and the largest of the rounds")
    yield Picture("seed1-hello", "seeds", title, figure)
