# SPDX-License-Identifier: GPL-2.0-only
"""Virtual environments for the ecosystem targets, made from the pinned files in ``requirements/``.

There is one environment for each file and interpreter version, below the runner's folder. It is
made again when its requirements change. Each run builds the loop under test from these sources and
installs its wheel. pip installs the packages by the names and hashes of the requirements files,
from the index that pip is configured for.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from . import pins

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class SetupError(Exception):
    """pip or venv could not make the environment; the message has the end of their output."""


class MissingError(Exception):
    """A target needs more than packages; the message says what, and how to get it."""


def _run(*command: object) -> None:
    # meson and ninja are looked for on PATH by a build without isolation.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PATH": path},
        check=False,
    )
    if done.returncode:
        raise SetupError(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}")


def _pip(python: Path, *what: object) -> None:
    """Install into the environment of *python*, by the pip of this interpreter.

    The pip of an older interpreter ignores the pin of a package that is required with an extra.
    """
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *what)


def _pinned(file: str, name: str) -> str | None:
    """Return the line for *name* in a file of ``requirements/``, or None."""
    entries = (pins.REQUIREMENTS / file).read_text().replace("\\\n", " ").splitlines()
    return next((line for line in entries if line.startswith(f"{name}==")), None)


class Environments:
    """The environments below *base* for the running interpreter, over the loop named *loop*."""

    def __init__(self, base: Path, loop: str, wheel: Path | None) -> None:
        self.base = base.resolve()
        self.loop = loop
        self.tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        self.base.mkdir(parents=True, exist_ok=True)
        self._wheel = wheel

    def python(self, name: str) -> Path:
        """Return the interpreter of the environment *name*; make the environment if necessary."""
        requirements = pins.requirements(name)
        # A rival loop gets an environment of its own: uvicorn takes uvloop wherever it finds it.
        suffix = "" if self.loop in ("mgloop", "asyncio") else f"-{self.loop}"
        folder = self.base / f"{name}-{self.tag}{suffix}"
        python = folder / "bin" / "python"
        stamp = folder / "requirements.sha256"
        digest = hashlib.sha256(requirements.encode()).hexdigest()
        if not stamp.exists() or stamp.read_text() != digest:
            print(f"  making {folder.name}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            _run(sys.executable, "-m", "venv", folder)
            file = folder / "requirements.txt"
            file.write_text(requirements)
            _pip(python, "--require-hashes", "-r", file)
            stamp.write_text(digest)
        if self.loop == "mgloop":
            _pip(python, "--no-deps", "--force-reinstall", self.wheel())
        elif self.loop != "asyncio":
            _pip(python, self.loop)
        return python

    def wheel(self) -> Path:
        """Return the given wheel, or build one from these sources, once per run."""
        if self._wheel is None:
            print("  building mgloop", flush=True)
            folder = self.base / f"wheel-{self.tag}"
            shutil.rmtree(folder, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder]
            if importlib.util.find_spec("mesonpy") and importlib.util.find_spec("Cython"):
                command.append("--no-build-isolation")
            _run(*command, ROOT)
            (self._wheel,) = folder.glob("*.whl")
        return self._wheel

    def source(self, name: str, leave_out: str | None, overlay: bool) -> Path:
        """Unpack the sources of *name*, delete the folder *leave_out*, and return their folder.

        The folder to leave out is a package with compiled parts: the tests must import the
        installed one. With *overlay*, the files of ``overlays/NAME`` are copied over the sources.
        """
        commit = _pinned("commits.txt", name)
        archive, top = self._commit_archive(name, commit) if commit else self._sdist(name)
        unpacked = self._sources / top
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(self._sources, filter="data")
        if leave_out:
            shutil.rmtree(unpacked / leave_out)
        if overlay:
            shutil.copytree(HERE / "overlays" / name, unpacked, dirs_exist_ok=True)
        return unpacked

    @property
    def _sources(self) -> Path:
        """Return the folder of the archives and the unpacked sources."""
        folder = self.base / "sdists"
        folder.mkdir(exist_ok=True)
        return folder

    def _sdist(self, name: str) -> tuple[Path, str]:
        """Return the archive of the pinned source distribution, and its top folder."""
        folder = self._sources
        entry = _pinned("sdists.txt", name)
        version = entry.split()[0].partition("==")[2]
        # Source distributions are named with underscores instead of hyphens.
        stem = f"{name.replace('-', '_')}-{version}"
        archive = folder / f"{stem}.tar.gz"
        wanted = entry.partition("sha256:")[2].strip()
        if not archive.exists() or hashlib.sha256(archive.read_bytes()).hexdigest() != wanted:
            only = folder / f"{name}.txt"
            only.write_text(entry + "\n")
            _run(
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                name,
                "--require-hashes",
                "-r",
                only,
                "-d",
                folder,
            )
        return archive, stem

    def _commit_archive(self, name: str, entry: str) -> tuple[Path, str]:
        """Return an archive of the pinned commit, and its top folder.

        The commit, which is its own checksum, is taken from a clone of the repository.
        """
        release, commit = entry.split()
        repository = self.base / "repositories" / name
        known = ["git", "-C", str(repository), "cat-file", "-e", f"{commit}^{{commit}}"]
        if (
            not repository.exists()
            or subprocess.run(known, check=False, capture_output=True).returncode
        ):
            raise MissingError(
                f"no source distribution of {name} carries its tests: put a clone of the "
                f"project's repository (or a link to one) that has {release}, commit {commit}, "
                f"at {repository}"
            )
        top = release.replace("==", "-")
        archive = self._sources / f"{top}.tar"
        _run("git", "-C", repository, "archive", f"--prefix={top}/", "-o", archive, commit)
        return archive, top
