# SPDX-License-Identifier: GPL-2.0-only
"""The pictures: bars relative to the reference, latency distributions, scaling lines.

Needs matplotlib (the dependency group ``bench``), imported only when a picture is asked for. Bars
carry whiskers from the smallest to the largest ratio of the rounds, and the grey band round 1 is
the control's noise: a bar that ends inside it shows nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from . import stats
from .errors import BenchError
from .registry import SUITES
from .results import Results
from .stats import Summary

COLOURS = ("#7f7f7f", "#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf")
# Latency distributions: at most so many workloads, six to a picture would be too small to read.
CDF_WORKLOADS = 6


def _pyplot():
    try:
        import matplotlib
    except ImportError as exc:
        raise BenchError(
            "pictures need matplotlib: pip install matplotlib (dependency group `bench`)"
        ) from exc
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw every picture that the results allow into *folder*; their paths."""
    pyplot = _pyplot()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BenchError(f"cannot write to {folder}: {exc.strerror}") from exc
    drawn = []
    for suite in SUITES:
        if suite != "seeds":
            drawn += _bars(pyplot, results, suite, folder)
    drawn += _distributions(pyplot, results, folder)
    drawn += _idle_lines(pyplot, results, folder)
    drawn += _seed_bars(pyplot, results, folder)
    drawn += _worker_lines(pyplot, results, folder)
    drawn += _process_lines(pyplot, results, folder)
    drawn += _classify_lines(pyplot, results, folder)
    return drawn


def inline(pictures: Sequence[Path]) -> list[str]:
    """The pictures as data URLs, so that the HTML report is one file."""
    return [
        "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode() for path in pictures
    ]


def _save(pyplot, figure, path: Path) -> list[Path]:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return [path]


def _colour(results: Results, name: str) -> str:
    names = [s["name"] for s in results.subjects]
    return COLOURS[names.index(name) % len(COLOURS)] if name in names else "#000000"


