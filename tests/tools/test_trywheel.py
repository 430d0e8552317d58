# SPDX-License-Identifier: GPL-2.0-only
"""tools/trywheel.py: its messages and commands. (Real trees: `make try-wheel`.)"""

import importlib
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "trywheel.py"
WHEEL = "mgloop-0.1.0-cp311-cp311-manylinux_2_28_{}.whl"

pytestmark = pytest.mark.mgloop_only


@pytest.fixture
def trywheel(monkeypatch):
    monkeypatch.syspath_prepend(TOOL.parent)
    return importlib.import_module("trywheel")


def run(*arguments, **changes):
    return support.finished(
        [sys.executable, TOOL, *arguments], env=os.environ | changes, timeout=30
    )


def test_no_tree_is_one_sentence_and_no_failure(tmp_path):
    wheel = tmp_path / WHEEL.format("x86_64")
    wheel.touch()
    result = run(wheel, PATH=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(r"make try-wheel is skipped: [^\n]+\.\n", result.stdout)


def test_a_wheel_of_a_processor_whose_programs_do_not_run_here(trywheel, monkeypatch, tmp_path):
    monkeypatch.setattr(trywheel.fresh, "release", lambda: ("bookworm", "mirror", ["main"]))
    monkeypatch.setattr(trywheel, "BINARY_FORMATS", tmp_path)
    monkeypatch.setattr(trywheel.platform, "machine", lambda: "x86_64")
    with pytest.raises(trywheel.fresh.SkippedError, match=r"aarch64 cannot run here \(on De"):
        trywheel.make_tree(None, "aarch64")


def test_a_tree_is_of_the_release_and_processor_that_are_asked_for(trywheel, monkeypatch, tmp_path):
    (tmp_path / "qemu-aarch64").touch()
    monkeypatch.setattr(trywheel.fresh, "release", lambda: ("bookworm", "mirror", ["main"]))
    monkeypatch.setattr(trywheel.fresh, "make_tree", lambda *asked: asked)
    monkeypatch.setattr(trywheel, "BINARY_FORMATS", tmp_path)
    asked = trywheel.make_tree("forky", "aarch64")
    assert asked[:3] == ("forky", "mirror", ["main"])
    assert asked[3:] == (["python3", "python3-venv"], "forky-arm64-python", "--arch=arm64")
    assert trywheel.make_tree(None, "aarch64")[0] == "bookworm"


def test_other_files_are_refused(trywheel, tmp_path):
    assert trywheel.processor(Path(WHEEL.format("aarch64"))) == "aarch64"
    with pytest.raises(SystemExit, match="is not a wheel for x86_64 or aarch64"):
        trywheel.processor(Path("mgloop-0.1.0.tar.gz"))
    result = run(tmp_path / "nothing.whl")
    assert result.returncode == 2
    assert "name the file of a wheel" in result.stderr


def test_the_working_tree_comes_without_mgloop(trywheel, tmp_path):
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git checkout")
    wheel = tmp_path / WHEEL.format("x86_64")
    wheel.touch()
    folder = tmp_path / "filled"
    folder.mkdir()
    trywheel.fill(wheel)(folder)
    assert (folder / "try" / wheel.name).exists()
    assert (folder / "tests" / "conftest.py").exists()
    assert not (folder / "mgloop").exists()


def test_test_requirements_are_those_of_pip(trywheel, monkeypatch):
    monkeypatch.chdir(ROOT)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    needed = trywheel.test_requirements()
    assert {*groups["serve"]} < {*needed}
    assert all(isinstance(requirement, str) for requirement in needed)
    assert any(requirement.startswith("pytest>=") for requirement in needed)


def test_the_application_answers(trywheel):
    pytest.importorskip("aiohttp")
    command = [sys.executable, "-c", trywheel.APPLICATION]
    done = support.finished(command, timeout=30, check=True)
    assert "answers 200 {'loop': \"<class 'mgloop.loop.Loop'>\"}" in done.stdout
