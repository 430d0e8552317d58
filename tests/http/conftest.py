# SPDX-License-Identifier: GPL-2.0-only
"""The fixtures of the server's tests: a folder with an application, and servers of the WSGI
applications in wsgi_apps (wsgi_servers.py).
"""

from pathlib import Path

import building
import commands
import pytest
from wsgi_servers import KINDS, OURS, Servers, WsgiServer

import mgloop


@pytest.fixture
def folder(request, tmp_path):
    """Return a folder with the module's APPLICATION, or that of commands.py, in main.py."""
    commands.write_app(tmp_path, getattr(request.module, "APPLICATION", commands.APPLICATION))
    return tmp_path


@pytest.fixture
def authority(certificate_authority):
    return certificate_authority


@pytest.fixture(scope="session")
def handlers(tmp_path_factory):
    """Return the module handlers.pyx, compiled against mgloop."""
    source = Path(__file__).with_name("handlers.pyx")
    folder = tmp_path_factory.mktemp("handlers")
    return building.load(building.build(source, folder, mgloop.get_include()))


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Return the servers by their kinds."""
    running = Servers(tmp_path_factory.mktemp("wsgi"))
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


@pytest.fixture(params=[*KINDS, "streaming"])
def every_server(request, servers):
    """Return a server, also one whose applications read the body as it comes."""
    return servers[request.param]


@pytest.fixture
def threads(servers):
    """Return mgloop's server with a pool of threads."""
    return servers["threads"]


@pytest.fixture
def streaming(servers):
    """Return mgloop's server whose applications read the body as it comes."""
    return servers["streaming"]


@pytest.fixture
def start(tmp_path):
    """Return a function that starts mgloop's server with options, by default with threads.

    A server that runs at the end of the test must stop in order.
    """
    running = []

    def start(*options, kind="threads", **more):
        running.append(WsgiServer(kind, tmp_path, *options, **more))
        return running[-1].started()

    yield start
    for server in running:
        with server:
            if server.process.poll() is None:
                assert server.stop() == 0, server.output


@pytest.fixture(params=OURS)
def with_options(request, start):
    """Return a function that starts mgloop's server with options, in both modes."""
    return lambda *options, **more: start(*options, kind=request.param, **more)
