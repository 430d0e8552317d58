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

with open(os.environ["MGLOOP_TEST_MODULES"]) as file:
    PATHS = dict(line.rstrip("\n").split("\t") for line in file)


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        path = PATHS.get(name)
        if path is None:
            return None
        folder, file = os.path.split(path)
        kind = SourceFileLoader if file.endswith(".py") else ExtensionFileLoader
        spec = ModuleSpec(name, kind(name, path), origin=path, is_package=file == "__init__.py")
        spec.has_location = True
        if file == "__init__.py":
            spec.submodule_search_locations.append(folder)
        return spec


def init():
    """Install the finder; the ``.pth`` file of the editable installation calls this."""
    sys.meta_path.insert(0, Finder)
