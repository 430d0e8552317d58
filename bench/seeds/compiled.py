# SPDX-License-Identifier: GPL-2.0-only
"""Build the compiled HTTP handlers of the seeds for an interpreter, on demand."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
from pathlib import Path

from .. import native
from ..errors import BenchError

SOURCE = Path(__file__).with_name("handlers.pyx")

# Prints what a build for the interpreter depends on.
_ABOUT = """
import json, mgloop, sysconfig
include = mgloop.get_include()
print(json.dumps({
    "include": include,
    "headers": [sysconfig.get_path("include"), sysconfig.get_path("platinclude")],
    "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    "text": open(include + "/mgloop/http/wire/_handler.pxd").read(),
}))
"""


def folder_of(python: str) -> str:
    """Return the folder with the module `handlers` for *python*. BenchError if it does not build.

    The interpreter must have Cython and an mgloop with the interface for handlers.
    """
    about = json.loads(_run([python, "-P", "-c", _ABOUT]))
    digest = hashlib.sha256(SOURCE.read_bytes())
    digest.update(json.dumps([about["suffix"], about["text"]]).encode())
    folder = native.cache_folder() / digest.hexdigest()[:16]
    target = folder / f"handlers{about['suffix']}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        generated, partial = folder / "handlers.c", folder / f"handlers-{os.getpid()}.so"
        cython = [python, "-P", "-m", "cython", "-3", "-X", "freethreading_compatible=True"]
        _run([*cython, "-I", about["include"], "-o", str(generated), str(SOURCE)])
        command = [*shlex.split(native.compiler()), "-O3", "-shared", "-fPIC", "-w"]
        command += [f"-I{path}" for path in dict.fromkeys(about["headers"])]
        _run([*command, str(generated), "-o", str(partial)])
        os.replace(partial, target)
    return str(folder)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["unknown error"]
        raise BenchError(f"the compiled handlers could not be built: {lines[-1]}")
    return done.stdout
