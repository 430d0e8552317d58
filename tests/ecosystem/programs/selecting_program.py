# SPDX-License-Identifier: GPL-2.0-only
"""The ways to run a server on mgloop's loop, each tried: the real server is started as a process by
its own command line, and its application (selecting/) is asked for the class of its loop.

Rows that do not name mgloop are the control: the loop that the server selects by itself when uvloop
is installed. In others the application calls mgloop.install() as the server imports it. Either that
decides the loop, or the server has chosen another one; install() warns if that one is already
running. Over another loop than mgloop's only the controls are run. Every way that works, and the
version that it was tried with, has to be in docs/running.md.

    selecting_program.py [PACKAGE ...]
"""

import contextlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from common import expect, loop_class, say

HERE = Path(__file__).resolve().parent / "selecting"
DOCS = Path(__file__).resolve().parents[3] / "docs" / "running.md"

#: Seconds for anything that takes a moment.
PATIENCE = 90

#: Beginnings of the names of classes.
MGLOOP, UVLOOP, ASYNCIO = "mgloop.", "uvloop.Loop", "asyncio.unix_events._UnixSelectorEventLoop"

#: How mgloop.install() begins when it is too late.
WARNING = "RuntimeWarning: mgloop.install() "


class Server(NamedTuple):
    """A program to start, and the way to ask it."""

    #: The package whose version the table shows.
    package: str
    #: What a command calls `app`: a module of selecting/.
    module: str
    #: Further arguments of the command: mostly the address to listen on.
    more: str
    ask: Callable[["Row", "Path"], tuple[str, str]]


class Row(NamedTuple):
    """A documented way to start a server, and the loop that it then runs on."""

    server: Server
    way: str
    expected: str
    #: The command, unless the way is one.
    code: str = ""
    #: Of the environment; of SELECTING_INSTALL, asked.py and sanic_app.py know.
    variables: tuple[tuple[str, str], ...] = ()
    #: Whether install() warns that another loop is already running.
    warns: bool = False

    @property
    def is_control(self) -> bool:
        """Whether the row does not use mgloop."""
        return "mgloop" not in self.way and not self.variables

    def __str__(self) -> str:
        variables = dict(self.variables)
        end = ", install() being called" if variables.pop("SELECTING_INSTALL", "") else ""
        return "".join(f"{name}={value} " for name, value in variables.items()) + self.way + end

    def command(self, **values: object) -> str:
        """Return the command."""
        command = f"{self.code or self.way} {self.server.more}"
        command = re.sub(r"(?<![\w.])app(?=:\w|\.py|\s+worker)", self.server.module, command)
        for name, value in values.items():
            command = command.replace(f"{{{name}}}", str(value))
        return command


# --- processes ------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def environment(row: Row, folder: Path) -> dict[str, str]:
    """That of a shell in which the virtual environment is activated, and no server configured."""
    others = ("UVICORN_", "GUNICORN_", "GRANIAN_", "SANIC_", "DASK_", "DJANGO_", "ECOSYSTEM_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        "DJANGO_SETTINGS_MODULE": "django_site",
        "QUART_APP": "quart_app:app",
        "SELECTING_FOLDER": str(folder / "messages"),
        **dict(row.variables),
    }


@contextlib.contextmanager
def started(
    command: str, row: Row, folder: Path, stdin: Any = subprocess.DEVNULL
) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Yield (the process, the file with its output); end the process with all of its group."""
    variables = environment(row, folder)
    words = shlex.split(command)
    log = folder / f"log-{words[0]}-{time.monotonic_ns()}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [shutil.which(words[0], path=variables["PATH"]) or words[0], *words[1:]],
            env=variables,
            cwd=folder,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process, log
    except BaseException:
        print(f"--- the log of {row}\n{log.read_text(errors='replace')[-6000:]}", file=sys.stderr)
        raise
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(condition: Callable[[], Any], process: subprocess.Popen, what: str) -> Any:
    """What *condition* says as soon as it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (said := condition()):
        expect(process.poll() is None, f"{what}: it has ended with {process.returncode}")
        expect(time.monotonic() < deadline, f"{what} within {PATIENCE} s")
        time.sleep(0.1)
    return said


# --- the ways to ask: (the class, the log) --------------------------------------------------------


