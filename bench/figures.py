# SPDX-License-Identifier: GPL-2.0-only
"""The few figures that README shows, from the results files in docs/benchmarks.

    python -m bench.figures             prints the text between README's marks
    python -m bench.figures --write     writes it into README

A test compares the two, so that README always shows the latest measurements.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path

from . import results, stats
from .errors import BenchError
from .results import Results

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "benchmarks"
README = ROOT / "README.md"
MARKS = re.compile(r"(<!-- figures: begin.*?-->\n).*?(<!-- figures: end -->)", re.S)

#: The workloads of the loops, with README's names for them.
LOOPS = {
    "echo/protocol-1k-c100": "echo over `Protocol`, 1 KiB x 100 connections",
    "echo/streams-1k-c100": "echo over streams, 1 KiB x 100",
    "tls/protocol-1k-c100": "echo over TLS, 1 KiB x 100",
    "http/aiohttp-c50": "an aiohttp server, JSON x 50",
}
#: The workload of the servers, which compares `mgloop serve` with uvicorn.
SERVER = ("asgi/hello-c100", "an ASGI application x 100: `mgloop serve`")


def ratio(found: Results, workload: str, subject: str) -> str:
    """Return the median as text, in bold if it is beyond the noise."""
    ratios = found.ratios(workload, subject)
    if not ratios:
        raise BenchError(f"{workload} has no figure of {subject}")
    text = f"{stats.median(ratios):.2f}"
    beyond = stats.verdict(ratios, found.noise(workload)) in ("faster", "slower")
    return f"**{text}**" if beyond else text


def noise(found: Results, workload: str) -> str:
    """Return the control's noise at *workload* as text."""
    return f"±{found.noise(workload) * 100:.0f} %"


def version(found: Results, subject: str) -> str:
    """Return the version of *subject* that was measured."""
    return next(s["version"] for s in found.subjects if s["name"] == subject)


def python(found: Results) -> str:
    """Return the version of the interpreter."""
    return found.machine["python"].partition(" ")[0]


def text() -> str:
    """Return the text between README's marks."""
    loops, servers = (results.load(str(FOLDER / name)) for name in ("results.json", "asgi.json"))
    workload, title = SERVER
    uvicorn = re.search(r"uvicorn (\S+)", version(servers, "uvicorn"))[1]  # type: ignore[index]
    cores = f"{loops.machine['cpus']}{' virtual' if loops.machine['virtual'] else ''} cores"
    words = (
        f"Each figure is a ratio of CPU time per operation: 2 means half of the CPU time of the"
        f" reference. The reference is uvloop {version(loops, 'uvloop')}; in the last row it is"
        f" uvicorn {uvicorn} on uvloop. The machine has {cores} and runs CPython {python(loops)};"
        " clients connect over loopback. Each figure is the median of interleaved windows. A bold"
        " figure differs from 1 by more than the noise, which is how much the reference differs"
        " from itself."
    )
    lines = textwrap.wrap(words, 100)
    lines += ["", "| | mgloop | asyncio | noise |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {ratio(loops, key, 'mgloop')} | {ratio(loops, key, 'asyncio')}"
        f" | {noise(loops, key)} |"
        for key, name in LOOPS.items()
    ]
    lines.append(
        f"| {title} | {ratio(servers, workload, 'mgloop serve')} | | {noise(servers, workload)} |"
    )
    return "\n" + "\n".join(lines) + "\n\n"


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the figures into README")
    try:
        figures = text()
        if not parser.parse_args().write:
            print(figures.strip())
            return 0
        readme, count = MARKS.subn(rf"\g<1>{figures}\g<2>", README.read_text())
        if count != 1:
            raise BenchError(f"expected one place for figures in {README.name}, found {count}")
        README.write_text(readme)
    except BenchError as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
