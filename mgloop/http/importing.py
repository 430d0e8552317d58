# SPDX-License-Identifier: GPL-2.0-only
"""The import of "pkg.mod:app" as an ASGI 3 callable, or as a WSGI application.

A mistake in the import string is reported in one line (StartError). An exception that the
application raises while it is imported keeps its traceback (ApplicationError.__cause__). Runs once
per process.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from .config import Config
from .errors import ApplicationError, StartError

App = Callable[..., Awaitable[None]]

logger = logging.getLogger("mgloop.http")


@dataclasses.dataclass(frozen=True)
class WsgiApp:
    """A WSGI application. The server calls it with environ and start_response."""

    call: Callable[..., Iterable[bytes]]


def load(config: Config) -> App | WsgiApp:
    """Import or create the application of `config`.

    Return it as an ASGI 3 callable, or as a WsgiApp. Raises StartError.
    """
    app = config.app
    name = repr(app)
    look_in_app_dir(config)
    if isinstance(app, str):
        app = import_from_string(app)
    if config.factory or _is_factory(app):
        app = _make(app, name, announced=config.factory)
    if not callable(app):
        raise StartError(f"{name} is not callable: expected an ASGI or WSGI application")
    interface = interface_of(app) if config.interface == "auto" else config.interface
    config.check_interface(interface)
    if interface == "asgi2":
        return _from_asgi2(app)
    if interface == "wsgi":
        return WsgiApp(app)
    return app  # type: ignore[no-any-return]


def load_handler(config: Config) -> Any:
    """Import the compiled handler of `config`, and return it or None. Raises StartError."""
    handler = config.compiled_handler
    if handler in (None, ""):
        return None
    name = repr(handler)
    if isinstance(handler, str):
        if ":" not in handler:
            raise StartError(
                f"import string {name} must be in format '<module>:<attribute>', such as"
                " 'main:handler'"
            )
        handler = import_from_string(handler)
    from .wire._handler import HTTPHandler_1

    if not isinstance(handler, HTTPHandler_1):
        raise StartError(
            f"{name} is not a compiled handler: expected an instance of a subclass of"
            " mgloop.http.HTTPHandler"
        )
    return handler


def look_in_app_dir(config: Config) -> None:
    """Put app_dir first in sys.path if the application is an import string.

    Raises StartError if there is no such directory.
    """
    if not isinstance(config.app, str):
        return
    folder = os.path.abspath(config.app_dir or ".")
    if not os.path.isdir(folder):
        raise StartError(f"cannot import from {config.app_dir!r}: no such directory")
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)


# The attributes that are looked for in a module that is named alone, in this order.
_USUAL_NAMES = ("application", "app")


def import_from_string(name: str) -> Any:
    """Return the object that "pkg.mod:attribute" names. The attribute may have dots.

    "pkg.mod" alone names its attribute `application`, or else `app`, such as in Django's
    "project.wsgi". Raises StartError, or ApplicationError if the import itself raises.
    """
    module_name, colon, path = name.partition(":")
    if not module_name or (colon and not path):
        raise StartError(
            f'import string {name!r} must be in format "<module>:<attribute>", such as "main:app"'
        )
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        # A missing module that the application imports is an error of the application.
        if exc.name and (module_name == exc.name or module_name.startswith(f"{exc.name}.")):
            raise StartError(
                f"could not import module {exc.name!r} (from {name!r}); is --app-dir set correctly?"
            ) from None
        raise ApplicationError(f"could not import module {module_name!r}: {_brief(exc)}") from exc
    except (TypeError, ValueError) as exc:
        if module_name.startswith("."):
            raise StartError(f"import string {name!r} must not start with a dot") from None
        raise ApplicationError(f"could not import module {module_name!r}: {_brief(exc)}") from exc
    except Exception as exc:
        raise ApplicationError(f"could not import module {module_name!r}: {_brief(exc)}") from exc
    if not colon:
        path = next((usual for usual in _USUAL_NAMES if hasattr(found, usual)), "")
        if not path:
            raise StartError(
                f"no attribute {' or '.join(_USUAL_NAMES)} found in"
                f" {getattr(found, '__file__', None) or module_name}: name the application, such as"
                f" '{module_name}:create_app'"
            )
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            where = getattr(found, "__file__", None) or module_name
            raise StartError(f"attribute {part!r} not found in {where} (from {name!r})") from None
    return found


def _brief(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}".splitlines()[0]


def _takes(function: Any, count: int) -> bool:
    """Return whether `function` accepts `count` positional arguments.

    A function without a signature is assumed to be an ASGI 3 application, with 3 arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return count == 3
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _is_factory(app: Any) -> bool:
    """Return whether `app` accepts no arguments, and not the arguments of any interface either."""
    return inspect.isroutine(app) and _takes(app, 0) and not any(_takes(app, n) for n in (1, 2, 3))


def _make(factory: Any, name: str, *, announced: bool) -> Any:
    if not callable(factory):
        raise StartError(f"{name} is not callable: --factory expects a function")
    if not _takes(factory, 0):
        raise StartError(f"{name} requires arguments: --factory expects a function that takes none")
    if not announced:
        logger.warning(
            "ASGI app factory detected: %s. Using it, but please consider setting the --factory"
            " flag explicitly.",
            name,
        )
    try:
        return factory()
    except Exception as exc:
        raise ApplicationError(f"error loading ASGI app factory {name}: {_brief(exc)}") from exc


def interface_of(app: Any) -> str:
    """Return "asgi3", "wsgi" or "asgi2", depending on the number of arguments that `app` accepts.

    ASGI 3 passes scope, receive and send, WSGI passes environ and start_response, and ASGI 2
    passes scope alone. Raises StartError.
    """
    for count, interface in ((3, "asgi3"), (2, "wsgi"), (1, "asgi2")):
        if _takes(app, count):
            return interface
    raise StartError(
        f"{app!r} is neither an ASGI nor a WSGI application: if it is a factory, use --factory"
    )


def _from_asgi2(app: Any) -> App:
    async def asgi3(scope: Any, receive: Any, send: Any) -> None:
        await app(scope)(receive, send)

    return asgi3
