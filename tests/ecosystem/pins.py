# SPDX-License-Identifier: GPL-2.0-only
"""The pinned releases of the ecosystem targets, and the hashes of their files.

    python -m tests.ecosystem.pins

A file ``requirements/NAME.txt`` has a release per line. Many targets install the same releases, so
the hashes are in one file, ``requirements/hashes.txt``, with a release and a hash per line. The
command above moves the hashes of newly compiled files there, and deletes those of releases that no
file names any more.
"""

import re
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
HASHES = "hashes.txt"
#: Files in other formats.
_OTHERS = (HASHES, "sdists.txt", "commits.txt")
_RELEASE = re.compile(r"[\w.-]+==[^\s;]+")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


def lines_of(text: str) -> list[str]:
    """Return the lines of a requirements file, with continuation lines joined."""
    return text.replace("\\\n", " ").splitlines()


def _known(folder: Path) -> dict[str, set[str]]:
    """Return release -> hashes, from hashes.txt."""
    known: dict[str, set[str]] = {}
    path = folder / HASHES
    for line in path.read_text().splitlines() if path.exists() else ():
        if not line.startswith("#"):
            release, digest = line.split()
            known.setdefault(release, set()).add(digest)
    return known


def requirements(name: str, folder: Path = REQUIREMENTS) -> str:
    """Return NAME.txt with the hashes of each release, as pip's --require-hashes needs them.

    Raises KeyError if a release has no hashes.
    """
    known = _known(folder)
    lines = []
    for line in lines_of((folder / f"{name}.txt").read_text()):
        release = _RELEASE.match(line)
        hashes = [f"--hash={digest}" for digest in sorted(known[release[0]])] if release else []
        lines.append(" \\\n    ".join([line, *hashes]))
    return "\n".join(lines) + "\n"


def move_hashes(folder: Path = REQUIREMENTS) -> None:
    """Move the hashes of all requirements files into hashes.txt; delete unused ones there."""
    known, used = _known(folder), set()
    for path in sorted(folder.glob("*.txt")):
        if path.name in _OTHERS:
            continue
        lines = [f"# Compiled from {path.stem}.in; {HASHES} has the hashes. See ../README.md."]
        for line in lines_of(path.read_text()):
            if release := _RELEASE.match(line):
                used.add(release[0])
                known.setdefault(release[0], set()).update(_HASH.findall(line))
                lines.append(line.partition("--hash")[0].rstrip())
        path.write_text("\n".join(lines) + "\n")
    lines = ["# The hashes of all files of each release; see ../README.md."]
    for release in sorted(used):
        lines += [f"{release} {digest}" for digest in sorted(known[release])]
    (folder / HASHES).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    move_hashes()
