# SPDX-License-Identifier: GPL-2.0-only
"""The pytest plugin, against the pytest-asyncio that is installed.

Each test writes a project into a temporary folder and runs pytest on it in a process of its own,
where the plugin is found by its entry point as in any project, and where an event loop policy that
stayed behind would disturb no other test.
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
    """A function that writes a project with one test module and returns what pytest says of it."""
    pytest.importorskip("pytest_asyncio")
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        monkeypatch.delenv(name, raising=False)

    def run(module, *arguments, ini="", **files):
        pytester.makeini(INI + ini)
        pytester.makepyfile(test_inner=textwrap.dedent(module), **files)
        return pytester.runpytest_subprocess(*arguments)

    return run


def test_ini_option_puts_tests_and_fixtures_on_mgloop(project):
    result = project(ON_MGLOOP, ini="mgloop = true\n")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([HEADER])


def test_flag_does_as_the_ini_option(project):
    result = project(ON_MGLOOP, "--mgloop")
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


def test_off_by_default(project):
    result = project(ON_ASYNCIO)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line(HEADER)


def test_the_flags_go_before_the_configuration(project):
    result = project(ON_ASYNCIO, "--no-mgloop", ini="mgloop = true\n")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line(HEADER)


def test_a_test_that_must_fail_fails(project):
    project(ON_ASYNCIO, "--mgloop").assert_outcomes(failed=1)


def test_is_taken_away_at_the_end(project, pytester):
    pytester.makeconftest(
        """
        import asyncio
        import mgloop
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_unconfigure(config):
            yield
            loop = asyncio.new_event_loop()
            print("left behind" if isinstance(loop, mgloop.Loop) else "taken away")
            loop.close()
        """
    )
    result = project(ON_MGLOOP, "--mgloop")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["taken away"])


def test_loop_factories_of_the_project_take_precedence(project, pytester):
    plugin = pytest.importorskip("pytest_asyncio.plugin")
    if not hasattr(plugin.PytestAsyncioSpecs, "pytest_asyncio_loop_factories"):
        pytest.skip("this pytest-asyncio has no hook for loop factories")
    pytester.makeconftest(
        """
        import asyncio
        import mgloop

        def pytest_asyncio_loop_factories(config, item):
            return {"asyncio": asyncio.SelectorEventLoop, "mgloop": mgloop.new_event_loop}
        """
    )
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


@pytest.mark.parametrize("arguments", [("--mgloop",), ("-o", "mgloop=true")])
def test_asked_for_without_pytest_asyncio(project, pytester, arguments):
    pytester.makeini("[pytest]\n")
    result = pytester.runpytest_subprocess("-p", "no:asyncio", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pytest-asyncio, which runs them, is not installed*"])


def test_inert_without_pytest_asyncio(project, pytester):
    pytester.makeini("[pytest]\n")
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("-p", "no:asyncio")
    result.assert_outcomes(passed=1)
