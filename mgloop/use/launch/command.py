# SPDX-License-Identifier: GPL-2.0-only
"""`mgloop run`, which executes a command with mgloop in its environment."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from .. import interpreter

USAGE = """\
usage: mgloop run [--streams] [-m MODULE | -c CODE | SCRIPT.py | PROGRAM] [ARGUMENT ...]

Run an unmodified program on mgloop: a script, a module or code as with the python command, or a
program on PATH that is written in Python (mgloop run uvicorn app:app). Its child processes use
mgloop as well. Without arguments, start the interactive interpreter.

options:
  --streams  use mgloop's compiled streams in the place of asyncio's
"""

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")


def main(arguments: Sequence[str]) -> int:
    """Execute the command. Return an exit status only if that fails or --help was given."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if sys.flags.ignore_environment or sys.flags.no_site:
        return _complain(
            "Python options -E, -I and -S are not supported: the program would not find mgloop", 2
        )
    streams = list(arguments[:1]) == ["--streams"]
    program, command = _command(list(arguments[streams:]))
    if program is None:
        return _complain(f"no such script or program: {command[0]!r}", 127)
    # execve() discards buffered output, for example of a sitecustomize module. The streams are None
    # if the process was started with closed descriptors.
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError):
            stream.flush()
    try:
        os.execve(program, command, _environment(streams))
    except OSError as exc:
        return _complain(f"cannot execute {program}: {exc.strerror}", 126)


def _complain(message: str, status: int) -> int:
    print(f"mgloop run: {message}", file=sys.stderr)
    return status


def _command(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return (path of the executable, its argument list); the path is None if not found."""
    if not arguments or arguments[0].startswith("-") or _is_script(arguments[0]):
        return sys.executable, [sys.executable, *interpreter.options(), *arguments]
    return shutil.which(arguments[0]), arguments


def _is_script(path: str) -> bool:
    return os.path.isdir(path) or (
        os.path.exists(path) and (path.endswith((".py", ".pyz")) or not os.access(path, os.X_OK))
    )


def _environment(streams: bool) -> dict[str, Any]:
    paths = [SITE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    ours = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    if streams:
        ours["MGLOOP_STREAMS"] = "1"
    return os.environ | ours
