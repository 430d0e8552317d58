# SPDX-License-Identifier: GPL-2.0-only
"""LoopStats as a list of instruments, which the modules for the metrics libraries convert.

One table ensures that a number has the same name in all libraries: mgloop.io.sent in OpenTelemetry
is mgloop_io_sent_bytes_total in Prometheus.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..loop import Loop
from ..stats import KINDS, ConnectionStats, Histogram, LoopStats, described

#: The values of an instrument's attributes, and the measured number.
Sample = tuple[tuple[str, ...], float]

#: Names of instruments that differ from the name of the field.
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
    """A counter or, if `level` is set, a gauge.

    unit: "s", "By" or "1". attributes: names of the attributes that distinguish its samples, such
    as the kind of a connection. samples: returns the samples in a snapshot.
    """

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


#: All instruments except the histograms.
INSTRUMENTS = tuple(_make())
#: (name, description) of the histograms, in seconds. Only loops with timing have them.
HISTOGRAMS = tuple((field, described(LoopStats)[field][0]) for field in _HISTOGRAMS)


class Loops:
    """The observed loops, by name, without those that are closed or have been collected.

    Raises TypeError for an object that is not an mgloop.Loop.
    """

    def __init__(self, loops: Loop | Mapping[str, Loop]) -> None:
        named = dict(loops) if isinstance(loops, Mapping) else {"main": loops}
        for name, loop in named.items():
            if not isinstance(loop, Loop):
                raise TypeError(f"loop {name!r} must be an mgloop.Loop, got {loop!r}")
        self._loops = {name: weakref.ref(loop) for name, loop in named.items()}

    def stats(self) -> Iterable[tuple[str, LoopStats]]:
        """Yield (name, snapshot) of each open loop. Thread-safe."""
        for name, reference in list(self._loops.items()):
            loop: Any = reference()
            if loop is not None and not loop.is_closed():
                yield name, loop.stats()


def timed(
    snapshots: Iterable[tuple[str, LoopStats]], field: str
) -> Iterable[tuple[str, Histogram]]:
    """Yield (name, histogram) of each loop that has timing."""
    for name, stats in snapshots:
        histogram = getattr(stats, field)
        if histogram is not None:
            yield name, histogram


def cumulated(histogram: Histogram) -> list[int]:
    """Return, for each of BOUNDS, how many measurements were smaller."""
    total, counts = 0, []
    for count in histogram.counts:
        total += count
        counts.append(total)
    return counts
