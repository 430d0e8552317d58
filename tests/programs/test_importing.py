# SPDX-License-Identifier: GPL-2.0-only
"""The modules that `import mgloop` loads beyond those of asyncio: few, because they cost time.

Each takes up to half a millisecond, and typing and dataclasses take several.
"""

import pkgutil
import subprocess
import sys

import pytest
import support

import mgloop
import mgloop._loop

pytestmark = pytest.mark.mgloop_only

#: Print the modules that a statement adds to those that are in `known`. An editable installation
#: has imported many others, which are removed, so that they would be imported again.
PROGRAM = """
import sys
known = {known!r}
for name in set(sys.modules) - known:
    if not name.startswith(("_mgloop", "__main__", "encodings", "sitecustomize")):
        del sys.modules[name]
import asyncio
before = set(sys.modules)
{statement}
print(*(set(sys.modules) - before))
"""


def _of_asyncio():
    """Return the modules of a Python without site-packages that has imported asyncio."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import asyncio, sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    return set(done.stdout.split())


def added_by(statement):
    """Return (modules of mgloop, other modules) that `statement` imports in addition to asyncio."""
    program = PROGRAM.format(known=_of_asyncio(), statement=statement)
    done = support.finished([sys.executable, "-c", program], timeout=support.PATIENCE, check=True)
    added = set(done.stdout.split())
    ours = {name for name in added if name.partition(".")[0] == "mgloop"}
    return ours, added - ours


def test_import_loads_few_modules():
    ours, others = added_by("import mgloop")
    assert others <= {"__future__", "cython_runtime"}
    assert len(ours) <= 53
    assert not {name for name in ours if name.startswith("mgloop.http")}
    assert "mgloop.stats" not in ours


def test_the_public_names_are_imported_on_first_use():
    ours, _ = added_by("import mgloop; mgloop.LoopStats")
    assert "mgloop.stats" in ours


def test_a_loop_that_runs_imports_nothing_more():
    ours, others = added_by("import mgloop; mgloop.run(asyncio.sleep(0))")
    assert others <= {"__future__", "cython_runtime"}
    assert len(ours) <= 53


def test_programs_of_the_tests_import_the_same_files():
    """The tests replace the import hook of an editable installation: see tests/children."""
    program = """
        import mgloop._loop, pkgutil
        print(mgloop.__file__, mgloop._loop.__file__)
        print(*sorted(module.name for module in pkgutil.walk_packages(mgloop.__path__, "mgloop.")))
    """
    out, _ = support.run_python("mgloop", program)
    files, modules = map(str.split, out.splitlines())
    assert files == [mgloop.__file__, mgloop._loop.__file__]
    found = pkgutil.walk_packages(mgloop.__path__, "mgloop.")
    assert modules == sorted(module.name for module in found)
