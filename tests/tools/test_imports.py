# SPDX-License-Identifier: GPL-2.0-only
"""The modules of mgloop import each other without a circle.

All imports count: those of native modules (import and cimport), and those inside functions, which
would only hide a circle. `if TYPE_CHECKING:` blocks do not count. The package `mgloop` itself
imports the public names of its modules, so no module may import it.
"""

import ast
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: `import x` and `from x import y` lines of Cython, which ast cannot parse.
LINE = re.compile(
    r"^\s*(?:from\s+(?P<origin>[\w.]+)\s+c?import\s+(?P<names>.*)"
    r"|c?import\s+(?P<module>[\w.]+))"
)


def modules():
    """Return the source files of each module, by the module's dotted name."""
    found = {}
    for path in sorted((ROOT / "mgloop").rglob("*")):
        if path.suffix in (".py", ".pyx", ".pxd") and "site" not in path.parts:
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.setdefault(".".join(parts).removesuffix(".__init__"), []).append(path)
    return found


def _statements(path):
    """Yield (level, module, names) of each import in a file."""
    if path.suffix == ".py":
        tree = ast.parse(path.read_text())
        typing_only = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if id(node) in typing_only:
                continue
            if isinstance(node, ast.ImportFrom):
                yield node.level, node.module or "", [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield 0, alias.name, []
        return
    for line in path.read_text().splitlines():
        if match := LINE.match(line):
            origin = match["origin"] or match["module"]
            names = re.findall(r"\w+", (match["names"] or "").split("#")[0])
            yield len(origin) - len(origin.lstrip(".")), origin.lstrip("."), names


def imports(name, paths, known):
    """Return the modules of `known` that the module `name` imports."""
    package = name if paths[0].stem == "__init__" else name.rpartition(".")[0]
    found = set()
    for path in paths:
        for level, module, names in _statements(path):
            base = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            origin = ".".join([*base, *filter(None, module.split("."))])
            submodules = {f"{origin}.{imported}" for imported in names} & known.keys()
            found |= submodules
            # Importing only submodules needs no name of the package.
            if origin in known and not (names and len(submodules) == len(set(names))):
                found.add(origin)
    return found - {name}


def graph():
    known = modules()
    return {name: imports(name, paths, known) for name, paths in known.items()}


def test_no_module_takes_part_in_a_circle():
    try:
        tuple(graphlib.TopologicalSorter(graph()).static_order())
    except graphlib.CycleError as exc:
        pytest.fail("circle of imports: " + " <- ".join(exc.args[1]))


def test_imports_of_every_kind_are_found():
    found = graph()
    assert "mgloop.http.wire._site" in found["mgloop.http.wire._connection"]  # cimport
    assert "mgloop.http.wire._websocket" in found["mgloop.http.wire._upgrade"]  # in a function
    assert "mgloop._loop" in found["mgloop"]
    assert "mgloop.mixins.tls" in found["mgloop.loop"]
