# SPDX-License-Identifier: GPL-2.0-only
"""The pictures of a results file: bars of ratios, latency, lines, and README's summary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import BenchError
from ..results import Results
from . import bars, canvas, colours, latency, lines
from .canvas import Picture


def pictures(results: Results) -> Iterator[Picture]:
    """Yield every picture that the results allow, without writing it."""
    table = colours.assign(s["name"] for s in results.subjects)
    for module in (bars, latency, lines):
        yield from module.pictures(results, table)


def draw(results: Results, folder: Path) -> list[Picture]:
    """Write every picture to *folder*. BenchError without matplotlib or if that is impossible."""
    drawn = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures(results):
            canvas.save(picture, folder)
            drawn.append(picture)
    except OSError as exc:
        raise BenchError(f"cannot write to {folder}: {exc.strerror}") from exc
    return drawn
