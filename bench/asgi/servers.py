# SPDX-License-Identifier: GPL-2.0-only
"""The ASGI servers that are compared."""

from __future__ import annotations

from collections.abc import Sequence

from .. import loops, served
from ..registry import ASGI_REFERENCE
from ..served import Server

# In the order of the columns.
KNOWN = (
    Server(ASGI_REFERENCE, "uvicorn", ("uvicorn", "httptools", "uvloop", "websockets")),
    Server("mgloop serve", "mgloop", ("mgloop",)),
    Server(
        "uvicorn/mgloop",
        "uvicorn",
        ("uvicorn", "httptools", "mgloop", "websockets"),
        loop="mgloop:new_event_loop",
    ),
    Server("granian", "granian", ("granian", "uvloop")),
    Server("hypercorn", "hypercorn", ("hypercorn", "uvloop")),
)


def every() -> list[Server]:
    """Return all servers that can be named: the known ones, and mgloop's with two loops."""
    return [
        one
        for server in KNOWN
        for one in (loops.together([server], [2]) if server.module == "mgloop" else [server])
    ]


def available(
    names: Sequence[str], peers: Sequence[str], *, control: bool
) -> tuple[list[Server], dict[str, str]]:
    """Return the servers of *names* (default: all) that can start; see served.available()."""
    return served.available(every(), KNOWN, names, peers, control=control)
