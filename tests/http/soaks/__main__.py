# SPDX-License-Identifier: GPL-2.0-only
"""`mgloop serve` under stress: slow clients, workers that end, and large numbers of everything.

    python tests/http/soaks [PART ...] [--quick] [--seconds 600]

slow: slowhttptest's attacks while other clients are served. trickle: bodies that come byte by byte,
with an ASGI and a WSGI application, while other clients are served. rolling: workers are replaced,
recycled and killed under load. memory: the memory of idle connections, and after a million
requests. mixed: clients with different behaviour for --seconds. wsgi: the last three parts with a
WSGI application.
--quick: a short run of each, without the checks that need a quiet machine;
tests/http/test_soaks.py runs it. The exit status is 1 if a check fails.
"""

import argparse
import asyncio
import signal
import sys
import time
import traceback
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[number]) for number in (1, 2))

import memory
import mixed
import rolling
import slow
import trickling

import mgloop


async def run_slow(quick, seconds):
    await (slow.QUICK if quick else slow.Manner()).run()


async def run_trickle(quick, seconds):
    trickle = trickling.QUICK if quick else trickling.Trickle()
    print("  ASGI", flush=True)
    await trickle.run()
    for threads in (4, 0):
        print(f"  --wsgi-threads {threads}", flush=True)
        await trickle.run("--wsgi-threads", threads, application="wsgi_application:app")


async def run_rolling(quick, seconds):
    for workers in (2,) if quick else (2, 4):
        await rolling.replaced(workers, 2 if quick else 20, 0.5 if quick else 1)
        await rolling.recycled(workers, 2 if quick else 20, 500 if quick else 3000)
        await rolling.killed(workers, 2 if quick else 20, 1 if quick else 3)


async def run_memory(quick, seconds):
    await asyncio.to_thread(memory.idle, 500 if quick else 10_000)
    counts = (50_000, 2000, 2000) if quick else (1_000_000, 100_000, 100_000)
    await asyncio.to_thread(memory.growth, *counts)


async def run_mixed(quick, seconds):
    await mixed.soak(3 if quick else seconds)


async def run_wsgi(quick, seconds):
    """Run the other parts, except slow, with a WSGI application in threads and on the loop's."""
    wsgi = {"application": "wsgi_application:app"}
    for threads in (4, 0):
        print(f"  --wsgi-threads {threads}", flush=True)
        options = ("--wsgi-threads", threads)
        counts = (20_000, 1000, 0) if quick else (100_000, 20_000, 0)
        await asyncio.to_thread(memory.growth, *counts, *options, **wsgi)
        await mixed.soak(3 if quick else seconds / 2, mixed.WsgiClients, *options, **wsgi)
    if not quick:
        await rolling.replaced(2, 20, 1, **wsgi)
        await rolling.recycled(2, 20, 3000, **wsgi)
        await rolling.killed(2, 20, 3, **wsgi)


PARTS = {
    "slow": run_slow,
    "trickle": run_trickle,
    "rolling": run_rolling,
    "memory": run_memory,
    "mixed": run_mixed,
    "wsgi": run_wsgi,
}


def main():
    parser = argparse.ArgumentParser(prog="python tests/http/soaks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the mix")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    # The servers end with their `with` blocks, which SIGTERM must not skip.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed = []
    for name in args.parts or PARTS:
        began = time.monotonic()
        print(f"{name}:", flush=True)
        try:
            mgloop.run(PARTS[name](args.quick, args.seconds))
        except Exception:
            failed.append(name)
            print("FAILED:")
            traceback.print_exc(file=sys.stdout)
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
