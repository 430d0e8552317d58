# SPDX-License-Identifier: GPL-2.0-only
"""mgloop's TLS protocol against the standard library's, step by step and without sockets.

Every test runs as ``[asyncio]``, ``[mgloop]`` and ``[mgloop_ssl]``: on asyncio's loop with
``asyncio.sslproto.SSLProtocol``, which proves the test, and with ``SSLProtocol`` of mgloop.tls,
which calls OpenSSL directly or through the ssl module.
The peer is an ``ssl.SSLObject`` and the transport below is a recorder, so a test decides exactly
which bytes arrive together. Tests that need sockets are in test_ssl_sockets.py; TLS over mgloop's
own transports is in ../test_tls.py and ../test_start_tls.py.
"""

import asyncio
import asyncio.sslproto
import functools
import gc
import ssl

import certificates
import pytest
import support
from harness import STDLIB, App, Connection

KINDS = ("asyncio", "mgloop", "mgloop_ssl")


def pytest_generate_tests(metafunc):
    if "kind" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("loops")
        kinds = [kind for kind in KINDS if kind.partition("_")[0] in wanted]
        metafunc.parametrize("kind", kinds, indirect=True)


@pytest.fixture
def kind(request):
    """Select the SSLProtocol under test."""
    return request.param


@pytest.fixture
def protocol_class(kind, monkeypatch):
    """Return the SSLProtocol under test, and install it where asyncio's loop looks it up."""
    if kind == "asyncio":
        yield STDLIB
        return
    from mgloop.tls import _openssl
    from mgloop.tls._protocol import SSLProtocol

    monkeypatch.setattr(asyncio.sslproto, "SSLProtocol", SSLProtocol)
    usual, _ = _openssl.engine()
    _openssl.engine("ssl" if kind == "mgloop_ssl" else usual)
    yield SSLProtocol
    _openssl.engine(usual)


@pytest.fixture
def loop(protocol_class, reported):
    """Yield asyncio's own loop, with the same checks at the end as in the main conftest."""
    before = support.open_fds()
    loop = support.new_loop("asyncio")
    loop.set_exception_handler(reported.record)
    yield loop
    pending = support.finish(loop)
    gc.collect()
    reported.check()
    assert not pending
    assert not support.fds_opened_since(before)


@pytest.fixture
def tls_version():
    """Return the version that both sides use; modules for which it matters parametrise it."""
    return ssl.TLSVersion.TLSv1_3


@pytest.fixture(scope="session")
def contexts_of(certificate_authority, server_certificate):
    """Return a function that returns the (client, server) contexts of a TLS version."""

    @functools.cache
    def contexts_of(tls_version):
        client = certificates.trusting(certificate_authority)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_certificate.configure_cert(server)
        for context in (client, server):
            context.minimum_version = context.maximum_version = tls_version
        return client, server

    return contexts_of


@pytest.fixture
def contexts(tls_version, contexts_of):
    """Return (client, server), which the tests share; a test undoes its changes of them."""
    return contexts_of(tls_version)


@pytest.fixture
def prepare(loop, protocol_class, contexts):
    """Return prepare(app, **kwargs), which makes a Connection before its handshake."""
    made = []

    def prepare(app, contexts=contexts, **kwargs):
        connection = Connection(loop, protocol_class, contexts, app, **kwargs)
        made.append(connection)
        return connection

    yield prepare
    for connection in made:
        if connection.proto._app_transport is not None:
            connection.lose()


@pytest.fixture
def connect(prepare):
    """Return connect(app, **kwargs), which makes a Connection with its handshake done."""
    return lambda app, **kwargs: prepare(app, **kwargs).shake_hands()


@pytest.fixture
def app():
    """Return the application of ``connection``."""
    return App()


@pytest.fixture
def connection(connect, app):
    """Return a Connection of ``app`` with its handshake done."""
    return connect(app)


@pytest.fixture
def run_for(loop):
    """Return run_for(predicate), which runs the loop until the predicate is true."""
    return lambda predicate: loop.run_until_complete(support.wait_until(predicate))
