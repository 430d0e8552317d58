# SPDX-License-Identifier: GPL-2.0-only
"""The fixtures of the WSGI tests: the servers of a module's APPLICATION (wsgi_servers.py)."""

import pytest
from wsgi_servers import KINDS, OURS, PREAMBLE, Servers


@pytest.fixture(scope="module")
def servers(request, tmp_path_factory):
    """Return the servers of the module's APPLICATION by their kinds."""
    running = Servers(tmp_path_factory.mktemp("wsgi"), PREAMBLE + request.module.APPLICATION)
    yield running
    running.finish()


@pytest.fixture(params=KINDS)
def server(request, servers):
    """Return a server: mgloop's in both modes, and gunicorn's as the control."""
    return servers[request.param]


@pytest.fixture(params=OURS)
def ours(request, servers):
    """Return mgloop's server, in both modes."""
    return servers[request.param]
