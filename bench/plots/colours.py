# SPDX-License-Identifier: GPL-2.0-only
"""The colours of the systems: the same in every picture, and distinct within each picture.

The table also suits readers whose eyes lack one kind of cone: if two systems can appear in one
picture, their colours are at least :data:`APART` from each other in all four kinds of sight.
Systems that run on the same loop have the loop's hue, dark or light, and the warm colours are
mgloop's. A system that is not in the table gets a shade of the system that it is a variant of, or
else the colour that is furthest from the others.
"""

from __future__ import annotations

import colorsys
import functools
import re
from collections.abc import Iterable, Sequence

#: The minimum distance in CIE Lab between systems in one picture, at which none is confused.
APART = 15.0

_ORANGE, _LIGHT_ORANGE = "#d55e00", "#ffb347"
_CRIMSON, _ROSE, _PEACH = "#993347", "#bd75a7", "#f7cdba"
_BLUE, _LIGHT_BLUE = "#0072b2", "#6ccff9"
_GREEN, _LIGHT_GREEN = "#12a860", "#b0f08e"
_GREY, _LIGHT_GREY = "#707070", "#adadad"
_PURPLE, _LIGHT_PURPLE = "#5a316d", "#bf6bf5"
_BLACK, _BROWN, _GOLD, _VIOLET = "#222222", "#7a4b1f", "#dfb400", "#5500cc"

KNOWN = {
    # Loops, and the server in C.
    "mgloop": _ORANGE,
    "uvloop": _BLUE,
    "rloop": _GREEN,
    "asyncio": _GREY,
    "zuvloop": _PURPLE,
    "aiofastnet/mgloop": _LIGHT_ORANGE,
    "aiofastnet/uvloop": _LIGHT_BLUE,
    "aiofastnet/asyncio": _LIGHT_GREY,
    "floor": _BLACK,
    # ASGI servers.
    "mgloop serve": _ORANGE,
    "uvicorn/mgloop": _LIGHT_ORANGE,
    "uvicorn": _BLUE,
    "granian": _GREEN,
    "hypercorn": _GREY,
    # WSGI servers. Those that run the application in the loop's thread have the lighter colour.
    "mgloop serve threads": _ORANGE,
    "mgloop serve inline": _LIGHT_ORANGE,
    "gunicorn gthread": _GREY,
    "granian threads": _GREEN,
    "weft threads": _BLUE,
    "weft inline": _LIGHT_BLUE,
    "peregrine threads": _PURPLE,
    "peregrine": _LIGHT_PURPLE,
    "FastPySGI inline": _CRIMSON,
    "waitress": _ROSE,
    "uWSGI": _PEACH,
    # The seeds.
    "aiohttp/mgloop": _ORANGE,
    "aiohttp/uvloop": _BLUE,
    "aiohttp/rloop": _GREEN,
    "aiohttp/asyncio": _GREY,
    "aiohttp/zuvloop": _PURPLE,
    "FastAPI/mgloop": _LIGHT_ORANGE,
    "FastAPI/uvloop": _LIGHT_BLUE,
    "FastAPI/rloop": _LIGHT_GREEN,
    "FastAPI/asyncio": _LIGHT_GREY,
    "FastAPI/zuvloop": _LIGHT_PURPLE,
    "plain ASGI/mgloop serve": _CRIMSON,
    "BlackSheep/mgloop serve": _ROSE,
    "FastAPI/mgloop serve": _PEACH,
    "Flask/mgloop serve": _VIOLET,
    "cymongoose": _BLACK,
    "Flask, threaded": _BROWN,
    "Cello": _BLACK,
    "BlackSheep/Granian": _GREEN,
    "FastAPI/Granian": _LIGHT_GREEN,
    "Robyn": _PURPLE,
    "blocking, one at a time": _GREY,
    "mgloop, multiplexed": _ORANGE,
    "mgloop, one at a time": _LIGHT_ORANGE,
    "Go, GOMAXPROCS=1": _GOLD,
    "Go, all cores": _BROWN,
}

# The response of an eye to linear red, green and blue: with all cones, and without the long, the
# middle or the short ones (Machado, Oliveira and Fernandes, 2009).
_SIGHTS = (
    ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
)
# Linear sRGB to XYZ, for the white point D65.
_XYZ = (
    (0.4339, 0.3762, 0.1899),
    (0.2126, 0.7152, 0.0722),
    (0.0177, 0.1095, 0.8728),
)

# Colours for systems that are not in the table: all hues, dark, middle and light.
_FREE = tuple(
    "#" + "".join(f"{round(part * 255):02x}" for part in colorsys.hls_to_rgb(hue / 18, light, 0.75))
    for light in (0.35, 0.55, 0.75)
    for hue in range(18)
)


def _channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def _times(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def _linear(channel: int) -> float:
    value = channel / 255
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


@functools.cache
def _seen(colour: str) -> tuple[tuple[float, float, float], ...]:
    """Return *colour* in CIE Lab, as perceived by each of the four kinds of sight."""
    light = [_linear(channel) for channel in _channels(colour)]
    found = []
    for sight in _SIGHTS:
        shown = [min(1.0, max(0.0, value)) for value in _times(sight, light)]
        x, y, z = (
            value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116
            for value in _times(_XYZ, shown)
        )
        found.append((116 * y - 16, 500 * (x - y), 200 * (y - z)))
    return tuple(found)


def distance(one: str, other: str) -> float:
    """Return the distance of two colours (``#rrggbb``) in CIE Lab: the minimum over all sights."""
    return min(
        sum((a - b) ** 2 for a, b in zip(left, right, strict=True)) ** 0.5
        for left, right in zip(_seen(one), _seen(other), strict=True)
    )


def _mixed(colour: str, with_: int, share: float) -> str:
    return "#" + "".join(
        f"{round(part * (1 - share) + with_ * share):02x}" for part in _channels(colour)
    )


def _shades(name: str) -> list[str]:
    """Return shades of the known system that *name* is a variant of, such as ``mgloop 2thr``."""
    parts = re.split(r"[ /,#=]", name)
    base = next((KNOWN[part] for part in parts if part in KNOWN), None)
    if base is None:
        return []
    return [_mixed(base, with_, share) for share in (0.4, 0.65) for with_ in (255, 0)]


def assign(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each of a run's *names*; a new name gets a colour that no other has."""
    named = list(dict.fromkeys(names))
    found = {name: KNOWN[name] for name in named if name in KNOWN}
    for name in named:
        if name not in found:
            used = [*found.values(), "#ffffff"]

            def room(colour: str, used: Sequence[str] = used) -> float:
                return min(distance(colour, other) for other in used)

            shades = [shade for shade in _shades(name) if room(shade) >= APART / 2]
            found[name] = shades[0] if shades else max(_FREE, key=room)
    return found
