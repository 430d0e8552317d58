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

    accepted: Annotated[int, "by a listening socket, or (tls) by a handshake as the server"]
    opened: Annotated[int, "connection_made() was called, whoever had begun"]
    closed: Annotated[int, "connection_lost() was called"]
    open: Annotated[int, "now", LEVEL]


@dataclass(frozen=True, slots=True)
class Histogram(_Account):
    """How often something took how long."""

    counts: Annotated[tuple[int, ...], "by bucket: see BOUNDS"]
    seconds: Annotated[float, "all together"]

    @property
    def count(self) -> int:
        """How often."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Seconds that the share `q` (0 to 1) took at most: the upper bound of a bucket, so up to
        twice as much as was measured; inf: more than a minute. 0 if there was nothing."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile is from 0 to 1, not {q!r}")
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

    seconds: Annotated[float, "since the loop was made; of a delta, between the two"]
    cpu_seconds: Annotated[float | None, "of the thread that runs the loop; None: none does"]
    iterations: Annotated[int, "of the loop"]
    polls: Annotated[int, "epoll_wait() calls"]
    events: Annotated[int, "descriptors that polls have reported ready"]
    most_events: Annotated[int, "the most that one poll has reported", LEVEL]
    callbacks: Annotated[int, "handles that were run: call_soon(), timers, readers, steps of tasks"]
    timers: Annotated[int, "call_later() and call_at() that came due"]
    timers_cancelled: Annotated[int, "before they were due"]
    timers_pending: Annotated[int, "now", LEVEL]
    ready: Annotated[int, "callbacks and descriptors that wait for their turn now", LEVEL]
    most_ready: Annotated[int, "the most that have waited at the beginning of a turn", LEVEL]
    threadsafe_calls: Annotated[int, "call_soon_threadsafe(), when the loop has taken them up"]
    wakeups: Annotated[int, "that other threads have sent to end a wait"]
    connections: Annotated[
        dict[str, ConnectionStats], "by kind: see KINDS; tls lies on another one"
    ]
    bytes_received: Annotated[int, "by transports and sock_recv()s; under TLS as on the wire"]
    bytes_sent: Annotated[int, "by transports, sock_sendall() and sendfile(); likewise"]
    reads: Annotated[int, "system calls that read: recv(), recvmmsg(), read()"]
    reads_blocked: Annotated[int, "those of them that met EAGAIN"]
    writes: Annotated[int, "system calls that sent: send(), sendmsg(), sendto(), write(), writev()"]
    writes_blocked: Annotated[int, "those of them that met EAGAIN"]
    deferred_writes: Annotated[int, "write() calls that waited for the end of an iteration"]
    deferred_sends: Annotated[int, "what became of them: fewer, as they leave together"]
    pauses: Annotated[int, "pause_writing(): a transport had more to send than its high water mark"]
    handshakes: Annotated[int, "of TLS, that ended well"]
    handshakes_failed: Annotated[int, "of TLS, that did not"]
    executor_jobs: Annotated[int, "run_in_executor() calls, those of getaddrinfo() among them"]
    children: Annotated[int, "processes started"]
    stalls: Annotated[
        int, "times that a callback held up the loop for longer than a watchdog allows"
    ]
    # Where the time goes: None but for a loop that was made with timing.
    seconds_running: Annotated[float | None, "inside run_forever(), but for polls"]
    seconds_waiting: Annotated[float | None, "spent in polls"]
    lag: Annotated[Histogram | None, "how late callbacks ran: since they could have"]
    durations: Annotated[Histogram | None, "how long callbacks, and turns of descriptors, took"]

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
