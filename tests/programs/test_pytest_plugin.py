# SPDX-License-Identifier: GPL-2.0-only
"""The pytest plugin, together with the installed plugins that run asynchronous tests.

Each test writes a project into a temporary folder and runs pytest on it in a separate process.
There pytest finds the plugin by its entry point, as in any project, and a leftover event loop
policy cannot affect other tests.
"""

import textwrap

import pytest

pytest_plugins = ["pytester"]

# A DeprecationWarning or a ResourceWarning in the inner run fails it.
INI = """
[pytest]
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error
    ignore:Module already imported so cannot be rewritten; _mgloop_editable_loader
"""
HEADER = "mgloop: asyncio's loops are mgloop *"

# pytest-aiohttp does not start without it.
NO_PYTEST_ASYNCIO = ("-p", "no:asyncio", "-p", "no:aiohttp")

ON_MGLOOP = """
    import asyncio
    import mgloop
    import pytest
    import pytest_asyncio

    def on_mgloop():
        return isinstance(asyncio.get_running_loop(), mgloop.Loop)

    @pytest_asyncio.fixture
    async def where_fixtures_run():
        yield on_mgloop()

    @pytest.mark.asyncio
    async def test_coroutine(where_fixtures_run):
        await asyncio.sleep(0)
        assert on_mgloop()
        assert where_fixtures_run

    @pytest.mark.asyncio(loop_scope="module")
    async def test_loop_of_the_module():
        assert on_mgloop()

    def test_fixture_of_a_synchronous_test(where_fixtures_run):
        assert where_fixtures_run

    def test_plain_run():
        async def main():
            return on_mgloop()
        assert asyncio.run(main())
"""
ON_ASYNCIO = """
    import asyncio
    import mgloop
    import pytest

    @pytest.mark.asyncio
    async def test_coroutine():
        assert not isinstance(asyncio.get_running_loop(), mgloop.Loop)
"""


@pytest.fixture
def project(pytester, monkeypatch):
    """Return a function that writes a project with one test module and returns pytest's result."""
    pytest.importorskip("pytest_asyncio")
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        monkeypatch.delenv(name, raising=False)

    def run(module, *arguments, ini="", **files):
        pytester.makeini(INI + ini)
        pytester.makepyfile(test_inner=textwrap.dedent(module), **files)
        return pytester.runpytest_subprocess(*arguments)

    return run


@pytest.mark.parametrize(
    ("arguments", "ini"), [([], "mgloop = true\n"), (["--mgloop"], "")], ids=["ini", "flag"]
)
def test_tests_and_fixtures_are_put_on_mgloop(project, arguments, ini):
    result = project(ON_MGLOOP, *arguments, ini=ini)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([HEADER])


def test_auto_mode(project):
    module = """
        import asyncio
        import mgloop

        async def test_unmarked():
            assert isinstance(asyncio.get_running_loop(), mgloop.Loop)
    """
    project(module, ini="mgloop = true\nasyncio_mode = auto\n").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "ini"),
    [([], ""), (["--no-mgloop"], "mgloop = true\n")],
    ids=["by default", "the flag goes before the configuration"],
)
def test_tests_stay_on_asyncio(project, arguments, ini):
    result = project(ON_ASYNCIO, *arguments, ini=ini)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line(HEADER)


def test_a_test_that_must_fail_fails(project):
    project(ON_ASYNCIO, "--mgloop").assert_outcomes(failed=1)


def test_is_taken_away_at_the_end(project, pytester):
    pytester.makeconftest("""
        import asyncio
        import mgloop
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_unconfigure(config):
            yield
            loop = asyncio.new_event_loop()
            print("left behind" if isinstance(loop, mgloop.Loop) else "taken away")
            loop.close()
    """)
    result = project(ON_MGLOOP, "--mgloop")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["taken away"])


def test_loop_factories_of_the_project_take_precedence(project, pytester):
    plugin = pytest.importorskip("pytest_asyncio.plugin")
    if not hasattr(plugin.PytestAsyncioSpecs, "pytest_asyncio_loop_factories"):
        pytest.skip("this pytest-asyncio has no hook for loop factories")
    pytester.makeconftest("""
        import asyncio
        import mgloop

        def pytest_asyncio_loop_factories(config, item):
            return {"asyncio": asyncio.SelectorEventLoop, "mgloop": mgloop.new_event_loop}
    """)
    module = """
        import asyncio
        import mgloop
        import pytest

        @pytest.mark.asyncio
        async def test_both(request):
            on_mgloop = isinstance(asyncio.get_running_loop(), mgloop.Loop)
            assert on_mgloop == ("mgloop" in request.node.name)
    """
    project(module, "--mgloop").assert_outcomes(passed=2)


