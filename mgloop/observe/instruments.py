# SPDX-License-Identifier: GPL-2.0-only
"""LoopStats as a list of instruments, which each library's module turns into its own.

One table, so that a number has the same name everywhere: mgloop.io.sent in OpenTelemetry is
mgloop_io_sent_bytes_total in Prometheus.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..loop import Loop
from ..stats import KINDS, ConnectionStats, Histogram, LoopStats, described

#: The values of an instrument's attributes, and what it measures for these.
Sample = tuple[tuple[str, ...], float]

#: Where a field's own name would not say what it is, or is not how such things are called.
_NAMES = {
    "seconds": "uptime",
    "cpu_seconds": "cpu",
    "seconds_running": "running",
    "seconds_waiting": "waiting",
    "bytes_received": "io.received",
    "bytes_sent": "io.sent",
    "reads": "io.reads",
    "reads_blocked": "io.reads.blocked",
    "writes": "io.writes",
    "writes_blocked": "io.writes.blocked",
}
_HISTOGRAMS = ("lag", "durations")


@dataclass(frozen=True)
class Instrument:
    """A count, or a level. unit: "s", "By" or "1". attributes: the names of what sets its samples
    apart, such as the kind of a connection. samples: of an account."""

    name: str
    unit: str
    description: str
    level: bool
    attributes: tuple[str, ...]
    samples: Callable[[LoopStats], Iterable[Sample]]


def _unit(field: str) -> str:
    return "s" if "seconds" in field else "By" if field.startswith("bytes") else "1"


def _number(field: str) -> Callable[[LoopStats], Iterable[Sample]]:
    def samples(stats: LoopStats) -> Iterable[Sample]:
        value = getattr(stats, field)
        if value is not None:
            yield (), value

    return samples


def _of_connections(field: str) -> Callable[[LoopStats], Iterable[Sample]]:
    def samples(stats: LoopStats) -> Iterable[Sample]:
        for kind in KINDS:
            yield (kind,), getattr(stats.connections[kind], field)

    return samples


def _make() -> Iterable[Instrument]:
    for field, (text, level) in described(LoopStats).items():
        if field == "connections":
            for part, (of_part, rises_and_falls) in described(ConnectionStats).items():
                name, samples = f"connections.{part}", _of_connections(part)
                yield Instrument(name, "1", of_part, rises_and_falls, ("kind",), samples)
        elif field not in _HISTOGRAMS:
            name = _NAMES.get(field, field)
            yield Instrument(name, _unit(field), text, level, (), _number(field))


#: All but the histograms.
INSTRUMENTS = tuple(_make())
#: (name, description): in seconds, only of loops that were made with timing.
HISTOGRAMS = tuple((field, described(LoopStats)[field][0]) for field in _HISTOGRAMS)


class Loops:
    """The loops that are watched, by name. A loop that is closed or forgotten drops out."""

    def __init__(self, loops: Loop | Mapping[str, Loop]) -> None:
        named = dict(loops) if isinstance(loops, Mapping) else {"main": loops}
        for name, loop in named.items():
            if not isinstance(loop, Loop):
                raise TypeError(f"loop {name!r} must be an mgloop.Loop, got {loop!r}")
        self._loops = {name: weakref.ref(loop) for name, loop in named.items()}

    def stats(self) -> Iterable[tuple[str, LoopStats]]:
        """(name, account) of each; from any thread."""
        for name, reference in list(self._loops.items()):
            loop: Any = reference()
            if loop is not None and not loop.is_closed():
                yield name, loop.stats()


def timed(accounts: Iterable[tuple[str, LoopStats]], field: str) -> Iterable[tuple[str, Histogram]]:
    """(name, histogram) of each loop that has one: that was made with timing."""
    for name, stats in accounts:
        histogram = getattr(stats, field)
        if histogram is not None:
            yield name, histogram


def cumulated(histogram: Histogram) -> list[int]:
    """How often it took less than each of BOUNDS."""
    total, counts = 0, []
    for count in histogram.counts:
        total += count
        counts.append(total)
    return counts
