# SPDX-License-Identifier: GPL-2.0-only
"""install() where it decides nothing warns once, about the line that called it, and says what to do
instead; where it works, it does not warn.

The servers are stand-ins with the modules, functions and order of events of the real ones, which
tests/ecosystem starts (its target `selecting`).
"""

import inspect
import textwrap

import pytest
import support

pytestmark = pytest.mark.mgloop_only


def program(folder, code, *options):
    """Run `code` where the modules in `folder` are found; its (stdout, warnings of mgloop's)."""
    out, errors = support.run_python(
        "mgloop", "import mgloop\n" + inspect.cleandoc(code), *options,
        env={"PYTHONPATH": str(folder)},
    )  # fmt: skip
    return out.split(), [line for line in errors.splitlines() if "Warning: " in line]


def modules(folder, **sources):
    """Write packages: a__b=... is a/b.py."""
    for name, source in sources.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents:
            if parent.name:
                (folder / parent / "__init__.py").touch()
        path.write_text(textwrap.dedent(source))


#: An application that has mgloop installed, in its fourth line.
APPLICATION = """
import asyncio

import mgloop; mgloop.install()
"""
HERE = "application.py:4: RuntimeWarning: mgloop.install() "


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "application.py").write_text(APPLICATION)
    return tmp_path


# --- a loop that runs -----------------------------------------------------------------------------


def test_a_loop_runs_already(folder):
    _, (warning,) = program(
        folder,
        """
        async def main():
            import application
            mgloop.uninstall()

        asyncio.run(main())
        """,
    )
    assert HERE in warning
    assert "comes too late for the loop that runs already, of the class asyncio." in warning
    assert warning.endswith("; start the program by `mgloop run`, or its loop by mgloop.run()")


