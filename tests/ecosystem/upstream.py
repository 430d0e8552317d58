# SPDX-License-Identifier: GPL-2.0-only
"""Runs another project's own suite over two loops, and compares them test by test.

The suite comes from the project's source distribution, the package from its wheel. The loop is
swapped in by ``swap/sitecustomize.py`` in every process of the run, and the run is void unless
loops of the right class were made. What fails here but passes over the standard library's loop is
a regression, unless ``expectations`` has a line for it.
"""

import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.ecosystem import expectations
from tests.ecosystem.environments import HERE, Environments

LOOP_CLASSES = {
    "mgloop": "mgloop:Loop",
    "uvloop": "uvloop:Loop",
    "asyncio": "asyncio:SelectorEventLoop",
}


class Suite(NamedTuple):
    """How to run a project's suite: what to leave out of the sources, and pytest's arguments."""

    leave_out: str | None
    arguments: tuple[str, ...]
    expected: tuple[expectations.Expected, ...]


SUITES = {
    # Coverage and doctests examine aiohttp's sources, not the loop; two processes as this is for
    # two cores.
    "aiohttp": Suite(
        "aiohttp",
        ("-p", "no:cacheprovider", "--no-cov", "-n", "2", "--timeout=120", "tests"),
        expectations.AIOHTTP,
    ),
    "uvicorn": Suite(
        "uvicorn",
        ("-p", "no:cacheprovider", "-n", "2", "--timeout=120", "tests"),
        expectations.UVICORN,
    ),
    # Warnings are errors in anyio's configuration, and sockets that the suite itself leaves open
    # where there is no IPv6 would end the run.
    "anyio-suite": Suite(
        "src",
        ("-p", "no:cacheprovider", "-p", "no:unraisableexception", "-W", "default",
         "--timeout=120", "-k", "not trio", "tests"),
        expectations.ANYIO,
    ),
    "tornado-suite": Suite(
        "tornado",
        ("-p", "no:cacheprovider", "-p", "ecosystem_tornado", "--timeout=120",
         "-o", "python_files=*_test.py", "--pyargs", "tornado.test"),
        expectations.TORNADO,
    ),
}  # fmt: skip


#: mgloop brings a pytest plugin, of no use here; sitecustomize imports mgloop before pytest can
#: rewrite the asserts of its distribution, and pytest's warning of that would be an error in these
#: suites.
PLUGIN_OPTIONS = (
    "-p",
    "no:mgloop",
    "-W",
    "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning",
)


class SuiteError(Exception):
    """The suite could not be run, or not over the loop it was meant for."""


def _run(
    python: Path, source: Path, suite: Suite, loop: str, extra: list[str]
) -> tuple[dict[str, dict], str]:
    """What came of each test, and the name of the loops' class."""
    with tempfile.TemporaryDirectory(prefix="eco-") as scratch:
        record, counts = Path(scratch, "record"), Path(scratch, "counts")
        environment = dict(os.environ)
        for name in ("PYTHONASYNCIODEBUG", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            environment.pop(name, None)
        environment |= {
            "PYTHONPATH": str(HERE / "swap"),
            "PATH": f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}",
            "ECOSYSTEM_LOOP": LOOP_CLASSES[loop],
            "ECOSYSTEM_RECORD": str(record),
            "ECOSYSTEM_COUNTS": str(counts),
        }
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "ecosystem_record",
            "--tb=short",
            *PLUGIN_OPTIONS,
            *suite.arguments,
            *extra,
        ]
        print(f"  over {loop} ...", flush=True)
        done = subprocess.run(
            command,
            cwd=source,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            errors="replace",
        )
        if not record.exists():
            raise SuiteError(
                f"pytest over {loop} ended with {done.returncode}:\n{done.stdout[-4000:]}"
            )
        counted = counts.read_text().splitlines() if counts.exists() else []
        outcomes = {}
        class_name = counted[0].split()[1].rpartition(".")[2] if counted else ""
        for line in record.read_text().splitlines():
            entry = json.loads(line)
            outcomes[entry["id"]] = entry
        made = sum(int(line.split()[2]) for line in counted)
        if not made:
            raise SuiteError(
                f"no process made a loop of {LOOP_CLASSES[loop]}: the swap did not take, or "
                f"there was no test:\n{done.stdout[-4000:]}"
            )
        tally = Counter(entry["outcome"] for entry in outcomes.values())
        print(
            f"  over {loop}: {dict(tally)}, {made} loops of {LOOP_CLASSES[loop]} made", flush=True
        )
        return outcomes, class_name


def compare(name: str, environments: Environments, extra: list[str]) -> tuple[bool, dict]:
    """Run the suite of *name* over both loops; True when nothing is worse over ours."""
    suite = SUITES[name]
    project = name.removesuffix("-suite")
    python = environments.python(project)
    source = environments.sdist(project, suite.leave_out)
    control, control_class = _run(python, source, suite, "asyncio", extra)
    subject, subject_class = _run(python, source, suite, environments.loop, extra)
    # An id made of the class of the default loop names the same test over any loop.
    same = {
        nodeid.replace(f"-{control_class}]", f"-{subject_class}]"): nodeid for nodeid in control
    }
    subject = {same.get(nodeid, nodeid): entry for nodeid, entry in subject.items()}

    good = ("passed", "xfailed")
    worse, expected, both = [], [], []
    for nodeid, entry in control.items():
        mine = subject.get(nodeid, {"outcome": "missing", "text": "not run"})
        if entry["outcome"] in good and mine["outcome"] not in good:
            reason = next(
                (
                    line.reason
                    for line in suite.expected
                    if fnmatch.fnmatchcase(nodeid, line.pattern)
                ),
                None,
            )
            (worse if reason is None else expected).append((nodeid, mine, reason))
        elif entry["outcome"] == "failed" and mine["outcome"] == "failed":
            both.append(nodeid)
    new_failures = [
        (nodeid, entry, None)
        for nodeid, entry in subject.items()
        if nodeid not in control and entry["outcome"] == "failed"
    ]
    better = [
        nodeid
        for nodeid, entry in control.items()
        if entry["outcome"] == "failed" and subject.get(nodeid, {}).get("outcome") in good
    ]

    for nodeid, entry, _ in worse + new_failures:
        print(f"\n=== {entry['outcome'].upper()} {nodeid}\n{entry['text'][-3000:]}")
    for nodeid, _, reason in expected:
        print(f"  expected to differ: {nodeid} ({reason})")
    for nodeid in both:
        print(f"  fails over both: {nodeid}")
    for nodeid in better:
        print(f"  fails over the standard library's loop only: {nodeid}")
    ok = not worse and not new_failures
    summary = {
        "control": dict(Counter(entry["outcome"] for entry in control.values())),
        environments.loop: dict(Counter(entry["outcome"] for entry in subject.values())),
        "worse": [nodeid for nodeid, *_ in worse + new_failures],
        "expected": [nodeid for nodeid, *_ in expected],
        "fail over both": both,
        "fail over the standard loop only": better,
        "python": sys.version.split()[0],
    }
    print(
        f"{'ok' if ok else 'NOT OK'}: {name} over {environments.loop}: "
        f"{len(worse + new_failures)} worse than over the standard library's loop, "
        f"{len(expected)} expected to differ, "
        f"{len(both)} fail over both, {len(better)} over the standard library's loop only",
        flush=True,
    )
    return ok, summary
