# SPDX-License-Identifier: GPL-2.0-only
"""tools/wheels.py: interpreters, platforms, a wheel's dependencies. (Real ones: `make wheels`.)"""

import importlib.util
import io
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.mgloop_only

spec = importlib.util.spec_from_file_location("wheels", ROOT / "tools" / "wheels.py")
wheels = importlib.util.module_from_spec(spec)
sys.modules["wheels"] = wheels  # dataclasses looks the module up there
spec.loader.exec_module(wheels)

TAG = f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"


def test_this_python_can_build():
    assert wheels.usable([sys.executable]) == {TAG: sys.executable}


def test_the_first_of_a_version_is_taken_and_others_are_left_out(tmp_path):
    other = tmp_path / "python3.10"
    other.write_text("#!/bin/sh\necho '[false, \"cp310\"]'\n")
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    for path in other, broken:
        path.chmod(0o755)
    same = tmp_path / "same"
    same.symlink_to(sys.executable)
    found = wheels.usable([str(other), str(broken), sys.executable, str(same)])
    assert found == {TAG: sys.executable}


def test_the_platforms():
    assert [platform.name for platform in wheels.PLATFORMS] == [
        "manylinux_2_28_x86_64",
        "manylinux_2_28_aarch64",
        "musllinux_1_2_x86_64",
        "musllinux_1_2_aarch64",
    ]
    assert {platform.processor for platform in wheels.PLATFORMS} == {"x86_64", "aarch64"}


@pytest.mark.parametrize(
    ("needed", "libraries", "fits"),
    [
        ("manylinux_2_28_x86_64", {}, True),
        ("manylinux_2_17_x86_64", {}, True),
        ("manylinux_2_5_x86_64", {}, True),
        ("manylinux_2_31_x86_64", {}, False),
        ("musllinux_1_2_x86_64", {}, False),
        ("linux_x86_64", {}, False),
        ("manylinux_2_17_x86_64", {"libssl.so.3": None}, False),
    ],
)
def test_libraries_that_a_wheel_may_need(monkeypatch, needed, libraries, fits):
    told = json.dumps({"overall_tag": needed, "external_libs": libraries})
    monkeypatch.setattr(wheels, "run", lambda *command: told)
    wheel, platform = Path("a.whl"), wheels.PLATFORMS[0]
    if fits:
        wheels.audit(wheel, platform)
    else:
        with pytest.raises(SystemExit, match="needs more than its platform tag"):
            wheels.audit(wheel, platform)


def test_a_pyconfig_for_each_processor(tmp_path):
    """As on Debian: zig must find it in a folder that it does not search for C headers."""
    include = tmp_path / "include" / "python3.11"
    own = tmp_path / "include" / "x86_64-linux-gnu" / "python3.11"
    for folder in include, own:
        folder.mkdir(parents=True)
        (folder / "pyconfig.h").write_text(folder.parent.name)
    builder = wheels.Builder.__new__(wheels.Builder)
    builder.variables = {"INCLUDEPY": str(include), "MULTIARCH": "x86_64-linux-gnu"}
    for platform in wheels.PLATFORMS:
        folder = builder.headers(platform, tmp_path / platform.name)
        (header,) = folder.rglob("pyconfig.h")
        assert header.read_text() == "x86_64-linux-gnu"
        expected = Path(f"{platform.processor}-linux-gnu", "python3.11", "pyconfig.h")
        assert header.relative_to(folder) == expected
    (own / "pyconfig.h").unlink()
    folder = builder.headers(platform, tmp_path / "without")
    assert not [*folder.rglob("pyconfig.h")]


def test_a_command_that_fails_says_what_it_said(capfd):
    program = "import sys; print('so'); print('because', file=sys.stderr); sys.exit(3)"
    with pytest.raises(SystemExit) as caught:
        wheels.run(sys.executable, "-c", program)
    assert "so\nbecause\n" in str(caught.value)
    assert "ended with 3" in str(caught.value)


def test_the_output_of_a_command_excludes_its_warnings():
    """auditwheel answers in JSON, and also prints warnings."""
    program = "import sys; print('WARNING', file=sys.stderr); print('{}')"
    assert wheels.run(sys.executable, "-c", program) == "{}\n"


def test_times_are_those_of_the_commit(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12345")
    assert wheels.source_date() == "12345"


def packed(path, mode, date):
    """Write a source distribution with two files; *mode* is that of the second one."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text, bits in ("b", b"two", mode), ("a", b"one", 0o755):
            member = tarfile.TarInfo(f"mgloop-1/{name}")
            member.size, member.mode, member.mtime = len(text), bits, date
            archive.addfile(member, io.BytesIO(text))
    return path


def test_a_source_distribution_has_nothing_of_its_machine(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    one = wheels.normalised(packed(here / "s.tar.gz", 0o600, 1), 12345)
    two = wheels.normalised(packed(there / "s.tar.gz", 0o664, 2.5), 12345)
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as archive:
        found = {m.name: (m.mode, m.mtime, archive.extractfile(m).read()) for m in archive}
    assert found == {
        "mgloop-1/a": (0o755, 12345, b"one"),
        "mgloop-1/b": (0o644, 12345, b"two"),
    }


def test_the_command_lists_what_it_would_build():
    command = [sys.executable, ROOT / "tools" / "wheels.py", "--list", "--python", sys.executable]
    done = support.finished(
        [*command, "--platform", "musllinux_1_2_aarch64"], env=os.environ, timeout=30, check=True
    )
    assert done.stdout == f"{TAG} {sys.executable} musllinux_1_2_aarch64\n"


def test_without_a_python_that_can_build(tmp_path):
    done = support.finished(
        [sys.executable, ROOT / "tools" / "wheels.py", "--python", tmp_path / "none"], timeout=30
    )
    assert done.returncode == 1
    assert done.stderr == (
        "wheels: no CPython >= 3.11 with its headers was found; --python says where it is\n"
    )
