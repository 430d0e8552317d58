# SPDX-License-Identifier: GPL-2.0-only
"""Tables from a results file: Markdown for docs and terminals, HTML with the pictures inside.

Every figure is a median over rounds with its extremes. A ratio is followed by ``+`` or ``-`` only
if it is beyond the noise of this run's control. ``*`` marks a cell in which the client was the
bottleneck in most rounds, so that its throughput is the client's (its CPU time is not).
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from . import stats
from .neighbours import DISTURBED, disturbed
from .registry import ASGI_REFERENCE, METRICS, SUITES
from .results import Results
from .stats import Summary


class Shown(NamedTuple):
    """A picture in a report: the suite whose section shows it (or ""), its title, its address."""

    suite: str
    title: str
    source: str


MARKS = {"faster": " +", "slower": " -", "same": "", "unclear": ""}


def figure(value: float) -> str:
    """Return a number with three significant digits and without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _status_text(samples: Sequence[dict]) -> str:
    """Return the text of a cell without a figure."""
    statuses = {s["status"] for s in samples}
    for status in ("errors", "failed", "unsupported"):
        if status in statuses:
            note = next(s.get("note", "") for s in samples if s["status"] == status)
            return "cannot" if status == "unsupported" else f"{status}: {note}"[:60]
    return "-"


def cell(results: Results, workload: dict, subject: str) -> str:
    """Return the median value (low-high) and ratio (low-high) of a subject at a workload."""
    values = results.values(workload["name"], subject)
    samples = results.of(workload["name"], subject)
    summary = Summary.of(values.values())
    bad = sum(s["status"] in ("errors", "failed") for s in samples)
    if summary is None or bad >= max(1, len(samples) / 2):
        return _status_text(samples)
    bound = sum(bool(s.get("client_bound")) for s in samples) * 2 > len(samples)
    text = f"{figure(summary.median)}{'*' if bound else ''}"
    if bad:
        text += f" ({bad} of {len(samples)} rounds bad)"
    if subject == results.reference_of(workload):
        return text
    ratios = Summary.of(results.ratios(workload["name"], subject))
    if ratios is None:
        return text
    return f"{text} **{ratios.median:.2f}** ({ratios.low:.2f}-{ratios.high:.2f})" + _mark(
        results, workload, subject
    )


def _mark(results: Results, workload: dict, subject: str) -> str:
    if results.control_at(workload["name"]) in (None, subject):
        return ""
    ratios = results.ratios(workload["name"], subject)
    return MARKS[stats.verdict(ratios, results.noise(workload["name"]))]


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "| " + " | ".join(header) + " |",
        "|" + "|".join("---" for _ in header) + "|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def main_table(results: Results, suite: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of the suite's table of deciding figures."""
    workloads = [w for w in results.measured() if w["suite"] == suite]
    columns = _columns(results, workloads)
    rows = []
    for w in workloads:
        unit = METRICS[w["metric"]][1]
        note = f", relative to {w['reference']}" if w.get("reference") else ""
        rows.append(
            [f"{w['title']} ({unit}{note})"]
            + [cell(results, w, s) if results.of(w["name"], s) else "" for s in columns]
            + [_noise_text(results, w)]
        )
    return ["workload", *columns, "noise"], rows


def _noise_text(results: Results, workload: dict) -> str:
    """Return the noise of a row as text; without a control it is unknown."""
    if results.control_at(workload["name"]) is None:
        return "-"
    return f"±{results.noise(workload['name']) * 100:.0f} %"


def _columns(results: Results, workloads: Sequence[dict]) -> list[str]:
    seen = {s for w in workloads for s in results.subjects_of(w["name"])}
    return [s["name"] for s in results.subjects if s["name"] in seen]


def _median_of(samples: Sequence[dict], *path: str) -> float | None:
    found = []
    for sample in samples:
        value = sample if sample["status"] == "ok" else None
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found.append(value)
    return stats.median(found) if found else None


