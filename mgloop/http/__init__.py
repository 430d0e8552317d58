# SPDX-License-Identifier: GPL-2.0-only
"""The ASGI server of `mgloop serve`, which is native code from the socket to the application.

    mgloop serve pkg.mod:app --port 8000                 # the command
    mgloop.serve(app, port=8000)                         # the same from a program
    async with mgloop.http.Server(Config(app=app)):      # inside a program or a test

mgloop.http.HTTPHandler, HTTPRequest and HTTPResponse are for compiled handlers, which programs in
Cython `cimport` from this package.

No other part of mgloop imports this package, so a program that only uses the loop does not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .wire._handler import HTTPHandler_1 as HTTPHandler
    from .wire._handler import HTTPRequest_1 as HTTPRequest
    from .wire._handler import HTTPResponse_1 as HTTPResponse

__all__ = [
    "ApplicationError",
    "ClientDisconnected",
    "Config",
    "ConfigError",
    "HTTPHandler",
    "HTTPRequest",
    "HTTPResponse",
    "LifespanError",
    "Server",
    "StartError",
    "serve",
]


def __getattr__(name: str) -> Any:
    # Imported on first use, because few servers use a compiled handler.
    if name in ("HTTPHandler", "HTTPRequest", "HTTPResponse"):
        from .wire import _handler

        return getattr(_handler, f"{name}_1")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
