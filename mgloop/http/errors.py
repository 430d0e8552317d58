# SPDX-License-Identifier: GPL-2.0-only
"""What stops a server before it serves, as one line that says what to do and an exit status; and
what send() raises.

Raised by whatever reads options, imports the application, binds or starts; the command line prints
the line and exits, an embedding program gets the exception.
"""

from __future__ import annotations


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
    """send() after the client has gone; ASGI's specification asks for an OSError."""
