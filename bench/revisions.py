# SPDX-License-Identifier: GPL-2.0-only
"""The regression guard: ``python -m bench.revisions BASE`` (``make bench-compare BASE=<rev>``).

The guard builds mgloop from the revision BASE and from the working tree into virtual environments
in a temporary folder, and measures the core workloads on both in turn: paired, in one run. The
control is a second build of BASE whose code is shifted by a few bytes, because the addresses of the
code can make one of two builds of the same sources faster. A workload that looks slower is measured
a second time. Exit status: 1 if a workload is slower beyond the noise both times, 2 if a revision
does not exist or does not build. Git is only read (``archive``, ``ls-files``).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import cli, results, stats
from .errors import BenchError
from .machine import ROOT
from .results import Results

BASE, HEAD, MOVED = "base", "head", "base-moved"
# Insert this many bytes of no-operation code at the beginning of each function.
MOVE = "-fpatchable-function-entry=12"
# The working tree a second time, with the observing features of docs/observing.md enabled.
OBSERVED = {"timing": "MGLOOP_TIMING=1", "watchdog": "MGLOOP_WATCHDOG=0.1"}


def _run(command: Sequence[str], problem: str, **options) -> bytes:
    """Return the output of *command*. BenchError with *problem* and its last line if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, **options)
    except OSError as exc:
        raise BenchError(f"{problem}: {exc}") from exc
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise BenchError(f"{problem}: {said[-1] if said else done.returncode}")
    return done.stdout


def export(revision: str, folder: Path) -> str:
    """Unpack *revision* into *folder*; return its full name. BenchError if it is unknown."""
    name = _run(
        ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"],
        f"git knows no revision {revision!r}",
        cwd=ROOT,
    )
    folder.mkdir(parents=True)
    archive = _run(["git", "archive", revision], f"git cannot export {revision!r}", cwd=ROOT)
    _run(["tar", "-x", "-C", str(folder)], "tar cannot unpack the revision", input=archive)
    return name.decode().strip()


def copy_tree(folder: Path) -> None:
    """Copy the working tree (tracked files and new ones that git does not ignore) to *folder*."""
    listed = _run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        "git cannot list the working tree",
        cwd=ROOT,
    )
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _environment(flags: str) -> dict[str, str]:
    """Return the environment of a build: this interpreter's tools, and the fetched sources."""
    env = dict(os.environ)
    env["CFLAGS"] = f"{env.get('CFLAGS', '')} {flags}".strip()
    env["PATH"] = sysconfig.get_path("scripts") + os.pathsep + env.get("PATH", "")
    for fetched in ROOT.glob("thirdparty/*/fetched"):
        env.setdefault(f"MGLOOP_{fetched.parent.name.upper()}_DIR", str(fetched))
    return env


def build(source: Path, folder: Path, flags: str = "") -> str:
    """Build mgloop from *source* in a virtual environment in *folder*; return its interpreter.

    *flags* are passed to the C compiler in addition to CFLAGS.

    The environment also sees the packages of the running interpreter (aiohttp and others, at equal
    versions), after its own packages. A path file adds them. The path files in that folder are not
    read, so an editable mgloop is not included.
    """
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], "no virtual environment")
    python = folder / "bin" / "python"
    purelib = _run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        "the virtual environment does not work",
    )
    (Path(purelib.decode().strip()) / "bench-packages.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--ignore-installed",
    ]
    if all(importlib.util.find_spec(name) for name in ("mesonpy", "Cython", "mesonbuild")):
        command.append("--no-build-isolation")
    _run(
        [*command, str(source)], f"mgloop of {source.name} does not build", env=_environment(flags)
    )
    return str(python)


def regressions(found: Results) -> dict[str, str]:
    """Return a sentence for each workload at which HEAD is slower than BASE beyond the noise."""
    sentences = {}
    for w in found.measured():
        ratios = found.ratios(w["name"], HEAD)
        band = found.noise(w["name"])
        sound = bool(found.values(w["name"], BASE))
        if sound and not found.values(w["name"], HEAD):
            sentences[w["name"]] = f"{w['name']}: no figure any more"
        elif stats.verdict(ratios, band) == "slower":
            sentences[w["name"]] = (
                f"{w['name']}: {stats.median(ratios):.3f} of {BASE}'s speed, noise "
                f"{band * 100:.1f} %, {len(ratios)} rounds"
            )
    return sentences


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.revisions",
        description="Fail when the working tree is slower than BASE at a core workload.",
    )
    parser.add_argument("base", help="revision to compare with")
    parser.add_argument("--suite", default="micro,echo,http,tls,scale")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument(
        "--observed", action="store_true", help="also measure with timing, and with a watchdog",
    )  # fmt: skip
    parser.add_argument("--json", default="bench-compare.json", metavar="FILE")
    return parser


def _compare(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="bench-revisions-") as name:
        folder = Path(name)
        revision = export(args.base, folder / "src" / BASE)
        copy_tree(folder / "src" / HEAD)
        print(f"building {revision[:12]} and the working tree", file=sys.stderr)
        pythons = {n: build(folder / "src" / n, folder / n) for n in (BASE, HEAD)}
        moved = build(folder / "src" / BASE, folder / MOVED, MOVE)
        loops = ",".join(
            [f"{n}=mgloop@{python}" for n, python in pythons.items()]
            + [f"{n}=mgloop@{pythons[HEAD]}?{setting}" for n, setting in OBSERVED.items()]
            * args.observed
        )
        control = f"{MOVED}=mgloop@{moved}"
        status, worse = _measure(args, loops, control, args.only, args.json)
        if worse:
            # Of forty workloads one or two look slower by chance: a real slowdown shows twice.
            print("measuring again what looks slower", file=sys.stderr)
            again = str(Path(args.json).with_suffix(".again.json"))
            status, confirmed = _measure(args, loops, control, ",".join(worse), again)
            worse = {name: confirmed[name] for name in worse if name in confirmed}
    for sentence in worse.values():
        print(f"REGRESSION {sentence}")
    if not worse and status == 0:
        print(f"no regression beyond the noise against {revision[:12]}")
    return 1 if worse else status


def _measure(
    args: argparse.Namespace, loops: str, control: str, only: str, path: str
) -> tuple[int, dict[str, str]]:
    """Measure both builds in one run; return its exit status and the regressions."""
    Path(path).unlink(missing_ok=True)
    status = cli.main(
        ["run", "--core", "--no-floor", "--loops", loops, "--reference", BASE, "--control", control,
         "--suite", args.suite, "--only", only, "--rounds", str(args.rounds),
         "--windows", str(args.windows), "--seconds", str(args.seconds), "--json", path]
    )  # fmt: skip
    return status, regressions(results.load(path)) if Path(path).exists() else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    args = _parser().parse_args(argv)
    try:
        return _compare(args)
    except BenchError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
