# SPDX-License-Identifier: GPL-2.0-only
"""The counters of a server: per response, and summed over threads and processes.

Nothing is counted unless metrics_port is set. prometheus.py serves the counters there.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .logs import AccessLog

#: Upper bounds of the buckets of ServerStats.durations, in seconds.
BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, math.inf),
)


@dataclass(frozen=True)
class ServerStats:
    """Counters since the start of the server, and current values.

    responses: number of responses by status; 101 stands for a WebSocket. sent: bytes of response
    bodies. durations: number of responses in each bucket of BOUNDS, by the time from the head of
    the request to the end of the response. seconds: sum of these times. in_flight: requests in
    progress. connections: open connections.

    The others are for WSGI applications. queued: requests that wait for a thread. waits, waited:
    number of requests that a thread has taken so far, and the seconds that they had waited. slow:
    requests that exceeded --timeout-request.
    """

    responses: Mapping[int, int] = dataclasses.field(default_factory=dict)
    sent: int = 0
    durations: tuple[int, ...] = (0,) * len(BOUNDS)
    seconds: float = 0.0
    in_flight: int = 0
    connections: int = 0
    queued: int = 0
    waits: int = 0
    waited: float = 0.0
    slow: int = 0

    def __add__(self, other: ServerStats) -> ServerStats:
        return ServerStats(
            dict(collections.Counter(self.responses) + collections.Counter(other.responses)),
            self.sent + other.sent,
            tuple(map(sum, zip(self.durations, other.durations, strict=True))),
            self.seconds + other.seconds,
            self.in_flight + other.in_flight,
            self.connections + other.connections,
            self.queued + other.queued,
            self.waits + other.waits,
            self.waited + other.waited,
            self.slow + other.slow,
        )

    def ended(self) -> ServerStats:
        """Return a copy for a server that has stopped: without requests and connections."""
        return dataclasses.replace(self, in_flight=0, connections=0, queued=0)

    def packed(self) -> dict[str, Any]:
        """Return a dictionary that can be serialized as JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def unpacked(cls, values: Mapping[str, Any]) -> ServerStats:
        """Return the ServerStats from which packed() made `values`, after a JSON round trip."""
        responses = {int(status): count for status, count in values["responses"].items()}
        return cls(**{**values, "responses": responses, "durations": tuple(values["durations"])})


def total(snapshots: Iterable[ServerStats]) -> ServerStats:
    """Return the sum."""
    return sum(snapshots, start=ServerStats())


class Meter:
    """Count the responses of a site, in the role of its access log.

    log: the real access log, which is called for each response, or None.
    """

    def __init__(self, log: AccessLog | None) -> None:
        self._log = log
        self._responses: dict[int, int] = {}
        self._durations = [0] * len(BOUNDS)
        self._sent = 0
        self._seconds = 0.0

    def __call__(self, scope: Mapping[str, Any], status: int, nbytes: int, seconds: float) -> None:
        self._responses[status] = self._responses.get(status, 0) + 1
        self._durations[bisect.bisect_left(BOUNDS, seconds)] += 1
        self._sent += nbytes
        self._seconds += seconds
        if self._log is not None:
            self._log(scope, status, nbytes, seconds)

    def stats(
        self, *, in_flight: int, connections: int, pool: Any = None, slow: int = 0
    ) -> ServerStats:
        """Return the counters. Thread-safe. pool: the WorkPool of a WSGI application, or None."""
        waits, waited = (0, 0.0) if pool is None else pool.queue_times
        return ServerStats(
            dict(self._responses),
            self._sent,
            tuple(self._durations),
            self._seconds,
            in_flight,
            connections,
            queued=0 if pool is None else pool.queued,
            waits=waits,
            waited=waited,
            slow=slow,
        )
