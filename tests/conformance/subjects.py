# SPDX-License-Identifier: GPL-2.0-only
"""The loop under test: names for the command line, resolved to a factory.

This module must be imported before anything is replaced, because it stores the standard library's
own loop class (the control). Only ``describe`` creates a loop, and closes it.
"""

import asyncio
import importlib
from collections.abc import Callable

_STDLIB_LOOP = asyncio.SelectorEventLoop

_KNOWN = {
    "mgloop": "mgloop:new_event_loop",
    "uvloop": "uvloop:new_event_loop",
    "rloop": "rloop:new_event_loop",
}


class SubjectError(Exception):
    """The requested loop cannot be imported or does not make an event loop."""


def resolve(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory for *name*: ``asyncio``, a known loop, or ``module:attribute``."""
    if name == "asyncio":
        return _STDLIB_LOOP
    module_name, _, attribute = _KNOWN.get(name, name).partition(":")
    if not attribute:
        raise SubjectError(f"{name!r}: give asyncio, {', '.join(_KNOWN)}, or module:factory")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as exc:
        raise SubjectError(f"cannot load {name}: {exc}") from exc


def loop_type(name: str) -> type:
    """Return the class of the loops that the factory of *name* really makes.

    It is an error if a loop other than ``asyncio`` is the standard library's, because the whole run
    would then pass without testing the loop.
    """
    loop = resolve(name)()
    try:
        if not isinstance(loop, asyncio.AbstractEventLoop):
            raise SubjectError(f"{name} made a {type(loop).__name__}, which is no event loop")
        if name != "asyncio" and type(loop).__module__.partition(".")[0] == "asyncio":
            raise SubjectError(f"{name} made the standard library's {type(loop).__name__}")
        return type(loop)
    finally:
        loop.close()


def version(name: str) -> str:
    """Return the version of the package that supplies *name*, or an empty string."""
    if name == "asyncio":
        return ""
    module = importlib.import_module(_KNOWN.get(name, name).partition(":")[0])
    return getattr(module, "__version__", "")
