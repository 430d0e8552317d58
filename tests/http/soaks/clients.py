# SPDX-License-Identifier: GPL-2.0-only
"""Clients that record their waiting times and the outcome of each request."""

import asyncio
import collections
import contextlib
import json
import random
import sys
import time
from pathlib import Path

# Needed also when this file is run as a program.
sys.path.extend(str(Path(__file__).resolve().parents[number]) for number in (1, 2))

from serving import check
from sites import Client

import mgloop


def request(method="GET", path="/", body=b""):
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\n"
    if body:
        head += f"Content-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


async def connect(port, **options):
    return Client(*await asyncio.open_connection("127.0.0.1", port, **options))


class Ordinary:
    """An ordinary client: a request every few milliseconds, whether or not the last is answered.

    Each request is timed from the moment it was due, including the connect if no connection is
    free. Every tenth request uses a new connection in any case.
    """

    INTERVAL = 0.005
    AT_A_TIME = 8  # a known number, so that a server's other connections can be counted

    def __init__(self, port):
        self.port = port
        self.free = collections.deque()
        self.times = []
        self.tasks = set()
        self.turns = asyncio.Semaphore(self.AT_A_TIME)

    @contextlib.asynccontextmanager
    async def running(self):
        ticking = asyncio.ensure_future(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.gather(*self.tasks)
            for client in self.free:
                client.writer.close()

    async def _tick(self):
        due = time.monotonic()
        while True:
            task = asyncio.ensure_future(self._take_turn(due, new=len(self.times) % 10 == 0))
            self.tasks.add(task)
            task.add_done_callback(lambda task: task.exception() or self.tasks.discard(task))
            due += self.INTERVAL
            await asyncio.sleep(due - time.monotonic())

    async def _take_turn(self, due, new):
        async with self.turns:
            await self._ask(due, new)

    async def _ask(self, due, new):
        client = None
        while self.free and not new and client is None:
            client = self.free.popleft()
            if client.reader.at_eof():
                client.writer.close()
                client = None
        if client is None:
            client = await connect(self.port)
        status, _, body = await asyncio.wait_for(client.request(request()), 30)
        check((status, body) == (200, b"Hello, World!"), "an ordinary client got", status, body)
        self.times.append(time.monotonic() - due)
        if new:
            client.writer.close()
        else:
            self.free.append(client)

    @classmethod
    @contextlib.asynccontextmanager
    async def elsewhere(cls, port):
        """Run a client in a separate process, so that this process's work does not delay it.

        It has started when it is yielded; `times` are available after the block.
        """
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, __file__, f"{port}"],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        ordinary = cls(port)
        try:
            await process.stdout.readline()
            yield ordinary
            said, _ = await process.communicate(b"")  # which ends its input
            check(process.returncode == 0, "the ordinary client failed")
            ordinary.times = json.loads(said)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def within(self, share):
        """Return the milliseconds in which this share of the requests was answered."""
        times = sorted(self.times)
        return times[min(len(times) - 1, int(len(times) * share))] * 1000

    def __str__(self):
        return (
            f"{len(self.times)} requests of others, "
            f"p50 {self.within(0.5):.1f}, p99 {self.within(0.99):.1f}, "
            f"max {max(self.times) * 1000:.1f} ms"
        )


class Exact:
    """A client whose requests are answered, or whose connections end only as HTTP allows.

    HTTP allows a connection to be closed before a request is sent on it, or after a response that
    announced it (RFC 9112, 9.3 and 9.6). Any other end is a failure, which is recorded with the
    process that had answered on the connection, if any.
    """

    def __init__(self, port):
        self.port = port
        self.counts = collections.Counter()
        self.answered_by = {}  # process -> time of its last answer
        self.failures = []  # (time, process or None, description)

    async def run(self, going, kind):
        """Send requests one after another while going() is true; `kind` is one of KINDS."""
        while going():
            process = None
            client = None
            try:
                client = await connect(self.port)
                self.counts["connections"] += 1
                while going():
                    if client.reader.at_eof():
                        self.counts["closed between requests"] += 1
                        break
                    pipelined, sent = kind()
                    await asyncio.wait_for(client.send(sent), 30)
                    for left in reversed(range(pipelined)):
                        status, headers, body = await asyncio.wait_for(client.response(), 30)
                        check(status == 200, "status", status, headers, body)
                        process = int(headers["x-pid"])
                        check(body == b"Hello, World!" or body in sent, "another body")
                        self.answered_by[process] = time.monotonic()
                        self.counts["answered"] += 1
                        if closing := headers.get("connection") == "close":
                            self.counts["announced as closed"] += 1
                            self.counts["to be asked again"] += left
                            break
                    if closing:
                        break
                    if random.random() < 0.02:
                        await asyncio.sleep(random.random())
            except (OSError, asyncio.IncompleteReadError) as exc:
                self.failures.append((time.monotonic(), process, f"{kind.__name__}: {exc!r}"))
            finally:
                if client is not None:
                    client.writer.close()
                    with contextlib.suppress(OSError):
                        await client.writer.wait_closed()


def plain():
    return 1, request()


def waiting():
    return 1, request(path="/wait")


def posting():
    return 1, request("POST", "/echo", random.randbytes(30_000))


def pipelining():
    return 4, request() * 4


KINDS = (plain, waiting, posting, pipelining)


async def be_ordinary(port):
    """Run an ordinary client until the end of the standard input."""
    ordinary = Ordinary(port)
    async with ordinary.running():
        print("begun", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(ordinary.times))


if __name__ == "__main__":
    mgloop.run(be_ordinary(int(sys.argv[1])))