ANYIO = """
    import asyncio
    import mgloop
    import pytest

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend():
        return {backend}

    @pytest.fixture
    async def where_fixtures_run():
        yield isinstance(asyncio.get_running_loop(), mgloop.Loop)

    async def test_coroutine(where_fixtures_run):
        assert where_fixtures_run
        assert isinstance(asyncio.get_running_loop(), mgloop.Loop)
"""


@pytest.mark.parametrize(
    ("arguments", "beside"),
    [(["--mgloop"], []), (["-o", "mgloop=true"], NO_PYTEST_ASYNCIO)],
    ids=["beside pytest-asyncio", "alone"],
)
def test_anyio(project, arguments, beside):
    pytest.importorskip("anyio")
    ini = "" if not beside else "    ignore:Unknown config option. asyncio_default\n"
    module = ANYIO.format(backend="'asyncio'")
    project(module, *arguments, *beside, ini=ini).assert_outcomes(passed=1)
    project(module, *beside, ini=ini).assert_outcomes(failed=1)


def test_a_factory_for_anyio(project):
    pytest.importorskip("anyio")
    module = ANYIO.format(backend='"asyncio", {"loop_factory": mgloop.new_event_loop}')
    project(module).assert_outcomes(passed=1)


AIOHTTP = """
    import asyncio
    import mgloop
    from aiohttp import web

    def on_mgloop():
        return str(isinstance(asyncio.get_running_loop(), mgloop.Loop))

    async def root(request):
        return web.Response(text=on_mgloop())

    async def test_client(aiohttp_client):
        application = web.Application()
        application.router.add_get("/", root)
        client = await aiohttp_client(application)
        response = await client.get("/")
        assert (await response.text(), on_mgloop()) == ("True", "True")
"""


@pytest.mark.parametrize("plugin", ["aiohttp.pytest_plugin", "pytest_aiohttp.plugin"])
def test_aiohttp(project, plugin):
    """aiohttp's own plugin, which is deprecated, and pytest-aiohttp, which uses pytest-asyncio."""
    pytest.importorskip(plugin)
    if plugin.startswith("aiohttp"):
        arguments = [*NO_PYTEST_ASYNCIO, "-p", plugin]
        ini = (
            "    ignore:aiohttp.pytest_plugin will be removed:DeprecationWarning\n"
            "    ignore:Unknown config option. asyncio_default\n"
        )
    else:
        arguments, ini = [], "asyncio_mode = auto\n"
    project(AIOHTTP, "--mgloop", *arguments, ini=ini).assert_outcomes(passed=1)
    project(AIOHTTP, *arguments, ini=ini).assert_outcomes(failed=1)


def test_without_any_of_them(project):
    module = """
        import asyncio
        import mgloop
        import unittest

        async def on_mgloop():
            return isinstance(asyncio.get_running_loop(), mgloop.Loop)

        def test_run():
            assert asyncio.run(on_mgloop())

        class Test(unittest.IsolatedAsyncioTestCase):
            async def test_unittest(self):
                assert await on_mgloop()
    """
    ini = "    ignore:Unknown config option. asyncio_default\n"
    none = [*NO_PYTEST_ASYNCIO, "-p", "no:anyio"]
    result = project(module, "--mgloop", *none, ini=ini)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([HEADER])
    project(module, *none, ini=ini).assert_outcomes(failed=2)


def test_a_server_that_a_test_runs_is_not_warned_of(project):
    """install() in an application would warn; --mgloop promises nothing about servers."""
    module = """
        import asyncio
        import sys
        import types

        def test_server():
            code = "asyncio.set_event_loop(asyncio.SelectorEventLoop())"
            server = types.ModuleType("granian.server")
            exec(code, server.__dict__ | {"asyncio": asyncio, "__name__": "granian.server"})
            asyncio.get_event_loop_policy().get_event_loop().close()
    """
    project(module, "--mgloop", ini="    ignore:.*polic:DeprecationWarning\n").assert_outcomes(
        passed=1
    )


def test_inert_without_pytest_asyncio(project, pytester):
    pytester.makeini("[pytest]\n")
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess(*NO_PYTEST_ASYNCIO)
    result.assert_outcomes(passed=1)