def test_it_is_installed_all_the_same(folder):
    out, (_,) = program(
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
    assert out == ["asyncio.unix_events", "mgloop.loop"]


def test_the_place_is_the_callers_for_filters_too(folder):
    """Each place warns once, as warnings do, and can be told apart by its module."""
    code = """
        async def main():
            import application, importlib
            for _ in range(3):
                importlib.reload(application)
            mgloop.install()

        asyncio.run(main())
    """
    _, told = program(folder, code)
    # A reload forgets what was told, as it does for every warning.
    assert [HERE in warning for warning in told].count(False) == 1
    _, told = program(folder, code, "-W", "ignore::RuntimeWarning:application")
    assert len(told) == 1
    assert "<string>:" in told[0]


def test_as_an_error(folder):
    """The exception is install()'s, which has been done by then."""
    out, told = program(
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
    assert told == []


# --- servers --------------------------------------------------------------------------------------

#: A loop of another package's.
OTHER = """
    import asyncio
    class Loop(asyncio.SelectorEventLoop):
        pass
    class EventLoopPolicy(asyncio.DefaultEventLoopPolicy):
        _loop_factory = Loop
    new_event_loop = Loop
"""

GRANIAN = """
    import asyncio, importlib
    from otherloop import Loop

    def serve(kind=Loop):
        loop = kind()
        asyncio.set_event_loop(loop)
        import application
        loop.close()
"""

DAPHNE = {
    "twisted__internet__reactor": "",
    "daphne__server": """
        import asyncio, sys
        import twisted.internet
        class Reactor:
            pass
        sys.modules["twisted.internet.reactor"] = Reactor()
        Reactor._asyncioEventloop = asyncio.new_event_loop()
    """,
    "daphne__cli": """
        def serve():
            import daphne.server
            import application
            daphne.server.Reactor._asyncioEventloop.close()
    """,
}

HYPERCORN = """
    def uvloop_worker():
        import otherloop
        import application
        return otherloop.new_event_loop

    def asyncio_worker():
        import application
"""

UVICORN = {
    "uvicorn__loops__auto": "from otherloop import Loop as factory",
    "uvicorn__loops__asyncio": "from asyncio import SelectorEventLoop as factory",
    "uvicorn__loops__otherloop": "from otherloop import Loop as factory",
    "uvicorn__config": """
        import importlib
        class Config:
            def __init__(self, loop="auto"):
                self.loop = loop
            def get_loop_factory(self):
                return importlib.import_module(f"uvicorn.loops.{self.loop}").factory
    """,
    "uvicorn__server": """
        import asyncio
        from uvicorn.config import Config
        async def main():
            pass
        def run(loop="auto"):
            factory = Config(loop).get_loop_factory() if loop != "none" else None
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(main())
    """,
}

SANIC = """
    import asyncio, warnings

    def serve(use_uvloop=True):
        import application
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            if use_uvloop:
                from otherloop import EventLoopPolicy
                asyncio.set_event_loop_policy(EventLoopPolicy())
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.close()
"""


@pytest.fixture
def servers(folder):
    modules(folder, otherloop=OTHER, granian__server__mp=GRANIAN, hypercorn__asyncio__run=HYPERCORN,
            sanic__worker=SANIC, **DAPHNE, **UVICORN,
            fastapi_cli__cli="import uvicorn.server\ndef run():\n"
                             "    import application\n    uvicorn.server.run()\n")  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("code", "why", "instead"),
    [
        (
            "import granian.server.mp as s; s.serve()",
            "comes too late: the server has made its loop already, of the class otherloop.Loop",
            "use `mgloop run granian`",
        ),
        (
            "import daphne.cli as s; s.serve()",
            "comes too late: the server has made its loop already, of the class asyncio.",
            "use `mgloop run daphne` or `mgloop run manage.py runserver`",
        ),
        (
            "import hypercorn.asyncio.run as s; s.uvloop_worker()",
            "decides nothing: hypercorn is told to take its loop from uvloop",
            "use `hypercorn -k asyncio`",
        ),
        (
            "import application, uvicorn.server as s; s.run()",
            "decides nothing: uvicorn chooses its loop by itself",
            'or uvicorn.run(app, loop="mgloop:new_event_loop")',
        ),
        (
            "import application, uvicorn.server as s; s.run('asyncio')",
            "decides nothing: uvicorn chooses its loop by itself",
            'or uvicorn.run(app, loop="mgloop:new_event_loop")',
        ),
        (
            "import fastapi_cli.cli as s; s.run()",
            "decides nothing: uvicorn chooses its loop by itself",
            "use `mgloop run fastapi`",
        ),
        (
            "import application, granian.server.mp as s; s.serve()",
            "decides nothing: the server makes its loop by itself, a otherloop.Loop",
            "use `mgloop run granian`",
        ),
        (
            "import sanic.worker as s; s.serve()",
            "was undone: the server has set another policy, a otherloop.EventLoopPolicy",
            "set app.config.USE_UVLOOP = False, or use `mgloop run sanic`",
        ),
    ],
)
def test_servers_that_go_their_own_way(servers, code, why, instead):
    _, (warning,) = program(servers, code)
    assert HERE + why in warning
    assert warning.endswith(instead)


@pytest.mark.parametrize(
    "code",
    [
        # Nobody's loop, and ours.
        "import application; asyncio.run(asyncio.sleep(0))",
        "mgloop.install(); asyncio.run(asyncio.sleep(0)); mgloop.uninstall(); import application",
        "async def main():\n    import application\nmgloop.run(main())",
        # Another thread's.
        "loop = asyncio.new_event_loop()\n"
        "thread = threading.Thread(target=loop.run_forever)\n"
        "thread.start()\n"
        "import application\n"
        "loop.call_soon_threadsafe(loop.stop); thread.join(); loop.close()",
        # A loop that there is, but nobody who is to use it.
        "loop = asyncio.new_event_loop(); asyncio.set_event_loop(loop); import application\n"
        "asyncio.set_event_loop(None); loop.close()",
        # The program's own choice, for a loop of many.
        "import application, otherloop\n"
        "asyncio.Runner(loop_factory=otherloop.Loop).run(asyncio.sleep(0))\n"
        "loop = otherloop.Loop(); asyncio.set_event_loop(loop); loop.close()",
        "import application, otherloop; warnings.simplefilter('ignore', DeprecationWarning)\n"
        "asyncio.set_event_loop_policy(otherloop.EventLoopPolicy())",
        "import application, uvicorn.server as s; s.run('otherloop')",
        # Servers that are not what decides, or that ask asyncio.
        "import application, uvicorn.loops.auto, uvicorn.loops.asyncio",
        "import application, uvicorn.server as s; s.run('none')",
        "import uvicorn.server as s; s.run(); import application",
        "import granian.server.mp as s; s.serve(mgloop.new_event_loop)",
        "import application, granian.server.mp as s; s.serve(asyncio.new_event_loop)",
        "import daphne.server as s, application; s.Reactor._asyncioEventloop.close()",
        "mgloop.install(); import daphne.cli as s; s.serve()",
        "import hypercorn.asyncio.run as s; s.asyncio_worker(); asyncio.run(asyncio.sleep(0))",
        "import sanic.worker as s; s.serve(use_uvloop=False)",
        # Undone, or done again.
        "import application; kept = asyncio.events._event_loop_policy; mgloop.uninstall()\n"
        "import uvicorn.server as s; s.run()",
        "import application; mgloop.uninstall(); import uvicorn.server as s; s.run()",
        "import application; mgloop.install(); asyncio.run(asyncio.sleep(0))",
    ],
)
def test_where_it_works_it_is_silent(servers, code):
    _, told = program(servers, code)
    assert told == []


def test_nothing_stays_behind(folder):
    out, told = program(
        folder,
        """
        before = list(sys.meta_path)
        mgloop.install()
        mgloop.install()
        print(len(sys.meta_path) - len(before))
        mgloop.uninstall()
        print(sys.meta_path == before)
        """,
    )
    assert out == ["1", "True"]
    assert told == []


def test_mgloop_run_leaves_nothing_to_be_too_late_for(servers):
    code = "import application, uvicorn.server as s; s.run(); s.run('asyncio')"
    out, errors = support.run_python(
        "mgloop",
        f"""
        import subprocess
        subprocess.run([sys.executable, "-m", "mgloop", "run", "-c", {code!r}], check=True)
        """,
        env={"PYTHONPATH": str(servers)},
    )
    assert (out, errors) == ("", "")
