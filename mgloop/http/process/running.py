# SPDX-License-Identifier: GPL-2.0-only
"""Run a server in this process, in threads, or under a supervisor, depending on the configuration.

The command line and mgloop.serve() share this code. It returns after a graceful shutdown, and
raises StartError if the server could not start.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import logs
from ..config import OPTIONS, Config, guess
from ..errors import ConfigError
from ..importing import look_in_app_dir
from ..logs import logger
from .loops import loop_factory, run_loop
from .threads import make_server

# Seconds that the process of the command has to exit after the server has stopped.
_EXIT_TIMEOUT = 10.0


def run(config: Config, *, on_end: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal stops the server. Raises StartError.

    on_end: called when a server without a supervisor has stopped.
    """
    if config.supervised:
        # Imported only for --workers and --reload, because it takes a third of the import time.
        from .supervisor import supervise

        supervise(config)
    else:
        run_loop(loop_factory(config), lambda: _serve(config, on_end))


async def _serve(config: Config, on_end: Callable[[], None]) -> None:
    server = make_server(config)
    await server.serve(on_start=lambda: logs.announce(config, server.urls))
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


def serve(app: Any, **options: Any) -> None:
    """Serve an ASGI or WSGI application until SIGINT or SIGTERM.

    app: the application, or an import string such as "pkg.mod:app", which several workers require.
    options: see Config. Logging is configured as by the command line. Raises StartError, and
    ConfigError for an invalid option.
    """
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
