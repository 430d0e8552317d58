# SPDX-License-Identifier: GPL-2.0-only
"""`mgloop run`: programs that do not know mgloop get its loop, whichever way they make one. In all
other respects they run as with Python."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import support

pytestmark = pytest.mark.mgloop_only

COMMAND = [sys.executable, "-m", "mgloop", "run"]


@pytest.fixture(autouse=True)
def buffered(monkeypatch):
    """Remove PYTHONUNBUFFERED, as in most users' environments."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def run(*arguments, returncode=0, python_flags=(), env=None, cwd=None, stdin=""):
    """Run `mgloop run`; return (stdout, stderr)."""
    done = support.finished(
        [sys.executable, *python_flags, "-m", "mgloop", "run", *map(str, arguments)],
        input=stdin,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == returncode, done.stderr
    return done.stdout, done.stderr


def assert_made_by_mgloop(*codes, **options):
    """Run codes that do not know mgloop in one program; each must make its `loop` with mgloop."""
    program = f"""
import asyncio, warnings
warnings.simplefilter("ignore")

async def current():
    return asyncio.get_running_loop()

loops = {{}}
for code in {codes!r}:
    names = {{"asyncio": asyncio, "current": current}}
    exec(code, names)
    loops[code] = names["loop"]
    asyncio.set_event_loop_policy(None)
import mgloop
print([code for code, loop in loops.items() if not isinstance(loop, mgloop.Loop)])
"""
    assert run("-c", program, **options) == ("[]\n", "")


def test_whichever_way_a_loop_is_made():
    assert_made_by_mgloop(
        "loop = asyncio.run(current())",
        "loop = asyncio.Runner().run(current())",
        "loop = asyncio.new_event_loop(); loop.close()",
        "loop = asyncio.SelectorEventLoop(); loop.close()",
        "loop = asyncio.SelectorEventLoop(None); loop.run_until_complete(current()); loop.close()",
        "loop = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop).run(current())",
        "asyncio.set_event_loop_policy(None); loop = asyncio.run(current())",
        "asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())\n"
        "loop = asyncio.run(current())",
        "loop = asyncio.get_event_loop_policy().new_event_loop(); loop.close()",
        "class Mine(asyncio.SelectorEventLoop):\n    pass\n"
        "loop = asyncio.Runner(loop_factory=Mine).run(current())",
    )


@pytest.mark.skipif(sys.version_info < (3, 13), reason="asyncio.EventLoop is new in 3.13")
def test_asyncios_event_loop_by_its_new_name():
    assert_made_by_mgloop("loop = asyncio.EventLoop(); loop.close()")


UVLOOP = """
import asyncio
from ._loop import Loop
__all__ = ["new_event_loop", "install", "EventLoopPolicy", "Loop", "run"]
__version__ = "0.1"
def new_event_loop(): return Loop()
def install(): raise AssertionError
class EventLoopPolicy(asyncio.DefaultEventLoopPolicy): pass
def run(main, *, loop_factory=new_event_loop, debug=None): raise AssertionError
"""


@pytest.mark.parametrize("real", [False, True], ids=["stand-in", "uvloop"])
def test_programs_that_name_uvloop(tmp_path, real):
    """The stand-in has uvloop's names, but cannot run a program."""
    if real:
        pytest.importorskip("uvloop")
    else:
        package = tmp_path / "uvloop"
        package.mkdir()
        (package / "__init__.py").write_text(UVLOOP)
        (package / "_loop.py").write_text("class Loop:\n    pass\n")
    codes = (
        "loop = uvloop.new_event_loop(); loop.close()",
        "loop = uvloop.run(current())",
        "loop = uvloop.run(current(), loop_factory=uvloop.new_event_loop, debug=True)",
        "loop = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(current())",
        "asyncio.set_event_loop_policy(uvloop.EventLoopPolicy()); loop = asyncio.run(current())",
        "loop = uvloop.Loop(); loop.close()",
        "uvloop.install(); loop = asyncio.run(current())",
    )
    check = "import uvloop; assert uvloop.__spec__ and uvloop.__version__"
    env = {"PYTHONPATH": support.python_path(tmp_path)}
    assert_made_by_mgloop(*(f"{check}; {code}" for code in codes), env=env)


def test_packages_that_are_not_there_are_not_there():
    code = "try:\n    import rsloop\nexcept ModuleNotFoundError as exc:\n    print(exc)"
    assert run("-c", code) == ("No module named 'rsloop'\n", "")


# --- as Python runs it ---------------------------------------------------------------------------

#: The ways a program can see how it was started. PYTHONPATH is listed, but not compared.
SEES = """
import json, sys

def seen():
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv, "path": sys.path, "name": __name__, "file": main.__dict__.get("__file__"),
        "flags": str(sys.flags), "warnoptions": sys.warnoptions, "executable": sys.executable,
        "xoptions": sorted(sys._xoptions.items()), "unbuffered": sys.stdout.write_through,
    }

if __name__ == "__main__":
    print(json.dumps(seen()))
"""


def plain(*arguments, python_flags=(), cwd=None, stdin=""):
    done = support.finished(
        [sys.executable, *python_flags, *map(str, arguments)], input=stdin, cwd=cwd, check=True
    )
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sees.py").write_text(SEES)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__main__.py").write_text(SEES)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["sees.py"],
        ["sees.py", "--flag", "-m", "x", "run"],
        ["-m", "sees", "a", "b"],
        ["-m", "package"],
        ["package"],
        ["-c", SEES, "x"],
        ["-"],
        ["-u", "-X", "dev", "sees.py"],
    ],
    ids=lambda arguments: " ".join(arguments)[:20],
)
def test_a_program_sees_what_it_would_see(folder, arguments):
    assert_sees_the_same(folder, arguments)


