# SPDX-License-Identifier: GPL-2.0-only
"""Put a verified copy of a C library's sources at the build's disposal, and print its folder.

meson.build runs this at configure time for each library, and once more when it makes a source
distribution. It lies beside the pinned requirements and needs nothing but the standard library and
pip, because it runs inside pip's own isolated build environments. It never hands out a file whose
SHA-256 it has not compared, not even one that it fetched itself in an earlier run.

    python fetch.py llhttp          print the folder that holds the files of llhttp
    python fetch.py llhttp --dist   put them into the source distribution that meson makes

In order of precedence the files come from the folder that MGLOOP_LLHTTP_DIR names (each library has
a variable of its own), from `llhttp/fetched/` beside this script (an earlier run, or mgloop's own
source distribution), or from the package index. What comes from there is put into `fetched/`, or
into meson's build folder where this one may not be written to.
Any failure is one paragraph on standard error that says what to do, and exit status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD_VARIABLE = "MESON_BUILD_ROOT"  # set by meson for what it runs


@dataclass(frozen=True, kw_only=True)
class Library:
    """What is fetched, and what it must be."""

    key: str  # on the command line, and the folder's name
    name: str  # for people
    version: str
    distribution: str  # on the package index
    distribution_version: str
    back_end: str  # the module that the distribution has itself built with
    sha256: dict[str, str]  # by the path in the distribution; all are put into one folder
    variable: str

    @property
    def folder(self) -> Path:
        """The library's part of the source tree."""
        return HERE / self.key

    @property
    def fetched(self) -> Path:
        """Where the files are put, if that folder may be written to."""
        return self.folder / "fetched"

    @property
    def requirements(self) -> Path:
        """The pinned requirement."""
        return self.folder / "requirements.txt"

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each file by its name."""
        return {path.rpartition("/")[2]: digest for path, digest in self.sha256.items()}

    @property
    def listed(self) -> str:
        """The files' names, for a sentence."""
        *others, last = self.files
        return f"{', '.join(others)} and {last}"

    @property
    def hint(self) -> str:
        """What to do without a package index."""
        return (
            f"Without a package index, get {self.name} {self.version} by other means, put its "
            f"unmodified {self.listed} into one folder, name that folder in the environment "
            f"variable {self.variable}, and build again. mgloop's own source distribution carries "
            "the files of all libraries and needs neither: `pip install --no-build-isolation "
            "--no-index` of it, with meson-python, meson, ninja and Cython installed and on PATH "
            "beforehand, does without a network."
        )


LIBRARIES = (
    Library(
        key="mongoose",
        name="Mongoose",
        version="7.23",
        distribution="cymongoose",
        distribution_version="0.2.5",
        back_end="scikit_build_core.build",
        sha256={
            "thirdparty/mongoose/mongoose.c": (
                "651d514ee52761c26af774d74e91346bf150c915120d967ec4332a69ea1600f5"
            ),
            "thirdparty/mongoose/mongoose.h": (
                "0ee23157099964b7ca1c7bf3e02b1b8250cbd7838a6938fed63726e720f70b0b"
            ),
        },
        variable="MGLOOP_MONGOOSE_DIR",
    ),
    Library(
        key="llhttp",
        name="llhttp",
        version="9.4.3",
        distribution="httptools",
        distribution_version="0.9.0",
        back_end="setuptools.build_meta",
        sha256={
            "vendor/llhttp/src/api.c": (
                "0f8590206fe2f264db2825401b5fb856b979ee1363dc88b06f36dc9577afb941"
            ),
            "vendor/llhttp/src/http.c": (
                "a1f2b23168f8e9b5bfa464c89027d3ca259fc649ae3d7e72bfff997d1aeb5d72"
            ),
            "vendor/llhttp/src/llhttp.c": (
                "391e7c99912abf3b1c9dd8a9c85fdeaac2663e9fa55b6f3871154d16fef8b892"
            ),
            "vendor/llhttp/include/llhttp.h": (
                "5bc82fa51b19aa8bee7d921038393fbfc74e8cc9bae0844c2d82c102fb8cfd68"
            ),
            "vendor/llhttp/LICENSE-MIT": (
                "ebca854e0134cd256d673627c20499f42577eb74bacf08b9f25b626a73c91277"
            ),
        },
        variable="MGLOOP_LLHTTP_DIR",
    ),
)

# What pip asks the distribution's back-end for, by a module in that back-end's place.
STAND_IN = '''\
"""Says what pip wants to know of a distribution that is downloaded only to be unpacked."""

import pathlib


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "{distribution}-{version}.dist-info")
    info.mkdir()
    text = "Metadata-Version: 2.1\\nName: {distribution}\\nVersion: {version}\\n"
    (info / "METADATA").write_text(text)
    return info.name
'''


class FetchError(Exception):
    """A failure whose text tells the person who builds what happened and what to do."""


def verify(library: Library, folder: Path, remedy: str) -> None:
    """Raise FetchError unless `folder` holds all files with the expected SHA-256."""
    for name, expected in library.files.items():
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise FetchError(
                f"cannot read {library.name}'s {name} in {folder} ({error.strerror}). {remedy}"
            ) from error
        if found != expected:
            raise FetchError(
                f"the SHA-256 of {folder / name} is {found}, but that of {library.name} "
                f"{library.version}, the version that mgloop is built and tested with, is "
                f"{expected}. {remedy}"
            )


