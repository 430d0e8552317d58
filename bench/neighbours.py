# SPDX-License-Identifier: GPL-2.0-only
"""Detect other programs on the cores during a window, and count how often its client slept.

Another program takes CPU time that is not counted as the server's, yet it makes the server slower:
caches are cold, the load arrives in smaller batches, and a woken process has to wait for its core.
The kernel counts a core's time in ticks, which is accurate to about a twentieth of a 0.25 s window.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import processes

# A window is disturbed when others had more than this share of one core.
DISTURBED = 0.2
# Fields of a line of /proc/stat: user, nice, system and steal (time taken by the host).
_BUSY = (1, 2, 3, 8)


def disturbed(sample: dict) -> bool:
    """Return whether other programs used too much of a core during the window of *sample*."""
    return sample.get("others", 0.0) > DISTURBED


def busy_seconds(cores: Iterable[int], text: str) -> float:
    """Return the seconds that *cores* were busy or stolen, from the *text* of /proc/stat."""
    wanted = {f"cpu{core}" for core in cores}
    ticks = sum(
        int(fields[place])
        for line in text.splitlines()
        if (fields := line.split()) and fields[0] in wanted
        for place in _BUSY
    )
    return ticks / os.sysconf("SC_CLK_TCK")


class Watch:
    """Covers the time from its creation to :meth:`found`.

    The client must be a child process that starts and ends within that time.
    """

    def __init__(self, cores: Iterable[int], servers: Sequence[int]):
        self._cores = tuple(cores)
        self._servers = servers
        self._at = time.monotonic()
        self._client = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._before = self._read()

    def _read(self) -> tuple[float, float]:
        """Return the busy seconds of the cores, and those of the measurement's own processes."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + children.ru_utime + children.ru_stime
        own += processes.cpu_seconds(self._servers)
        return busy_seconds(self._cores, Path("/proc/stat").read_text()), own

    def found(self, ops: int) -> dict[str, float]:
        """Return the cores used by other programs and the client's sleeps per operation."""
        (cores, own), seconds = self._read(), time.monotonic() - self._at
        others = (cores - self._before[0] - (own - self._before[1])) / seconds
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "others": round(max(0.0, others), 3),
            "client_sleeps": (children.ru_nvcsw - self._client.ru_nvcsw) / max(1, ops),
        }
