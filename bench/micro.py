# SPDX-License-Identifier: GPL-2.0-only
"""Micro workloads: the cost of one operation of the loop itself, without a network.

This module runs in one child process per loop and workload. Each workload is a function that drives
the loop for a fixed number of operations. The number is the same on every loop, so that queues have
the same length. The parent alternates between the loops, window by window.
"""

import asyncio
import contextlib
import multiprocessing
import resource
import shutil
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import mean

from .many import pin
from .stats import median, percentile

WORKLOADS = {}


def workload(name, ops, clock="thread", title="", metric="cpu", step=0, suite="micro", many=False):
    """Register a function ``run(loop, n)`` as the micro workload *name* of *ops* operations.

    ``clock="thread"`` counts the CPU time of the loop's thread only, ``"process"`` that of all
    threads. A quick run does fewer operations, in multiples of *step* if it is given. With
    ``many``, several loops also run the workload concurrently, with *n* operations each.
    """

    def register(run):
        WORKLOADS[name] = {
            "run": run,
            "ops": ops,
            "clock": clock,
            "title": title or name,
            "metric": metric,
            "step": step,
            "suite": suite,
            "many": many,
            "count": 1,
        }
        return run

    return register


def nothing(*_args):
    """Do nothing: the cheapest callback that is a Python function."""


def run_queued(loop):
    """Run the queued callbacks, then return."""
    loop.call_soon(loop.stop)
    loop.run_forever()


@workload("call_soon-0", 1_000_000, title="call_soon, a million queued, then run")
def call_soon_0(loop, n):
    for _ in range(n):
        loop.call_soon(nothing)
    run_queued(loop)


@workload("call_soon-1", 500_000, title="call_soon with 1 argument")
def call_soon_1(loop, n):
    for _ in range(n):
        loop.call_soon(nothing, 1)
    run_queued(loop)


@workload("call_soon-5", 500_000, title="call_soon with 5 arguments")
def call_soon_5(loop, n):
    for _ in range(n):
        loop.call_soon(nothing, 1, 2, 3, 4, 5)
    run_queued(loop)


@workload("chain", 200_000, title="call_soon chain (one handle per turn)")
def chain(loop, n):
    left = n

    def step():
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(step)
        else:
            loop.stop()

    loop.call_soon(step)
    loop.run_forever()


@workload("threadsafe-same", 300_000, title="call_soon_threadsafe from the loop's own thread")
def threadsafe_same(loop, n):
    def push():
        for _ in range(n):
            loop.call_soon_threadsafe(nothing)
        loop.call_soon_threadsafe(loop.stop)

    loop.call_soon(push)
    loop.run_forever()


@workload("threadsafe-other", 100_000, "process", "call_soon_threadsafe from another thread")
def threadsafe_other(loop, n):
    def push():
        for _ in range(n):
            loop.call_soon_threadsafe(nothing)
        loop.call_soon_threadsafe(loop.stop)

    thread = threading.Thread(target=push)
    loop.call_soon(thread.start)
    loop.run_forever()
    thread.join()


CHAINS = 64


