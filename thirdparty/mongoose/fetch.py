# SPDX-License-Identifier: GPL-2.0-only
"""Put a verified copy of Mongoose's two source files at the build's disposal, and print its folder.

meson.build runs this at configure time, and once more when it makes a source distribution. It lies
beside the pinned requirement and needs nothing but the standard library and pip, because it runs
inside pip's own isolated build environments. It never hands out a file whose SHA-256 it has not
compared, not even one that it fetched itself in an earlier run.

    python fetch.py          print the folder that holds mongoose.c and mongoose.h
    python fetch.py --dist   put both into the source distribution that meson is about to pack

In order of precedence the files come from the folder that MGLOOP_MONGOOSE_DIR names, from
`fetched/` beside this script (an earlier run, or mgloop's own source distribution), or from the
package index. What comes from there is put into `fetched/`, or into meson's build folder where this
one may not be written to.
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
from pathlib import Path

HERE = Path(__file__).resolve().parent
FETCHED = HERE / "fetched"
REQUIREMENTS = HERE / "requirements.txt"
DIRECTORY_VARIABLE = "MGLOOP_MONGOOSE_DIR"
BUILD_VARIABLE = "MESON_BUILD_ROOT"  # set by meson for what it runs
VERSION = "7.23"
SHA256 = {
    "mongoose.c": "651d514ee52761c26af774d74e91346bf150c915120d967ec4332a69ea1600f5",
    "mongoose.h": "0ee23157099964b7ca1c7bf3e02b1b8250cbd7838a6938fed63726e720f70b0b",
}
LOCAL_COPY_HINT = (
    f"Without a package index, get Mongoose {VERSION} by other means, put its unmodified "
    "mongoose.c and mongoose.h into one folder, name that folder in the environment variable "
    f"{DIRECTORY_VARIABLE}, and build again. mgloop's own source distribution carries both files "
    "and needs neither: `pip install --no-build-isolation --no-index` of it, with meson-python, "
    "meson, ninja and Cython installed and on PATH beforehand, does without a network."
)


class FetchError(Exception):
    """A failure whose text tells the person who builds what happened and what to do."""


def verify(folder: Path, remedy: str) -> None:
    """Raise FetchError unless `folder` holds both files with the expected SHA-256."""
    for name, expected in SHA256.items():
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise FetchError(
                f"cannot read Mongoose's {name} in {folder} ({error.strerror}). {remedy}"
            ) from error
        if found != expected:
            raise FetchError(
                f"the SHA-256 of {folder / name} is {found}, but that of Mongoose {VERSION}, the "
                f"version that mgloop is built and tested with, is {expected}. {remedy}"
            )


def explain(output: str) -> FetchError:
    """Turn pip's output into the paragraph for the person who builds."""
    if "No module named pip" in output:
        return FetchError(
            f"fetching Mongoose needs pip, and {sys.executable} has none. Install it (`apt "
            "install python3-pip`, or `python -m ensurepip` in a virtual environment). "
            + LOCAL_COPY_HINT
        )
    if "DO NOT MATCH THE HASHES" in output:
        return FetchError(
            "the package index delivered a cymongoose source distribution whose SHA-256 is not "
            f"the one pinned in {REQUIREMENTS}; nothing of it was used. Either the index or "
            "something on the way altered the file: try again, then try another network or index, "
            "and report it if it stays. " + LOCAL_COPY_HINT
        )
    lines = [line.strip() for line in output.splitlines()]
    reasons = [line.removeprefix("ERROR:") for line in lines if line.startswith("ERROR:")]
    reason = reasons[-1].strip().rstrip(".") if reasons else "it gave no reason"
    return FetchError(
        "pip could not download the source distribution that carries Mongoose (the requirement is "
        f"in {REQUIREMENTS}); pip says: {reason}. Check that the network and the package index "
        "which pip is configured for can be reached (an index given on pip's command line does not "
        "reach this step: set PIP_INDEX_URL or pip's configuration), then build again. "
        + LOCAL_COPY_HINT
    )


