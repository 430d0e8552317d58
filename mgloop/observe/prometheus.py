# SPDX-License-Identifier: GPL-2.0-only
"""The stats() of loops as Prometheus metrics, using prometheus_client (mgloop[prometheus]).

    from mgloop.observe.prometheus import LoopCollector

    with LoopCollector(asyncio.get_running_loop()):
        ...     # prometheus_client.start_http_server(), generate_latest() or similar

The values are read when Prometheus scrapes, in the thread that handles the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from ..loop import Loop
from ..stats import BOUNDS, LoopStats
from .closing import Closing
from .instruments import HISTOGRAMS, INSTRUMENTS, Instrument, Loops, cumulated, timed

_BOUNDS = [*map(str, BOUNDS[:-1]), "+Inf"]
_SUFFIXES = {"s": "_seconds", "By": "_bytes", "1": ""}


def _name(instrument: Instrument) -> str:
    return "mgloop_" + instrument.name.replace(".", "_") + _SUFFIXES[instrument.unit]


class LoopCollector(Collector, Closing):
    """Register a collector for loops until close(), or until the end of the `with` block.

    loops: a loop, or loops by name. The name is the value of the label `loop`, and "main" for a
    single loop. registry: None selects prometheus_client's default registry. Raises TypeError for
    an object that is not an mgloop.Loop.
    """

    def __init__(
        self, loops: Loop | Mapping[str, Loop], *, registry: CollectorRegistry | None = None
    ) -> None:
        self._loops = Loops(loops)
        self._registry = REGISTRY if registry is None else registry
        self._registry.register(self)
        self._registered = True

    def close(self) -> None:
        """Unregister the collector. Further calls do nothing."""
        if self._registered:
            self._registered = False
            self._registry.unregister(self)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples, with which the registry detects duplicate names."""
        return self._families([])

    def collect(self) -> Iterable[Metric]:
        """Return the metrics that have samples."""
        return (family for family in self._families(list(self._loops.stats())) if family.samples)

    def _families(self, snapshots: list[tuple[str, LoopStats]]) -> Iterable[Metric]:
        for instrument in INSTRUMENTS:
            make = GaugeMetricFamily if instrument.level else CounterMetricFamily
            labels = ["loop", *instrument.attributes]
            family = make(_name(instrument), instrument.description, labels=labels)
            for name, stats in snapshots:
                for attributes, value in instrument.samples(stats):
                    family.add_metric([name, *attributes], value)
            yield family
        for field, description in HISTOGRAMS:
            histograms = HistogramMetricFamily(
                f"mgloop_{field}_seconds", description, labels=["loop"]
            )
            for name, histogram in timed(snapshots, field):
                counts = map(float, cumulated(histogram))
                buckets = list(zip(_BOUNDS, counts, strict=True))
                histograms.add_metric([name], buckets, histogram.seconds)
            yield histograms
