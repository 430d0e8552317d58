# SPDX-License-Identifier: GPL-2.0-only
"""What stops a server before it serves, as one line that says what to do and an exit status; and
what send() raises.

Raised by whatever reads options, imports the application, binds or starts; the command line prints
the line and exits, an embedding program gets the exception.
"""

from __future__ import annotations

import sys


class StartError(Exception):
    """The server cannot start; ``str()`` is one line that says what to do about it."""

    status = 1  # of the process that the command line ends


class ConfigError(StartError, ValueError):
    """An option has a value, or options have a combination, that cannot be."""

    status = 2


class ApplicationError(StartError):
    """The application itself raised while it was imported or made: ``__cause__`` is what."""


class LifespanError(StartError):
    """The application's start-up failed; what it had to say has been logged."""

    status = 3  # as uvicorn's


class ClientDisconnected(OSError):  # noqa: N818 - as uvicorn calls it
    """Raised by send() after the client has disconnected; ASGI demands an OSError.

    A WebSocket's send() raises it at once, that of a request after it has discarded 100 messages.
    """


def because_client_left(exc: BaseException) -> bool:
    """Whether the application raised `exc` for no other reason: send()'s exception itself, what was
    raised from it, a group of these, or what Starlette makes of it."""
    seen = set()  # whoever sets __cause__ may make a ring of them, and not all can be hashed
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