def download(folder: Path) -> Path:
    """Download the pinned source distribution into `folder` with pip and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--retries", "2", "--no-deps", "--no-binary", "cymongoose"]
    command += ["--require-hashes", "--requirement", str(REQUIREMENTS), "--dest", str(folder)]
    # pip asks the distribution for its metadata in an isolated environment of its own. Hash
    # checking is for the distribution, and the option covers it; the variable would extend it to
    # that environment's tools, which have no hash here. And the pip that builds mgloop tells its
    # back-end by variables where that lies, which this pip's own must not be looked for in.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "PIP_REQUIRE_HASHES" and not name.startswith("_PYPROJECT_HOOKS_")
    }
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
    archives = sorted(folder.glob("cymongoose-*.tar.gz"))
    if result.returncode or len(archives) != 1:
        raise explain(result.stdout)
    return archives[0]


def extract(archive: Path, folder: Path) -> None:
    """Take Mongoose's files out of `archive` into `folder`, whole and verified or not at all."""
    root = archive.name.removesuffix(".tar.gz")
    # Verified in a folder beside the destination and renamed into place: two builds may run at
    # once, and an interrupted one must leave nothing half written.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as staging_name:
        staging = Path(staging_name)
        with tarfile.open(archive) as tar:
            for name in SHA256:
                try:
                    member = tar.extractfile(f"{root}/thirdparty/mongoose/{name}")
                except KeyError:
                    member = None
                if member is None:
                    raise FetchError(f"{archive.name} carries no {name}. {LOCAL_COPY_HINT}")
                with member, (staging / name).open("wb") as target:
                    shutil.copyfileobj(member, target)
        verify(staging, f"Nothing of {archive.name} was used. {LOCAL_COPY_HINT}")
        folder.mkdir(exist_ok=True)
        for name in SHA256:
            (staging / name).replace(folder / name)


def fetch(folders: list[Path]) -> Path:
    """Download the files into the first of `folders` that can be written to, and return it."""
    with tempfile.TemporaryDirectory(prefix="mgloop-mongoose-") as scratch:
        archive = download(Path(scratch))
        for folder in folders:
            try:
                extract(archive, folder)
            except OSError as error:
                failure = error
            else:
                return folder
    raise FetchError(
        f"cannot write Mongoose's files to {' or '.join(map(str, folders))} ({failure.strerror}). "
        f"Build from a folder that you may write to. {LOCAL_COPY_HINT}"
    ) from failure


def locate() -> Path:
    """Return the folder with the verified files; fetch them first where there are none."""
    local = os.environ.get(DIRECTORY_VARIABLE)
    if local:
        folder = Path(local).resolve()
        verify(
            folder,
            f"{DIRECTORY_VARIABLE} must name a folder with the unmodified mongoose.c and "
            f"mongoose.h of Mongoose {VERSION}: correct it, or unset it to have them fetched from "
            "the package index.",
        )
        return folder
    folders = [FETCHED]
    if build := os.environ.get(BUILD_VARIABLE):
        folders.append(Path(build, "mongoose"))
    there = [folder for folder in folders if any((folder / name).exists() for name in SHA256)]
    folder = there[0] if there else fetch(folders)
    verify(folder, f"Delete {folder} and build again: it will be fetched anew.")
    return folder


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--dist", action="store_true", help="copy both files into meson's distribution"
    )
    options = parser.parse_args()
    try:
        folder = locate()
    except FetchError as error:
        print(f"mgloop: {error}", file=sys.stderr)
        return 1
    if options.dist:
        target = Path(os.environ["MESON_DIST_ROOT"], "thirdparty", "mongoose", FETCHED.name)
        target.mkdir(exist_ok=True)
        for name in SHA256:
            shutil.copyfile(folder / name, target / name)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
