# SPDX-License-Identifier: GPL-2.0-only
"""The tables of the seeds, in the shape of the publications: one row per system."""

from __future__ import annotations

from .. import stats
from ..results import Results
from ..stats import Summary

TITLES = {
    "1": "Seed 1: a JSON greeting (C loop against asyncio servers)",
    "2": "Seed 2: worker processes on one port",
    "3": "Seed 3: processes, multiplexed and one connection at a time",
    "4": "Seed 4: a handler that does work",
}


def _thousands(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value / 1000:.2f}"


def _median(samples: list[dict], *path: str) -> float | None:
    values = []
    for sample in samples:
        value: object = sample
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)):
            values.append(float(value))
    return stats.median(values) if values else None


def _row(results: Results, workload: dict, subject: str) -> list[str]:
    samples = results.of(workload["name"], subject)
    failed = [s for s in samples if s["status"] in ("failed", "unsupported")]
    if failed and len(failed) == len(samples):
        return [subject, f"failed: {failed[0].get('note', '')}"[:80], *[""] * 8]
    done = [s for s in samples if s.get("rate") is not None]
    rates = Summary.of(s["rate"] for s in done)
    errors = sum(sum(s.get("errors", {}).values()) for s in done)
    ratio = Summary.of(results.ratios(workload["name"], subject))
    if subject == results.reference_of(workload):
        shown = "1"
    else:
        shown = f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})" if ratio else "-"
    megabytes = _median([{"v": s["bytes"] / s["seconds"] / 1e6} for s in done if s["seconds"]], "v")
    return [
        subject,
        f"{_thousands(rates.median)} ({_thousands(rates.low)}-{_thousands(rates.high)})"
        if rates
        else "-",
        shown,
        "/".join(_milliseconds(_median(done, f"latency_{k}_us")) for k in ("mean", "min", "max")),
        "/".join(_milliseconds(_median(done, "latency_us", p)) for p in ("50", "95", "99")),
        f"{megabytes:.1f}" if megabytes is not None else "-",
        f"{errors:,}" if errors else "0",
        f"{cpu:.1f}" if (cpu := _median(done, "cpu_us")) is not None else "-",
        f"{_median(done, 'rss_kib') / 1024:.0f}" if done else "-",
        f"{sum(bool(s.get('client_bound')) for s in samples)} of {len(samples)}",
    ]


HEADER = [
    "system",
    "requests/s (min-max)",
    "ratio",
    "latency ms mean/min/max",
    "ms p50/p95/p99",
    "MB/s",
    "failed",
    "CPU us/request",
    "RSS MiB",
    "client-bound",
]


def markdown(results: Results) -> str:
    """Return the tables of all measured seeds, one per workload."""
    parts = []
    told = set()
    for workload in results.measured():
        if workload["suite"] != "seeds":
            continue
        number = workload["name"].partition("/")[2][0]
        if number not in told:
            told.add(number)
            parts.append(f"### {TITLES[number]}")
        command = next(
            (
                s["command"]
                for s in results.samples
                if s["workload"] == workload["name"] and "command" in s
            ),
            "",
        )
        parts.append(
            f"{workload['title']}; ratio to {results.reference_of(workload)}"
            + (f"; `{command.rpartition(' ')[0]}`" if command else "")
        )
        rows = [_row(results, workload, s) for s in results.subjects_of(workload["name"])]
        lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
