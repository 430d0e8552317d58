# SPDX-License-Identifier: GPL-2.0-only
"""Workers that are replaced, recycled and killed while clients keep sending requests.

wrk makes the load where it is installed. It counts an error when a connection ends while a request
waits for its response, unless the previous response announced the end. Its connections always have
a request in flight. The tests' own clients (clients.Exact) run at the same time and report the
outcome of each request.
"""

import asyncio
import os
import random
import re
import shutil
import signal
import time

from clients import KINDS, Exact
from serving import Server, check

WRK = shutil.which("wrk")

#: Seconds until all requests of a killed process have failed, even on a busy machine.
AFTER_A_KILL = 1.0

#: Seconds for a new worker to answer on a busy machine.
PATIENCE = 60.0


async def replaced(workers, seconds, interval=1.0, **more):
    """Send SIGHUP at intervals: no request may fail."""

    async def disturb(server, exact, going):
        while going():
            await asyncio.sleep(interval)
            server.send(signal.SIGHUP)

    await under_load(f"SIGHUP every {interval:g} s", workers, seconds, disturb, **more)


async def recycled(workers, seconds, requests=3000, **more):
    """Let workers end after some requests: no request may fail."""
    options = ["--limit-max-requests", requests, "--limit-max-requests-jitter", requests // 4]
    title = f"recycled after {requests} requests"
    await under_load(title, workers, seconds, None, *options, **more)


async def killed(workers, seconds, interval=3.0, **more):
    """Send SIGKILL to a worker at intervals: only requests in that worker may fail."""
    kills = {}

    async def disturb(server, exact, going):
        while going():
            await asyncio.sleep(interval)
            now = time.monotonic()
            alive = [
                pid
                for pid, when in exact.answered_by.items()
                if now - when < 1 and pid not in kills
            ]
            if alive:
                victim = random.choice(alive)
                kills[victim] = now
                os.kill(victim, signal.SIGKILL)

    title = f"kill -9 every {interval:g} s"
    await under_load(title, workers, seconds, disturb, kills=kills, **more)


async def under_load(title, workers, seconds, disturb, *options, kills=None, **more):
    """Disturb a server of `workers` processes under load; `more` is for its Server()."""
    with Server("--workers", workers, *options, **more) as server:
        for _ in range(workers - 1):  # the first worker was ready before the address was printed
            server.wait_for(r"Worker \[\d+\] is ready")
        exact = Exact(server.port)
        began = time.monotonic()

        def going():
            """Return whether to continue: for `seconds`, and until a new process has answered."""
            lasted = time.monotonic() - began
            return lasted < seconds or (len(exact.answered_by) <= workers and lasted < PATIENCE)

        tasks = [exact.run(going, kind) for kind in KINDS for _ in range(4)]
        tasks.append(load(server, seconds))
        if disturb is not None:
            tasks.append(disturb(server, exact, going))
        results = await asyncio.gather(*tasks)
        wrk = results[len(KINDS) * 4]
        theirs = [failure for failure in exact.failures if excused(failure, kills or {})]
        unexcused = [failure for failure in exact.failures if failure not in theirs]
        counts = ", ".join(f"{count} {name}" for name, count in sorted(exact.counts.items()))
        print(
            f"  {workers} workers, {title}: {len(exact.answered_by)} processes; {counts}; "
            f"{len(exact.failures)} failed{f', {len(kills)} kills' if kills else ''}; {wrk}"
        )
        check(not unexcused, "failed:", unexcused[:5], server.said()[-20:])
        check(exact.counts["answered"], "nothing was answered")
        check(kills is None or kills, "nobody was killed")
        check(len(exact.answered_by) > workers, "no worker was replaced")
        if wrk is not None:
            check(wrk.requests > 0, "wrk got no answer")
            check(wrk.bad == 0, "wrk got responses that are none of 200:", wrk.bad)
            check(wrk.failed <= wrk.connections * len(kills or ()), "wrk's failed:", wrk)
        await settled(server, workers)
        server.finish()


def excused(failure, kills):
    """Return whether a killed process explains the failure."""
    when, process, what = failure
    if "ConnectionRefused" in what:
        return False
    if process is not None:
        return when >= kills.get(process, when + 1)
    return any(0 <= when - killed < AFTER_A_KILL for killed in kills.values())


async def settled(server, workers):
    """Wait until replaced workers have ended."""
    deadline = time.monotonic() + 60
    while (left := len(children(server.pid))) != workers:
        check(time.monotonic() < deadline, left, "processes instead of", workers)
        await asyncio.sleep(0.1)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as stream:
        return stream.read().split()


class Wrk:
    """The results of wrk."""

    connections = 32

    def __init__(self, said):
        self.requests = self._number(r"(\d+) requests in", said)
        self.bad = self._number(r"Non-2xx or 3xx responses: (\d+)", said)
        self.errors = re.findall(r"(connect|read|write|timeout) (\d+)", said)
        self.failed = sum(int(count) for _, count in self.errors)

    def _number(self, pattern, said):
        match = re.search(pattern, said)
        return int(match[1]) if match else 0

    def __str__(self):
        errors = ", ".join(f"{name} {count}" for name, count in self.errors) or "none"
        return f"wrk: {self.requests} requests, errors: {errors}"


async def load(server, seconds):
    """Run wrk for `seconds`, if it is installed."""
    if WRK is None:
        return None
    process = await asyncio.create_subprocess_exec(
        *[WRK, "-t", "1", "-c", f"{Wrk.connections}", "-d", f"{max(1, seconds):.0f}"],
        *["--timeout", "30s", server.address],
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        said, _ = await process.communicate()
    except BaseException:
        process.kill()
        raise
    return Wrk(said.decode())
