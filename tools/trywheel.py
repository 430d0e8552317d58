# SPDX-License-Identifier: GPL-2.0-only
"""Test a wheel on a machine that has Python but no compiler (`make try-wheel`).

    python3 tools/trywheel.py dist/mgloop-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl
    python3 tools/trywheel.py --release forky dist/mgloop-0.1.0-cp314-cp314-....whl
    python3 tools/trywheel.py --pytest 'tests/loop -k timers' WHEEL
    python3 tools/trywheel.py --no-tests WHEEL

debootstrap makes a tree of a Debian release (by default the machine's own) that contains only the
base system, python3 and python3-venv. The script installs the wheel and aiohttp there, lets an
aiohttp application answer a request, and prints the time taken. Then it runs the tests, except
those about the sources, from a copy of the working tree without mgloop's own sources.

A wheel for another processor gets a tree of that processor, if the machine can run its programs.
The script uses the mounts and namespaces of `make fresh`: the tree is kept in the user's cache
folder, and if it cannot be made, a sentence says why, and the exit status is 0.
"""

import argparse
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import fresh

PACKAGES = ["python3", "python3-venv"]
COMPILERS = ("cc", "gcc", "clang", "c99", "tcc", "zig")
#: Debian's names of the processors that wheels are for.
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
#: The sources of mgloop, which are removed because the tests must use the wheel's code.
SOURCES = ("mgloop", "thirdparty", "meson.build")
#: The tests that read these sources.
ABOUT_SOURCES = ("tools", "docs/test_commands.py", "docs/test_links.py")
BINARY_FORMATS = Path("/proc/sys/fs/binfmt_misc")

APPLICATION = """\
import asyncio
import aiohttp
from aiohttp import web
import mgloop

async def answer(request):
    return web.json_response({"loop": str(type(asyncio.get_running_loop()))})

async def main():
    application = web.Application()
    application.add_routes([web.get("/", answer)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = "http://%s:%d/" % runner.addresses[0]
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        print(url, "answers", response.status, await response.json())
    await runner.cleanup()

mgloop.run(main())
"""
STEPS = "python3 -m venv v && v/bin/pip install -q ./*.whl aiohttp && v/bin/python app.py"


def processor(wheel):
    """Return the processor that a wheel is for, according to its name."""
    found = re.search(r"_(x86_64|aarch64)\.whl$", wheel.name)
    if not found:
        raise SystemExit(f"trywheel: {wheel.name} is not a wheel for {' or '.join(DEBIAN)}")
    return found[1]


def make_tree(codename, cpu):
    """Return the folder with a tree of that release for that processor; make it if necessary."""
    own, mirror, components = fresh.release()
    if cpu != platform.machine() and not (BINARY_FORMATS / f"qemu-{cpu}").exists():
        raise fresh.SkippedError(
            f"programs for {cpu} cannot run here (on Debian, install qemu-user-static and "
            f"binfmt-support, and mount {BINARY_FORMATS})"
        )
    codename = codename or own
    architecture = DEBIAN[cpu]
    name = f"{codename}-{architecture}-python"
    option = f"--arch={architecture}"
    return fresh.make_tree(codename, mirror, components, PACKAGES, name, option)


def fill(wheel):
    """Return a function that fills a folder with the wheel and the working tree without mgloop."""

    def fill(folder):
        fresh.copy_working_tree(folder, but=SOURCES)
        (folder / "try").mkdir()
        shutil.copy(wheel, folder / "try")

    return fill


def test_requirements():
    """Return the tests' requirements. The oldest release's pip cannot read dependency groups."""
    groups = tomllib.loads(Path("pyproject.toml").read_text())["dependency-groups"]

    def named(group):
        for entry in groups[group]:
            yield from named(entry["include-group"]) if isinstance(entry, dict) else [entry]

    return list(named("test"))


def inside(pytest_args):
    """Test in the tree; return the exit status. `pytest_args`: None for no tests."""
    folder = Path("try")
    if there := [name for name in COMPILERS if shutil.which(name)]:
        raise SystemExit(f"trywheel: this tree has a compiler: {there}")
    # Only glibc reports its version this way.
    (libc,) = re.findall(r"glibc (.+)", os.confstr("CS_GNU_LIBC_VERSION"))
    python = platform.python_version()
    print(f"Python {python}, glibc {libc}, {platform.machine()}, no compiler", flush=True)
    (folder / "app.py").write_text(APPLICATION)
    began = time.monotonic()
    subprocess.run(["sh", "-c", STEPS], cwd=folder, check=True)
    print(f"installed, and answered, after {time.monotonic() - began:.1f} s", flush=True)
    if pytest_args is None:
        return 0
    executable = folder.absolute() / "v/bin/python"
    install = [executable, "-m", "pip", "install", "--quiet", *test_requirements()]
    subprocess.run(install, check=True)
    ignored = [f"--ignore=tests/{name}" for name in ABOUT_SOURCES]
    command = [executable, "-m", "pytest", *ignored, *shlex.split(pytest_args)]
    return subprocess.run(command, check=False).returncode


def main():
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="trywheel", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, nargs="?")
    parser.add_argument(
        "--release",
        help="code name of a Debian release, such as bookworm (default: this machine's)",
    )
    parser.add_argument(
        "--pytest", default="-m 'not slow' --loops=mgloop -n auto --dist=loadfile",
        help="arguments for pytest (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--no-tests", dest="pytest", action="store_const", const=None)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options.pytest)
    if not (options.wheel and options.wheel.is_file()):
        parser.error("name the file of a wheel, as `make wheels` has put into dist/")
    # A time limit sends this signal: the temporary folder must be removed then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        tree = make_tree(options.release, processor(options.wheel))
    except fresh.SkippedError as reason:
        print(f"make try-wheel is skipped: {reason}.")
        return 0
    tests = ["--no-tests"] if options.pytest is None else [f"--pytest={options.pytest}"]
    passed = fresh.configure(tree)
    command = ("python3", "tools/trywheel.py", "--inside", *tests)
    return fresh.run(tree, fresh.ORDINARY, passed, fill(options.wheel), *command)


if __name__ == "__main__":
    sys.exit(main())
