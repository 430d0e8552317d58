# SPDX-License-Identifier: GPL-2.0-only
"""Import mgloop quickly in the processes that the tests start.

The import hook of an editable installation is a module of this name. It takes a tenth of a second
in each interpreter: it imports a dozen modules, runs ninja, and compiles mgloop's Python files,
because it does not keep their bytecode. conftest.py does this once. It puts the folder of this
module into PYTHONPATH, and into MGLOOP_TEST_MODULES the path of a file with a line for each module:
its name, a tab and its path.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader

LISTING = os.environ["MGLOOP_TEST_MODULES"]
with open(LISTING) as file:
    PATHS = dict(line.rstrip("\n").split("\t") for line in file)


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        path = PATHS.get(name)
        if path is None:
            return None
        kind = SourceFileLoader if path.endswith(".py") else ExtensionFileLoader
        is_package = path.endswith("__init__.py")
        spec = ModuleSpec(name, kind(name, path), origin=path, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations.append(f"{LISTING}/{name}")
        return spec


class Package:
    """Lists the modules of a package for pkgutil; `path` is in the package's ``__path__``."""

    def __init__(self, path):
        if not path.startswith(f"{LISTING}/"):
            raise ImportError
        self.name = path.removeprefix(f"{LISTING}/")

    def find_spec(self, name, target=None):
        return None  # Finder has found it

    def iter_modules(self, prefix=""):
        for name, path in PATHS.items():
            package, _, module = name.rpartition(".")
            if package == self.name:
                yield prefix + module, path.endswith("__init__.py")


def init():
    """Install the finder; the ``.pth`` file of the editable installation calls this."""
    sys.meta_path.insert(0, Finder)
    sys.path_hooks.insert(0, Package)
