# SPDX-License-Identifier: GPL-2.0-only
"""A million calls of run_coroutine_threadsafe from 8 threads, counted at both ends."""

import asyncio
import sys
import threading
import time

from common import expect, run, say

THREADS = 8
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
#: Calls that a thread has in flight before it waits for their results.
WINDOW = 250


async def main() -> None:
    """Start the threads, serve their calls, a timer and a socket pair, and compare the counts."""
    loop = asyncio.get_running_loop()
    home = threading.get_ident()
    served = [0] * THREADS
    strangers = 0

    async def work(thread: int, number: int) -> int:
        nonlocal strangers
        served[thread] += 1
        if threading.get_ident() != home:
            strangers += 1
        if number % 10 == 0:
            await asyncio.sleep(0)
        return number

    answered = [0] * THREADS
    wrong = [0] * THREADS

    def caller(thread: int) -> None:
        share = CALLS // THREADS
        for start in range(0, share, WINDOW):
            numbers = range(start, min(start + WINDOW, share))
            futures = [asyncio.run_coroutine_threadsafe(work(thread, n), loop) for n in numbers]
            for number, future in zip(numbers, futures, strict=True):
                if future.result(120) == number:
                    answered[thread] += 1
                else:
                    wrong[thread] += 1

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    started = time.monotonic()
    threads = [threading.Thread(target=caller, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    seconds = time.monotonic() - started
    ticking.cancel()
    await asyncio.wait([ticking])

    wanted = CALLS // THREADS
    say(
        f"{sum(served)} calls served, {sum(answered)} answered, of {wanted * THREADS} made "
        f"by {THREADS} threads in {seconds:.1f} s; the timer beside them ran {ticks} times"
    )
    expect(served == [wanted] * THREADS, "every call reached the loop, once")
    expect(answered == [wanted] * THREADS and not any(wrong), "every caller got its own answer")
    expect(strangers == 0, "every call ran in the loop's thread")
    expect(ticks > 0, "the loop's own timers ran meanwhile")


run(main())
