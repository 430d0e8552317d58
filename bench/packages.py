# SPDX-License-Identifier: GPL-2.0-only
"""Find an interpreter that has the packages a system needs: this one, or one of ``--peers``.

The search imports no package, because a package that crashes on import must not end the run.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Sequence

from .loops import interpreter


def interpreters(peers: Sequence[str]) -> list[str]:
    """Return this interpreter and those of ``--peers``. BenchError if one does not exist."""
    return [sys.executable, *(interpreter(python, "--peers") for python in peers)]


@functools.cache
def importable(python: str, modules: tuple[str, ...]) -> dict[str, str]:
    """Return module -> version for the *modules* that *python* has."""
    code = (
        "import importlib.util, importlib.metadata as m, json, sys\n"
        "dist = m.packages_distributions()\nfound = {}\n"
        "for name in sys.argv[1:]:\n"
        "    if importlib.util.find_spec(name):\n"
        "        try: found[name] = m.version(dist.get(name, [name])[0])\n"
        "        except m.PackageNotFoundError: found[name] = ''\n"
        "print(json.dumps(found))"
    )
    try:
        done = subprocess.run(
            [python, "-P", "-c", code, *modules], capture_output=True, text=True, timeout=30
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return {}


def choose(needs: Sequence[str], pythons: Sequence[str]) -> tuple[str | None, str, str]:
    """Return the first of *pythons* that has all *needs*, the versions of these packages, and "".

    Without such a Python return None, "" and a reason that names the missing packages.
    """
    lacking = {}
    for python in dict.fromkeys(pythons):
        found = importable(python, tuple(needs))
        missing = [name for name in needs if name not in found]
        if not missing:
            versions = " ".join(f"{name} {found[name]}".strip() for name in needs)
            return python, versions, ""
        lacking[python] = missing
    fewest = min(lacking.values(), key=len)
    return None, "", f"no interpreter of this run has {' and '.join(fewest)} (see --peers)"