def explain(library: Library, output: str) -> FetchError:
    """Turn pip's output into the paragraph for the person who builds."""
    if "No module named pip" in output:
        return FetchError(
            f"fetching {library.name} needs pip, and {sys.executable} has none. Install it (`apt "
            "install python3-pip`, or `python -m ensurepip` in a virtual environment). "
            + library.hint
        )
    if "DO NOT MATCH THE HASHES" in output:
        return FetchError(
            f"the package index delivered a {library.distribution} source distribution whose "
            f"SHA-256 is not the one pinned in {library.requirements}; nothing of it was used. "
            "Either the index or something on the way altered the file: try again, then try "
            "another network or index, and report it if it stays. " + library.hint
        )
    lines = [line.strip() for line in output.splitlines()]
    reasons = [line.removeprefix("ERROR:") for line in lines if line.startswith("ERROR:")]
    reason = reasons[-1].strip().rstrip(".") if reasons else "it gave no reason"
    return FetchError(
        f"pip could not download the source distribution that carries {library.name} (the "
        f"requirement is in {library.requirements}); pip says: {reason}. Check that the network "
        "and the package index which pip is configured for can be reached (an index given on pip's "
        "command line does not reach this step: set PIP_INDEX_URL or pip's configuration), then "
        "build again. " + library.hint
    )


def stand_in(library: Library, folder: Path) -> None:
    """Make, below `folder`, the module that answers pip in the place of the build back-end."""
    module = folder.joinpath(*library.back_end.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    for package in module.relative_to(folder).parents[:-1]:
        (folder / package / "__init__.py").touch()
    module.write_text(
        STAND_IN.format(distribution=library.distribution, version=library.distribution_version)
    )


def download(library: Library, folder: Path) -> Path:
    """Download the pinned source distribution into `folder` with pip and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--retries", "2", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", library.distribution, "--require-hashes"]
    command += ["--requirement", str(library.requirements), "--dest", str(folder)]
    # pip asks whatever it downloads for its metadata, which for a source distribution is a run of
    # its build back-end: code of others, behind a download of what that needs, often larger than
    # the distribution. Nothing is built here: a stand-in tells pip the name and the version.
    answers = folder / "stand-in"
    stand_in(library, answers)
    # The variables that are left out: pip's options that make no sense without isolation, and what
    # the pip that builds mgloop tells its own back-end, which must not mislead this one's.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PIP_BUILD_CONSTRAINT", "PIP_CHECK_BUILD_DEPENDENCIES"}
        and not name.startswith("_PYPROJECT_HOOKS_")
    }
    paths = [str(answers), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    result = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    archives = sorted(folder.glob(f"{library.distribution}-*.tar.gz"))
    if result.returncode or len(archives) != 1:
        raise explain(library, result.stdout)
    return archives[0]


def extract(library: Library, archive: Path, folder: Path) -> None:
    """Take the files out of `archive` into `folder`, whole and verified or not at all."""
    root = archive.name.removesuffix(".tar.gz")
    # Verified in a folder beside the destination and renamed into place: two builds may run at
    # once, and an interrupted one must leave nothing half written.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as staging_name:
        staging = Path(staging_name)
        with tarfile.open(archive) as tar:
            for path in library.sha256:
                name = path.rpartition("/")[2]
                try:
                    member = tar.extractfile(f"{root}/{path}")
                except KeyError:
                    member = None
                if member is None:
                    raise FetchError(f"{archive.name} carries no {name}. {library.hint}")
                with member, (staging / name).open("wb") as target:
                    shutil.copyfileobj(member, target)
        verify(library, staging, f"Nothing of {archive.name} was used. {library.hint}")
        folder.mkdir(exist_ok=True)
        for name in library.files:
            (staging / name).replace(folder / name)


def fetch(library: Library, folders: list[Path]) -> Path:
    """Download the files into the first of `folders` that can be written to, and return it."""
    with tempfile.TemporaryDirectory(prefix=f"mgloop-{library.key}-") as scratch:
        archive = download(library, Path(scratch))
        for folder in folders:
            try:
                extract(library, archive, folder)
            except OSError as error:
                failure = error
            else:
                return folder
    raise FetchError(
        f"cannot write {library.name}'s files to {' or '.join(map(str, folders))} "
        f"({failure.strerror}). Build from a folder that you may write to. {library.hint}"
    ) from failure


def locate(library: Library) -> Path:
    """Return the folder with the verified files; fetch them first where there are none."""
    local = os.environ.get(library.variable)
    if local:
        folder = Path(local).resolve()
        verify(
            library,
            folder,
            f"{library.variable} must name a folder with the unmodified {library.listed} of "
            f"{library.name} {library.version}: correct it, or unset it to have them fetched from "
            "the package index.",
        )
        return folder
    folders = [library.fetched]
    if build := os.environ.get(BUILD_VARIABLE):
        folders.append(Path(build, library.key))
    # All of them: another build that runs at once may have put only some there as yet.
    there = [
        folder for folder in folders if all((folder / name).exists() for name in library.files)
    ]
    folder = there[0] if there else fetch(library, folders)
    verify(library, folder, f"Delete {folder} and build again: it will be fetched again.")
    return folder


def main() -> int:
    """Run the command line; return the exit status."""
    libraries = {library.key: library for library in LIBRARIES}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("library", choices=libraries)
    parser.add_argument(
        "--dist", action="store_true", help="copy the files into meson's distribution"
    )
    options = parser.parse_args()
    library = libraries[options.library]
    try:
        folder = locate(library)
    except FetchError as error:
        print(f"mgloop: {error}", file=sys.stderr)
        return 1
    if options.dist:
        target = Path(os.environ["MESON_DIST_ROOT"]) / library.fetched.relative_to(HERE.parent)
        target.mkdir(exist_ok=True)
        for name in library.files:
            shutil.copyfile(folder / name, target / name)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
