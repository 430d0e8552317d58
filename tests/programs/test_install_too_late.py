# SPDX-License-Identifier: GPL-2.0-only
"""install() warns when another loop is already running, and names the line that called it."""

import inspect

import pytest
import support

pytestmark = pytest.mark.mgloop_only

#: An application that calls install() in its fourth line.
APPLICATION = """
import asyncio

import mgloop; mgloop.install()
"""
HERE = "application.py:4: RuntimeWarning: mgloop.install() was called too late: "


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "application.py").write_text(APPLICATION)
    return tmp_path


def program(folder, code, *options):
    """Run `code` where the application is found; its (stdout, warnings of mgloop's)."""
    out, errors = support.run_python(
        "mgloop", "import mgloop\n" + inspect.cleandoc(code), *options,
        env={"PYTHONPATH": support.python_path(folder)},
    )  # fmt: skip
    return out.split(), [line for line in errors.splitlines() if "Warning: " in line]


def test_another_loop_is_running(folder):
    out, (warning,) = program(
        folder,
        """
        async def kind():
            return type(asyncio.get_running_loop()).__module__

        async def main():
            import application
            return await kind()

        print(asyncio.run(main()), asyncio.run(kind()))
        """,
    )
    # install() takes effect all the same, for the loops that are made from then on.
    assert out == ["asyncio.unix_events", "mgloop.loop"]
    assert HERE + "a asyncio." in warning
    assert warning.endswith("; start the program with `mgloop run`, or its loop with mgloop.run()")


def test_as_an_error(folder):
    out, warnings = program(
        folder,
        """
        async def main():
            try:
                mgloop.install()
            except RuntimeWarning:
                print("raised")

        async def kind():
            return type(asyncio.get_running_loop()).__module__

        asyncio.run(main())
        print(asyncio.run(kind()))
        """,
        "-W", "error",
    )  # fmt: skip
    assert out == ["raised", "mgloop.loop"]
    assert warnings == []


@pytest.mark.parametrize(
    "code",
    [
        "import application; asyncio.run(asyncio.sleep(0))",
        # A loop of mgloop's is running.
        "async def main():\n    import application\nmgloop.run(main())",
        # A loop is running in another thread.
        "loop = asyncio.new_event_loop()\n"
        "thread = threading.Thread(target=loop.run_forever)\n"
        "thread.start()\n"
        "import application\n"
        "loop.call_soon_threadsafe(loop.stop); thread.join(); loop.close()",
        # A loop exists, and does not run.
        "loop = asyncio.new_event_loop(); asyncio.set_event_loop(loop); import application\n"
        "asyncio.set_event_loop(None); loop.close()",
    ],
)
def test_no_other_loop_is_running(folder, code):
    _, warnings = program(folder, code)
    assert warnings == []
