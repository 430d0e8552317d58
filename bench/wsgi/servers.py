# SPDX-License-Identifier: GPL-2.0-only
"""The WSGI servers that are compared.

A server that can run the application both in its loop's thread and in a pool takes part in both
forms, as *inline* and *threads*.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import served
from ..registry import WSGI_REFERENCE, Workload
from ..served import Server

THREADS = 4


def _server(name: str, module: str, needs: str, threads: int = THREADS) -> Server:
    return Server(name, module, (needs,), suite="wsgi", threads=threads)


# In the order of the columns.
KNOWN = (
    _server(WSGI_REFERENCE, "gunicorn", "gunicorn"),
    _server("mgloop serve threads", "mgloop", "mgloop"),
    _server("mgloop serve inline", "mgloop", "mgloop", 0),
    _server("granian threads", "granian", "granian"),
    _server("weft threads", "weft", "weft"),
    _server("weft inline", "weft", "weft", 0),
    _server("peregrine threads", "peregrine", "peregrine"),
    _server("peregrine", "peregrine", "peregrine", 1),
    _server("FastPySGI inline", "fastpysgi", "fastpysgi", 0),
    _server("waitress", "waitress", "waitress"),
    _server("uWSGI", "uwsgi", "uwsgidecorators"),
)


def every() -> list[Server]:
    """Return all servers that can be named."""
    return list(KNOWN)


def available(
    names: Sequence[str], peers: Sequence[str], *, control: bool
) -> tuple[list[Server], dict[str, str]]:
    """Return the servers of *names* (default: all) that can start; see served.available()."""
    return served.available(KNOWN, KNOWN, names, peers, control=control)


def able(workload: Workload, servers: Sequence[Server]) -> list[Server]:
    """Return those of *servers* that have the number of threads that *workload* asks for."""
    if "threads" not in workload.server:
        return list(servers)
    return [server for server in servers if server.threads > 1]