@workload(
    "threadsafe-loops",
    100_000,
    "process",
    f"call_soon_threadsafe between two loops in threads, {CHAINS} under way",
    step=CHAINS,
    suite="threads",
)
def threadsafe_loops(loop, n):
    """Run chains of calls in which each call in one loop submits the next to the other loop."""
    loops = [loop, type(loop)()]
    ended = 0

    def arrive(me, hops):
        if hops:
            loops[1 - me].call_soon_threadsafe(arrive, 1 - me, hops - 1)
        else:
            loops[0].call_soon_threadsafe(end)

    def end():
        nonlocal ended
        ended += 1
        if ended == CHAINS:
            loops[0].stop()
            loops[1].call_soon_threadsafe(loops[1].stop)

    thread = threading.Thread(target=loops[1].run_forever)
    for chain in range(CHAINS):
        loops[chain % 2].call_soon_threadsafe(arrive, chain % 2, n // CHAINS - 1)
    thread.start()
    loop.run_forever()
    thread.join()
    loops[1].close()


class Ball(asyncio.Protocol):
    """Sends back the data that it receives until *left* has been counted down to 0."""

    def __init__(self, loop, left):
        self.loop = loop
        self.left = left

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.left[0] -= 1
        if self.left[0] > 0:
            self.transport.write(data)
        elif self.left[0] == 0:
            self.loop.stop()


@workload(
    "own-echo",
    400_000,
    title="Protocol echo, 1 KiB x 50, both ends in it",
    suite="threads",
    many=True,
)
def own_echo(loop, n):
    """Echo within one loop, without an external client, so that each loop needs only one core."""
    left = [n]

    async def connect():
        ends = [sock for _ in range(50) for sock in socket.socketpair()]
        return [(await loop.connect_accepted_socket(lambda: Ball(loop, left), s))[0] for s in ends]

    transports = loop.run_until_complete(connect())
    for transport in transports[::2]:
        transport.write(bytes(1024))
    loop.run_forever()
    for transport in transports:
        transport.abort()
    run_queued(loop)


@workload("call_later-cancel", 200_000, title="call_later + cancel")
def call_later_cancel(loop, n):
    def go():
        for _ in range(n):
            loop.call_later(60, nothing).cancel()
        loop.stop()

    loop.call_soon(go)
    loop.run_forever()


@workload("timers-10000", 10_000, title="10,000 timers, set and fired", step=10_000)
def timers(loop, n):
    left = n

    def fire():
        nonlocal left
        left -= 1
        if not left:
            loop.stop()

    def go():
        when = loop.time()
        for i in range(n):
            loop.call_at(when + (i * 7919 % n) * 1e-7, fire)

    loop.call_soon(go)
    loop.run_forever()


@workload("timer-lateness", 300, title="lateness of call_later(200 us)", metric="late")
def timer_lateness(loop, n):
    late = []

    def fire(due):
        late.append((time.monotonic() - due) * 1e6)
        if len(late) == n:
            loop.stop()
        else:
            arm()

    def arm():
        due = time.monotonic() + 200e-6
        loop.call_later(200e-6, fire, due)

    loop.call_soon(arm)
    loop.run_forever()
    return {"late_us": late}


@workload("sleep-0", 200_000, title="task switch (sleep(0))")
def sleep_0(loop, n):
    async def go():
        for _ in range(n):
            await asyncio.sleep(0)

    loop.run_until_complete(go())


@workload("create_task", 50_000, title="create_task + await")
def create_task(loop, n):
    async def child():
        pass

    async def go():
        create = loop.create_task
        for _ in range(n):
            await create(child())

    loop.run_until_complete(go())


@workload("future-pingpong", 50_000, title="future ping-pong between two tasks")
def future_pingpong(loop, n):
    """Let two tasks wake each other in turn; an operation is one wake-up."""
    gates = [loop.create_future(), loop.create_future()]
    gates[0].set_result(None)

    async def player(me):
        for _ in range(n // 2):
            await gates[me]
            gates[me] = loop.create_future()
            gates[1 - me].set_result(None)

    async def go():
        await asyncio.gather(player(0), player(1))

    loop.run_until_complete(go())


@workload("gather-100", 20_000, title="gather of 100 coroutines (per coroutine)", step=100)
def gather_100(loop, n):
    async def child():
        await asyncio.sleep(0)

    async def go():
        for _ in range(n // 100):
            await asyncio.gather(*(child() for _ in range(100)))

    loop.run_until_complete(go())


@workload("timeout", 40_000, title="asyncio.timeout around an await")
def timeout(loop, n):
    async def go():
        for _ in range(n):
            async with asyncio.timeout(30):
                await asyncio.sleep(0)

    loop.run_until_complete(go())


@workload("run_in_executor", 3_000, "process", "run_in_executor, one after the other")
def run_in_executor(loop, n):
    async def go(pool):
        for _ in range(n):
            await loop.run_in_executor(pool, nothing)

    with ThreadPoolExecutor(1) as pool:
        loop.run_until_complete(go(pool))


@workload("getaddrinfo", 3_000, "process", "getaddrinfo of a literal address")
def getaddrinfo(loop, n):
    async def go():
        for _ in range(n):
            await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)

    loop.run_until_complete(go())


@workload("add_remove_reader", 30_000, title="add_reader + remove_reader")
def add_remove_reader(loop, n):
    one, two = socket.socketpair()
    one.setblocking(False)

    async def go():
        fd = one.fileno()
        for i in range(n):
            loop.add_reader(fd, nothing)
            loop.remove_reader(fd)
            if i % 64 == 63:
                await asyncio.sleep(0)

    with one, two:
        loop.run_until_complete(go())


@workload("subprocess", 30, "process", "subprocess: spawn true, wait for it")
def subprocess(loop, n):
    program = shutil.which("true")

    async def go():
        for _ in range(n):
            process = await asyncio.create_subprocess_exec(program)
            if await process.wait() != 0:
                raise RuntimeError("true failed")

    asyncio.set_event_loop(loop)
    try:
        # The default watcher of Python < 3.12 is one thread per child and needs no attached loop.
        loop.run_until_complete(go())
    finally:
        asyncio.set_event_loop(None)


def measure(loop, spec, n):
    """Run *n* operations; return their number, and CPU and wall microseconds per operation."""
    clock = time.thread_time if spec["clock"] == "thread" else time.process_time
    wall = time.perf_counter()
    cpu = clock()
    extra = spec["run"](loop, n) or {}
    cpu = clock() - cpu
    wall = time.perf_counter() - wall
    ops = n * spec["count"]
    return {"ops": ops, "cpu_us": cpu / ops * 1e6, "wall_us": wall / ops * 1e6, **extra}


def operations(spec, scale):
    """Return the number of operations at this scale."""
    n = max(int(spec["ops"] * scale), min(spec["ops"], 20))
    return max(n // spec["step"], 1) * spec["step"] if spec["step"] else n


def sample(loop, spec, n):
    """Run *n* operations; return the fields of the report to the parent."""
    found = measure(loop, spec, n)
    late = found.pop("late_us", ())
    if late:
        found["latency_us"] = {f"{p:g}": percentile(late, p) for p in (1, 50, 95, 99, 100)}
        found["late_us"] = median(late)
        found["earliest_us"] = min(late)
    found["rss_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found


@contextlib.contextmanager
def in_this_process(spec, factory, count):
    """Return a function that runs *spec* with n operations on each of *count* loops, concurrently.

    Several loops have a thread each and, if possible, a core each, which they keep.
    """
    loops = [factory() for _ in range(count)]
    with contextlib.ExitStack() as ended:
        for loop in loops:
            ended.callback(loop.close)
        ended.callback(lambda: loops[0].run_until_complete(loops[0].shutdown_default_executor()))
        if count > 1:
            threads = [
                ended.enter_context(
                    ThreadPoolExecutor(1, initializer=pin, initargs=(number, count))
                )
                for number in range(count)
            ]
            one = spec["run"]

            def run(_loop, n):
                for done in [
                    thread.submit(one, loop, n) for thread, loop in zip(threads, loops, strict=True)
                ]:
                    done.result()

            spec = {**spec, "run": run, "count": count, "clock": "process"}
        yield lambda n: sample(loops[0], spec, n)


@contextlib.contextmanager
def in_processes(spec, factory, count):
    """Return the same for *count* processes of one loop each, which share no memory."""

    def serve(number, pipe):
        pin(number, count)
        with in_this_process(spec, factory, 1) as carry_out:
            while (n := pipe.recv()) is not None:
                try:
                    pipe.send(carry_out(n))
                except Exception as exc:
                    pipe.send(exc)

    def carry_out(n):
        for pipe in pipes:
            pipe.send(n)
        found = [pipe.recv() for pipe in pipes]
        for one in found:
            if isinstance(one, Exception):
                raise one
        return {
            "ops": sum(one["ops"] for one in found),
            "cpu_us": mean(one["cpu_us"] for one in found),
            "wall_us": max(one["wall_us"] for one in found) / count,
            "rss_kib": sum(one["rss_kib"] for one in found),
        }

    # Fork before this process has a loop, because a child would inherit it.
    context = multiprocessing.get_context("fork")
    pipes, children = [], []
    for number in range(count):
        near, far = context.Pipe()
        children.append(context.Process(target=serve, args=(number, far), daemon=True))
        pipes.append(near)
        children[-1].start()
        far.close()
    try:
        yield carry_out
    finally:
        for pipe in pipes:
            pipe.send(None)
        for child in children:
            child.join()


SHAPES = {"threads": in_this_process, "processes": in_processes}


def main(config, factory, tell):
    """Run the child process: print one result per line of stdin, always from the same loops."""
    spec = WORKLOADS[config["name"]]
    n = operations(spec, config["scale"])
    together = config["together"]
    with SHAPES[together["shape"]](spec, factory, together["loops"]) as carry_out:
        tell(ready=True)
        for turn, _line in enumerate(sys.stdin):
            try:
                if turn == 0:
                    carry_out(operations(spec, config["scale"] / 20))
                found = carry_out(n)
            except NotImplementedError as exc:
                tell(unsupported=str(exc) or "not implemented by this loop")
            except Exception as exc:
                tell(error=f"{type(exc).__name__}: {exc}")
            else:
                tell(**found)
