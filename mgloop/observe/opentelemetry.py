# SPDX-License-Identifier: GPL-2.0-only
"""The stats() of loops as OpenTelemetry metrics (mgloop[opentelemetry]).

    from mgloop.observe.opentelemetry import observe

    observe(asyncio.get_running_loop())

registers observable instruments, whose values are read when a reader of the SDK collects, in the
reader's thread. OpenTelemetry does not support observable histograms. The histograms of a loop with
timing are therefore counters of their buckets, with the bound as the attribute `le`, as in
Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from ..loop import Loop
from ..stats import BOUNDS
from .instruments import HISTOGRAMS, INSTRUMENTS, Instrument, Loops, cumulated, timed

Callback = Callable[[CallbackOptions], Iterable[Observation]]


def observe(
    loops: Loop | Mapping[str, Loop], *, meter_provider: MeterProvider | None = None
) -> None:
    """Register instruments for the loops, with names that begin with "mgloop.".

    loops: a loop, or loops by name. The name is the value of the attribute `loop`, and "main" for a
    single loop. Closed loops are no longer collected. meter_provider: None selects the global one.
    Raises TypeError for an object that is not an mgloop.Loop.
    """
    watched = Loops(loops)
    meter = get_meter("mgloop", meter_provider=meter_provider)
    for instrument in INSTRUMENTS:
        make = (
            meter.create_observable_gauge if instrument.level else meter.create_observable_counter
        )
        make(
            f"mgloop.{instrument.name}",
            [_numbers(watched, instrument)],
            instrument.unit,
            instrument.description,
        )
    for field, description in HISTOGRAMS:
        meter.create_observable_counter(
            f"mgloop.{field}.bucket", [_buckets(watched, field)], "1", description
        )
        meter.create_observable_counter(
            f"mgloop.{field}.sum", [_sums(watched, field)], "s", description
        )


def _numbers(loops: Loops, instrument: Instrument) -> Callback:
    def callback(options: CallbackOptions) -> Iterable[Observation]:
        for name, stats in loops.stats():
            for attributes, value in instrument.samples(stats):
                named = dict(zip(instrument.attributes, attributes, strict=True))
                yield Observation(value, {"loop": name, **named})

    return callback


def _buckets(loops: Loops, field: str) -> Callback:
    def callback(options: CallbackOptions) -> Iterable[Observation]:
        for name, histogram in timed(loops.stats(), field):
            for bound, count in zip(BOUNDS, cumulated(histogram), strict=True):
                yield Observation(count, {"loop": name, "le": str(bound)})

    return callback


def _sums(loops: Loops, field: str) -> Callback:
    def callback(options: CallbackOptions) -> Iterable[Observation]:
        for name, histogram in timed(loops.stats(), field):
            yield Observation(histogram.seconds, {"loop": name})

    return callback
