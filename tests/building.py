# SPDX-License-Identifier: GPL-2.0-only
"""Compile Cython modules against the interface of mgloop, for the tests."""

import importlib.machinery
import importlib.util
import shlex
import subprocess
import sys
import sysconfig

import support


def build(source, folder, include):
    """Compile a .pyx file to an extension module in `folder` and return the module's path."""
    name = source.stem
    c_file = folder / f"{name}.c"
    module = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    compiler = shlex.split(sysconfig.get_config_var("CC"))
    headers = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    # Not optimised, which takes a fifth of the time.
    for command in (
        [sys.executable, "-m", "cython", "-3", "-I", include, "-o", c_file, source],
        [*compiler, "-O0", "-shared", "-fPIC", *(f"-I{path}" for path in headers), c_file,
         "-o", module],
    ):  # fmt: skip
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True, text=True, timeout=4 * support.PATIENCE, cwd=folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    return module


def load(path):
    """Import the extension module at `path`."""
    name = path.name.split(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