def detail_table(results: Results, suite: str) -> tuple[list[str], list[list[str]]]:
    """Return throughput, latency, errors and memory of every cell of the suite."""
    rows = []
    for w in (w for w in results.measured() if w["suite"] == suite):
        for subject in results.subjects_of(w["name"]):
            samples = results.of(w["name"], subject)
            errors = sum(sum(s.get("errors", {}).values()) for s in samples)
            ops = sum(s.get("ops", 0) for s in samples)
            cpu = Summary.of(
                s["cpu_us"] for s in samples if s.get("cpu_us") is not None and s["status"] == "ok"
            )
            latency = [_median_of(samples, "latency_us", p) for p in ("50", "95", "99", "99.9")]
            rate = _median_of(samples, "rate")
            rss = _median_of(samples, "rss_kib")
            sleeps = _median_of(samples, "client_sleeps")
            bound = sum(bool(s.get("client_bound")) for s in samples)
            others = sum(map(disturbed, samples))
            rows.append(
                [
                    w["title"],
                    subject,
                    figure(rate) if rate is not None else "-",
                    f"{figure(cpu.median)} ({figure(cpu.low)}-{figure(cpu.high)})" if cpu else "-",
                    " / ".join("-" if v is None else figure(v) for v in latency),
                    f"{errors} of {ops}" if errors else "0",
                    f"{rss / 1024:.1f}" if rss else "-",
                    figure(sleeps) if sleeps is not None else "-",
                    f"{bound} of {len(samples)}" if bound else "",
                    f"{others} of {len(samples)}" if others else "",
                ]
            )
    header = [
        "workload",
        "subject",
        "per second",
        "CPU us/op (min-max)",
        "latency us p50 / p95 / p99 / p99.9",
        "errors",
        "RSS MiB",
        "client sleeps/op",
        "client-bound rounds",
        "disturbed",
    ]
    # Older results lack these columns, and a quiet run leaves them empty.
    extra = ("client sleeps/op", "disturbed")
    told = [any(row[n] not in ("", "-") for row in rows) for n in range(len(header))]
    said = [name not in extra or any_ for name, any_ in zip(header, told, strict=True)]
    return list(compress(header, said)), [list(compress(row, said)) for row in rows]


def notes(results: Results) -> list[str]:
    """Return the notes below the tables: missing, skipped, failed, unsupported, and not faster."""
    found = [f"{name} is left out: {reason}" for name, reason in results.missing.items()]
    found += [f"skipped: {sentence}" for sentence in results.skipped]
    found += [f"failed: {sentence}" for sentence in results.failures]
    told = set()
    for s in results.samples:
        key = (s["workload"], s["subject"])
        if s.get("note") and s["status"] in ("unsupported", "ok") and key not in told:
            told.add(key)
            found.append(f"{s['subject']} at {s['workload']}: {s['note']}")
    if results.interrupted:
        found.append("the run was interrupted: fewer rounds than asked for")
    return found


def control_summary(results: Results) -> list[str]:
    """Summarise the controls: how many medians are within 5 %, and which workloads are not."""
    controls = results.controls()
    lines = [line for name, of in controls.items() for line in _control_lines(results, name, of)]
    if others := sum(map(disturbed, results.samples)):
        lines.append(
            f"In {others} of {len(results.samples)} measurements other programs had more than "
            f"{DISTURBED * 100:.0f} % of a core; they do not count where {stats.MIN_ROUNDS} or "
            "more are left."
        )
    return lines if controls else ["There was no control in this run.", *lines]


def _control_lines(results: Results, name: str, reference: str) -> list[str]:
    medians = {}
    for w in results.measured():
        ratios = results.ratios(w["name"], name)
        if ratios and w["metric"] == "cpu":
            medians[w["name"]] = stats.median(ratios)
    if not medians:
        return [f"The control ({name}) took no part."]
    outside = {k: v for k, v in medians.items() if abs(v - 1) > 0.05}
    lines = [
        f"Control: {name} is {reference} once more. Its median CPU time per operation is "
        f"within ±5 % of the reference's on {len(medians) - len(outside)} of {len(medians)} "
        "workloads."
    ]
    if outside:
        lines.append(
            "Outside: " + ", ".join(f"{k} ({v:.2f})" for k, v in sorted(outside.items())) + "."
        )
    return lines


