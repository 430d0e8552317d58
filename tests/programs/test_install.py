# SPDX-License-Identifier: GPL-2.0-only
"""The ways to make a program run on mgloop: run(), new_event_loop(), install(), the policy.

Each program runs in a fresh interpreter with every warning turned into an error. install() promises
that its user sees no warning on any version, and its effect is global.
"""

import asyncio
import importlib.metadata
import inspect
import re

import pytest
import support

import mgloop

# 3.14 renamed the class itself, and warns where the public name is looked up.
has_policies = pytest.mark.skipif(
    not any(hasattr(asyncio.events, p + "AbstractEventLoopPolicy") for p in ("", "_")),
    reason="this version has no policies any more",
)
policies_are_not_deprecated = pytest.mark.skipif(
    hasattr(asyncio.events, "_set_event_loop_policy"),
    reason="asyncio's own functions for policies warn since CPython 3.14",
)


#: Precedes each program: asyncio.run(main()) is the class of the loop that it made.
START = """
import mgloop

async def main():
    return type(asyncio.get_running_loop())

"""


def strict(code):
    """Run `code`, after START, in an interpreter that turns warnings into errors."""
    return support.run_python("mgloop", START + inspect.cleandoc(code), "-W", "error")


class TestInstall:
    def test_asyncio_run_and_new_event_loop(self):
        strict("""
            assert asyncio.run(main()) is not mgloop.Loop
            before = asyncio.new_event_loop()
            mgloop.install()
            assert asyncio.run(main()) is mgloop.Loop
            loop = asyncio.new_event_loop()
            assert type(loop) is mgloop.Loop
            loop.close()
            with asyncio.Runner() as runner:
                assert runner.run(main()) is mgloop.Loop
            # A loop made before stays as it is.
            assert type(before) is not mgloop.Loop
            assert before.run_until_complete(asyncio.sleep(0.001, "works")) == "works"
            before.close()
        """)

    def test_any_sequence_of_install_and_uninstall(self):
        strict("""
            install, uninstall = mgloop.install, mgloop.uninstall
            for calls in (
                [uninstall],
                [install, install],
                [uninstall, uninstall],
                [install],
                [uninstall],
                [install, uninstall],
                [uninstall, install],
            ):
                for call in calls:
                    call()
                assert (asyncio.run(main()) is mgloop.Loop) is (call is install), calls
        """)

    @support.needs_no_dev_mode
    def test_debug_and_threads(self):
        strict("""
            async def main():
                loop = asyncio.get_running_loop()
                return type(loop), loop.get_debug()

            mgloop.install()
            assert asyncio.run(main(), debug=True) == (mgloop.Loop, True)
            got = []
            thread = threading.Thread(target=lambda: got.append(asyncio.run(main())))
            thread.start()
            thread.join()
            assert got == [(mgloop.Loop, False)]
        """)

    def test_unittest(self):
        strict("""
            import unittest

            class Test(unittest.IsolatedAsyncioTestCase):
                async def test_loop(self):
                    await asyncio.sleep(0.001)
                    self.assertIs(type(asyncio.get_running_loop()), mgloop.Loop)

            mgloop.install()
            suite = unittest.defaultTestLoader.loadTestsFromTestCase(Test)
            result = unittest.TextTestRunner().run(suite)
            assert result.wasSuccessful() and result.testsRun == 1
        """)


class TestPolicy:
    @has_policies
    def test_is_a_policy(self):
        strict("""
            policy = mgloop.EventLoopPolicy()
            warnings.simplefilter("ignore")
            assert isinstance(policy, asyncio.AbstractEventLoopPolicy)
            loop = policy.new_event_loop()
            assert type(loop) is mgloop.Loop
            policy.set_event_loop(loop)
            assert policy.get_event_loop() is loop
            policy.set_event_loop(None)
            loop.close()
        """)

    @has_policies
    @policies_are_not_deprecated
    def test_set_by_asyncios_own_function(self):
        strict("""
            asyncio.set_event_loop_policy(mgloop.EventLoopPolicy())
            assert isinstance(asyncio.get_event_loop_policy(), mgloop.EventLoopPolicy)
            assert asyncio.run(main()) is mgloop.Loop
            asyncio.set_event_loop_policy(None)
            assert asyncio.run(main()) is not mgloop.Loop
        """)

    @has_policies
    @policies_are_not_deprecated
    def test_install_sets_it(self):
        strict("""
            mgloop.install()
            assert isinstance(asyncio.get_event_loop_policy(), mgloop.EventLoopPolicy)
            mgloop.uninstall()
            assert not isinstance(asyncio.get_event_loop_policy(), mgloop.EventLoopPolicy)
        """)


