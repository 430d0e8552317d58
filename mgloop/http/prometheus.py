# SPDX-License-Identifier: GPL-2.0-only
"""The Prometheus endpoint GET /metrics on a separate address, using prometheus_client.

It covers a single process, all threads of a process, or all workers of a supervisor. server.py has
the server that runs this application.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .config import Config
from .errors import StartError
from .metrics import BOUNDS, ServerStats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

#: Returns the counters of the servers by the value of the label `worker`.
StatsSource = Callable[[], Awaitable[Mapping[str, ServerStats]]]

_BOUNDS = [*map(str, BOUNDS[:-1]), "+Inf"]


def check(config: Config) -> None:
    """Raise StartError if metrics_port is set and prometheus_client is missing."""
    if config.metrics_port is not None:
        _library()


def _library() -> Any:
    try:
        import prometheus_client
    except ImportError as exc:
        raise StartError(
            "metrics_port requires prometheus_client: pip install 'mgloop[prometheus]'"
        ) from exc
    return prometheus_client


def application(stats: StatsSource) -> Callable[..., Awaitable[None]]:
    """Return an ASGI application that serves GET /metrics. Raises StartError."""
    library = _library()
    now: dict[str, ServerStats] = {}
    registry = library.CollectorRegistry()
    registry.register(_Collector(now))
    answer = library.make_asgi_app(registry)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/metrics":
            await send({"type": "http.response.start", "status": 404})
            await send(
                {
                    "type": "http.response.body",
                    "body": b"404 Not Found: metrics are served at /metrics\n",
                }
            )
            return
        now.update(await stats())
        await answer(scope, receive, send)

    return app


class _Collector:
    """A collector for prometheus_client, which may lack its own base class of collectors."""

    def __init__(self, now: Mapping[str, ServerStats]) -> None:
        self._now = now

    def collect(self) -> Iterable[Metric]:
        return _families(self._now)


def _families(now: Mapping[str, ServerStats]) -> Iterable[Metric]:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        SummaryMetricFamily,
    )

    labels = ["worker"]
    responses = CounterMetricFamily(
        "mgloop_http_responses", "Number of responses, by status code", labels=["worker", "status"]
    )
    sent = CounterMetricFamily(
        "mgloop_http_sent_bytes", "Bytes sent in response bodies", labels=labels
    )
    durations = HistogramMetricFamily(
        "mgloop_http_request_duration_seconds",
        "Time from the head of a request to the end of its response",
        labels=labels,
    )
    in_flight = GaugeMetricFamily(
        "mgloop_http_requests_in_flight", "Requests in progress", labels=labels
    )
    connections = GaugeMetricFamily("mgloop_http_connections", "Open connections", labels=labels)
    queued = GaugeMetricFamily(
        "mgloop_http_requests_queued", "Requests that wait for a thread (WSGI)", labels=labels
    )
    waits = SummaryMetricFamily(
        "mgloop_http_queue_duration_seconds",
        "Time that requests have waited for a thread (WSGI)",
        labels=labels,
    )
    slow = CounterMetricFamily(
        "mgloop_http_slow_requests", "Requests that exceeded --timeout-request", labels=labels
    )
    for worker, stats in now.items():
        for status, count in sorted(stats.responses.items()):
            responses.add_metric([worker, str(status)], count)
        sent.add_metric([worker], stats.sent)
        counts = map(float, itertools.accumulate(stats.durations))
        durations.add_metric([worker], list(zip(_BOUNDS, counts, strict=True)), stats.seconds)
        in_flight.add_metric([worker], stats.in_flight)
        connections.add_metric([worker], stats.connections)
        queued.add_metric([worker], stats.queued)
        waits.add_metric([worker], stats.waits, stats.waited)
        slow.add_metric([worker], stats.slow)
    return responses, sent, durations, in_flight, connections, queued, waits, slow
