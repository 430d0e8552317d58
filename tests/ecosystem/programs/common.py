# SPDX-License-Identifier: GPL-2.0-only
"""Shared parts of the programs: the loop that they run on, and the output of their findings.

A program is a script; it exits with a traceback and status 1 when something is not as it should be.
``ECOSYSTEM_LOOP`` names the loop as ``module:class``.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any


def loop_class() -> type[asyncio.AbstractEventLoop]:
    """The class named by ECOSYSTEM_LOOP."""
    module_name, _, class_name = os.environ["ECOSYSTEM_LOOP"].partition(":")
    return getattr(importlib.import_module(module_name), class_name)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run *main* on a loop of ``loop_class()``; unhandled errors are fatal.

    An exception that ends up in the loop's exception handler would otherwise only be a log
    line.
    """
    unhandled: list[dict] = []
    with asyncio.Runner(loop_factory=loop_class()) as runner:
        loop = runner.get_loop()
        if type(loop) is not loop_class():
            raise SystemExit(f"made a {type(loop)} instead of {loop_class()}")

        def handler(loop: asyncio.AbstractEventLoop, context: dict) -> None:
            unhandled.append(context)
            loop.default_exception_handler(context)

        loop.set_exception_handler(handler)
        result = runner.run(main)
    if unhandled:
        raise SystemExit(
            f"{len(unhandled)} errors reached the loop's exception handler: "
            f"{unhandled[0].get('message')}: {unhandled[0].get('exception')!r}"
        )
    return result


def say(text: str) -> None:
    """Print one finding, indented, and flush the output."""
    print(f"  {text}")
    sys.stdout.flush()


def expect(condition: bool, what: str) -> None:
    """Exit with an error unless *condition* holds. Not ``assert``, which -O removes."""
    if not condition:
        raise SystemExit(f"not so: {what}")


def server(app: str, *options: str, log_level: str = "critical") -> list[str]:
    """What serves *app*: mgloop's own, which logs from *log_level* on, where the loop is mgloop's,
    else uvicorn, the control, to whose log what breaks the rules is a traceback."""
    shared = [app, "--lifespan", "off", "--no-access-log", *options]
    if loop_class().__module__.startswith("mgloop"):
        return [sys.executable, "-m", "mgloop", "serve", *shared, "--log-level", log_level]
    loop = os.environ["ECOSYSTEM_LOOP"]
    return [sys.executable, "-m", "uvicorn", *shared, "--log-level", "critical", "--loop", loop]


@contextlib.contextmanager
def started(*command: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """Start a server of this folder with a listener that it inherits; yield its process and port.

    A connection that the server has not accepted yet waits in the kernel. The process is the
    leader of a session of its own, in which ``session()`` finds its children.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        process = subprocess.Popen(
            [*command, "--fd", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            cwd=Path(__file__).parent,
            start_new_session=True,
        )
        try:
            yield process, listener.getsockname()[1]
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                for pid in session(process.pid):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def serving(*command: str) -> Iterator[int]:
    """Start a server as ``started()`` does, and yield its port."""
    with started(*command) as (process, port):
        yield port
        expect(process.poll() is None, "the server is still there")


def session(leader: int) -> list[int]:
    """Return the processes that are in the session of *leader* and not yet reaped."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # The name of the program, in parentheses, may have blanks.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                state, member = fields[0], int(fields[3])
                if member == leader and state != "Z":
                    found.append(int(entry.name))
    return found


def open_descriptors() -> int:
    """How many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