class TestRun:
    def test_result_and_exception(self):
        strict("""
            async def main(exception=None):
                await asyncio.sleep(0.001)
                assert type(asyncio.get_running_loop()) is mgloop.Loop
                if exception:
                    raise exception
                return "result"

            assert mgloop.run(main()) == "result"
            assert mgloop.run(main()) == "result"
            exception = raised(LookupError, mgloop.run, main(LookupError("as expected")))
            assert str(exception) == "as expected"
        """)

    @support.needs_no_dev_mode
    def test_debug(self):
        strict("""
            async def main():
                return asyncio.get_running_loop().get_debug()

            assert mgloop.run(main()) is False
            assert mgloop.run(main(), debug=True) is True
            assert mgloop.run(main(), debug=False) is False
        """)

    def test_keywords_for_the_loop(self):
        strict("""
            async def main():
                try:
                    asyncio.get_running_loop().call_soon_threadsafe(print)
                except RuntimeError as exc:
                    return "enable_wakeup" in str(exc)

            assert mgloop.run(main(), enable_wakeup=False) is True
            assert mgloop.run(main(), enable_wakeup=True) is None
            coro = main()
            raised(TypeError, mgloop.run, coro, flavour="unknown")
            coro.close()
        """)

    def test_keywords_are_named(self):
        """The names let type checkers and editors know the keywords."""
        taken = inspect.signature(mgloop.run).parameters
        loops = inspect.signature(mgloop.new_event_loop).parameters
        assert list(taken) == ["main", "debug", *loops]
        for name, parameter in loops.items():
            assert taken[name] == parameter

    def test_strict_typing_rejects_other_keywords(self, tmp_path):
        api = pytest.importorskip("mypy.api", reason="it is installed by `make types`")
        program = tmp_path / "program.py"
        program.write_text(
            "import mgloop\n"
            "async def main() -> int: return 1\n"
            "code: int = mgloop.run(main(), debug=True, enable_wakeup=False, timing=None)\n"
            "mgloop.run(main(), flavour=1)\n"
            "mgloop.run(main(), enable_wakeup='no')\n"
            "mgloop.run(main())\n"
        )
        cache = f"--cache-dir={tmp_path}"
        out, errors, _ = api.run(["--strict", "--config-file=", cache, str(program)])
        assert errors == ""
        # Ignore those about mgloop itself, which mypy's own configuration covers.
        found = [line for line in out.splitlines() if re.search(r"program\.py:.* error: ", line)]
        assert [line.split(":")[1] for line in found] == ["4", "5"], out
        assert '"flavour"' in found[0]
        assert '"enable_wakeup"' in found[1]

    def test_winds_everything_down(self):
        strict("""
            order = []

            async def background():
                try:
                    await asyncio.sleep(1000)
                finally:
                    order.append("task")

            async def generate():
                try:
                    yield 1
                finally:
                    order.append("generator")

            async def main():
                global loop, generator, task
                loop = asyncio.get_running_loop()
                task = asyncio.create_task(background())
                generator = generate()
                await generator.__anext__()
                loop.run_in_executor(None, lambda: (time.sleep(0.02), order.append("thread")))
                await asyncio.sleep(0)

            mgloop.run(main())
            assert loop.is_closed()
            assert sorted(order) == ["generator", "task", "thread"], order
        """)

    def test_inside_a_running_loop(self):
        strict("""
            async def main():
                coro = asyncio.sleep(0)
                exception = raised(RuntimeError, mgloop.run, coro)
                coro.close()
                return "running event loop" in str(exception)

            assert mgloop.run(main()) is True
            assert asyncio.run(main()) is True
            raised(RuntimeError, asyncio.get_running_loop)  # none is left behind
        """)

    def test_not_a_coroutine(self):
        strict("""
            for thing in (None, 42, print):
                raised((TypeError, ValueError), mgloop.run, thing)
        """)


class TestNewEventLoop:
    def test_as_the_factory_of_a_runner(self):
        strict("""
            with asyncio.Runner(loop_factory=mgloop.new_event_loop) as runner:
                assert runner.run(main()) is mgloop.Loop
                assert type(runner.get_loop()) is mgloop.Loop
        """)

    @support.needs_run_loop_factory
    def test_as_the_factory_of_run(self):
        strict("""
            assert asyncio.run(main(), loop_factory=mgloop.new_event_loop) is mgloop.Loop
        """)

    def test_the_class_and_its_subclasses(self):
        strict("""
            class MyLoop(mgloop.Loop):
                def __init__(self):
                    super().__init__()
                    self.calls = []

                def call_soon(self, callback, *args, context=None):
                    self.calls.append("call_soon")
                    return super().call_soon(callback, *args, context=context)

                def run_forever(self):
                    self.calls.append("run_forever")
                    super().run_forever()

            loop = mgloop.Loop()
            assert isinstance(loop, asyncio.AbstractEventLoop)
            assert isinstance(loop, asyncio.BaseEventLoop)
            loop.close()
            loop = MyLoop()
            got = []
            loop.call_soon(got.append, "called")
            loop.run_until_complete(asyncio.sleep(0))
            assert got == ["called"]
            assert loop.calls.count("run_forever") == 1
            assert loop.calls.count("call_soon") >= 1
            loop.close()
        """)

    def test_arguments(self):
        strict("""
            raised(TypeError, mgloop.new_event_loop, True)
            raised(TypeError, mgloop.new_event_loop, flavour="unknown")
            raised(TypeError, mgloop.Loop, True)
        """)


class TestPackage:
    def test_version(self):
        assert mgloop.__version__ == importlib.metadata.version("mgloop")

    def test_version_of_a_copy_without_metadata(self):
        """A program may include its libraries without metadata: no distribution is looked up."""
        out, _ = support.run_python(
            "mgloop",
            """
            import importlib.metadata

            def version(name):
                raise importlib.metadata.PackageNotFoundError(name)

            importlib.metadata.version = version
            import mgloop
            print(mgloop.__version__)
            """,
        )
        assert out.strip() == mgloop.__version__

    def test_public_names(self):
        for name in ("install", "uninstall", "run", "new_event_loop", "Loop"):
            assert name in mgloop.__all__
        for name in mgloop.__all__:
            assert getattr(mgloop, name) is not None

    def test_every_method_of_the_abstract_loop_is_there(self):
        for name, method in vars(asyncio.AbstractEventLoop).items():
            if not name.startswith("_") and inspect.isfunction(method):
                assert getattr(mgloop.Loop, name) is not method, f"{name} is not implemented"

    def test_public_functions_have_docstrings(self):
        for name in ("install", "uninstall", "run", "new_event_loop", "Loop", "EventLoopPolicy"):
            assert inspect.getdoc(getattr(mgloop, name)), name
