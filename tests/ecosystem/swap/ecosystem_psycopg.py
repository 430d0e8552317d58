# SPDX-License-Identifier: GPL-2.0-only
"""pytest plugin: gives the proxy of psycopg's suite 30 seconds to start.

The suite gives two, which is too short for an interpreter that starts on a loaded machine.
"""

import socket
import time


def _extended(wait_listen):
    def wait(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex((self.client_host, self.client_port)) == 0:
                    break
            time.sleep(0.1)
        wait_listen(self)

    return wait


def pytest_sessionstart(session) -> None:
    """Extend the wait of the class that starts the proxy."""
    proxy = session.config.pluginmanager.get_plugin("tests.fix_proxy").Proxy
    proxy._wait_listen = _extended(proxy._wait_listen)
