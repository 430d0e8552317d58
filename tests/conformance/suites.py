# SPDX-License-Identifier: GPL-2.0-only
"""The suites by name, the tests in them, and the one table of tests that are not run.

A suite is a module of ``test.test_asyncio``, or some classes of one. Modules that an interpreter
lacks (``test_eager_task_factory`` came with 3.12) are left out. The suites exclude modules that
make no loop through asyncio and test the internals of the standard library's loops
(``test_base_events``, ``test_selector_events``, ``test_proactor_events``, ``test_windows_*``).
"""

import fnmatch
import importlib
import importlib.util
import sys
import unittest
from collections.abc import Iterator
from typing import NamedTuple

PACKAGE = "test.test_asyncio"

#: Suites whose module has another name, or that are some classes of a module.
_EXCEPTIONS = {
    "sslproto": ("test_sslproto", "*Handshake*"),
    "start_tls": ("test_sslproto", "*StartTLS*"),
    "eager_tasks": ("test_eager_task_factory", "*"),
    "task_groups": ("test_taskgroups", "*"),
}
_NAMES = (
    "events", "subprocess", "sock_lowlevel", "sendfile", "server", "buffered_proto", "ssl",
    "sslproto", "start_tls", "streams", "unix_events", "runners", "tasks", "eager_tasks",
    "task_groups", "timeouts", "locks", "queues", "futures", "futures2", "context", "waitfor",
    "staggered", "threads", "pep492", "transports", "protocols", "free_threading", "graph",
    "tools",
)  # fmt: skip
#: Suite name -> (module, pattern of its classes).
SUITES = {name: _EXCEPTIONS.get(name, (f"test_{name}", "*")) for name in _NAMES}

#: The same mixins over another selector of the standard library: over one loop under test they
#: would be the same tests three times. The EPoll classes are the ones that are run.
SELECTOR_VARIANTS = ("PollEventLoopTests", "SelectEventLoopTests", "KqueueEventLoopTests")


class Skip(NamedTuple):
    """A test that is not run over a loop other than the standard library's, and the reason."""

    pattern: str
    reason: str


#: White-box tests only: each patches or reads a private part of the selector loop.
SKIPS: tuple[Skip, ...] = (
    Skip(
        "test_subprocess.GenericWatcherTests.test_create_subprocess_fails_with_inactive_watcher",
        "examines the standard loop's use of a child watcher, gone in 3.14; mgloop needs none",
    ),
    Skip(
        "test_subprocess.*WatcherTests.test_watcher_implementation",
        "asks for the class of the child watcher in loop._watcher (3.14); mgloop needs none",
    ),
    Skip(
        "test_subprocess.*WatcherTests.test_pid_not_reaped_before_exit_published",
        "joins a thread that it takes out of the child watcher's _threads (3.14)",
    ),
    Skip(
        "test_unix_events.SelectorEventLoopSignalTests.test_close_on_finalizing",
        "replaces the module sys inside asyncio.unix_events to feign the interpreter's end",
    ),
    Skip(
        "test_sslproto.SslProtoHandshakeTests.test_connection_lost_when_busy",
        "hands a mock for a socket, with a descriptor that does not exist, to a private method",
    ),
    Skip(
        "test_ssl.TestSSL.test_remote_shutdown_receives_trailing_data_on_slow_socket",
        "reads _read_ready_cb of the selector transport and puts another object for its _sock",
    ),
)

#: Tests of ``binding.TEST_LOOP_MODULES`` that need TestLoop itself although they script no step of
#: its clock: they call its ``_run_once`` and look into its ``_ready``.
FAKE_CLOCK = ("test_tasks.*.test_log_destroyed_pending_task",)


class MissingTestsError(Exception):
    """The interpreter lacks ``test.test_asyncio``; the message says how to install it."""


def require_test_package() -> None:
    """Raise MissingTestsError if the interpreter lacks ``test.test_asyncio``."""
    try:
        found = importlib.util.find_spec(PACKAGE) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise MissingTestsError(
            f"{sys.executable} has no {PACKAGE}. On Debian it is in the package "
            f"libpython{version}-testsuite (apt-get install libpython{version}-testsuite); other "
            "distributions call it python3-test; CPython built from source always has it."
        )


def available() -> list[str]:
    """Return the suites that the running interpreter has, in the order of ``SUITES``."""
    return [
        name
        for name, (module, _) in SUITES.items()
        if importlib.util.find_spec(f"{PACKAGE}.{module}") is not None
    ]


def named(name: str) -> list[str]:
    """Return the suites that *name* means: one of ``SUITES``, or all those of a module."""
    return [suite for suite, (module, _) in SUITES.items() if name in (suite, module)]


def _flatten(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _flatten(item)
        else:
            yield item


def short_id(test: unittest.TestCase) -> str:
    """Return ``test_events.EPollEventLoopTests.test_run_forever``, without the package."""
    return test.id().removeprefix(f"{PACKAGE}.")


def tests_of(suite: str) -> dict[str, unittest.TestCase]:
    """Return the tests of *suite* by short id. An import error of its module is raised."""
    module_name, classes = SUITES[suite]
    module = importlib.import_module(f"{PACKAGE}.{module_name}")
    found = {}
    for test in _flatten(unittest.defaultTestLoader.loadTestsFromModule(module)):
        class_name = type(test).__name__
        if fnmatch.fnmatchcase(class_name, classes) and class_name not in SELECTOR_VARIANTS:
            found[short_id(test)] = test
    return found


def skip_reason(test_id: str) -> str | None:
    """Return the reason why *test_id* is in the skip table, or None."""
    for skip in SKIPS:
        if fnmatch.fnmatchcase(test_id, skip.pattern):
            return skip.reason
    return None


def needs_fake_clock(test_id: str) -> bool:
    """Return whether *test_id* keeps upstream's TestLoop."""
    return any(fnmatch.fnmatchcase(test_id, pattern) for pattern in FAKE_CLOCK)