def _bars(pyplot, results: Results, suite: str, folder: Path) -> list[Path]:
    """Horizontal bars: every subject's ratio to the reference, workload by workload."""
    hidden = results.controls()
    rows = []
    for w in results.measured():
        if w["suite"] == suite:
            found = {
                s: Summary.of(r)
                for s in results.subjects_of(w["name"])
                if s not in hidden
                and (r := results.ratios(w["name"], s))
                and s != results.reference_of(w)
            }
            if found:
                rows.append((w, found))
    if not rows:
        return []
    subjects = [s["name"] for s in results.subjects if any(s["name"] in found for _, found in rows)]
    reference = results.reference_of(rows[0][0])
    height = 0.8 / len(subjects)
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.22 * len(subjects) * len(rows)))
    for index, (w, _) in enumerate(rows):
        band = results.noise(w["name"])
        axes.fill_betweenx(
            [index - 0.45, index + 0.45], 1 - band, 1 + band, color="#dddddd", linewidth=0
        )
    for place, subject in enumerate(subjects):
        at = [i + (place - (len(subjects) - 1) / 2) * height for i in range(len(rows))]
        summaries = [found.get(subject) for _, found in rows]
        axes.barh(
            [y for y, s in zip(at, summaries, strict=True) if s],
            [s.median for s in summaries if s],
            height,
            xerr=[
                [s.median - s.low for s in summaries if s],
                [s.high - s.median for s in summaries if s],
            ],
            color=_colour(results, subject),
            label=subject,
            ecolor="#333333",
            capsize=2,
            error_kw={"linewidth": 0.8},
        )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [w["title"] for w, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(
        f"ratio to {reference} (more is better; whiskers: min-max over rounds; "
        "grey: noise of the control)"
    )
    axes.set_title(f"{suite}, relative to {reference}")
    axes.legend(fontsize=8)
    return _save(pyplot, figure, folder / f"bars-{suite}.png")


def _curve(samples: Sequence[dict]) -> tuple[list[float], list[float]]:
    """Latency (us) and percentile, the median over rounds at each percentile."""
    points: dict[float, list[float]] = {}
    for sample in samples:
        if sample["status"] == "ok":
            for percent, value in sample.get("latency_us", {}).items():
                points.setdefault(float(percent), []).append(value)
    ordered = sorted((p, stats.median(v)) for p, v in points.items() if p < 100)
    return [v for _, v in ordered], [p for p, _ in ordered]


def _distributions(pyplot, results: Results, folder: Path) -> list[Path]:
    """Cumulative distributions of latency for a handful of workloads."""
    chosen = [
        w
        for w in results.measured()
        if w["kind"] in ("load", "wrk")
        and w["core"]
        and w["metric"] == "cpu"
        and any(_curve(results.of(w["name"], s))[0] for s in results.subjects_of(w["name"]))
    ][:CDF_WORKLOADS]
    if not chosen:
        return []
    columns = min(2, len(chosen))
    lines = -(-len(chosen) // columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(6 * columns, 3.4 * lines), squeeze=False
    )
    for axes in grid.flat[len(chosen) :]:
        axes.set_visible(False)
    for axes, w in zip(grid.flat, chosen, strict=False):
        for subject in results.subjects_of(w["name"]):
            if subject in results.controls():
                continue
            latency, percent = _curve(results.of(w["name"], subject))
            if latency:
                axes.plot(latency, percent, label=subject, color=_colour(results, subject))
        axes.set_xscale("log")
        axes.set_title(w["title"], fontsize=9)
        axes.set_xlabel("latency, us")
        axes.set_ylabel("% of operations")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    return _save(pyplot, figure, folder / "latency.png")


def _line(axes, results: Results, subject: str, at: Sequence[float], names: Sequence[str]) -> bool:
    """One line with whiskers over the workloads *names* at the places *at*; False if empty."""
    points = [
        (x, s)
        for x, name in zip(at, names, strict=True)
        if (s := Summary.of(results.values(name, subject).values()))
    ]
    if not points:
        return False
    axes.errorbar(
        [x for x, _ in points],
        [s.median for _, s in points],
        yerr=[[s.median - s.low for _, s in points], [s.high - s.median for _, s in points]],
        marker="o",
        capsize=3,
        label=subject,
        color=_colour(results, subject),
    )
    return True


def _lines(
    pyplot,
    results: Results,
    names: Sequence[str],
    at: Sequence[float],
    path: Path,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    log: bool = False,
) -> list[Path]:
    """A picture with one line per subject; nothing if nothing was measured."""
    measured = {w["name"] for w in results.measured()}
    pairs = [(x, n) for x, n in zip(at, names, strict=True) if n in measured]
    if len(pairs) < 2:
        return []
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    subjects = [
        s["name"]
        for s in results.subjects
        if any(s["name"] in results.subjects_of(n) for _, n in pairs)
        and s["name"] not in results.controls()
    ]
    drawn = [
        _line(axes, results, s, [x for x, _ in pairs], [n for _, n in pairs]) for s in subjects
    ]
    if not any(drawn):
        pyplot.close(figure)
        return []
    if log:
        axes.set_xscale("symlog")
    axes.set_xticks([x for x, _ in pairs], [f"{x:,}" for x, _ in pairs])
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return _save(pyplot, figure, path)


def _idle_lines(pyplot, results: Results, folder: Path) -> list[Path]:
    counts = (0, 1_000, 10_000)
    return _lines(
        pyplot,
        results,
        [f"scale/active50-idle{n}" for n in counts],
        counts,
        folder / "idle.png",
        title="50 active connections among idle ones",
        xlabel="idle connections",
        ylabel="server CPU us per operation",
        log=True,
    )


def _seed_numbers(results: Results, prefix: str) -> list[tuple[int, str]]:
    """(number, workload name) of the seeds whose name is *prefix* and a number."""
    found = []
    for w in results.measured():
        rest = w["name"].removeprefix(prefix)
        if rest != w["name"] and rest.isdigit():
            found.append((int(rest), w["name"]))
    return sorted(found)


def _numbered(pyplot, results: Results, prefix: str, path: Path, **labels) -> list[Path]:
    found = _seed_numbers(results, prefix)
    return _lines(
        pyplot,
        results,
        [n for _, n in found],
        [x for x, _ in found],
        path,
        ylabel="requests per second",
        **labels,
    )


def _seed_bars(pyplot, results: Results, folder: Path) -> list[Path]:
    """Requests per second of the first seed."""
    name = "seeds/1-hello"
    if name not in {w["name"] for w in results.measured()}:
        return []
    rows = [
        (s, summary)
        for s in results.subjects_of(name)
        if (summary := Summary.of(results.values(name, s).values()))
    ]
    if not rows:
        return []
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.45 * len(rows)))
    axes.barh(
        [s for s, _ in rows],
        [x.median for _, x in rows],
        xerr=[[x.median - x.low for _, x in rows], [x.high - x.median for _, x in rows]],
        color=[_colour(results, s) for s, _ in rows],
        capsize=3,
    )
    axes.invert_yaxis()
    axes.set_xlabel("requests per second (whiskers: min-max over rounds)")
    axes.set_title("A JSON greeting, wrk -t4 -c100")
    return _save(pyplot, figure, folder / "seed1-hello.png")


def _worker_lines(pyplot, results: Results, folder: Path) -> list[Path]:
    drawn = []
    for label, path in (("root", "GET /"), ("json", "GET /json"), ("echo", "POST /echo")):
        drawn += _numbered(
            pyplot,
            results,
            f"seeds/2-{label}-w",
            folder / f"seed2-{label}.png",
            title=f"{path} on worker processes that share a port",
            xlabel="workers",
        )
    return drawn


def _process_lines(pyplot, results: Results, folder: Path) -> list[Path]:
    return _numbered(
        pyplot,
        results,
        "seeds/3-close-p",
        folder / "seed3-processes.png",
        title="A connection per request: multiplexed and one at a time",
        xlabel="processes",
    )


def _classify_lines(pyplot, results: Results, folder: Path) -> list[Path]:
    return _numbered(
        pyplot,
        results,
        "seeds/4-classify-",
        folder / "seed4-classify.png",
        title="A handler whose work grows with the path",
        xlabel="characters of the path",
    )
