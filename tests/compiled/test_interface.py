# SPDX-License-Identifier: GPL-2.0-only
"""The versions of the compiled interface, and the installed files."""

import os
from pathlib import Path

import building
import pytest

import mgloop

PACKAGE = Path(mgloop.get_include(), "mgloop")

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
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_module_for_another_version_is_refused(program, tmp_path):
    """The ImportError names both versions, whatever the module uses."""
    headers = tmp_path / "include" / "mgloop"
    headers.mkdir(parents=True)
    for path in PACKAGE.glob("*.pxd"):
        if path.name in ("__init__.pxd", "_compiled.pxd"):
            (headers / path.name).write_text(path.read_text().replace("_1", "_9"))
    source = tmp_path / f"{program}.pyx"
    source.write_text("\n".join(line[8:] for line in PROGRAMS[program].splitlines()))
    module = building.build(source, tmp_path, headers.parent)
    with pytest.raises(ImportError) as refused:
        building.load(module)
    assert "built against version 9 of mgloop's compiled interface" in str(refused.value)
    assert f"mgloop {mgloop.__version__} has version 1" in str(refused.value)


def test_the_folder_has_the_declarations():
    assert sorted(os.listdir(PACKAGE)).count("__init__.pxd") == 1
    for name in ("__init__.pxd", "_compiled.pxd"):
        assert "from mgloop._loop" not in (PACKAGE / name).read_text()


def test_the_names_of_the_package():
    assert mgloop.Protocol.__name__ == "Protocol_1"
    assert mgloop.Transport.__name__ == "Transport_1"
    assert {"Protocol", "Transport", "get_include"} <= set(mgloop.__all__)