def by_http(row: Row, folder: Path) -> tuple[str, str]:
    port = free_port()

    def get() -> str | None:
        with contextlib.suppress(ConnectionError, urllib.error.URLError, TimeoutError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as response:
                return response.read().decode()
        return None

    with started(row.command(port=port), row, folder) as (process, log):
        answer = until(get, process, f"{row} answers")
        expect({get() for _ in range(6)} == {answer}, f"{row}: the workers' loops are alike")
    return answer, log.read_text(errors="replace")


def by_waiting(row: Row, folder: Path, typed: str = "") -> tuple[str, str]:
    """It says it, and ends by itself."""
    (folder / "typed").write_text(typed)
    with (
        (folder / "typed").open() as stdin,
        started(row.command(), row, folder, stdin) as (process, log),
    ):
        status = process.wait(PATIENCE)
        said = log.read_text(errors="replace")
        found = re.search(r"asked: ([\w.]+)", said)
        expect(status == 0 and found is not None, f"{row} says it, and ends with {status}")
    return found[1], said


def by_typing(row: Row, folder: Path) -> tuple[str, str]:
    """At a prompt."""
    return by_waiting(row, folder, "from asked import *; print('asked:', loop_class())\n")


def by_task(row: Row, folder: Path) -> tuple[str, str]:
    """Of a task queue."""
    (folder / "messages").mkdir()
    with started(row.command(), row, folder) as (process, log):
        until(lambda: " ready." in log.read_text(), process, f"{row} is ready")
        done = subprocess.run(
            [sys.executable, "-c", "import celery_app as c; print(c.ask.delay().get(timeout=60))"],
            env=environment(row._replace(variables=()), folder),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        expect(done.returncode == 0, f"{row} does the task: {done.stderr}")
    return done.stdout.strip(), log.read_text(errors="replace")


async def inside() -> str:
    """What Dask is sent."""
    import asyncio

    kind = type(asyncio.get_running_loop())
    return f"{kind.__module__}.{kind.__qualname__}"


def by_dask(row: Row, folder: Path) -> tuple[str, str]:
    """The scheduler's loop, or those of a worker and of its nanny."""
    from distributed import Client

    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    more = "--no-dashboard --host 127.0.0.1"
    with contextlib.ExitStack() as stack:
        workers = "worker" in row.way
        if workers:
            scheduler = row._replace(variables=())
            command = f"dask scheduler {more} --port {port}"
            stack.enter_context(started(command, scheduler, folder))
            command = f"{row.way.replace('ADDRESS', address)} {more}"
        else:
            command = f"{row.way} {more} --port {port}"
        _, log = stack.enter_context(started(command, row, folder))
        client = stack.enter_context(Client(address, timeout=PATIENCE))
        if workers:
            client.wait_for_workers(1, timeout=PATIENCE)
            said = {*client.run(inside).values(), *client.run(inside, nanny=True).values()}
        else:
            said = {client.run_on_scheduler(inside)}
        expect(len(said) == 1, f"{row}: its processes' loops are alike: {said}")
        return said.pop(), log.read_text(errors="replace")


def by_kernel(row: Row, folder: Path) -> tuple[str, str]:
    """Jupyter's: the command is in a kernelspec."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager

    variables = environment(row, folder)
    words = shlex.split(row.way)
    words[0] = shutil.which(words[0], path=variables["PATH"]) or words[0]
    spec = folder / "kernels" / "selecting"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        json.dumps({"argv": words, "display_name": "Python", "language": "python"})
    )
    manager = KernelManager(
        kernel_name="selecting",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(spec.parent)]),
    )
    manager.start_kernel(env=variables, cwd=str(folder))
    said = {"stdout": "", "stderr": ""}

    def note(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            said[message["content"]["name"]] += message["content"]["text"]

    try:
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE)
        reply = client.execute_interactive(
            "from asked import *; print(loop_class())", timeout=PATIENCE, output_hook=note
        )
        expect(reply["content"]["status"] == "ok", f"{row}: {reply['content']}")
        client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
    return said["stdout"].strip(), said["stderr"]


# --- the rows -------------------------------------------------------------------------------------

HOST_AND_PORT = "--host 127.0.0.1 --port {port}"

UVICORN = Server("uvicorn", "asgi_app", HOST_AND_PORT, by_http)
UVICORN_RUN = Server("uvicorn", "asgi_app", "", by_http)
FASTAPI = Server("fastapi-cli", "fastapi_app", HOST_AND_PORT, by_http)
GUNICORN = Server("gunicorn", "asgi_app", "-b 127.0.0.1:{port}", by_http)
AIOHTTP_BY_GUNICORN = GUNICORN._replace(module="aiohttp_app")
HYPERCORN = Server("hypercorn", "asgi_app", "-b 127.0.0.1:{port}", by_http)
GRANIAN = Server("granian", "asgi_app", HOST_AND_PORT, by_http)
DAPHNE = Server("daphne", "asgi_app", "-b 127.0.0.1 -p {port}", by_http)
DJANGO = Server("django", "", "127.0.0.1:{port}", by_http)
QUART = Server("quart", "", HOST_AND_PORT, by_http)
SANIC = Server("sanic", "sanic_app", HOST_AND_PORT, by_http)
AIOHTTP = Server("aiohttp", "aiohttp_app", "-H 127.0.0.1 -P {port}", by_http)
RUN_APP = AIOHTTP._replace(more="")
TORNADO = Server("tornado", "tornado_app", "{port}", by_http)
SERVE = Server("mgloop", "asgi_app", HOST_AND_PORT, by_http)
DASK = Server("distributed", "", "", by_dask)
CELERY = Server("celery", "celery_app", "-c 1 -l INFO", by_task)
KERNEL = Server("ipykernel", "", "", by_kernel)
PROMPT = Server("python", "", "", by_typing)


PYTEST = "-q -s -c /dev/null --rootdir=. "
PYTEST_ASYNCIO = Server(
    "pytest-asyncio", "", f"{PYTEST} -p no:aiohttp asyncio_checks.py", by_waiting
)
PYTEST_AIOHTTP = Server(
    "pytest-aiohttp", "", f"{PYTEST} --asyncio-mode=auto aiohttp_checks.py", by_waiting
)
ANYIO = Server("anyio", "", f"{PYTEST} -p no:aiohttp -p no:asyncio anyio_checks.py", by_waiting)
PLAIN = Server(
    "pytest", "", f"{PYTEST} -p no:aiohttp -p no:asyncio -p no:anyio plain_checks.py", by_waiting
)


def by_itself(server: Server, way: str, expected: str) -> Row:
    """A control."""
    return Row(server, way, expected)


def on_mgloop(server: Server, *ways: str) -> Iterator[Row]:
    """Ways that work."""
    return (Row(server, way, MGLOOP) for way in ways)


def installed(server: Server, way: str, *variables: tuple[str, str], code: str = "") -> Row:
    """The application calls install(), and that decides."""
    return Row(server, way, MGLOOP, code, (("SELECTING_INSTALL", "yes"), *variables))


def ignored(server: Server, way: str, expected: str, code: str = "") -> Row:
    """The application calls install() before any loop runs, and the server uses another loop."""
    return Row(server, way, expected, code, (("SELECTING_INSTALL", "yes"),))


def too_late(server: Server, way: str, expected: str, code: str = "") -> Row:
    """The application calls install() while the server's loop runs; install() warns."""
    return ignored(server, way, expected, code)._replace(warns=True)


def python(code: str) -> str:
    """The command that runs it."""
    return f"python -c {shlex.quote(code)}"


def uvicorn_run(options: str) -> str:
    """The command that runs uvicorn in a program of one's own."""
    return python(f"from asgi_app import app; import uvicorn; uvicorn.run(app, {options})")


ROWS = [
    by_itself(UVICORN, "uvicorn app:app", UVLOOP),
    by_itself(UVICORN, "uvicorn --loop asyncio app:app", ASYNCIO),
    *on_mgloop(
        UVICORN,
        "uvicorn --loop mgloop:new_event_loop app:app",
        "uvicorn --loop mgloop:new_event_loop --workers 2 app:app",
        "mgloop run uvicorn app:app",
        "mgloop run uvicorn --loop asyncio app:app",
        "mgloop run uvicorn --workers 2 app:app",
    ),
    Row(
        UVICORN_RUN,
        'uvicorn.run(app, loop="mgloop:new_event_loop")',
        MGLOOP,
        uvicorn_run("port={port}, loop='mgloop:new_event_loop'"),
    ),
    ignored(UVICORN, "uvicorn app:app", UVLOOP),
    ignored(UVICORN, "uvicorn --loop asyncio app:app", ASYNCIO),
    ignored(UVICORN_RUN, "uvicorn.run(app)", UVLOOP, uvicorn_run("port={port}")),
    installed(
        UVICORN_RUN, 'uvicorn.run(app, loop="none")', code=uvicorn_run("port={port}, loop='none'")
    ),
    installed(UVICORN, "uvicorn --loop mgloop:new_event_loop app:app"),
    installed(UVICORN, "mgloop run uvicorn app:app"),
    by_itself(FASTAPI, "fastapi run app.py", UVLOOP),
    *on_mgloop(FASTAPI, "mgloop run fastapi run app.py"),
    ignored(FASTAPI, "fastapi run app.py", UVLOOP),
    by_itself(GUNICORN, "gunicorn -k uvicorn_worker.UvicornWorker app:app", UVLOOP),
    by_itself(GUNICORN, "gunicorn -k asgi app:app", UVLOOP),
    by_itself(AIOHTTP_BY_GUNICORN, "gunicorn -k aiohttp.GunicornWebWorker app:app", ASYNCIO),
    *on_mgloop(
        GUNICORN,
        "gunicorn -k mgloop.gunicorn.UvicornWorker app:app",
        "gunicorn -k mgloop.gunicorn.AsgiWorker app:app",
        "gunicorn -k mgloop.http.gunicorn.Worker app:app",
        "mgloop run gunicorn -k uvicorn_worker.UvicornWorker app:app",
        "mgloop run gunicorn -k asgi app:app",
    ),
    *on_mgloop(
        AIOHTTP_BY_GUNICORN,
        "gunicorn -k mgloop.gunicorn.AiohttpWorker app:app",
        "mgloop run gunicorn -k aiohttp.GunicornWebWorker app:app",
    ),
    ignored(GUNICORN, "gunicorn -k uvicorn_worker.UvicornWorker app:app", UVLOOP),
    ignored(GUNICORN, "gunicorn --preload -k uvicorn_worker.UvicornWorker app:app", UVLOOP),
    ignored(GUNICORN, "gunicorn -k asgi app:app", UVLOOP),
    ignored(GUNICORN, "gunicorn -k asgi --asgi-loop asyncio app:app", ASYNCIO),
    ignored(GUNICORN, "gunicorn --preload -k asgi app:app", UVLOOP),
    installed(GUNICORN, "gunicorn --preload -k asgi --asgi-loop asyncio app:app"),
    ignored(AIOHTTP_BY_GUNICORN, "gunicorn -k aiohttp.GunicornWebWorker app:app", ASYNCIO),
    installed(AIOHTTP_BY_GUNICORN, "gunicorn --preload -k aiohttp.GunicornWebWorker app:app"),
    by_itself(HYPERCORN, "hypercorn app:app", ASYNCIO),
    by_itself(HYPERCORN, "hypercorn -k uvloop app:app", UVLOOP),
    *on_mgloop(
        HYPERCORN,
        "mgloop run hypercorn app:app",
        "mgloop run hypercorn -k uvloop app:app",
        "mgloop run hypercorn -w 2 app:app",
    ),
    installed(HYPERCORN, "hypercorn app:app"),
    ignored(HYPERCORN, "hypercorn -k uvloop app:app", UVLOOP),
    by_itself(GRANIAN, "granian --interface asgi app:app", UVLOOP),
    by_itself(GRANIAN, "granian --interface asgi --loop asyncio app:app", ASYNCIO),
    *on_mgloop(
        GRANIAN,
        "mgloop run granian --interface asgi app:app",
        "mgloop run granian --interface asgi --loop asyncio app:app",
        "mgloop run granian --interface asgi --loop uvloop app:app",
        "mgloop run granian --interface asgi --workers 2 app:app",
    ),
    ignored(GRANIAN, "granian --interface asgi app:app", UVLOOP),
    ignored(GRANIAN, "granian --interface asgi --loop asyncio app:app", ASYNCIO),
    by_itself(DAPHNE, "daphne app:app", ASYNCIO),
    *on_mgloop(DAPHNE, "mgloop run daphne app:app"),
    ignored(DAPHNE, "daphne app:app", ASYNCIO),
    by_itself(DJANGO, "django-admin runserver --pythonpath .", ASYNCIO),
    *on_mgloop(DJANGO, "mgloop run django-admin runserver --pythonpath ."),
    installed(DJANGO, "django-admin runserver --pythonpath ."),
    by_itself(QUART, "quart run", ASYNCIO),
    *on_mgloop(QUART, "mgloop run quart run"),
    installed(QUART, "quart run"),
    by_itself(SANIC, "sanic app:app", UVLOOP),
    *on_mgloop(SANIC, "mgloop run sanic app:app", "mgloop run sanic --workers 2 app:app"),
    ignored(SANIC, "sanic app:app", UVLOOP),
    installed(SANIC, "sanic app:app", ("SANIC_USE_UVLOOP", "no")),
    # The application says so itself, after it has called install().
    Row(SANIC, "sanic app:app", MGLOOP, variables=(("SELECTING_INSTALL", "without uvloop"),)),
    by_itself(AIOHTTP, "python -m aiohttp.web app:main", ASYNCIO),
    *on_mgloop(AIOHTTP, "mgloop run -m aiohttp.web app:main"),
    Row(
        RUN_APP,
        "web.run_app(app, loop=mgloop.new_event_loop())",
        MGLOOP,
        python(
            "import mgloop; from aiohttp_app import *; "
            "web.run_app(app, port={port}, loop=mgloop.new_event_loop())"
        ),
    ),
    installed(AIOHTTP, "python -m aiohttp.web app:main"),
    by_itself(TORNADO, "python app.py", ASYNCIO),
    *on_mgloop(TORNADO, "mgloop run app.py"),
    installed(TORNADO, "python app.py"),
    *on_mgloop(SERVE, "mgloop serve app:app", "mgloop serve --workers 2 app:app"),
    by_itself(DASK, "dask scheduler", ASYNCIO),
    by_itself(DASK, "dask worker ADDRESS", ASYNCIO),
    *on_mgloop(DASK, "mgloop run dask scheduler", "mgloop run dask worker ADDRESS"),
    by_itself(CELERY, "celery -A app worker", ASYNCIO),
    *on_mgloop(CELERY, "mgloop run celery -A app worker"),
    installed(CELERY, "celery -A app worker"),
    by_itself(KERNEL, "python -m ipykernel_launcher -f {connection_file}", ASYNCIO),
    *on_mgloop(KERNEL, "mgloop run -m ipykernel_launcher -f {connection_file}"),
    too_late(KERNEL, "python -m ipykernel_launcher -f {connection_file}", ASYNCIO),
    by_itself(PROMPT, "python -m asyncio", ASYNCIO),
    *on_mgloop(PROMPT, "mgloop run -m asyncio"),
    too_late(PROMPT, "python -m asyncio", ASYNCIO),
    *(
        row
        for server in (PYTEST_ASYNCIO, PYTEST_AIOHTTP, ANYIO, PLAIN)
        for row in (
            by_itself(server, "pytest", ASYNCIO),
            Row(server, "pytest --mgloop", MGLOOP),
        )
    ),
    Row(
        ANYIO,
        '"asyncio", {"loop_factory": mgloop.new_event_loop}',
        MGLOOP,
        "pytest",
        (("SELECTING_FACTORY", "yes"),),
    ),
]


# --- all of them ----------------------------------------------------------------------------------


def version(server: Server) -> str:
    """Start it as the documentation describes."""
    if server.package == "python":
        return f"CPython {sys.version.split()[0]}"
    return f"{server.package} {importlib.metadata.version(server.package)}"


def undocumented(row: Row, documentation: str) -> Iterator[str]:
    """What docs/running.md does not say of a way that works."""
    if row.expected == MGLOOP and f"`{row.way}`" not in documentation:
        yield f"`{row.way}`"
    if row.server.package not in ("python", "mgloop") and version(row.server) not in documentation:
        yield version(row.server)


def tried(row: Row) -> tuple[str, bool]:
    """Return the result of a row as text, and whether it is the expected one."""
    with tempfile.TemporaryDirectory(prefix="eco-") as scratch:
        folder = Path(scratch, "selecting")
        shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            answer, log = row.server.ask(row, folder)
        except (SystemExit, subprocess.TimeoutExpired) as exc:
            return f"{row}: {exc}", False
    warned = WARNING in log
    said = f"{row}: {answer}" + (", and it warns" if warned else "")
    if not answer.startswith(row.expected):
        return f"{said}: INSTEAD OF {row.expected}", False
    if warned != row.warns:
        return f"{said}: WHERE IT SHOULD {'' if row.warns else 'NOT '}WARN", False
    return said, True


def main(packages: list[str]) -> None:
    """Each row that was asked for."""
    ours = loop_class().__module__.startswith("mgloop")
    documentation = DOCS.read_text()
    faults = []
    for row in ROWS:
        if packages and row.server.package not in packages:
            continue
        if not (ours or row.is_control):
            continue
        said, good = tried(row)
        line = f"{version(row.server)}: {said}"
        say(line)
        if not good:
            faults.append(line)
        faults += [f"{DOCS.name} has no {what}" for what in undocumented(row, documentation)]
    expect(not faults, "\n  ".join(["all is as it should be:", *dict.fromkeys(faults)]))


main(sys.argv[1:])
