# SPDX-License-Identifier: GPL-2.0-only
"""Python 3.16, which has no event loop policies: their names are deleted before mgloop is imported.

asyncio's functions that need a policy are replaced by those of a version without policies, which
create the default loop and remember the current loop of each thread.
"""

import inspect
import sys

import pytest
import support

pytestmark = pytest.mark.mgloop_only

#: Precedes each program.
WITHOUT_POLICIES = """
import asyncio, sys, threading
from asyncio import events, unix_events

_current = threading.local()

def new_event_loop():
    return asyncio.SelectorEventLoop()

def set_event_loop(loop):
    _current.loop = loop

def get_event_loop():
    return events._get_running_loop() or _current.loop

for module in asyncio, events:
    for function in new_event_loop, set_event_loop, get_event_loop:
        setattr(module, function.__name__, function)
for module in asyncio, events, unix_events:
    for name in [name for name in vars(module) if "policy" in name.lower()]:
        delattr(module, name)
asyncio.__dict__.pop("__getattr__", None)

async def main():
    return type(asyncio.get_running_loop())

"""


def run(code, *options):
    """Run `code` in a Python without policies, with warnings as errors; return its output."""
    program = WITHOUT_POLICIES + inspect.cleandoc(code)
    done = support.finished(
        [sys.executable, "-W", "error", "-c", program, *options], timeout=support.PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_install_and_uninstall():
    run("""
        import mgloop
        assert mgloop.run(main()) is mgloop.Loop
        assert asyncio.run(main()) is asyncio.SelectorEventLoop
        mgloop.install()
        mgloop.install()
        assert asyncio.run(main()) is mgloop.Loop
        with asyncio.Runner() as runner:
            assert runner.run(main()) is mgloop.Loop
        for function in asyncio.new_event_loop, events.new_event_loop:
            loop = function()
            assert type(loop) is mgloop.Loop
            loop.close()
        mgloop.uninstall()
        mgloop.uninstall()
        assert asyncio.run(main()) is asyncio.SelectorEventLoop
        assert asyncio.new_event_loop is new_event_loop
    """)


def test_the_policy_is_not_there_and_says_why():
    run("""
        import mgloop
        assert "EventLoopPolicy" not in mgloop.__all__
        assert not hasattr(mgloop, "EventLoopPolicy")
        try:
            mgloop.EventLoopPolicy
        except AttributeError as exc:
            assert "no event loop policies: use mgloop.install()" in str(exc), exc
        else:
            raise AssertionError("there")
        from mgloop import *
    """)


def test_activation_by_mgloop_run():
    run("""
        import mgloop, types
        from mgloop.use import launch
        package = sys.modules["uvloop"] = types.ModuleType("uvloop")
        package.new_event_loop = package.EventLoopPolicy = "uvloop's"
        launch.activate()
        assert asyncio.run(main()) is mgloop.Loop
        for make in asyncio.SelectorEventLoop, asyncio.new_event_loop, package.new_event_loop:
            loop = make()
            assert isinstance(loop, mgloop.Loop)
            loop.close()
        assert package.EventLoopPolicy == "uvloop's"
    """)


def test_the_plugin_of_pytest(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "test_one.py").write_text(
        "import asyncio, mgloop\n"
        "async def main(): return type(asyncio.get_running_loop())\n"
        "def test_one(): assert asyncio.run(main()) is mgloop.Loop\n"
    )
    out = run(
        """
        import pytest
        options = ["-p", "mgloop.pytest_plugin", "--mgloop", "-q", "-p", "no:cacheprovider"]
        status = pytest.main([*options, "--rootdir", sys.argv[1], sys.argv[1]])
        import mgloop
        assert status == 0
        assert asyncio.run(main()) is asyncio.SelectorEventLoop
        """,
        str(tmp_path),
    )
    assert "1 passed" in out


def test_a_server_and_a_client():
    run("""
        import mgloop

        async def talk():
            async def echo(reader, writer):
                writer.write(await reader.readline())
                writer.close()

            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\\n")
            assert await reader.readline() == b"hello\\n"
            writer.close()
            server.close()
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
            assert await process.wait() == 0

        mgloop.run(talk())
    """)
