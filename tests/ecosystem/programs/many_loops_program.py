# SPDX-License-Identifier: GPL-2.0-only
"""1,000 loops in sequence without growth, a loop in each of 8 threads, nested runs refused."""

import asyncio
import gc
import threading
from pathlib import Path

from common import expect, loop_class, open_descriptors, say

WARM_UP = 100
ROUNDS = 1000
#: Resident pages may move with the allocator's mood; a leak of one loop per round would be far
#: above.
GROWTH_KIB = 4096


def resident_kib() -> int:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise SystemExit("no VmRSS in /proc/self/status")


async def echo_once() -> None:
    """A server, a connection, a timer, a task, a wake-up from the executor."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\n")
    expect(await reader.read() == b"hello\n", "the echo came back")
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    await asyncio.gather(asyncio.sleep(0.0001), asyncio.to_thread(int))


def one_loop() -> None:
    """Make a loop, use it, close it."""
    with asyncio.Runner(loop_factory=loop_class()) as runner:
        runner.run(echo_once())


def in_sequence() -> None:
    """Descriptors equal and memory flat after ROUNDS loops, used or never run."""
    for _ in range(WARM_UP):
        one_loop()
    gc.collect()
    descriptors, memory, objects = open_descriptors(), resident_kib(), len(gc.get_objects())
    for _ in range(ROUNDS):
        one_loop()
    gc.collect()
    growth, more = resident_kib() - memory, len(gc.get_objects()) - objects
    say(
        f"{ROUNDS} loops used and closed: {open_descriptors() - descriptors:+d} descriptors, "
        f"{growth:+d} KiB resident, {more:+d} objects"
    )
    expect(open_descriptors() == descriptors, "no descriptor was left open")
    expect(growth < GROWTH_KIB, "resident memory is flat")
    expect(more < ROUNDS, "not one object a loop was left")

    for _ in range(ROUNDS):
        loop_class()().close()
    gc.collect()
    expect(open_descriptors() == descriptors, "no descriptor was left open by a loop never run")
    expect(resident_kib() - memory < GROWTH_KIB, "resident memory is flat after loops never run")
    say(f"{ROUNDS} loops made and closed without being run")


def in_threads() -> None:
    """A loop in each of 8 threads at a time."""
    finished = []

    def work() -> None:
        for _ in range(25):
            one_loop()
        finished.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    expect(len(finished) == 8, "all eight threads finished")
    say("25 loops in each of 8 threads at a time")


def nested() -> None:
    """A loop cannot be run inside itself, nor another one inside it."""
    loop, other = loop_class()(), loop_class()()

    async def inside() -> list[str]:
        # Not run_forever: CPython 3.13.0's own loop takes the running mark off when it refuses
        # that.
        messages = []
        for runner in (loop, other):
            try:
                runner.run_until_complete(runner.create_future())
            except RuntimeError as exc:
                messages.append(str(exc))
        return messages

    messages = loop.run_until_complete(inside())
    loop.close()
    other.close()
    expect(len(messages) == 2, "both nested runs were refused")
    say(f"nested runs are refused: {messages}")


in_sequence()
in_threads()
nested()
