# SPDX-License-Identifier: GPL-2.0-only
"""Clients that send their bodies byte by byte, while other clients are served.

Unlike slow.py, this needs no other program, and each of the slow clients must get its response.
"""

import asyncio
import hashlib
import random
import sys
from dataclasses import dataclass

from clients import Ordinary, connect, request
from serving import Server, check, mib
from slow import ONCE, P99, PER_CONNECTION

import mgloop


@dataclass
class Trickle:
    """How many clients there are, and the limits that must hold."""

    clients: int = 1000
    size: int = 20  # bytes of each body
    pause: float = 1.0  # seconds between two bytes
    p99: float = P99

    async def run(self, *options, **arguments):
        """Serve the clients with a new server."""
        with Server(*options, **arguments) as server:
            async with Ordinary.elsewhere(server.port) as alone:
                await asyncio.sleep(2 * self.pause)
            before = server.memory()
            async with Ordinary.elsewhere(server.port) as ordinary:
                clients = await self.elsewhere(server.port)
                await asyncio.sleep(self.pause * self.size / 2)
                grown = server.memory() - before
                check(clients.returncode is None, "the slow clients have ended early")
                check(await clients.wait() == 0, "the slow clients failed")
            print(
                f"  {self.clients} bodies of {self.size} bytes, a byte every {self.pause} s: "
                f"{ordinary}; without them p99 {alone.within(0.99):.1f} ms; "
                f"memory grew by {mib(grown)}"
            )
            limit = self.p99 + alone.within(0.99)
            check(ordinary.within(0.99) < limit, "p99 is to be less than", limit, "ms")
            check(grown < ONCE + self.clients * PER_CONNECTION, "memory grew by", mib(grown))
            await asyncio.to_thread(server.let_go)
            server.finish()

    async def elsewhere(self, port):
        """Start a process with all slow clients.

        Its priority is low; clients elsewhere would not use this processor.
        """
        return await asyncio.create_subprocess_exec(
            *("nice", "-n", "19", sys.executable, __file__),
            *map(str, (port, self.clients, self.size, self.pause)),
        )


async def trickle(port, size, pause):
    """Send a body byte by byte, and check the response."""
    body = random.randbytes(size)
    await asyncio.sleep(random.random() * pause)
    client = await connect(port)
    await client.send(request("POST", "/digest", body)[:-size])
    for at in range(size):
        await client.send(body[at : at + 1])
        await asyncio.sleep(pause)
    status, _, digest = await client.response()
    check(status == 200 and digest.decode() == hashlib.sha256(body).hexdigest(), status, digest)
    client.writer.close()


async def trickle_all(port, clients, size, pause):
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(trickle(port, size, pause))


#: Takes some seconds on any machine.
QUICK = Trickle(clients=50, size=8, pause=0.1, p99=2000.0)

if __name__ == "__main__":
    mgloop.run(trickle_all(*map(int, sys.argv[1:4]), float(sys.argv[4])))
