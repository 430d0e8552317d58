# SPDX-License-Identifier: GPL-2.0-only
"""The replacement of other event loop packages, such as uvloop, under `mgloop run`.

Servers use these packages if they are installed (uvicorn's and granian's "auto"), and programs use
them by name (`uvloop.run(main())`). `mgloop run` overrides that choice: the package is imported
normally, and then its names that create loops are replaced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Coroutine, Sequence
from types import ModuleType
from typing import Any

from ...loop import Loop
from .. import install

PACKAGES = ("rloop", "rsloop", "uvloop", "winloop", "zuvloop")


def _new_event_loop() -> Loop:
    return Loop()


def _run(
    main: Coroutine[Any, Any, Any], *, loop_factory: Any = None, debug: bool | None = None
) -> Any:
    """Replace the run() of a package. loop_factory is ignored: it is one of the replaced names."""
    return install.run(main, debug=debug)


_NAMES: dict[str, Any] = {
    "Loop": Loop,
    "install": install.use,
    "new_event_loop": _new_event_loop,
    "run": _run,
}
if install.HAS_POLICIES:
    _NAMES["EventLoopPolicy"] = install.EventLoopPolicy


def replace(package: ModuleType) -> None:
    """Replace the public names of the package that create loops."""
    for name, instead in _NAMES.items():
        if hasattr(package, name):
            setattr(package, name, instead)


class _Loader(importlib.abc.Loader):
    """Load a package with its own loader, and then call replace()."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        replace(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Find the packages with the other finders, and wrap the loader that they return."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in PACKAGES:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        for finder in finders:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def watch() -> None:
    """Replace the names in packages that are already loaded, and in others when they are loaded."""
    for name in PACKAGES:
        if name in sys.modules:
            replace(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
