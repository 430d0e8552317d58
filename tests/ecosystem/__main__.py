# SPDX-License-Identifier: GPL-2.0-only
"""The command line: ``python -m tests.ecosystem [TARGET ...]``, by default all of them.

Exit status: 0 when every target was run and nothing is worse than over the standard library's loop;
1 when something is; 2 when a target could not be run (a server or a package is missing). A suite
whose sources have to be put in place by hand is left out with a sentence where they are not.
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

from tests.ecosystem import servers, upstream
from tests.ecosystem.environments import HERE, ROOT, Environments, MissingError, SetupError

#: Program target -> the server it needs.
PROGRAMS = {
    "asyncpg": servers.postgres,
    "psycopg": servers.postgres,
    "redis": servers.redis,
} | dict.fromkeys(
    ("websockets", "httpx", "kosoku", "gunicorn_requests", "anyio", "grpcio", "tornado",
     "aiodns", "aiofiles", "aiofastnet", "threads", "many_loops", "multiprocessing",
     "frameworks", "selecting", "sse_starlette", "served_processes", "gevent", "eventlet"),
    nullcontext,
)  # fmt: skip

#: Programs with requirements of their own.
REQUIREMENTS = {
    "aiofastnet": "aiofastnet",
    "frameworks": "frameworks",
    "selecting": "selecting",
    "sse_starlette": "sse_starlette",
    "served_processes": "sse_starlette",
    "gevent": "greenlets",
    "eventlet": "greenlets",
}

#: Programs that read another project's source distribution.
SOURCES = {"gunicorn_requests": "gunicorn"}

#: Of a program. The longest is kosoku, a quarter of an hour on two cores that do other things too.
TIME_LIMIT = 1800


def run_program(name: str, environments: Environments) -> tuple[bool, dict]:
    """Run one program over its server; its output is printed as it comes."""
    python = environments.python(REQUIREMENTS.get(name, "programs"))
    with PROGRAMS[name]() as variables:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
        }
        environment |= variables or {}
        if name in SOURCES:
            source = environments.source(SOURCES[name], leave_out=None, overlay=False)
            environment["ECOSYSTEM_SOURCES"] = str(source)
        environment["ECOSYSTEM_LOOP"] = upstream.LOOP_CLASSES[environments.loop]
        command = [str(python), "-W", "default", str(HERE / "programs" / f"{name}_program.py")]
        try:
            status = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, timeout=TIME_LIMIT, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"no end within {TIME_LIMIT} s"
    print(
        f"{'ok' if status == 0 else f'NOT OK ({status})'}: {name} over {environments.loop}",
        flush=True,
    )
    return status == 0, {"status": status}


def main(argv: list[str] | None = None) -> int:
    """Run the targets; returns the exit status."""
    targets = [*upstream.SUITES, *PROGRAMS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.ecosystem", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "target", nargs="*", default=["all"], help=f"all, or of: {', '.join(targets)}"
    )
    parser.add_argument("--loop", default="mgloop", choices=list(upstream.LOOP_CLASSES))
    parser.add_argument(
        "--venvs",
        type=Path,
        default=ROOT / "build" / "ecosystem",
        metavar="DIR",
        help="where the virtual environments are made (default build/ecosystem)",
    )
    parser.add_argument(
        "--wheel",
        type=Path,
        default=None,
        metavar="FILE",
        help="install this wheel of mgloop instead of building one from these sources",
    )
    parser.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="write a summary to FILE"
    )
    parser.add_argument(
        "--pytest",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="ARG",
        help="the rest goes to pytest (suites only)",
    )
    arguments = parser.parse_args(argv)
    chosen = targets if "all" in arguments.target else arguments.target
    unknown = [name for name in chosen if name not in targets]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}")

    environments = Environments(arguments.venvs, arguments.loop, arguments.wheel)
    summary: dict[str, dict] = {}
    worse, impossible, skipped = [], [], []
    for name in chosen:
        print(f"--- {name}", flush=True)
        try:
            if name in upstream.SUITES:
                ok, summary[name] = upstream.compare(name, environments, arguments.pytest)
            else:
                ok, summary[name] = run_program(name, environments)
        except MissingError as exc:
            print(f"SKIPPED: {name}: {exc}", flush=True)
            summary[name] = {"skipped": str(exc)}
            skipped.append(name)
        except (SetupError, servers.ServerError, upstream.SuiteError) as exc:
            print(f"NOT RUN: {name}: {exc}", file=sys.stderr, flush=True)
            summary[name] = {"not run": str(exc)}
            impossible.append(name)
        else:
            if not ok:
                worse.append(name)
    if arguments.json:
        arguments.json.write_text(json.dumps(summary, indent=1) + "\n")
    good = len(chosen) - len(worse) - len(impossible) - len(skipped)
    print(
        f"{good} of {len(chosen)} targets ok over {arguments.loop}"
        + (f"; worse: {', '.join(worse)}" if worse else "")
        + (f"; skipped: {', '.join(skipped)}" if skipped else "")
        + (f"; not run: {', '.join(impossible)}" if impossible else "")
    )
    return 2 if impossible else 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
