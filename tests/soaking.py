# SPDX-License-Identifier: GPL-2.0-only
"""The common part of soak tests: many concurrent workers run random scenarios; memory is stable.

tests/programs/soak.py tests a loop in its own process, tests/http/soaks tests servers in other
processes.
"""

import asyncio
import collections
import gc
import os
import random
import time

WORKERS = 24
WARM_UP = 0.3  # of the time
GROWTH = 12 * 2**20  # bytes of resident memory: a leak of 1 KiB per connection exceeds it in 180 s


def resident(pid="self"):
    """Return the resident memory of a process in bytes."""
    if pid == "self":
        gc.collect()
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Mix:
    """Runs scenarios, which also use `random`; `counts` has the number of runs of each."""

    #: The time limit of one scenario, in seconds.
    PATIENCE = 60

    def __init__(self):
        self.random = random.Random(20_261_121)
        self.counts = collections.Counter()

    def scenarios(self):
        """Return coroutine functions; one that is listed twice runs twice as often."""
        raise NotImplementedError

    def memory(self):
        """Return a number of bytes that must not grow."""
        return resident()

    async def work(self, deadline, first):
        scenarios = self.scenarios()
        while time.monotonic() < deadline:
            scenario = first.pop() if first else self.random.choice(scenarios)
            try:
                await asyncio.wait_for(scenario(), self.PATIENCE)
            except Exception as exc:
                exc.add_note(f"in {scenario.__name__}()")
                raise
            self.counts[scenario.__name__] += 1

    async def round(self, seconds):
        """Run each scenario at least once, if there is time, and then random ones."""
        deadline = time.monotonic() + seconds
        first = self.scenarios()
        for scenario in first:
            self.counts[scenario.__name__] += 0
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self.work(deadline, first))

    async def soak(self, seconds):
        """Run scenarios for `seconds`; return the memory in use after the warm-up."""
        await self.round(seconds * WARM_UP)
        before = self.memory()
        await self.round(seconds * (1 - WARM_UP))
        if self.memory() - before > GROWTH:
            # The warm-up may have been too short; only a leak continues to grow.
            before = self.memory()
            await self.round(seconds * (1 - WARM_UP))
        return before

    def never_run(self):
        """Return the names of scenarios that never ran."""
        return [name for name, count in self.counts.items() if not count]