def not_ahead(results: Results, subject: str = "mgloop") -> list[str]:
    """Return the workloads at which *subject* is not faster than the reference beyond the noise."""
    lines = []
    for w in results.measured():
        if w["suite"] == "seeds" or subject not in results.subjects_of(w["name"]):
            continue
        ratios = results.ratios(w["name"], subject)
        band = results.noise(w["name"])
        verdict = stats.verdict(ratios, band)
        if verdict == "faster":
            continue
        if ratios and verdict == "unclear":
            lines.append(f"{w['title']} ({w['name']}): too few rounds to tell")
            continue
        how = (
            f"{stats.median(ratios):.2f}, noise ±{band * 100:.0f} %"
            if ratios
            else (_status_text(results.of(w["name"], subject)))
        )
        lines.append(f"{w['title']} ({w['name']}): {how}")
    return lines


def _how_long(results: Results) -> str:
    s = results.settings
    suites = {w["suite"] for w in results.workloads}
    parts = []
    if suites - {"seeds"}:
        parts.append(f"{s['windows']} windows of {s['seconds']} s after {s['warmup']} s of warm-up")
    if "seeds" in suites:
        parts.append(f"{s['seeds_seconds']} s of wrk for each seed")
    return f"{s['rounds']} round(s) of {' and '.join(parts)}"


def _setting_lines(results: Results) -> list[str]:
    m, s = results.machine, results.settings
    cores = results.settings.get("cores", {})
    lines = [
        f"{m['processor']}, {m['cpus']} CPUs{' (virtual)' if m.get('virtual') else ''}, "
        f"kernel {m['kernel']}, {m['libc']}; Python {m['python'].split()[0]}; "
        f"commit {m['commit'] or 'unknown'}; {results.created}; load average at the start "
        f"{m['load_average'][0]:.1f}.",
        f"{_how_long(results)}{' (quick)' if s['quick'] else ''}; server on CPU "
        f"{cores.get('server', '?')}, client on CPU {cores.get('client', '?')}.",
        "Subjects: "
        + ", ".join(f"{x['name']} {x['version']}".strip() for x in results.subjects)
        + ".",
    ]
    if cores and set(cores["server"]) & set(cores["client"]):
        lines.append("Server and client shared a core: throughput and latency mean little here.")
    return lines


LEGEND = (
    "Each cell: the deciding figure (median), then **ratio to {reference}** (min-max over rounds, "
    "more is better). `+` and `-`: better or worse beyond the noise; no mark: no difference that "
    "this run can show. `*`: client-bound."
)


def markdown(results: Results, pictures: Sequence[Shown] = ()) -> str:
    """Return the report as Markdown; *pictures* have paths relative to the report's folder."""
    loops_measured = any(w["suite"] != "seeds" for w in results.measured())
    parts = ["# Results", "\n\n".join(_setting_lines(results))]
    if loops_measured:
        parts += ["\n".join(control_summary(results)), LEGEND.format(reference=results.reference)]
    parts += [f"![{p.title}]({p.source})" for p in pictures if not p.suite]
    for suite in SUITES:
        header, rows = main_table(results, suite)
        if not rows:
            continue
        parts.append(f"## {suite}")
        parts += [f"![{p.title}]({p.source})" for p in pictures if p.suite == suite]
        if suite == "seeds":
            from .seeds.tables import markdown as seeds_markdown

            parts.append(seeds_markdown(results))
            continue
        parts.append(_markdown(header, rows))
        parts.append(
            "<details><summary>Throughput, latency, errors, memory</summary>\n\n"
            + _markdown(*detail_table(results, suite))
            + "\n\n</details>"
        )
    said = notes(results)
    if said:
        parts.append("## Notes\n\n" + "\n".join(f"- {line}" for line in said))
    for subject, reference in (("mgloop", results.reference), ("mgloop serve", ASGI_REFERENCE)):
        behind = not_ahead(results, subject)
        if behind:
            parts.append(
                f"## Where {subject} is not ahead of {reference}\n\n"
                + "\n".join(f"- {line}" for line in behind)
            )
    return "\n\n".join(parts) + "\n"


