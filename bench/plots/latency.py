# SPDX-License-Identifier: GPL-2.0-only
"""Latency by percentile, with equal space for the slowest thousandth and the fastest half."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .. import stats
from ..results import Results
from . import canvas
from .canvas import Picture

# The maximum number of workloads: more would be too small to read.
MOST = 6
COLUMNS = 3
# Labels of the x axis; it begins at the tenth percentile and ends with the last of them.
PERCENTS = (50, 90, 99, 99.9)
FIRST = 10


def pictures(results: Results, colours: dict[str, str]) -> Iterator[Picture]:
    """Yield one picture of the loops, one of the ASGI servers and one of the WSGI servers."""
    for name, suite, title in (
        ("latency", "echo", "Latency by percentile"),
        ("latency-asgi", "asgi", "ASGI servers: latency by percentile"),
        ("latency-wsgi", "wsgi", "WSGI servers: latency by percentile"),
    ):
        chosen = [
            w
            for w in results.measured()
            if w["kind"] in ("load", "wrk")
            and w["core"]
            and w["metric"] == "cpu"
            and (w["suite"] if w["suite"] in ("asgi", "wsgi") else "echo") == suite
            and any(_curve(results.of(w["name"], s)) for s in results.subjects_of(w["name"]))
        ][:MOST]
        if chosen:
            yield Picture(name, suite, title, _figure(results, chosen, title, colours))


def _place(percent: float) -> float:
    """Return the position of a percentile: each further nine has the same distance."""
    return -math.log10(1 - percent / 100)


def _curve(samples: Sequence[dict]) -> list[tuple[float, float]]:
    """Return (percentile, latency in us): the median of the windows at each percentile."""
    points: dict[float, list[float]] = {}
    for sample in samples:
        if sample["status"] == "ok":
            for percent, value in sample.get("latency_us", {}).items():
                points.setdefault(float(percent), []).append(value)
    return sorted(
        (percent, stats.median(values))
        for percent, values in points.items()
        if FIRST <= percent <= PERCENTS[-1] and min(values) > 0
    )


def _figure(results: Results, chosen: Sequence[dict], title: str, colours: dict[str, str]):
    from matplotlib.lines import Line2D

    columns = min(COLUMNS, -(-len(chosen) // (2 if len(chosen) > COLUMNS else 1)))
    lines = -(-len(chosen) // columns)
    figure, grid = canvas.blank(1.0 + 3.1 * lines, lines, columns)
    for axes in grid.flat[len(chosen) :]:
        axes.set_visible(False)
    hidden, shown = results.controls(), set()
    for axes, w in zip(grid.flat, chosen, strict=False):
        latencies = []
        for subject in results.subjects_of(w["name"]):
            curve = _curve(results.of(w["name"], subject))
            if subject in hidden or not curve:
                continue
            shown.add(subject)
            places = [_place(percent) for percent, _ in curve]
            values = [value for _, value in curve]
            axes.plot(places, values, color=colours[subject], linewidth=1.5)
            latencies += values
        canvas.plain_log(axes, min(latencies) * 0.9, max(latencies) * 1.1)
        axes.set_xticks([_place(p) for p in PERCENTS], [f"{p:g} %" for p in PERCENTS])
        axes.set_xlim(_place(FIRST), _place(PERCENTS[-1]) * 1.02)
        axes.grid(alpha=0.3)
        axes.set_title(w["title"], size=9, color=canvas.INK)
    for row in grid:
        row[0].set_ylabel("latency", size=9, color=canvas.INK)
    subjects = [s["name"] for s in results.subjects if s["name"] in shown]
    canvas.finish(
        figure,
        title,
        "so many operations took no longer than that; median of the windows; lower is better",
        [
            Line2D([], [], color=colours[s], linewidth=2.5, label=canvas.NAMES.get(s, s))
            for s in subjects
        ],
    )
    return figure
