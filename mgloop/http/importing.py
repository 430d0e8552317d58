# SPDX-License-Identifier: GPL-2.0-only
"""From "pkg.mod:app" to an ASGI 3 callable.

What the user mistyped is one line; what the application raises while it is imported is the
application's, and keeps its traceback (ApplicationError.__cause__). Runs once per process.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from .config import Config
from .errors import ApplicationError, StartError

App = Callable[..., Awaitable[None]]

logger = logging.getLogger("mgloop.http")


def load(config: Config) -> App:
    """The application of `config`: imported, made, and wrapped so that it speaks ASGI 3."""
    app = config.app
    name = repr(app)
    look_in_app_dir(config)
    if isinstance(app, str):
        app = import_from_string(app)
    if config.factory or _is_factory(app):
        app = _make(app, name, announced=config.factory)
    if not callable(app):
        raise StartError(f"{name} is not callable: expected an ASGI application")
    interface = interface_of(app) if config.interface == "auto" else config.interface
    if interface == "asgi2":
        return _from_asgi2(app)
    if interface == "wsgi":
        return _from_wsgi(app, name)
    return app  # type: ignore[no-any-return]


def look_in_app_dir(config: Config) -> None:
    """Have modules be found in app_dir first, if the application is one; raises StartError."""
    if not isinstance(config.app, str):
        return
    folder = os.path.abspath(config.app_dir or ".")
    if not os.path.isdir(folder):
        raise StartError(f"cannot import from {config.app_dir!r}: no such directory")
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)


def import_from_string(name: str) -> Any:
    """What "pkg.mod:attribute" names; the attribute may have dots."""
    module_name, colon, path = name.partition(":")
    if not module_name or not colon or not path:
        raise StartError(
            f'import string {name!r} must be in format "<module>:<attribute>", such as "main:app"'
        )
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        # One that the application imports is its own affair.
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
    """Whether `function` can be called with `count` positional arguments; yes if unknown."""
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
    """A function that can be called with nothing, and with nothing that an interface passes."""
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
    """asgi3, wsgi or asgi2: by the number of arguments that `app` takes.

    scope, receive and send; or environ and start_response; or scope alone, which gives a callable.
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


def _from_wsgi(app: Any, name: str) -> App:
    try:
        from .wsgi import from_wsgi
    except ImportError:
        raise StartError(
            f"{name} is a WSGI application, which requires a2wsgi: pip install a2wsgi"
        ) from None
    return from_wsgi(app)
