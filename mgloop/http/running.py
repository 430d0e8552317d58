# SPDX-License-Identifier: GPL-2.0-only
"""From a configuration to a process that serves: in this one, in threads, or under a supervisor.

What the command line and mgloop.serve() have in common. Returns when the server has ended in good
order, raises StartError when it could not start.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from .config import OPTIONS, Config, guess
from .errors import ApplicationError, ConfigError, StartError
from .importing import import_from_string, look_in_app_dir
from .logs import logger, writes_json

# Seconds that the process of the command has for its exit when the server has ended.
_EXIT = 10.0

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def loop_factory(config: Config) -> LoopFactory:
    """What makes the loops of `config`."""
    if config.loop in ("auto", "mgloop"):
        import mgloop

        return mgloop.new_event_loop
    if config.loop == "asyncio":
        return asyncio.SelectorEventLoop
    factory = import_from_string(config.loop)
    if not callable(factory):
        raise StartError(f"loop: {config.loop!r} is not callable: expected a function or class")
    return factory  # type: ignore[no-any-return]


def announce(config: Config, urls: list[str]) -> None:
    """Log the banner: where, and on what."""
    from mgloop import __version__

    name = "mgloop" if config.loop == "auto" else config.loop
    processes = f"{config.workers} worker{'s' * (config.workers > 1)}"
    threads = f" of {config.threads} threads" if config.threads > 1 else ""
    logger.info(
        "mgloop %s on Python %s (loop: %s; %s%s%s)",
        __version__,
        platform.python_version(),
        name,
        processes,
        threads,
        "; reload" if config.reload else "",
    )
    logger.info("Serving on %s (Press CTRL+C to quit)", ", ".join(urls))


def run(config: Config, *, on_end: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal ends it. on_end: called when a server without a supervisor has ended."""
    if config.supervised:
        from .supervisor import supervise

        supervise(config)
    else:
        run_loop(loop_factory(config), lambda: _serve(config, on_end))


async def _serve(config: Config, on_end: Callable[[], None]) -> None:
    server = make_server(config)
    await server.serve(on_start=lambda: announce(config, server.urls))
    on_end()


def exit_in_time() -> None:
    """End the process by force if it does not exit: Python waits for threads and child processes
    of the application that are not daemonic, and for what runs in executors. uvicorn's process ends
    there by the signal that it raises again, a supervisor kills its workers."""
    threading.Thread(target=_exit_late, name="mgloop-exit", daemon=True).start()


def _exit_late() -> None:
    time.sleep(_EXIT)
    logger.warning(
        "The process did not exit within %g seconds after the server stopped, because a thread or a"
        " child process of the application is still running. Forcing exit.",
        _EXIT,
    )
    os._exit(0)


def make_server(config: Config, **options: Any) -> Any:
    """A Server, or a ThreadedServer if there are to be several threads."""
    from .server import Server
    from .threads import ThreadedServer

    return ThreadedServer(config, **options) if config.threads > 1 else Server(config, **options)


def run_loop(factory: LoopFactory, main: Callable[[], Any]) -> Any:
    """asyncio.run() with a loop of `factory`."""
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


def report(exc: StartError) -> int:
    """Say why there is no server: one line, and an application's own traceback; exit status."""
    cause = exc.__cause__
    if isinstance(exc, ApplicationError) and cause is not None:
        frames = cause.__traceback__
        while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        if writes_json():
            logger.error("%s", exc, exc_info=(type(cause), cause, frames))
            return exc.status
        traceback.print_exception(type(cause), cause, frames)
    if logger.handlers:
        logger.error("%s", exc)
    else:
        print(f"mgloop serve: {exc}", file=sys.stderr)
    return exc.status


def _is_ours(filename: str) -> bool:
    """Whether a traceback's frame is between the command and the application."""
    return os.path.dirname(filename) in (
        os.path.dirname(__file__),
        os.path.dirname(importlib.__file__),
    ) or filename.startswith("<frozen importlib")


def serve(app: Any, **options: Any) -> None:
    """Serve an ASGI application until SIGINT or SIGTERM.

    app: the application, or "pkg.mod:app", which several workers need. options: see Config.
    Logging is set up as by the command line. Raises StartError (ConfigError for an option).
    """
    from . import logs

    if asyncio._get_running_loop() is not None:
        raise RuntimeError(
            "serve() cannot be called from a running event loop: use mgloop.http.Server there; in"
            " the module that is served, call serve() under if __name__ == '__main__'"
        )
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"unknown option {name!r}{guess(name)}")
    config = Config(app=app, **options)
    look_in_app_dir(config)
    logs.configure(config)
    run(config)
