# SPDX-License-Identifier: GPL-2.0-only
"""Tests of other projects that may differ between the loops, each with its reason.

A line is for a test that passes over the standard library's loop and examines a detail that another
loop cannot have; never for a test that ought to pass.
"""

from typing import NamedTuple


class Expected(NamedTuple):
    """A test id (a pattern), and why it may fail here although it passes over the standard loop."""

    pattern: str
    reason: str


#: Target -> the tests that may differ.
EXPECTED: dict[str, tuple[Expected, ...]] = {
    "anyio-suite": (
        Expected(
            "tests/test_pytest_plugin.py::test_plugin_loads_with_filterwarnings_error",
            "starts a pytest that takes warnings for errors; sitecustomize has imported mgloop "
            "before it could rewrite the asserts of its plugin, of which it warns",
        ),
        Expected(
            "tests/test_to_thread.py::TestBlockingPortalProvider::test_single_thread*",
            "counts the threads of the whole process, among which those of the tests before it "
            "may just be ending",
        ),
    ),
    "uvicorn": (
        Expected(
            "tests/test_auto_detection.py::test_loop_auto",
            'asserts that the class of the loop that loop="auto" gives comes from a module of '
            "asyncio",
        ),
    ),
    "websockets-suite": (
        Expected(
            "tests/asyncio/test_connection.py::*ConnectionTests::test_local_address",
            "patches get_extra_info() of the class asyncio.Transport, which a compiled transport "
            "does not look up there (uvloop's neither)",
        ),
        Expected(
            "tests/asyncio/test_connection.py::*ConnectionTests::test_remote_address",
            "patches get_extra_info() of the class asyncio.Transport, which a compiled transport "
            "does not look up there (uvloop's neither)",
        ),
    ),
    "starlette-sockets": (
        Expected(
            "tests/test_routing.py::test_host_routing_rejects_invalid_hosts*:evil*",
            "sends a Host whose port is no number, which a server has to answer 400 (RFC 9112, "
            "3.2); uvicorn leaves it to the application, which the test has answer 404",
        ),
    ),
}
