# SPDX-License-Identifier: GPL-2.0-only
"""slowhttptest's attacks while other clients are served.

The attack by ranges is left out, because slowhttptest gives up on servers without ranges, as here.
"""

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass

from clients import Ordinary
from serving import Server, check, mib

TOOL = shutil.which("slowhttptest")

#: The limit for other clients' requests.
P99 = 50.0  # ms

#: The maximum memory of each of an attack's connections, and a constant for the first ones.
PER_CONNECTION = 16 << 10
ONCE = 4 << 20


#: The maximum of other clients' connections, in use and free, and slowhttptest's own probe.
OTHERS = 2 * Ordinary.AT_A_TIME + 1


@dataclass
class Attack:
    name: str
    options: str
    path: str = "/"
    # Whether the timeouts end the attack; otherwise it lasts as long as it likes.
    cut: bool = True
    # Bytes of the application's response that are buffered for each connection.
    waiting: int = 0


#: {0}, {1}: seconds between two pieces, short enough for the connection and too long for a body.
ATTACKS = (
    Attack("slow heads", "-H -i {0:.0f} -x 24"),
    Attack("slow bodies, a piece every 5 s", "-B -i 5 -x 10 -s 8192", "/echo", cut=False),
    Attack("slow bodies", "-B -i {1:.0f} -x 10 -s 8192", "/echo"),
    Attack("slow reading, 1 MiB in one piece", "-X -w 512 -y 1024 -n 5 -z 32", "/big"),
    # A connection buffers 64 KiB and the piece beyond that. A single piece is shared by all.
    Attack(
        "slow reading, 1 MiB in pieces",
        "-X -w 512 -y 1024 -n 5 -z 32",
        "/stream",
        waiting=2 * 65536,
    ),
)


@dataclass
class Manner:
    """How the server is attacked, and the limits that must hold."""

    connections: int = 1000
    attacks: tuple[Attack, ...] = ATTACKS
    options: tuple = ()  # of the server
    pauses: tuple[float, float] = (3, 40)  # for heads and for bodies
    p99: float = P99
    patience: float = 150.0  # seconds until an attack must have been cut
    endless: float = 20.0  # for one that need not be
    settled: float = 3.0  # without any of its connections

    async def run(self):
        """Run each of the attacks on a new server."""
        if TOOL is None:
            print("  skipped: there is no slowhttptest here")
            return
        alone = await self.alone()
        for attack in self.attacks:
            await self.one(attack, alone)

    async def alone(self):
        """Return the p99 latency without an attack, which measures how busy the machine is."""
        with Server(*self.options) as server:
            async with Ordinary.elsewhere(server.port) as ordinary:
                await asyncio.sleep(self.settled * 2)
            print(f"  no attack: {ordinary}")
            server.finish()
        return ordinary.within(0.99)

    async def one(self, attack, alone):
        with Server(*self.options) as server, tempfile.TemporaryFile() as log:
            memory = server.memory()
            count, url = f"{self.connections}", server.address + attack.path
            async with Ordinary.elsewhere(server.port) as ordinary:
                began = time.monotonic()
                process = subprocess.Popen(
                    [
                        # Lower the priority; a client elsewhere would not use this processor.
                        *[
                            "nice",
                            "-n",
                            "19",
                            TOOL,
                            *attack.options.format(*self.pauses).split(),
                            "-u",
                            url,
                        ],
                        *["-c", count, "-r", count, "-l", f"{self.patience:.0f}"],
                        *["-p", "10", "-v", "1"],
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                try:
                    watched = await self.watch(server, attack.cut)
                finally:
                    process.kill()
                    process.wait()
            log.seek(0)
            said = log.read().decode(errors="replace")
            end = f"cut after {watched.cut - began:.0f} s" if watched.cut else "not cut"
            print(
                f"  {attack.name}: {watched.most} connections at a time, {end}; {ordinary}; "
                f"memory {mib(memory)}, at most {mib(watched.memory)}"
            )
            check(watched.most > self.connections // 4, "no attack:", said[-1000:])
            limit = self.p99 + alone
            check(ordinary.within(0.99) < limit, "p99 is to be less than", limit, "ms")
            grown = watched.memory - memory
            most = ONCE + self.connections * (PER_CONNECTION + attack.waiting)
            check(grown < most, "memory grew by", mib(grown))
            check(watched.cut or not attack.cut, "the timeouts have not ended it")
            # Check the results of slowhttptest's own probe.
            check("Connection refused" not in said, said[-1000:])
            check(not re.search(r"available:\W+(?:\x1b\[[\d;]*m)?\s*NO", said), said[-1000:])
            await asyncio.to_thread(server.let_go)
            server.finish()

    async def watch(self, server, cut):
        """Watch the server until the attack's last connection is closed, or until a deadline."""
        watched = Watched()
        deadline = time.monotonic() + (self.patience if cut else self.endless)
        while time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            theirs = server.descriptors() - server.listen_only - OTHERS
            watched.most = max(watched.most, theirs)
            watched.memory = max(watched.memory, server.memory())
            if theirs > 0 or not watched.most:
                watched.cut = None
            elif watched.cut is None:
                watched.cut = time.monotonic()
            elif time.monotonic() - watched.cut > self.settled:
                break
        return watched


@dataclass
class Watched:
    most: int = 0  # connections of the attack at a time
    memory: int = 0
    cut: float | None = None  # the time at which the last of them was closed


#: Takes some seconds on any machine.
QUICK = Manner(
    connections=50,
    attacks=(ATTACKS[0], ATTACKS[2], ATTACKS[4]),
    options=("--timeout-head", 1, "--timeout-body", 1, "--timeout-write", 1),
    pauses=(1, 3),
    p99=2000.0,
    patience=60.0,
    settled=0.5,
)
