# SPDX-License-Identifier: GPL-2.0-only
"""Run a server in this process, in threads, or under a supervisor, depending on the configuration.

The command line and mgloop.serve() share this code. It returns after a graceful shutdown, and
raises StartError if the server could not start.
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

# Seconds that the process of the command has to exit after the server has stopped.
_EXIT_TIMEOUT = 10.0

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def loop_factory(config: Config) -> LoopFactory:
    """Return the function that creates the event loops of `config`. Raises StartError."""
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
    """Log the banner: versions, event loop, processes and addresses."""
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
    """Serve until a signal stops the server. Raises StartError.

    on_end: called when a server without a supervisor has stopped.
    """
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
    """Force the process to exit if it does not do so within 10 seconds.

    At exit Python waits for non-daemon threads and child processes of the application, and for jobs
    in executors. uvicorn raises the signal again, which ends its process in that case; a supervisor
    kills its workers.
    """
    threading.Thread(target=_exit_late, name="mgloop-exit", daemon=True).start()


def _exit_late() -> None:
    time.sleep(_EXIT_TIMEOUT)
    logger.warning(
        "The process did not exit within %g seconds after the server stopped, because a thread or a"
        " child process of the application is still running. Forcing exit.",
        _EXIT_TIMEOUT,
    )
    os._exit(0)


def make_server(config: Config, **options: Any) -> Any:
    """Return a Server, or a ThreadedServer if several threads are configured."""
    from .server import Server
    from .threads import ThreadedServer

    return ThreadedServer(config, **options) if config.threads > 1 else Server(config, **options)


def run_loop(factory: LoopFactory, main: Callable[[], Any]) -> Any:
    """Run main() as asyncio.run() does, on a loop that `factory` creates."""
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


def report(exc: StartError) -> int:
    """Log why the server could not start and return the exit status.

    The log has one line, preceded by the traceback of an exception of the application.
    """
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
    """Return whether a traceback frame belongs to the server or importlib, not the application."""
    return os.path.dirname(filename) in (
        os.path.dirname(__file__),
        os.path.dirname(importlib.__file__),
    ) or filename.startswith("<frozen importlib")


def serve(app: Any, **options: Any) -> None:
    """Serve an ASGI application until SIGINT or SIGTERM.

    app: the application, or an import string such as "pkg.mod:app", which several workers require.
    options: see Config. Logging is configured as by the command line. Raises StartError, and
    ConfigError for an invalid option.
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
