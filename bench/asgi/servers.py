# SPDX-License-Identifier: GPL-2.0-only
"""The ASGI servers, and which of them this machine has.

A server takes the place that a loop has in the other suites: it has a name, a version, possibly a
control, and a command that starts it in a child process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .. import loops, packages
from ..errors import BenchError
from ..registry import ASGI_REFERENCE, Workload

SHAPES = {"threads": "--threads", "processes": "--workers"}


@dataclass(frozen=True)
class Server:
    """One way to serve. ``python -m`` runs ``module``; ``needs`` lists the required packages.

    The server has ``count`` loops, in threads or processes as ``shape`` says. A server with more
    than one loop takes part only where it is named.
    """

    name: str
    module: str
    needs: tuple[str, ...]
    loop: str = ""
    count: int = 1
    shape: str = ""
    python: str = sys.executable
    version: str = ""
    control_of: str | None = None

    @property
    def options(self) -> list[str]:
        """Return the command line's options for several loops."""
        return [SHAPES[self.shape], str(self.count)] if self.shape else []

    @property
    def spec(self) -> str:
        """Return the description of the server's command for the results file."""
        command = " ".join(("python -m", self.module, *self.options))
        return f"{command}, {self.loop}" if self.loop else command

    def takes_part(self, suite: str) -> bool:
        """Return whether servers are measured in *suite*; the counterpart of Loop.takes_part()."""
        return suite == "asgi"

    def command(self, config: dict) -> list[str]:
        """Return the command line of a child in which the server runs."""
        config = {"access_log": False, **config, "server": self.module, "options": self.options}
        if self.loop:
            config["server_loop"] = self.loop
        return loops.child_command(config, self.python)


# In the order of the columns.
KNOWN = (
    Server(ASGI_REFERENCE, "uvicorn", ("uvicorn", "httptools", "uvloop", "websockets")),
    Server("mgloop serve", "mgloop", ("mgloop",)),
    Server(
        "uvicorn/mgloop",
        "uvicorn",
        ("uvicorn", "httptools", "mgloop", "websockets"),
        loop="mgloop:new_event_loop",
    ),
    Server("granian", "granian", ("granian", "uvloop")),
    Server("hypercorn", "hypercorn", ("hypercorn", "uvloop")),
)


def every() -> list[Server]:
    """Return all servers that can be named: the known ones, and mgloop's with two loops."""
    return [
        one
        for server in KNOWN
        for one in (loops.together([server], [2]) if server.module == "mgloop" else [server])
    ]


def available(
    names: Sequence[str], peers: Sequence[str], *, control: bool
) -> tuple[list[Server], dict[str, str]]:
    """Return the servers of *names* that this run can start, and the reasons for the others.

    Without names, all known servers are candidates. With *control*, the list contains the
    reference a second time, after itself. BenchError if no server remains.
    """
    candidates = every() if names else KNOWN
    for name in names:
        if name not in {server.name for server in candidates}:
            raise BenchError(
                f"unknown server {name!r}: use one of {', '.join(s.name for s in candidates)}"
            )
    pythons = packages.interpreters(peers)
    found, missing = [], {}
    for server in candidates:
        if names and server.name not in names:
            continue
        python, version, reason = packages.choose(server.needs, pythons)
        if python is None:
            missing[server.name] = reason
        else:
            found.append(replace(server, python=python, version=version))
    if not found:
        raise BenchError(
            "none of the servers is installed: "
            + "; ".join(f"{name} ({reason})" for name, reason in missing.items())
        )
    if control:
        found.insert(1, loops.control(found[0]))
    return found, missing


def related(workload: Workload, servers: Sequence[Server]) -> Workload:
    """Return *workload* relative to the first of *servers* if its own reference is missing."""
    if workload.reference in {server.name for server in servers}:
        return workload
    return replace(workload, reference=servers[0].name)
