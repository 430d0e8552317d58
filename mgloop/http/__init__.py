# SPDX-License-Identifier: GPL-2.0-only
"""`mgloop serve`: an ASGI server, compiled from the socket to the application.

    mgloop serve pkg.mod:app --port 8000                 # the command
    mgloop.serve(app, port=8000)                         # the same from a program
    async with mgloop.http.Server(Config(app=app)):      # within one, and in tests

A package of its own, which nothing else of mgloop imports: a loop costs nothing for it.
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
from .running import serve
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
