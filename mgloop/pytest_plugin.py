# SPDX-License-Identifier: GPL-2.0-only
"""A pytest plugin that runs pytest-asyncio's tests and fixtures on mgloop.

pytest finds it by its entry point wherever mgloop is installed, so it is inert until asked for::

    [pytest]
    mgloop = true

or `pytest --mgloop` (`--no-mgloop` overrides the configuration). It then calls `mgloop.install()`
before the first test and `mgloop.uninstall()` after the last. pytest-asyncio takes its loops from
the current policy unless told otherwise: every asynchronous test and fixture runs on mgloop, those
of synchronous tests too, and so does `asyncio.run()` in a test. This needs nothing of
pytest-asyncio's own interface and holds for all its versions. A project that wants each test on
several loops uses pytest-asyncio's hook instead, which takes precedence::

    def pytest_asyncio_loop_factories(config, item):
        return {"asyncio": asyncio.SelectorEventLoop, "mgloop": mgloop.new_event_loop}

It runs in the main thread, when pytest is configured and when it ends.
"""

from __future__ import annotations

import pytest

_INSTALLED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option and the command-line flags."""
    parser.addini(
        "mgloop", "run pytest-asyncio's tests and fixtures on mgloop", type="bool", default=False
    )
    group = parser.getgroup("mgloop")
    group.addoption(
        "--mgloop",
        action="store_true",
        dest="mgloop",
        default=None,
        help="run pytest-asyncio's tests and fixtures on mgloop",
    )
    group.addoption(
        "--no-mgloop",
        action="store_false",
        dest="mgloop",
        default=None,
        help="do not, even if the configuration says so",
    )


def _wanted(config: pytest.Config) -> bool:
    """Return whether the command line, or else the configuration, asks for mgloop."""
    flag = config.getoption("mgloop")
    return bool(config.getini("mgloop") if flag is None else flag)


def pytest_configure(config: pytest.Config) -> None:
    """Install mgloop if it is asked for.

    Raises `pytest.UsageError` if pytest-asyncio, which is to use it, is not there.
    """
    if not _wanted(config):
        return
    if not config.pluginmanager.hasplugin("asyncio"):
        raise pytest.UsageError(
            "pytest is asked to run asyncio tests on mgloop (`mgloop = true` or --mgloop), but "
            "pytest-asyncio, which runs them, is not installed or is disabled: install it with "
            "`pip install pytest-asyncio`, or take the option away."
        )
    import mgloop

    mgloop.install()
    config.stash[_INSTALLED] = True


def pytest_unconfigure(config: pytest.Config) -> None:
    """Take mgloop away again: pytest may run inside a longer-lived process."""
    if config.stash.get(_INSTALLED, False):
        import mgloop

        config.stash[_INSTALLED] = False
        mgloop.uninstall()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say in pytest's header that the tests run on mgloop."""
    if not config.stash.get(_INSTALLED, False):
        return []
    import mgloop

    return [f"mgloop: asyncio's loops are mgloop {mgloop.__version__}"]
