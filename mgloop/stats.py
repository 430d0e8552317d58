# SPDX-License-Identifier: GPL-2.0-only
"""What loop.stats() returns: an account of what a loop has done, at one moment.

The loop counts as it goes, in C (port/counters.h); here the numbers get their names, and two
accounts make a third, of the time between them. Nothing here runs but when somebody asks.
"""

from __future__ import annotations

import dataclasses
import math
import time
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, Self

#: Below which bound, in seconds, a bucket of a Histogram counts; as in port/timing.h.
BOUNDS: tuple[float, ...] = (*((1 << i) * 1e-6 for i in range(27)), math.inf)

#: In the order of port/counters.h.
KINDS = ("tcp", "unix", "datagram", "pipe", "tls", "other")

#: Marks a field that rises and falls: a difference of two makes no sense.
LEVEL: Final = "level"


def described(kind: Any) -> dict[str, tuple[str, bool]]:
    """Of each field of a class of accounts: what it is, and whether it is a level."""
    hints = typing.get_type_hints(kind, include_extras=True)
    marks = {field.name: hints[field.name].__metadata__ for field in dataclasses.fields(kind)}
    return {name: (text, LEVEL in more) for name, (text, *more) in marks.items()}


class _Account:
    """What a dataclass of counts and levels has: delta()."""

    __slots__ = ()

    def delta(self, earlier: Self) -> Self:
        """What has been counted since `earlier`; levels are as they are here."""
        kind: Any = type(self)
        if type(earlier) is not kind:
            raise TypeError(f"{earlier!r} is not a {kind.__name__}")
        changes = {
            name: _difference(getattr(self, name), getattr(earlier, name))
            for name, (_, level) in described(kind).items()
            if not level
        }
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def _difference(later: Any, earlier: Any) -> Any:
    if later is None or earlier is None:
        return None
    if isinstance(later, _Account):
        return later.delta(earlier)
    if isinstance(later, dict):
        return {key: value.delta(earlier[key]) for key, value in later.items()}
    if isinstance(later, tuple):
        return tuple(new - old for new, old in zip(later, earlier, strict=True))
    return later - earlier


@dataclass(frozen=True, slots=True)
class ConnectionStats(_Account):
    """The connections of one kind."""

    accepted: Annotated[
        int, "connections accepted by listening sockets or (tls) by server-side handshakes"
    ]
    opened: Annotated[int, "connections for which connection_made() was called, on either side"]
    closed: Annotated[int, "connections for which connection_lost() was called"]
    open: Annotated[int, "connections that are open now", LEVEL]


@dataclass(frozen=True, slots=True)
class Histogram(_Account):
    """How often something took how long."""

    counts: Annotated[tuple[int, ...], "number of measurements in each bucket of BOUNDS"]
    seconds: Annotated[float, "sum of all measurements, in seconds"]

    @property
    def count(self) -> int:
        """How often."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Seconds that the share `q` (0 to 1) took at most: the upper bound of a bucket, so up to
        twice as much as was measured; inf: more than a minute. 0 if there was nothing."""
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
class LoopStats(_Account):
    """What a loop has done since it was made. Bytes, seconds and numbers of things.

    Immutable. Read from another thread, the numbers are each whole, but not of one moment; what
    only rises is never seen to fall.
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
    most_events: Annotated[int, "largest number of ready descriptors in one poll", LEVEL]
    callbacks: Annotated[int, "handles run: call_soon(), timers, readers, task steps"]
    timers: Annotated[int, "call_later() and call_at() timers that expired"]
    timers_cancelled: Annotated[int, "timers cancelled before they expired"]
    timers_pending: Annotated[int, "timers that are pending now", LEVEL]
    ready: Annotated[int, "callbacks and descriptors in the ready queue now", LEVEL]
    most_ready: Annotated[int, "longest ready queue at the start of an iteration", LEVEL]
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
    # Where the time goes: None but for a loop that was made with timing.
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
        """The mean."""
        return self.events / self.polls if self.polls else 0.0

    @property
    def busy(self) -> float | None:
        """The share of its time that the loop did not wait, 0 to 1; None without timing."""
        if self.seconds_running is None or self.seconds_waiting is None:
            return None
        return self.seconds_running / ((self.seconds_running + self.seconds_waiting) or 1.0)


class TimeSpent(NamedTuple):
    """How often a callback has run, or a transport's turn has come, and the seconds it took."""

    times: int
    seconds: float


def by_name(spent: dict[str | type, tuple[int, float]]) -> dict[str, TimeSpent]:
    """From what LoopCore._spent() gives: for a type, it is the turns of its transports."""
    return {
        whose if isinstance(whose, str) else f"turns of {whose.__qualname__}": TimeSpent(*account)
        for whose, account in spent.items()
    }


def from_json(told: dict[str, Any]) -> LoopStats:
    """The account of which dataclasses.asdict() has become JSON. KeyError or TypeError for what is
    none, or has other fields than this version's."""
    connections = {kind: ConnectionStats(**told["connections"][kind]) for kind in KINDS}
    histograms = {
        name: told[name] and Histogram(tuple(told[name]["counts"]), told[name]["seconds"])
        for name in ("lag", "durations")
    }
    return LoopStats(**{**told, **histograms, "connections": connections})


def make(counted: dict[str, Any]) -> LoopStats:
    """From what LoopCore._counted() gives."""
    cpu_seconds = _cpu_seconds(counted.pop("native_thread"))
    timing = counted.pop("timing")
    running = waiting = lag = durations = None
    if timing is not None:
        running, waiting, lag, durations = timing
        lag, durations = Histogram(*lag), Histogram(*durations)
    connections = {
        kind: ConnectionStats(accepted, opened, closed, opened - closed)
        for kind, (accepted, opened, closed) in zip(KINDS, counted.pop("connections"), strict=True)
    }
    return LoopStats(
        connections=connections,
        cpu_seconds=cpu_seconds,
        seconds_running=running,
        seconds_waiting=waiting,
        lag=lag,
        durations=durations,
        **counted,
    )


def _cpu_seconds(native_thread: int) -> float | None:
    if native_thread == 0:
        return None
    try:
        # The kernel's number for the clock of a thread of this process, by the thread's id: unlike
        # pthread_getcpuclockid() it may be asked of a thread that has just ended.
        return time.clock_gettime(~native_thread << 3 | 6)
    except OSError:
        return None
