# SPDX-License-Identifier: GPL-2.0-only
"""The fixtures of the WSGI tests: the servers of a module's APPLICATION (wsgi_servers.py)."""

import pytest
from commands import write_app
from wsgi_servers import KINDS, OURS, PREAMBLE, Servers, WsgiServer


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


@pytest.fixture(params=OURS)
def with_options(request, tmp_path):
    """Return a function that starts mgloop's server with options, in both modes."""
    write_app(tmp_path, PREAMBLE + request.module.APPLICATION)
    running = []

    def start(*options):
        running.append(WsgiServer(request.param, tmp_path, *options))
        return running[-1].started()

    yield start
    for server in running:
        with server:
            assert server.stop() == 0, server.output