def test_a_program_sees_the_options_of_the_interpreter(folder):
    flags = ("-W", "ignore", "-O", "-B", "-u", "-Xanything=1")
    assert_sees_the_same(folder, ["sees.py"], flags)
    assert_sees_the_same(folder, ["-u", "-X", "dev", "sees.py"], flags)


def assert_sees_the_same(folder, arguments, flags=()):
    stdin = SEES if arguments == ["-"] else ""
    out, errors = run(*arguments, python_flags=flags, cwd=folder, stdin=stdin)
    assert errors == ""
    assert json.loads(out) == json.loads(
        plain(*arguments, python_flags=flags, cwd=folder, stdin=stdin)
    )


def test_the_exit_status_is_the_programs():
    run("-c", "raise SystemExit(7)", returncode=7)
    run("-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", returncode=-signal.SIGTERM)


def test_it_is_one_process():
    """Signals thus reach the program, and systemd sees the process that it has started."""
    with subprocess.Popen(
        [*COMMAND, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert int(process.stdout.read()) == process.pid


ASKS = "import asyncio, mgloop; print(isinstance(asyncio.new_event_loop(), mgloop.Loop))"


def test_children_too():
    code = f"""
        import subprocess, sys
        subprocess.run([sys.executable, "-W", "ignore", "-c", {ASKS!r}], check=True)
    """
    assert run("-c", textwrap.dedent(code))[0] == "True\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_of_multiprocessing(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
            import asyncio, multiprocessing, warnings
            warnings.simplefilter("ignore")

            async def kind():
                return type(asyncio.get_running_loop()).__module__

            def child(queue):
                queue.put(asyncio.run(kind()))

            if __name__ == "__main__":
                context = multiprocessing.get_context({method!r})
                queue = context.SimpleQueue()
                process = context.Process(target=child, args=(queue,))
                process.start()
                print(queue.get())
                process.join()
        """)
    )
    out, errors = run(program)
    assert (out, errors) == ("mgloop.loop\n", "")


def test_a_program_on_path(tmp_path):
    (tmp_path / "server").write_text(f"#!{sys.executable}\nimport sys; print(sys.argv[1:])\n{ASKS}")
    (tmp_path / "server").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONWARNINGS": "ignore"}
    out, _ = run("server", "--port", 80, env=path)
    assert out == "['--port', '80']\nTrue\n"


def test_another_sitecustomize_is_heeded(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the other')")
    out, errors = run("-c", "import sitecustomize; print(sitecustomize.__file__)",
                      env={"PYTHONPATH": str(tmp_path)})  # fmt: skip
    # The first line comes from the Python that runs `mgloop run`.
    assert out == f"the other\nthe other\n{tmp_path}/sitecustomize.py\n"
    assert errors == ""


def test_a_sitecustomize_that_fails_is_reported_as_usual(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import nothing_of_that_name")
    _, errors = run("-c", "", env={"PYTHONPATH": str(tmp_path)})
    assert "nothing_of_that_name" in errors


def test_without_a_stdout(tmp_path):
    script = tmp_path / "script.sh"
    script.write_text('exec "$@" >&-')
    code = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    subprocess.run(["sh", script, *COMMAND, "-c", code], check=True, timeout=support.PATIENCE)
    assert (tmp_path / "ran").exists()


def test_nested():
    """A program that itself uses `mgloop run` is set up only once."""
    out, errors = run("-m", "mgloop", "run", "-c", "import os; print(os.environ['PYTHONPATH'])")
    assert out.count("launch") == 1
    assert errors == ""


def test_a_python_without_mgloop_says_so_and_goes_on(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    out, errors = run(tmp_path / "bin" / "python", "-c", "print('runs')")
    assert out == "runs\n"
    assert errors.endswith(" does not use mgloop: No module named 'mgloop'\n")
    assert len(errors.splitlines()) == 1


# --- mistakes ------------------------------------------------------------------------------------


# (With -S, mgloop is not found in a virtual environment.)
@pytest.mark.parametrize("flag", ["-E", "-I"])
def test_where_python_does_not_look_at_the_environment(flag):
    _, errors = run("-c", "pass", python_flags=[flag], returncode=2)
    assert errors.startswith("mgloop run: Python options -E, -I and -S")
    assert len(errors.splitlines()) == 1


def test_a_program_that_does_not_exist():
    _, errors = run("no-such-program", returncode=127)
    assert errors == "mgloop run: no such script or program: 'no-such-program'\n"
    _, errors = run("no_such.py", returncode=127)
    assert errors == "mgloop run: no such script or program: 'no_such.py'\n"


def test_help_and_about():
    out, _ = run("--help")
    assert out.startswith("usage: mgloop run")
    done = support.finished([sys.executable, "-m", "mgloop"], check=True)
    assert done.stdout.startswith("mgloop ")
    assert "Mongoose 7" in done.stdout
    assert "CPython 3." in done.stdout
    assert done.stderr == ""
