# SPDX-License-Identifier: GPL-2.0-only
"""A pytest plugin that makes other asyncio plugins run tests and fixtures on mgloop.

Its entry point loads it wherever mgloop is installed, so it does nothing unless it is enabled::

    [pytest]
    mgloop = true

or with `pytest --mgloop` (`--no-mgloop` overrides the configuration). asyncio then creates mgloop's
loops from before the first test until after the last, as with `mgloop.install()`. pytest-asyncio,
pytest-aiohttp, aiohttp.pytest_plugin and anyio's plugin create loops with the current policy by
default, so all asynchronous tests and fixtures run on mgloop, including asynchronous fixtures of
synchronous tests. `asyncio.run()` in a test uses mgloop even without these plugins. The plugin
does not depend on their interfaces, and works with all their versions. A project that runs each
test on several loops uses their own hooks instead, which take precedence::

    def pytest_asyncio_loop_factories(config, item):  # pytest-asyncio
        return {"asyncio": asyncio.SelectorEventLoop, "mgloop": mgloop.new_event_loop}

    @pytest.fixture(params=[("asyncio", {"loop_factory": mgloop.new_event_loop}), "trio"])
    def anyio_backend(request):  # anyio
        return request.param

The plugin runs in the main thread, when pytest is configured and when it ends.
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
    """Make asyncio create mgloop's loops, if the plugin is enabled."""
    if not _wanted(config):
        return
    from mgloop.use import install

    install.use()
    config.stash[_INSTALLED] = True


def pytest_unconfigure(config: pytest.Config) -> None:
    """Undo pytest_configure(), because pytest may run inside a longer-lived process."""
    if config.stash.get(_INSTALLED, False):
        import mgloop

        config.stash[_INSTALLED] = False
        mgloop.uninstall()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the line for pytest's header that says that the tests run on mgloop."""
    if not config.stash.get(_INSTALLED, False):
        return []
    import mgloop

    return [f"mgloop: asyncio's loops are mgloop {mgloop.__version__}"]
