# SPDX-License-Identifier: GPL-2.0-only
"""Processes made while a loop is there: fork, forkserver, pools, and an inherited loop."""

import asyncio
import multiprocessing
import os
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor

from common import expect, loop_class, open_descriptors, run, say

LIMIT = 60


async def ping() -> str:
    """A server, a client and a timer in this process's own loop."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"ping\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0.001)
    return answer.decode()


def child_loop(queue: multiprocessing.Queue) -> None:
    """In a child: a loop of its own, used."""
    queue.put((os.getpid(), run(ping())))


def square(number: int) -> int:
    """Work for a pool."""
    return number * number


def job(number: int) -> tuple[int, str]:
    """Work for a pool that needs a loop in the worker process."""
    with asyncio.Runner(loop_factory=loop_class()) as runner:
        return number * number, runner.run(ping())


async def processes(method: str) -> None:
    """Three children with loops of their own and a pool of two, while this loop runs."""
    context = multiprocessing.get_context(method)
    loop = asyncio.get_running_loop()
    queue = context.Queue()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.005)
            turns += 1

    turning = asyncio.ensure_future(turn())
    children = [context.Process(target=child_loop, args=(queue,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        await loop.run_in_executor(None, child.join, LIMIT)
    expect([child.exitcode for child in children] == [0, 0, 0], f"the {method} children ended well")
    answers = [queue.get(timeout=LIMIT) for _ in children]
    expect({pid for pid, _ in answers} == {child.pid for child in children}, "each child answered")
    expect(all(text == "ping\n" for _, text in answers), "each child's loop worked")
    queue.close()
    queue.join_thread()

    with ProcessPoolExecutor(2, mp_context=context) as pool:
        results = await asyncio.gather(*(loop.run_in_executor(pool, square, n) for n in range(50)))
        expect(results == [n * n for n in range(50)], f"the {method} pool computed")
        jobs = await asyncio.gather(*(loop.run_in_executor(pool, job, n) for n in range(10)))
        expect(jobs == [(n * n, "ping\n") for n in range(10)], f"the {method} pool's loops worked")
    turning.cancel()
    await asyncio.wait([turning])
    expect(turns > 0 and await ping() == "ping\n", "the parent's loop is as it was")
    say(
        f"{method}: 3 children and a pool, each with loops of its own; "
        f"the parent's loop turned {turns} times"
    )


def inherited() -> None:
    """A forked child closes the loop that it inherited; the parent's must not notice."""
    descriptors = open_descriptors()
    loop = loop_class()()
    heard = []
    reading, writing = os.pipe()
    loop.add_reader(reading, lambda: heard.append(os.read(reading, 10)))
    timer = loop.call_later(0.2, loop.stop)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            loop.close()
            with asyncio.Runner(loop_factory=loop_class()) as runner:
                status = 0 if runner.run(ping()) == "ping\n" else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    expect(
        os.waitstatus_to_exitcode(status) == 0,
        "the child closed the inherited loop and used another",
    )
    os.write(writing, b"x")
    loop.run_forever()
    expect(heard == [b"x"], "the parent's reader still works after the child closed its copy")
    expect(
        not timer.cancelled() and loop.run_until_complete(ping()) == "ping\n",
        "and so does the rest",
    )
    loop.remove_reader(reading)
    loop.close()
    os.close(reading)
    os.close(writing)
    expect(open_descriptors() == descriptors, "no descriptor was left open")
    say("a forked child closed the loop that it inherited; the parent's reader and timer went on")


if __name__ == "__main__":
    # CPython warns of fork in a process with threads (the executor's); here that is the point.
    warnings.filterwarnings("ignore", "This process", DeprecationWarning)
    say(f"CPython {sys.version.split()[0]}")
    inherited()
    for start_method in ("fork", "forkserver", "spawn"):
        run(processes(start_method))
