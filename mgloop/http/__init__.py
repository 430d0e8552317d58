# SPDX-License-Identifier: GPL-2.0-only
"""The ASGI server of `mgloop serve`, which is native code from the socket to the application.

    mgloop serve pkg.mod:app --port 8000                 # the command
    mgloop.serve(app, port=8000)                         # the same from a program
    async with mgloop.http.Server(Config(app=app)):      # inside a program or a test

No other part of mgloop imports this package, so a program that only uses the loop does not load it.
"""

from __future__ import annotations

from .config import Config
from .errors import (
    ApplicationError,
    ClientDisconnected,
    ConfigError,
    LifespanError,
    StartError,
)
from .process.running import serve
from .server import Server

__all__ = [
    "ApplicationError",
    "ClientDisconnected",
    "Config",
    "ConfigError",
    "LifespanError",
    "Server",
    "StartError",
    "serve",
]
