# SPDX-License-Identifier: GPL-2.0-only
"""Lines: how a figure changes with idle connections, workers, processes or the handler's work.

The positions on the x axis are equally far apart, whatever their values. At each position the
systems are drawn next to each other, so that no whisker hides another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..results import Results
from ..stats import Summary
from . import canvas
from .canvas import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^vPX*<>hd"
# The share of the space between two positions that the systems at one position take up.
SPREAD = 0.3
WHISKERS = "median; whiskers: the smallest and the largest of the windows"


@dataclass
class Panel:
    """One set of axes: workloads at positions of the x axis."""

    title: str
    names: Sequence[str]
    places: Sequence[int]


def pictures(results: Results, colours: dict[str, str]) -> Iterator[Picture]:
    """Yield all pictures that the results allow."""
    counts = (0, 1_000, 10_000)
    idle = Panel("", [f"scale/active50-idle{n}" for n in counts], counts)
    yield from _draw(
        results,
        colours,
        [idle],
        name="idle",
        suite="scale",
        title="50 active connections among idle ones",
        xlabel="idle connections",
        ylabel="server CPU us per operation",
    )
    rate = {"suite": "seeds", "ylabel": "requests per second"}
    yield from _draw(
        results,
        colours,
        [
            _numbered(results, f"seeds/2-{label}-w", path)
            for label, path in (("root", "GET /"), ("json", "GET /json"), ("echo", "POST /echo"))
        ],
        name="seed2-workers",
        title="Seed 2: worker processes that share a port, wrk -t12 -c400",
        xlabel="workers",
        **rate,
    )
    yield from _draw(
        results,
        colours,
        [_numbered(results, "seeds/3-close-p", "")],
        name="seed3-processes",
        title="Seed 3: a connection per request, multiplexed and one at a time",
        xlabel="processes",
        **rate,
    )
    yield from _draw(
        results,
        colours,
        [_numbered(results, "seeds/4-classify-", "")],
        name="seed4-classify",
        title="Seed 4: a handler whose work grows with the path",
        xlabel="characters of the path",
        **rate,
    )


def _numbered(results: Results, prefix: str, title: str) -> Panel:
    """Return a panel of the workloads whose name is *prefix* and a number."""
    found = []
    for w in results.measured():
        rest = w["name"].removeprefix(prefix)
        if rest != w["name"] and rest.isdigit():
            found.append((int(rest), w["name"]))
    found.sort()
    return Panel(title, [name for _, name in found], [number for number, _ in found])


def _draw(
    results: Results,
    colours: dict[str, str],
    panels: Sequence[Panel],
    *,
    name: str,
    suite: str,
    title: str,
    xlabel: str,
    ylabel: str,
) -> Iterator[Picture]:
    """Yield a picture with a line per system, if there are at least two positions to connect."""
    measured = {w["name"] for w in results.measured()}
    hidden = results.controls()
    shown = [p for p in panels if sum(n in measured for n in p.names) > 1]
    found = {
        (n, s): summary
        for panel in shown
        for n in panel.names
        for s in results.subjects_of(n)
        if s not in hidden and (summary := Summary.of(results.values(n, s).values()))
    }
    subjects = [s["name"] for s in results.subjects if any(s["name"] == k[1] for k in found)]
    if not subjects:
        return
    figure, grid = canvas.blank(4.6, 1, len(shown), sharey=True)
    end = canvas.axis_end([s.median for s in found.values()], [s.high for s in found.values()])
    handles = []
    for axes, panel in zip(grid.flat, shown, strict=True):
        handles = [
            _line(axes, panel, found, subject, (place, len(subjects)), end, colours[subject])
            for place, subject in enumerate(subjects)
        ]
        axes.set_xticks(range(len(panel.places)), [f"{x:,}" for x in panel.places])
        axes.set_xlim(-0.5, len(panel.places) - 0.5)
        axes.set_ylim(0, end)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axes.grid(axis="y", alpha=0.3)
        axes.set_xlabel(xlabel, size=9, color=canvas.INK)
        axes.set_title(panel.title, size=9.5, color=canvas.INK)
    grid[0, 0].set_ylabel(ylabel, size=9, color=canvas.INK)
    canvas.finish(figure, title, WHISKERS, handles)
    yield Picture(name, suite, title, figure)


def _line(
    axes: Axes,
    panel: Panel,
    found: dict[tuple[str, str], Summary],
    subject: str,
    position: tuple[int, int],
    end: float,
    colour: str,
):
    """Draw the line of *subject*, number *position[0]* of *position[1]*; return its handle."""
    place, count = position
    aside = SPREAD * ((place + 0.5) / count - 0.5)
    points = [
        (x + aside, s)
        for x, n in enumerate(panel.names)
        if (s := found.get((n, subject))) is not None
    ]
    xs = [x for x, _ in points]
    (handle,) = axes.plot(
        xs,
        [min(s.median, end) for _, s in points],
        marker=MARKERS[place % len(MARKERS)],
        markersize=5,
        linewidth=1.4,
        color=colour,
        label=canvas.NAMES.get(subject, subject),
    )
    for x, s in points:
        axes.plot([x, x], [min(s.low, end), min(s.high, end)], color=colour, linewidth=1)
        if s.high > end:
            axes.plot(x, end, marker="^", color=colour, markersize=5, clip_on=False)
            axes.annotate(
                canvas.number(s.high),
                (x, end),
                (0, 5 + 9 * (place % 3)),
                textcoords="offset points",
                size=7,
                ha="center",
                color=canvas.INK,
                annotation_clip=False,
            )
    return handle
