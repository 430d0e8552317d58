# SPDX-License-Identifier: GPL-2.0-only
"""The protections of the compiler and the linker are in the built modules, as `readelf` shows."""

import importlib.util
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENDBR64 = bytes.fromhex("f30f1efa")

pytestmark = [
    pytest.mark.mgloop_only,
    pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf (binutils)"),
]


def _native():
    text = (ROOT / "mgloop" / "meson.build").read_text()
    listed = re.search(r"^native = \[(.*?)\]", text, re.S | re.M)[1]
    names = (f"mgloop.{path.replace('/', '.')}" for path in re.findall(r"'([^']+)'", listed))
    return {name: importlib.util.find_spec(name).origin for name in names}


def _read(path):
    command = ["readelf", "--wide", "--dynamic", "--program-headers", "--section-headers"]
    return subprocess.run(
        [*command, "--dyn-syms", path], capture_output=True, text=True, check=True, timeout=30
    ).stdout


@pytest.fixture(scope="module")
def modules():
    """Return {name: (path, output of readelf)} of the native modules."""
    found = {name: (path, _read(path)) for name, path in _native().items()}
    if any(re.search(r"lib[at]san", told) for _, told in found.values()):
        pytest.skip("the modules are built for a sanitizer")
    return found


def _without(modules, pattern):
    return [name for name, (_, told) in modules.items() if not re.search(pattern, told)]


def test_functions_are_resolved_before_their_table_becomes_read_only(modules):
    assert _without(modules, r"\bBIND_NOW\b") == []
    assert _without(modules, r"\bGNU_RELRO\b") == []


def test_stacks_are_not_executable(modules):
    assert _without(modules, r"GNU_STACK( +0x[0-9a-f]+){5} RW  ") == []


def test_return_addresses_have_canaries(modules):
    assert _without(modules, r"__stack_chk_fail\b") == []


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc checks sizes of buffers")
def test_copies_into_buffers_are_checked(modules):
    """The compiler leaves out the check where it can prove the size."""
    checked = [name for name, (_, told) in modules.items() if "__memcpy_chk" in told]
    assert {"mgloop._loop", "mgloop.http.wire._connection"} <= set(checked)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
def test_targets_of_indirect_calls_are_marked(modules):
    for name, (path, told) in modules.items():
        start = int(re.search(r"([0-9a-f]+) +\d+ FUNC .* PyInit_\w+$", told, re.M)[1], 16)
        text = re.search(r" \.text +PROGBITS +([0-9a-f]+) ([0-9a-f]+) ", told)
        address, offset = (int(number, 16) for number in text.groups())
        with open(path, "rb") as file:
            file.seek(start - address + offset)
            assert file.read(len(ENDBR64)) == ENDBR64, name
