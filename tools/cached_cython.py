# SPDX-License-Identifier: GPL-2.0-only
"""Run Cython, or copy the C code that an earlier run generated from the same files.

    CYTHON="python tools/cached_cython.py" meson setup ...

The C code depends neither on the version of the interpreter nor on the options of the compiler, so
the builds for several versions and for the sanitizers can share it. Cython takes two thirds of the
time of a build. The make targets set CYTHON; a build without make calls Cython itself.

An entry is a JSON file in build/cython of this tree, for a module, a version of Cython and its
arguments. It contains the C code and the hashes of the .pyx and .pxd files that Cython read, and is
valid as long as these are unchanged. The paths are relative to the tree that is compiled, so an
unpacked source distribution uses the same entries.
"""

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

CYTHON = (sys.executable, "-m", "cython")
CACHE = Path(__file__).resolve().parents[1] / "build" / "cython"


def digest(path):
    """Return the SHA-256 of a file; empty if there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def read_dependencies(depfile, root):
    """Return the paths, relative to `root`, of the files in that tree that a depfile lists."""
    words = depfile.read_text("utf-8").replace("\\\n", " ").partition(": ")[2].split()
    paths = [Path(word).resolve() for word in words]
    # Cython's own files belong to its version.
    return sorted(str(path.relative_to(root)) for path in paths
                  if path.is_relative_to(root) and "site-packages" not in path.parts)  # fmt: skip


def load(entry, root):
    """Return the content of an entry that is valid for the tree `root`, otherwise None."""
    try:
        content = json.loads(entry.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    valid = all(digest(root / name) == value for name, value in content["dependencies"].items())
    return content if valid else None


def save(entry, content):
    """Write an entry. Failures have no effect, because the next run can generate the code again."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        new = entry.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(content), "utf-8")
        new.replace(entry)
    except OSError:
        pass


def main(arguments):
    """Run Cython's command line; return its exit status."""
    source = next((Path(word).resolve() for word in arguments if word.endswith(".pyx")), None)
    if source is None or not {"-I", "-o", "-M"} <= set(arguments):
        # A question such as `cython -V`, or meson's check that Cython works.
        return subprocess.run([*CYTHON, *arguments], check=False).returncode
    root = Path(arguments[arguments.index("-I") + 1]).resolve()
    output = Path(arguments[arguments.index("-o") + 1])
    depfile = Path(f"{output}.dep")
    options = [word for word in arguments if Path(word).resolve() not in (source, root)]
    options.remove(str(output))
    key = [importlib.metadata.version("Cython"), os.path.relpath(source, root), *options]
    entry = CACHE / f"{source.stem}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.json"
    if content := load(entry, root):
        output.write_text(content["code"], "utf-8")
        files = " ".join(os.path.relpath(root / name) for name in content["dependencies"])
        depfile.write_text(f"{output}: {files}\n", "utf-8")
        return 0
    status = subprocess.run([*CYTHON, *arguments], check=False).returncode
    if status == 0:
        hashes = {name: digest(root / name) for name in read_dependencies(depfile, root)}
        save(entry, {"dependencies": hashes, "code": output.read_text("utf-8")})
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
