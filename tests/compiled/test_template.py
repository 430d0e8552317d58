# SPDX-License-Identifier: GPL-2.0-only
"""The template project in examples/compiled: it builds, and its tests pass on both loops."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import support

TEMPLATE = Path(__file__).parents[2] / "examples" / "compiled"


def run(*command, cwd, **env):
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    env = {**os.environ, "PATH": path, "CFLAGS": "-O0", **env}
    env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    done = support.finished([sys.executable, *command], cwd=cwd, env=env, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("backend", "tested", "passed"),
    [
        ("mesonpy", ".", "110 passed"),
        # The code is the same, and importing the package loads all modules but the handler.
        ("setuptools", "test_echo.py", "4 passed"),
    ],
    ids=["mesonpy", "setuptools"],
)
def test_it_builds_and_passes_its_tests(backend, tested, passed, tmp_path):
    pytest.importorskip(backend)
    project, site = tmp_path / "project", tmp_path / "site"
    shutil.copytree(TEMPLATE, project, ignore=shutil.ignore_patterns("build", "__pycache__"))
    if backend == "mesonpy":
        options = ["--no-build-isolation", "--no-deps", "--disable-pip-version-check"]
        options.append("-Csetup-args=-Dbuildtype=plain")
        run("-m", "pip", "install", *options, "--target", site, ".", cwd=project)
    else:
        # pip would need the package `wheel` for older versions of setuptools.
        shutil.copytree(project / "setuptools", project, dirs_exist_ok=True)
        run("setup.py", "-q", "build", "--build-lib", site, cwd=project)
    tests = tmp_path / "tests"
    shutil.copytree(project / "tests", tests)
    path = support.python_path(site)
    out = run("-m", "pytest", "-q", "-p", "no:cacheprovider", tested, cwd=tests, PYTHONPATH=path)
    assert passed in out
