# SPDX-License-Identifier: GPL-2.0-only
"""The versions of the compiled interface, and the installed files."""

import os
import re
import sys
import textwrap
from pathlib import Path

import building
import pytest
import support

import mgloop
import mgloop.http

PACKAGE = Path(mgloop.get_include(), "mgloop")
DECLARATIONS = (
    "__init__.pxd", "_compiled.pxd", "http/__init__.pxd", "http/wire/_handler.pxd",
)  # fmt: skip

PROGRAMS = {
    "subclass": """
        from mgloop cimport Protocol
        cdef class Empty(Protocol):
            pass
    """,
    "function": """
        cimport mgloop
        def soon(loop):
            return mgloop.call_soon(loop, NULL, None)
    """,
    "handler": """
        from mgloop.http cimport HTTPHandler
        cdef class Empty(HTTPHandler):
            pass
    """,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_module_for_another_version_is_refused(program, tmp_path):
    """The ImportError names both versions, whatever the module uses."""
    headers = tmp_path / "include" / "mgloop"
    for name in DECLARATIONS:
        copy = headers / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((PACKAGE / name).read_text().replace("_1", "_9"))
    (headers / "http" / "wire" / "__init__.py").touch()
    source = tmp_path / f"{program}.pyx"
    source.write_text("\n".join(line[8:] for line in PROGRAMS[program].splitlines()))
    module = building.build(source, tmp_path, headers.parent)
    with pytest.raises(ImportError) as refused:
        building.load(module)
    assert "built against version 9 of mgloop's compiled interface" in str(refused.value)
    assert f"mgloop {mgloop.__version__} has version 1" in str(refused.value)


def test_the_folder_has_the_declarations():
    assert sorted(os.listdir(PACKAGE)).count("__init__.pxd") == 1
    for name in DECLARATIONS:
        cimported = re.findall(r"from (\S+) cimport", (PACKAGE / name).read_text())
        assert set(cimported) <= {"mgloop._compiled", "mgloop.http.wire._handler"}


def test_a_protocol_does_not_load_the_server(protocols):
    """Only the modules of the classes that a program uses are imported."""
    program = f"""
        import importlib.machinery, importlib.util, sys
        loader = importlib.machinery.ExtensionFileLoader("protocols", {protocols.__file__!r})
        spec = importlib.util.spec_from_loader("protocols", loader)
        loader.exec_module(importlib.util.module_from_spec(spec))
        print("mgloop._compiled" in sys.modules, "mgloop.http" in sys.modules)
    """
    done = support.finished([sys.executable, "-c", textwrap.dedent(program)])
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_the_names_of_the_package():
    assert mgloop.Protocol.__name__ == "Protocol_1"
    assert mgloop.Transport.__name__ == "Transport_1"
    assert {"Protocol", "Transport", "get_include"} <= set(mgloop.__all__)


def test_the_names_of_the_server():
    for name in ("HTTPHandler", "HTTPRequest", "HTTPResponse"):
        assert getattr(mgloop.http, name).__name__ == f"{name}_1"
        assert name in mgloop.http.__all__
