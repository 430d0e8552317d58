# SPDX-License-Identifier: GPL-2.0-only
"""Name event loops, and find out which of them are installed.

A loop is ``module:factory``, with short names for the usual ones, or a wrapped loop:
``module:wrapper(module:factory)``. An optional label and an optional interpreter,
``label=module:factory@/path/to/python``, let two builds of one loop take turns in a run. A
``?NAME=VALUE`` at the end sets an environment variable. The import happens in a child process: a
loop that crashes on import produces a sentence instead of ending the run, and the parent's own
imports cannot influence the measurement.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import BenchError

# The loops that `run` compares by default, in the order of the columns.
DEFAULT_LOOPS = ("asyncio", "uvloop", "rloop", "zuvloop", "mgloop")

# Short name -> spec. A loop without a short name is given by its full spec.
KNOWN = {
    "asyncio": "asyncio:SelectorEventLoop",
    "uvloop": "uvloop:new_event_loop",
    "rloop": "rloop:new_event_loop",
    "mgloop": "mgloop:new_event_loop",
    "zuvloop": "zuvloop:new_event_loop",
    "zloop": "zloop:new_event_loop",
    "rsloop": "rsloop:new_event_loop",
    "winloop": "winloop:new_event_loop",
    "aiofastnet/asyncio": "aiofastnet:loop_factory(asyncio:SelectorEventLoop)",
    "aiofastnet/uvloop": "aiofastnet:loop_factory(uvloop:new_event_loop)",
    "aiofastnet/mgloop": "aiofastnet:loop_factory(mgloop:new_event_loop)",
}
# The interpreters that a loop's distribution supports; shown when the loop is not installed.
FOR = {"zuvloop:new_event_loop": "CPython 3.14 and later"}
# The suites of a wrapped loop: it differs from the loop that it wraps in its transports only.
TRANSPORT_SUITES = frozenset({"echo", "http", "tls", "scale"})

CHILD = Path(__file__).with_name("child.py")
# The preferred references, in this order, when a run has to choose one.
REFERENCES = ("uvloop", "asyncio")


@dataclass(frozen=True)
class Loop:
    """One event loop to measure. ``control_of`` names the loop that this one merely repeats.

    ``count`` loops serve together, each in its own thread or process, as ``shape`` says.
    """

    name: str
    spec: str
    python: str = sys.executable
    version: str = ""
    control_of: str | None = None
    environment: str = ""
    count: int = 1
    shape: str = "threads"

    def takes_part(self, suite: str) -> bool:
        """Return whether the loop has results of its own in *suite*."""
        return "(" not in self.spec or suite in TRANSPORT_SUITES

    def command(self, config: dict) -> list[str]:
        """Return the command line of a child that runs on this loop."""
        together = {"loops": self.count, "shape": self.shape}
        command = child_command({**config, "loop": self.spec, "together": together}, self.python)
        return ["env", self.environment, *command] if self.environment else command


def child_command(config: dict, python: str = sys.executable) -> list[str]:
    """Return the command for ``bench/child.py``, with installed packages before the source tree."""
    return [python, "-P", "-X", "utf8", str(CHILD), json.dumps(config)]


def interpreter(name: str, purpose: str) -> str:
    """Return the full path of the Python *name*. BenchError if it does not exist.

    Symbolic links are kept, because a virtual environment depends on them.
    """
    found = shutil.which(name)
    if found is None:
        raise BenchError(f"no interpreter at {name} for {purpose}")
    return os.path.abspath(found)


def parse(text: str) -> Loop:
    """Return the loop for ``[label=](short name | module:factory)[@python][?NAME=VALUE]``.

    BenchError if it is unknown.
    """
    named, _, environment = text.partition("?")
    label, equals, rest = named.partition("=")
    if not equals:
        label, rest = "", named
    spec, _, python = rest.partition("@")
    if ":" not in spec:
        if spec not in KNOWN:
            raise BenchError(
                f"unknown loop {spec!r}: use one of {', '.join(KNOWN)}, or module:factory"
            )
        label, spec = label or spec, KNOWN[spec]
    if python:
        python = interpreter(python, f"the loop {text!r}")
    short = next((name for name, known in KNOWN.items() if known == spec), spec)
    return Loop(label or short, spec, python or sys.executable, environment=environment)


def probe(loop: Loop) -> tuple[Loop | None, str]:
    """Return the loop with its version if it can be created; otherwise None and the reason."""
    try:
        done = subprocess.run(
            loop.command({"role": "probe"}), capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return None, str(exc)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            answer = json.loads(line)
            if "version" in answer:
                return replace(loop, version=answer["version"]), ""
            suits = f" (it is for {FOR[loop.spec]})" if loop.spec in FOR else ""
            return None, answer.get("error", "unknown reason") + suits
    last = done.stderr.strip().splitlines()
    return None, last[-1] if last else f"exit status {done.returncode}"


def available(names: Sequence[str]) -> tuple[list[Loop], dict[str, str]]:
    """Return the loops of *names* that are installed, and the reasons why the others are missing.

    A loop without a short name that cannot be imported is a mistake and raises BenchError. A loop
    with a short name that is not installed is only left out.
    """
    found, missing = [], {}
    for name in names:
        loop = parse(name)
        if any(loop.name == other.name for other in found):
            raise BenchError(f"the loop name {loop.name!r} is given twice: label one, NAME={name}")
        probed, reason = probe(loop)
        if probed is not None:
            found.append(probed)
        elif loop.spec in KNOWN.values():
            missing[loop.name] = reason
        else:
            raise BenchError(f"unknown loop {name!r}: {reason}")
    if not found:
        raise BenchError(
            "none of the loops is installed: "
            + "; ".join(f"{name} ({reason})" for name, reason in missing.items())
        )
    return found, missing


def choose_reference(found: Sequence[Loop], wanted: str | None = None) -> Loop:
    """Return the loop that ratios are relative to: *wanted*, or uvloop, asyncio, or the first."""
    for name in (wanted,) if wanted else (*REFERENCES, found[0].name):
        for loop in found:
            if loop.name == name:
                return loop
    if wanted:
        names = ", ".join(loop.name for loop in found)
        raise BenchError(f"the reference {wanted!r} is not among the loops of this run ({names})")
    return found[0]


def control(reference: Any, twin: str | None = None) -> Any:
    """Return the reference (a loop or server) under a second name: any difference is noise.

    With *twin*, use that loop instead, which is known to do the same. BenchError if the loop is
    not installed.
    """
    if twin is None:
        return replace(reference, name=f"{reference.name}#2", control_of=reference.name)
    found, _missing = available([twin])
    return replace(found[0], control_of=reference.name)


def together(alone: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Return each loop (or server) alone, then *counts* of it in threads and in processes."""
    return [
        one
        for loop in alone
        for one in (
            loop,
            *(
                replace(loop, name=f"{loop.name} {count}{short}", count=count, shape=shape)
                for count in counts
                for shape, short in (("threads", "thr"), ("processes", "proc"))
            ),
        )
    ]
