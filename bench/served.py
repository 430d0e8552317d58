# SPDX-License-Identifier: GPL-2.0-only
"""The servers of the suites asgi and wsgi, and which of them this machine has.

A server takes the place that a loop has in the other suites: it has a name, a version, possibly a
control, and a command that starts it in a child process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import loops, packages
from .errors import BenchError
from .registry import Workload

SHAPES = {"threads": "--threads", "processes": "--workers"}


@dataclass(frozen=True)
class Server:
    """One way to serve. ``python -m`` runs ``module``; ``needs`` lists the required packages.

    An ASGI server has ``count`` loops, in threads or processes as ``shape`` says. One with more
    than one loop takes part only where it is named. A WSGI server runs the application in
    ``threads`` threads, or in that of its loop if this is 0.
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
    suite: str = "asgi"
    threads: int = 0

    @property
    def options(self) -> list[str]:
        """Return the command line's options for several loops."""
        return [SHAPES[self.shape], str(self.count)] if self.shape else []

    @property
    def spec(self) -> str:
        """Return the description of the server's command for the results file."""
        command = " ".join(("python -m", self.module, *self.options))
        if self.threads:
            return f"{command}, {self.threads} threads"
        return f"{command}, {self.loop}" if self.loop else command

    def takes_part(self, suite: str) -> bool:
        """Return whether servers are measured in *suite*; the counterpart of Loop.takes_part()."""
        return suite == self.suite

    def command(self, config: dict) -> list[str]:
        """Return the command line of a child in which the server runs."""
        config = {"access_log": False, **config, "server": self.module, "options": self.options}
        config.setdefault("threads", self.threads)
        if self.loop:
            config["server_loop"] = self.loop
        return loops.child_command(config, self.python)


def available(
    every: Sequence[Server],
    usual: Sequence[Server],
    names: Sequence[str],
    peers: Sequence[str],
    *,
    control: bool,
) -> tuple[list[Server], dict[str, str]]:
    """Return the servers of *names* that this run can start, and the reasons for the others.

    *every*: the servers that can be named; *usual*: the candidates without names. With *control*,
    the list contains the reference a second time, after itself. BenchError if no server remains.
    """
    for name in names:
        if name not in {server.name for server in every}:
            raise BenchError(
                f"unknown server {name!r}: use one of {', '.join(s.name for s in every)}"
            )
    pythons = packages.interpreters(peers)
    found, missing = [], {}
    for server in every if names else usual:
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
