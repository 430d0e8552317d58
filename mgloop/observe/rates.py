# SPDX-License-Identifier: GPL-2.0-only
"""Rates of the loops of a process, computed from two reports of its monitor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from ..stats import BOUNDS, LoopStats, TimeSpent
from .monitor import LoopReport, Report

#: Upper limit of a reported lag in seconds, because JSON cannot represent infinity.
_LONGEST = BOUNDS[-2]


@dataclass(frozen=True)
class Share:
    """The runs per second of a callback, and its share of the time (0 to 1)."""

    rate: float
    share: float


@dataclass(frozen=True)
class LoopRates:
    """The rates of one loop between two reports.

    thread: name of the thread that runs the loop, or None. seconds: time between the reports.
    iterations, callbacks, events: number per second. events: ready descriptors, which transports
    handle without a callback. received, sent: bytes per second. cpu: CPU seconds of the thread per
    second. busy: share of the time (0 to 1) that the loop was not waiting. lag_*: quantiles of the
    delay of callbacks in seconds (up to twice the measured value, at most 67). top: share of each
    callback, the largest first. busy, lag_* and top are None for a loop without timing. ready,
    timers, connections: current numbers. tasks: current number by coroutine. stalls: number since
    the loop was created.
    """

    id: int
    thread: str | None
    seconds: float
    iterations: float
    callbacks: float
    events: float
    cpu: float | None
    busy: float | None
    lag_p50: float | None
    lag_p99: float | None
    lag_max: float | None
    ready: int
    timers: int
    connections: int
    received: float
    sent: float
    stalls: int
    top: dict[str, Share] | None
    tasks: dict[str, int]


def between(earlier: Report, later: Report) -> list[LoopRates]:
    """Return the rates of the loops in the later report; for a new loop, since its creation."""
    before = {loop.id: loop for loop in earlier.loops}
    return [_rates(before.get(loop.id), loop) for loop in later.loops]


def _rates(before: LoopReport | None, now: LoopReport) -> LoopRates:
    if before is not None and before.stats.seconds > now.stats.seconds:
        before = None  # another loop at the same memory address
    stats = now.stats if before is None else now.stats.delta(before.stats)
    per_second = 1 / max(stats.seconds, 1e-9)
    p50, p99, longest = (_quantile(stats, q) for q in (0.5, 0.99, 1))
    return LoopRates(
        id=now.id,
        thread=now.thread,
        seconds=stats.seconds,
        iterations=stats.iterations * per_second,
        callbacks=stats.callbacks * per_second,
        events=stats.events * per_second,
        # The difference is negative if another thread runs the loop now.
        cpu=None if stats.cpu_seconds is None else max(stats.cpu_seconds, 0.0) * per_second,
        busy=stats.busy,
        lag_p50=p50,
        lag_p99=p99,
        lag_max=longest,
        ready=stats.ready,
        timers=stats.timers_pending,
        # A TLS connection is also counted as the connection below it.
        connections=sum(c.open for kind, c in stats.connections.items() if kind != "tls"),
        received=stats.bytes_received * per_second,
        sent=stats.bytes_sent * per_second,
        stalls=now.stats.stalls,
        top=None if stats.lag is None else dict(_top(before, now, per_second)),
        tasks=dict(sorted(now.tasks.items(), key=lambda item: -item[1])),
    )


def _quantile(stats: LoopStats, q: float) -> float | None:
    return None if stats.lag is None else min(stats.lag.quantile(q), _LONGEST)


def _top(
    before: LoopReport | None, now: LoopReport, per_second: float
) -> Iterable[tuple[str, Share]]:
    none = TimeSpent(0, 0.0)
    shares = {}
    for name, spent in now.callbacks.items():
        earlier = none if before is None else before.callbacks.get(name, none)
        if times := spent.times - earlier.times:
            took = spent.seconds - earlier.seconds
            shares[name] = Share(times * per_second, took * per_second)
    return sorted(shares.items(), key=lambda item: -item[1].share)


def as_json(report: Report, rates: list[LoopRates]) -> dict[str, object]:
    """Return the object that `mgloop.top --json` prints for each process and interval."""
    return {
        "pid": report.pid,
        "program": report.program,
        "python": report.python,
        "loops": [dataclasses.asdict(loop) for loop in rates],
    }
