# SPDX-License-Identifier: GPL-2.0-only
"""What else ran on the cores while a window was measured, and how often its client slept.

A neighbour takes CPU time that is not counted as the server's, and yet makes it dearer: caches are
cold, the load comes in smaller batches, and who is to be woken is not there. The kernel counts a
core's time in ticks: good to about a twentieth of a window of 0.25 s.
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
# Fields of a line of /proc/stat: user, nice, system, and what the host took.
_BUSY = (1, 2, 3, 8)


def disturbed(sample: dict) -> bool:
    """Whether *sample* comes from a window in which somebody else had a core for long."""
    return sample.get("others", 0.0) > DISTURBED


def busy_seconds(cores: Iterable[int], text: str) -> float:
    """Time that *cores* were at work or taken away, from the *text* of /proc/stat."""
    wanted = {f"cpu{core}" for core in cores}
    ticks = sum(
        int(fields[place])
        for line in text.splitlines()
        if (fields := line.split()) and fields[0] in wanted
        for place in _BUSY
    )
    return ticks / os.sysconf("SC_CLK_TCK")


class Watch:
    """From its making to :meth:`found`; the client must be a child that begins and ends between."""

    def __init__(self, cores: Iterable[int], servers: Sequence[int]):
        self._cores = tuple(cores)
        self._servers = servers
        self._at = time.monotonic()
        self._client = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._before = self._read()

    def _read(self) -> tuple[float, float]:
        """Seconds: of the cores, and of those that belong to the measurement."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + children.ru_utime + children.ru_stime
        own += processes.cpu_seconds(self._servers)
        return busy_seconds(self._cores, Path("/proc/stat").read_text()), own

    def found(self, ops: int) -> dict[str, float]:
        """For the sample: cores that others had, and how often the client slept per operation."""
        (cores, own), seconds = self._read(), time.monotonic() - self._at
        others = (cores - self._before[0] - (own - self._before[1])) / seconds
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "others": round(max(0.0, others), 3),
            "client_sleeps": (children.ru_nvcsw - self._client.ru_nvcsw) / max(1, ops),
        }
