# SPDX-License-Identifier: GPL-2.0-only
"""The return value of loop.stats(): a snapshot of the counters of a loop.

The loop increments the counters in C (port/counters.h). This module describes them, and computes
the difference of two snapshots. Its code runs only when a snapshot is requested.
"""

from __future__ import annotations

import dataclasses
import math
import time
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from ._counters import CounterCore

#: Upper bounds of the buckets of a Histogram, in seconds, as in port/timing.h.
BOUNDS: tuple[float, ...] = (*((1 << i) * 1e-6 for i in range(27)), math.inf)

#: In the order of port/counters.h.
KINDS = ("tcp", "unix", "datagram", "pipe", "tls", "other")

#: Marks a gauge: a field that rises and falls, for which a difference has no meaning.
GAUGE: Final = "gauge"


def described(kind: Any) -> dict[str, tuple[str, bool]]:
    """Return (description, whether it is a gauge) of each field of a class of statistics."""
    hints = typing.get_type_hints(kind, include_extras=True)
    marks = {field.name: hints[field.name].__metadata__ for field in dataclasses.fields(kind)}
    return {name: (text, GAUGE in more) for name, (text, *more) in marks.items()}


class _Snapshot:
    """The base class of dataclasses that hold counters and gauges."""

    __slots__ = ()

    def delta(self, earlier: Self) -> Self:
        """Return the difference from the snapshot `earlier`; gauges keep their current value.

        Raises TypeError if `earlier` is of another class.
        """
        kind: Any = type(self)
        if type(earlier) is not kind:
            raise TypeError(f"{earlier!r} is not a {kind.__name__}")
        changes = {
            name: _difference(getattr(self, name), getattr(earlier, name))
            for name, (_, is_gauge) in described(kind).items()
            if not is_gauge
        }
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def _difference(later: Any, earlier: Any) -> Any:
    if later is None or earlier is None:
        return None
    if isinstance(later, _Snapshot):
        return later.delta(earlier)
    if isinstance(later, dict):
        return {key: value.delta(earlier[key]) for key, value in later.items()}
    if isinstance(later, tuple):
        return tuple(new - old for new, old in zip(later, earlier, strict=True))
    return later - earlier


@dataclass(frozen=True, slots=True)
class ConnectionStats(_Snapshot):
    """Counters of the connections of one kind."""

    accepted: Annotated[
        int, "connections accepted by listening sockets or (tls) by server-side handshakes"
    ]
    opened: Annotated[int, "connections for which connection_made() was called, on either side"]
    closed: Annotated[int, "connections for which connection_lost() was called"]
    open: Annotated[int, "connections that are open now", GAUGE]


