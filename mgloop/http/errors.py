# SPDX-License-Identifier: GPL-2.0-only
"""The exceptions of the server.

A StartError is raised when options are invalid, the application cannot be imported, an address
cannot be bound or the application's startup fails. Its text is one line that says what to do, and
it has an exit status. The command line prints the line and exits; a program that embeds the server
receives the exception. ClientDisconnected is what send() raises.
"""

from __future__ import annotations

import sys


class StartError(Exception):
    """The server cannot start. ``str()`` is one line that says what to do about it."""

    status = 1  # exit status of the command


class ConfigError(StartError, ValueError):
    """An option has an invalid value, or options have an invalid combination of values."""

    status = 2


class ApplicationError(StartError):
    """The application raised while it was imported or created. ``__cause__`` is its exception."""


class LifespanError(StartError):
    """The application's lifespan startup failed. Its message has been logged."""

    status = 3  # as uvicorn's


class ClientDisconnected(OSError):  # noqa: N818 - as uvicorn calls it
    """The client has disconnected. Raised by send(), for which ASGI requires an OSError.

    The send() of a WebSocket raises it immediately. The send() of a request first discards 100
    messages.
    """


def because_client_left(exc: BaseException) -> bool:
    """Return whether `exc` is only a consequence of the client's disconnect.

    That is the exception of send() itself, an exception raised from it, Starlette's equivalent, or
    a group of these.
    """
    seen = set()  # identities: __cause__ may form a cycle, and not every exception is hashable
    while exc.__cause__ is not None and id(exc) not in seen and not _says_so(exc):
        seen.add(id(exc))
        exc = exc.__cause__
    return _says_so(exc)


def _says_so(exc: BaseException) -> bool:
    if isinstance(exc, BaseExceptionGroup):
        return all(map(because_client_left, exc.exceptions))
    requests = sys.modules.get("starlette.requests")
    return isinstance(exc, ClientDisconnected) or (
        requests is not None and isinstance(exc, requests.ClientDisconnect)
    )
