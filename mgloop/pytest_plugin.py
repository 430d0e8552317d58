# SPDX-License-Identifier: GPL-2.0-only
"""A pytest plugin that runs asynchronous tests and fixtures on mgloop, whoever runs them.

pytest finds it by its entry point wherever mgloop is installed, so it is inert until asked for::

    [pytest]
    mgloop = true

or `pytest --mgloop` (`--no-mgloop` overrides the configuration). It then has asyncio make mgloop's
loops from before the first test until after the last, as `mgloop.install()` does. pytest-asyncio,
pytest-aiohttp, aiohttp.pytest_plugin and anyio's plugin take their loops from the current policy
unless told otherwise: every asynchronous test and fixture runs on mgloop, those of synchronous
tests too, and so does `asyncio.run()` in a test, also where none of these plugins is. This needs
nothing of their own interfaces and holds for all their versions. A project that wants each test on
several loops uses theirs instead, which take precedence::

    def pytest_asyncio_loop_factories(config, item):  # pytest-asyncio
        return {"asyncio": asyncio.SelectorEventLoop, "mgloop": mgloop.new_event_loop}

    @pytest.fixture(params=[("asyncio", {"loop_factory": mgloop.new_event_loop}), "trio"])
    def anyio_backend(request):  # anyio
        return request.param

It runs in the main thread, when pytest is configured and when it ends.
"""

from __future__ import annotations

import pytest

_INSTALLED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option and the command-line flags."""
    parser.addini(
        "mgloop", "run asynchronous tests and fixtures on mgloop", type="bool", default=False
    )
    group = parser.getgroup("mgloop")
    group.addoption(
        "--mgloop",
        action="store_true",
        dest="mgloop",
        default=None,
        help="run asynchronous tests and fixtures on mgloop",
    )
    group.addoption(
        "--no-mgloop",
        action="store_false",
        dest="mgloop",
        default=None,
        help="do not run them on mgloop, overriding the configuration",
    )


def _wanted(config: pytest.Config) -> bool:
    """Return whether the command line, or else the configuration, asks for mgloop."""
    flag = config.getoption("mgloop")
    return bool(config.getini("mgloop") if flag is None else flag)


def pytest_configure(config: pytest.Config) -> None:
    """Have asyncio make mgloop's loops, if it is asked for."""
    if not _wanted(config):
        return
    from mgloop import _install

    _install.use()
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
