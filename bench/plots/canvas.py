# SPDX-License-Identifier: GPL-2.0-only
"""The common parts of all pictures: their size, the header, the end of an axis, the file.

A picture is WIDTH wide and at most TALLEST high, which is a screen. It has a white background, so
that it can be read on a dark page. Title and legend are above the axes and never on them.
matplotlib (the dependency group ``bench``) is imported only when a picture is requested, and
without pyplot, which would keep state between pictures.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BenchError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches, and dots per inch: 1100 dots by 891 at most.
WIDTH = 10.0
TALLEST = 8.1
DPI = 110
# Colours in a file: a picture has about twelve, which are kept exactly, and the shades of edges.
PALETTE = 128
INK, PALE = "#222222", "#777777"
# Names that differ between pictures and tables.
NAMES = {"floor": "floor (a server in C)"}
# Inches above the axes: the title's line, the subtitle's line, and each line of the legend.
TITLE, SUBTITLE, LEGEND = 0.36, 0.22, 0.24
# Bars longer than FAR times the next are cut off, if they are at most the share FEW of all, ...
FAR, FEW = 5, 0.25
# ... an axis ends this far beyond the longest bar that is not cut off, ...
BEYOND = 1.6
# ... and no bar is cut off if that gains no more than this.
LITTLE = 1.25


@dataclass
class Picture:
    """One picture: the stem of its file's name, the suite it belongs to, and its contents."""

    name: str
    suite: str
    title: str
    figure: Figure
    path: Path = Path()

    def inline(self) -> str:
        """Return the saved file as a data URL, so that an HTML report is one file."""
        return "data:image/png;base64," + base64.b64encode(self.path.read_bytes()).decode()


def blank(height: float, rows: int = 1, columns: int = 1, **options: object) -> tuple:
    """Return a figure of *height* inches and its grid of axes. BenchError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise BenchError(
            "pictures need matplotlib: pip install matplotlib (dependency group `bench`)"
        ) from exc
    figure = Figure(figsize=(WIDTH, min(height, TALLEST)), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=INK)
    return figure, grid


def finish(figure: Figure, title: str, subtitle: str, handles: Sequence = ()) -> None:
    """Write the header, with a legend of *handles*, and arrange everything below it."""
    height = figure.get_figheight()
    figure.text(0.012, 1 - 0.09 / height, title, size=12, weight="bold", color=INK, va="top")
    figure.text(0.012, 1 - TITLE / height, subtitle, size=8.5, color=PALE, va="top")
    top = TITLE + SUBTITLE
    if handles:
        top += LEGEND * _legend(figure, handles, 1 - top / height)
    figure.tight_layout(rect=(0, 0, 1, 1 - (top + 0.04) / height))


def _legend(figure: Figure, handles: Sequence, top: float) -> int:
    """Draw a legend in as few lines as fit the width; return the number of lines."""
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.004, top),
            ncols=columns,
            fontsize=8.5,
            frameon=False,
            borderpad=0.1,
            columnspacing=1.4,
            handlelength=1.4,
            labelcolor=INK,
        )
        if columns == 1 or legend.get_window_extent().width < 0.97 * figure.bbox.width:
            break
        legend.remove()
    return -(-len(handles) // columns)


def axis_end(lengths: Iterable[float], whiskers: Iterable[float]) -> float:
    """Return the end of an axis that begins at 0: beyond the longest bar (or the highest point).

    A bar many times as long as all shorter ones is cut off, as is a whisker that extends beyond the
    axis. The caller marks both.
    """
    ordered = sorted(lengths)
    longest = max([*ordered, *whiskers])
    whole = len(ordered) - 1
    # Cut off one outlier or a few; many long bars are the subject of the picture.
    for place in range(len(ordered) - 1, int(len(ordered) * (1 - FEW)), -1):
        if ordered[place] > FAR * ordered[place - 1]:
            whole = place - 1
    end = BEYOND * ordered[whole]
    return longest * 1.03 if longest <= LITTLE * end else end


def number(value: float) -> str:
    """Return the shortest form of a number: 0.21, 2.43, 10.8, 23, 1,234, 68k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:.0f}k"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 10 else f"{value:.2f}"


def duration(us: float) -> str:
    """Return a time in microseconds as text, in ms if it is long."""
    return f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} us"


def plain_log(axes: Axes, low: float, high: float, labels: int = 6) -> None:
    """Set a logarithmic y axis from *low* to *high* with few labels, in plain numbers."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        places = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(places) <= labels:
            break
    axes.set_yticks(places, [duration(place) for place in places])
    axes.minorticks_off()


def save(picture: Picture, folder: Path) -> None:
    """Write the picture's file: opaque, and with as many colours as it needs."""
    import numpy
    from PIL import Image

    drawn = picture.figure.canvas
    drawn.draw()
    red, green, blue = numpy.moveaxis(numpy.asarray(drawn.buffer_rgba(), numpy.uint32), 2, 0)[:3]
    # The most frequent colours are kept exactly, and shades of edges become the nearest of them.
    # (Image's quantize() chooses by clusters, and changes the colours of small areas.)
    found, places, counts = numpy.unique(
        red << 16 | green << 8 | blue, return_inverse=True, return_counts=True
    )
    colours = found[:, None] >> numpy.array([16, 8, 0], numpy.uint32) & 255
    colours = colours.astype(int)
    common = colours[numpy.argsort(-counts)[:PALETTE]]
    nearest = ((colours[:, None, :] - common) ** 2).sum(axis=2).argmin(axis=1)
    image = Image.fromarray(nearest.astype(numpy.uint8)[places.reshape(red.shape)], "P")
    image.putpalette(common.astype(numpy.uint8).tobytes())
    picture.path = folder / f"{picture.name}.png"
    image.save(picture.path, optimize=True, dpi=(DPI, DPI))