@dataclass(frozen=True, slots=True)
class Histogram(_Snapshot):
    """A distribution of durations."""

    counts: Annotated[tuple[int, ...], "number of measurements in each bucket of BOUNDS"]
    seconds: Annotated[float, "sum of all measurements, in seconds"]

    @property
    def count(self) -> int:
        """Return the number of measurements."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Return the q-quantile in seconds, for `q` between 0 and 1.

        The result is the upper bound of a bucket, so it is up to twice the measured value. It is
        inf for more than a minute, and 0 without measurements. Raises ValueError.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must be between 0 and 1, got {q!r}")
        wanted = q * self.count
        seen = 0
        for count, bound in zip(self.counts, BOUNDS, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return 0.0


@dataclass(frozen=True, slots=True)
class LoopStats(_Snapshot):
    """Counters and gauges of a loop since its creation: numbers, bytes and seconds.

    Immutable. If another thread takes the snapshot, each number is consistent, but the numbers are
    not from the same instant. Counters never decrease.
    """

    seconds: Annotated[
        float, "seconds since the loop was created; in a delta, between the two snapshots"
    ]
    cpu_seconds: Annotated[
        float | None, "CPU seconds of the thread that runs the loop; None if it is not running"
    ]
    iterations: Annotated[int, "loop iterations"]
    polls: Annotated[int, "epoll_wait() calls"]
    events: Annotated[int, "ready descriptors reported by polls"]
    most_events: Annotated[int, "largest number of ready descriptors in one poll", GAUGE]
    callbacks: Annotated[int, "handles run: call_soon(), timers, readers, task steps"]
    timers: Annotated[int, "call_later() and call_at() timers that expired"]
    timers_cancelled: Annotated[int, "timers cancelled before they expired"]
    timers_pending: Annotated[int, "timers that are pending now", GAUGE]
    ready: Annotated[int, "callbacks and descriptors in the ready queue now", GAUGE]
    most_ready: Annotated[int, "longest ready queue at the start of an iteration", GAUGE]
    threadsafe_calls: Annotated[int, "call_soon_threadsafe() calls taken over by the loop"]
    wakeups: Annotated[int, "wake-ups sent by other threads to interrupt a poll"]
    connections: Annotated[
        dict[str, ConnectionStats],
        "connections by kind (KINDS); tls is counted in addition to the connection below it",
    ]
    bytes_received: Annotated[
        int, "bytes received by transports and sock_recv(); with TLS, encrypted bytes"
    ]
    bytes_sent: Annotated[
        int, "bytes sent by transports, sock_sendall() and sendfile(); with TLS, encrypted bytes"
    ]
    reads: Annotated[int, "read system calls: recv(), recvmmsg(), read()"]
    reads_blocked: Annotated[int, "read system calls that failed with EAGAIN"]
    writes: Annotated[int, "write system calls: send(), sendmsg(), sendto(), write(), writev()"]
    writes_blocked: Annotated[int, "write system calls that failed with EAGAIN"]
    deferred_writes: Annotated[int, "write() calls deferred to the end of an iteration"]
    deferred_sends: Annotated[
        int, "system calls that sent deferred writes; several writes can share one"
    ]
    pauses: Annotated[int, "pause_writing() calls: a write buffer exceeded its high-water mark"]
    handshakes: Annotated[int, "TLS handshakes that succeeded"]
    handshakes_failed: Annotated[int, "TLS handshakes that failed"]
    executor_jobs: Annotated[int, "run_in_executor() calls, including those of getaddrinfo()"]
    children: Annotated[int, "subprocesses started"]
    stalls: Annotated[int, "times that the loop was blocked longer than a watchdog's threshold"]
    # Timing: None for a loop that was created without timing.
    seconds_running: Annotated[float | None, "seconds inside run_forever(), without polls"]
    seconds_waiting: Annotated[float | None, "seconds spent in polls"]
    lag: Annotated[
        Histogram | None, "delay between the time a callback was ready and the time it ran"
    ]
    durations: Annotated[
        Histogram | None, "run time of callbacks and of event handling per descriptor"
    ]

    @property
    def events_per_poll(self) -> float:
        """Return the mean number of ready descriptors per poll."""
        return self.events / self.polls if self.polls else 0.0

    @property
    def busy(self) -> float | None:
        """Return the share of time (0 to 1) that the loop was not waiting; None without timing."""
        if self.seconds_running is None or self.seconds_waiting is None:
            return None
        return self.seconds_running / ((self.seconds_running + self.seconds_waiting) or 1.0)


class TimeSpent(NamedTuple):
    """How often a callback has run, or transports of a protocol class had events, and the time.

    times: number of runs. seconds: total duration.
    """

    times: int
    seconds: float


def by_name(spent: dict[str | type, tuple[int, float]]) -> dict[str, TimeSpent]:
    """Convert the result of CounterCore._spent(); a type stands for events of its transports."""
    return {
        key if isinstance(key, str) else f"turns of {key.__qualname__}": TimeSpent(*times)
        for key, times in spent.items()
    }


def from_json(data: dict[str, Any]) -> LoopStats:
    """Return the LoopStats whose dataclasses.asdict() was sent as JSON.

    Raises KeyError or TypeError if the fields are not those of this version.
    """
    connections = {kind: ConnectionStats(**data["connections"][kind]) for kind in KINDS}
    histograms = {
        name: data[name] and Histogram(tuple(data[name]["counts"]), data[name]["seconds"])
        for name in ("lag", "durations")
    }
    return LoopStats(**{**data, **histograms, "connections": connections})


def make(loop: CounterCore) -> LoopStats:
    """Return a snapshot of the counters of a loop."""
    running = waiting = lag = durations = None
    if (times := loop._timed()) is not None:
        running, waiting, lag, durations = times
        lag, durations = Histogram(*lag), Histogram(*durations)
    connections = {
        kind: ConnectionStats(accepted, opened, closed, opened - closed)
        for kind, (accepted, opened, closed) in zip(KINDS, loop._connections(), strict=True)
    }
    return LoopStats(
        seconds=loop._age(),
        cpu_seconds=_cpu_seconds(loop._native_thread),
        connections=connections,
        seconds_running=running,
        seconds_waiting=waiting,
        lag=lag,
        durations=durations,
        **loop._counted(),
    )


def _cpu_seconds(native_thread: int) -> float | None:
    if native_thread == 0:
        return None
    try:
        # The kernel's clock id of a thread of this process. Unlike pthread_getcpuclockid(), this is
        # safe for a thread that has just exited.
        return time.clock_gettime(~native_thread << 3 | 6)
    except OSError:
        return None
