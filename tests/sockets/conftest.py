# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures for the tests of the socket methods."""

import socket

import pytest


@pytest.fixture
def udp_pair():
    """Yield two non-blocking UDP sockets on 127.0.0.1, bound, not connected."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two,
    ):
        for sock in (one, two):
            sock.bind(("127.0.0.1", 0))
            sock.setblocking(False)
        yield one, two


@pytest.fixture
def one(udp_pair):
    """Return the first socket of ``udp_pair``."""
    return udp_pair[0]


@pytest.fixture
def two(udp_pair):
    """Return the second socket of ``udp_pair``."""
    return udp_pair[1]