def terminal(results: Results) -> str:
    """Return a table of 80-odd columns: one line per workload, medians and ratios only."""
    lines = [*_setting_lines(results), *control_summary(results), ""]
    for suite in SUITES:
        workloads = [w for w in results.measured() if w["suite"] == suite]
        if not workloads:
            continue
        if suite == "seeds":
            from .seeds.tables import markdown as seeds_markdown

            lines += [seeds_markdown(results), ""]
            continue
        columns = _columns(results, workloads)
        width = max(16, *(len(c) + 1 for c in columns))
        lines.append(f"{suite:<30}" + "".join(f"{c:>{width}}" for c in columns) + "   noise")
        for w in workloads:
            row = f"{w['name'].partition('/')[2]:<30}"
            for subject in columns:
                row += f"{_short(results, w, subject):>{width}}"
            lines.append(f"{row}  {_noise_text(results, w):>6}")
        lines.append("")
    lines += [f"note: {line}" for line in notes(results)]
    return "\n".join(lines)


def _short(results: Results, workload: dict, subject: str) -> str:
    samples = results.of(workload["name"], subject)
    if not samples:
        return ""
    summary = Summary.of(results.values(workload["name"], subject).values())
    bad = sum(s["status"] in ("errors", "failed") for s in samples)
    if summary is None or bad >= max(1, len(samples) / 2):
        return _status_text(samples).partition(":")[0]
    text = figure(summary.median)
    if subject != results.reference_of(workload):
        ratios = results.ratios(workload["name"], subject)
        if ratios:
            mark = _mark(results, workload, subject).strip() or " "
            text += f" {stats.median(ratios):.2f}x{mark}"
    return text


def document(results: Results, pictures: Sequence[Shown] = ()) -> str:
    """Return the report as one HTML page; *pictures* have data URLs or relative paths."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Event loop benchmarks</title>",
        "<style>body{font:15px sans-serif;margin:2em;max-width:110em}table{border-collapse:"
        "collapse}td,th{border:1px solid #bbb;padding:.2em .5em;text-align:right}"
        "td:first-child,th:first-child{text-align:left}img{max-width:100%}</style>",
        "<h1>Event loop benchmarks</h1>",
    ]
    for line in (
        *_setting_lines(results),
        *control_summary(results),
        LEGEND.format(reference=results.reference),
    ):
        parts.append(f"<p>{_inline(line)}</p>")
    parts += [_image(p) for p in pictures if not p.suite]
    for suite in SUITES:
        header, rows = main_table(results, suite)
        if rows:
            parts.append(f"<h2>{suite}</h2>")
            parts += [_image(p) for p in pictures if p.suite == suite]
            parts.append(_html_table(header, rows))
            parts.append(
                "<details><summary>Throughput, latency, errors, memory</summary>"
                + _html_table(*detail_table(results, suite))
                + "</details>"
            )
    parts.append("<h2>Notes</h2><ul>")
    parts += [f"<li>{_inline(line)}</li>" for line in notes(results)]
    parts.append("</ul></html>")
    return "\n".join(parts)


def _image(picture: Shown) -> str:
    source, title = html.escape(picture.source), html.escape(picture.title)
    return f'<p><img src="{source}" alt="{title}"></p>'


def _inline(text: str) -> str:
    """Escape *text*, and turn the bold marks of the Markdown cells into tags."""
    pieces = html.escape(text).split("**")
    return "".join(f"<b>{p}</b>" if i % 2 else p for i, p in enumerate(pieces))


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_inline(h)}</th>" for h in header)
    body = "".join("<tr>" + "".join(f"<td>{_inline(c)}</td>" for c in r) + "</tr>" for r in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
