# SPDX-License-Identifier: GPL-2.0-only
"""gunicorn's processes with mgloop's worker class, and with other classes on mgloop's loop."""

import contextlib
import http.client
import importlib.util
import os
import signal
import threading
import time

import certificates
import pytest
from commands import APPLICATION, PATIENCE, Command, connect, get, pending, write_app

pytest.importorskip("gunicorn")
pytestmark = pytest.mark.mgloop_only


def gunicorn(folder, *arguments, app="main:app"):
    return Command(
        "-k", "mgloop.http.gunicorn.Worker", "-b", "127.0.0.1:0", *arguments, app,
        module="gunicorn", cwd=folder,
    )  # fmt: skip


def listening(command):
    return command.wait_for(r"Listening at: (https?://\S+)")[1]


def test_requests_and_the_end(folder):
    started = '{"type": "lifespan.startup.complete"}'
    application = f"print('the application starts', flush=True) or {started}"
    write_app(folder, APPLICATION.replace(started, application))
    with gunicorn(folder, "-w", 2, "--access-logfile", "-") as command:
        url = listening(command)
        # An application that has not started need not shut down. (Two lines may be written as one.)
        while command.output.count("the application starts") < 2:
            command.wait_for("the application starts")
        workers = {get(url) for _ in range(50)}
        assert workers
        assert str(command.pid) not in workers
        command.wait_for('"GET / HTTP/1.1" 200')
        command.send(signal.SIGTERM)
        assert command.end() == 0
        assert command.output.count("the application has shut down") == 2


def test_a_request_is_finished_first(folder):
    with gunicorn(folder) as command:
        url = listening(command)
        with pending(url, "/gate") as response:
            command.wait_for("in the gate of")
            worker = get(url)
            os.kill(int(worker), signal.SIGTERM)
            command.wait_for("Shutting down")
            os.kill(int(worker), signal.SIGUSR1)
            assert response() == (200, worker)
        command.wait_for("Booting worker")
        assert get(url) != worker


def test_gunicorn_replaces_a_worker_at_its_limit(folder):
    with gunicorn(folder, "--max-requests", 3) as command:
        url = listening(command)
        seen = set()
        deadline = time.monotonic() + PATIENCE
        while len(seen) < 3 and time.monotonic() < deadline:
            try:
                seen.add(get(url))
            except (ConnectionError, http.client.HTTPException):
                time.sleep(0.05)
        assert len(seen) == 3


def test_a_loop_that_is_stuck_is_replaced(folder):
    with gunicorn(folder, "--timeout", 1) as command:
        url = listening(command)
        before = get(url)
        command.wait_for("Booting worker")
        with contextlib.closing(connect(url)) as connection:
            connection.request("GET", "/stuck")
            command.wait_for("WORKER TIMEOUT")
        command.wait_for("Booting worker")
        assert get(url) != before


@contextlib.contextmanager
def touched(path):
    """Touch a file repeatedly, because gunicorn takes the first mtime it sees as the original."""
    enough = threading.Event()

    def touch():
        while not enough.wait(0.2):
            os.utime(path)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_changed_code_is_served(folder):
    with gunicorn(folder, "--reload") as command:
        url = listening(command)
        assert not get(url).startswith("new")
        write_app(folder, APPLICATION.replace('body = b"%d"', 'body = b"new %d"'))
        with touched(folder / "main.py"):
            command.wait_for(r"Worker reloading: .*main\.py modified")
        command.wait_for("Booting worker")
        assert get(url).startswith("new")


def test_options(folder):
    """Options of gunicorn itself, and of a subclass."""
    write_app(
        folder,
        """
        from mgloop.http.gunicorn import Worker

        class Named(Worker):
            options = {"headers": [("X-Name", "one")], "server_header": False}
        """,
        "workers.py",
    )
    limits = ("--limit-request-line", 100, "--keep-alive", 0)
    with gunicorn(folder, "-k", "workers.Named", *limits) as command:
        url = listening(command)
        with contextlib.closing(connect(url)) as connection:
            connection.request("GET", "/" + "x" * 200)
            assert connection.getresponse().status == 414
        with contextlib.closing(connect(url)) as connection:
            connection.connect()
            connection.sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            received = b""
            while piece := connection.sock.recv(65536):  # no time for another request
                received += piece
        head = received.lower().partition(b"\r\n\r\n")[0].split(b"\r\n")
        assert head[0] == b"http/1.1 200 ok"
        assert b"x-name: one" in head
        assert not [line for line in head if line.startswith(b"server:")]


def test_tls(folder, authority):
    certificates.write(folder, authority)
    with gunicorn(folder, "--certfile", "cert.pem", "--keyfile", "key.pem") as command:
        assert get(listening(command), context=certificates.trusting(authority)).isdigit()


def test_an_application_that_cannot_start(folder):
    write_app(
        folder,
        """
        async def app(scope, receive, send):
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no database"})
        """,
        "failing.py",
    )
    with gunicorn(folder, app="failing:app") as command:
        command.wait_for("no database")
        assert command.end() == 3


# --- WSGI applications ---------------------------------------------------------------------------

#: /together waits until three requests are in the application, and /stuck blocks for ever.
WSGI = """
    import os, threading
    from wsgiref.validate import validator

    TOGETHER = threading.Barrier(3, timeout=30)

    def block_for_ever():
        threading.Event().wait()

    def app(environ, start_response):
        return validator(respond)(environ, start_response)

    def respond(environ, start_response):
        path = environ["PATH_INFO"]
        if path == "/together":
            TOGETHER.wait()
        elif path == "/stuck":
            block_for_ever()
        body = b"%d" % os.getpid()
        if path == "/multiprocess":
            body = b"%r" % environ["wsgi.multiprocess"]
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [body]
"""


@pytest.fixture
def wsgi_folder(tmp_path):
    write_app(tmp_path, WSGI)
    return tmp_path


def test_threads_run_a_wsgi_application(wsgi_folder):
    options = ("-k", "mgloop.gunicorn.WsgiWorker", "--threads", 3)
    with gunicorn(wsgi_folder, *options) as command:
        url = listening(command)
        with contextlib.ExitStack() as stack:
            answers = [stack.enter_context(pending(url, "/together")) for _ in range(3)]
            assert {answer()[0] for answer in answers} == {200}
        assert command.stop() == 0
        assert "Traceback" not in command.output


def test_an_environ_knows_of_the_other_processes(wsgi_folder):
    with gunicorn(wsgi_folder, "-k", "mgloop.gunicorn.WsgiWorker", "-w", 2) as command:
        assert get(listening(command), "/multiprocess") == "True"


def test_a_request_that_exceeds_gunicorns_timeout_has_its_worker_replaced(wsgi_folder):
    options = ("-k", "mgloop.gunicorn.WsgiWorker", "--threads", 3, "--timeout", 2)
    with gunicorn(wsgi_folder, *options) as command:
        url = listening(command)
        command.wait_for("Booting worker")
        before = get(url)
        with pending(url, "/stuck"):
            command.wait_for("timeout request exceeded")
            command.wait_for("in block_for_ever")
            command.wait_for("Shutting down")
            command.wait_for("Leaving 1 request")
        command.wait_for("Booting worker")
        assert get(url) != before


def test_an_asgi_application_is_for_the_other_worker(folder):
    with gunicorn(folder, "-k", "mgloop.gunicorn.WsgiWorker") as command:
        command.wait_for("is an ASGI application: use -k mgloop.http.gunicorn.Worker")
        assert command.end() == 3


# --- others' workers, by mgloop.gunicorn ----------------------------------------------------------

#: Answers with its loop, as an ASGI and as an aiohttp application.
SAYS = """
    import asyncio
    from aiohttp import web

    def kind():
        return type(asyncio.get_running_loop()).__module__

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return await send({"type": "lifespan.shutdown.complete"})
        body = kind().encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def root(request):
        return web.Response(text=kind())

    web_app = web.Application()
    web_app.router.add_get("/", root)
"""

#: A stand-in for uvicorn_worker, which is not installed: it makes the loop of CONFIG_KWARGS.
STAND_IN = """
    from importlib import import_module
    from gunicorn.workers.gasgi import ASGIWorker

    class UvicornWorker(ASGIWorker):
        CONFIG_KWARGS = {"loop": "auto", "http": "auto"}

        def _setup_event_loop(self):
            assert self.CONFIG_KWARGS["http"] == "auto"
            module, _, name = self.CONFIG_KWARGS["loop"].partition(":")
            self.loop = getattr(import_module(module), name)()
"""


@pytest.mark.parametrize(
    ("worker", "app"),
    [
        ("UvicornWorker", "says:app"),
        ("AiohttpWorker", "says:web_app"),
        ("AsgiWorker", "says:app"),
    ],
)
def test_workers_of_others(tmp_path, worker, app):
    pytest.importorskip("aiohttp")
    if worker != "AiohttpWorker":
        pytest.importorskip("gunicorn.workers.gasgi", reason="gunicorn has it since its version 24")
    if worker == "UvicornWorker" and not importlib.util.find_spec("uvicorn_worker"):
        write_app(tmp_path, STAND_IN, "uvicorn_worker.py")
    write_app(tmp_path, SAYS, "says.py")
    with gunicorn(tmp_path, "-k", f"mgloop.gunicorn.{worker}", app=app) as command:
        assert get(listening(command)) == "mgloop.loop"
        assert command.stop() == 0, command.output
        assert "Traceback" not in command.output


@pytest.mark.parametrize(
    ("worker", "missing", "needs"),
    [
        ("UvicornWorker", "uvicorn_worker", "uvicorn-worker and gunicorn"),
        ("AiohttpWorker", "aiohttp.worker", "aiohttp and gunicorn"),
        ("AsgiWorker", "gunicorn.workers.gasgi", "gunicorn 24 or later"),
    ],
)
def test_a_package_that_is_missing_is_a_sentence(tmp_path, worker, missing, needs):
    write_app(tmp_path, f"import sys; sys.modules[{missing!r}] = None", "gunicorn.conf.py")
    write_app(tmp_path, SAYS, "says.py")
    with gunicorn(tmp_path, "-k", f"mgloop.gunicorn.{worker}", app="says:app") as command:
        assert command.end() == 1
        lines = [line for line in command.output.splitlines() if line]
        assert len(lines) == 1, lines
        assert f"mgloop.gunicorn.{worker} requires {needs}: " in lines[0]


@pytest.mark.parametrize(
    ("options", "module"),
    [
        (["-k", "aiohttp.GunicornWebWorker"], "asyncio.unix_events"),
        (["-k", "aiohttp.GunicornWebWorker", "--preload"], "mgloop.loop"),
        (["-k", "asgi", "--asgi-loop", "asyncio"], "asyncio.unix_events"),
        (["-k", "asgi", "--asgi-loop", "asyncio", "--preload"], "mgloop.loop"),
        (["-k", "mgloop.http.gunicorn.Worker"], "mgloop.loop"),
        (["-k", "mgloop.gunicorn.AiohttpWorker"], "mgloop.loop"),
        (["-k", "mgloop.gunicorn.AsgiWorker"], "mgloop.loop"),
    ],
    ids=" ".join,
)
def test_install_by_an_application_does_not_warn(tmp_path, options, module):
    pytest.importorskip("aiohttp")
    pytest.importorskip("gunicorn.workers.gasgi", reason="gunicorn has it since its version 24")
    app = "says:web_app" if "iohttp" in options[1] else "says:app"
    write_app(tmp_path, f"{SAYS}\n    import mgloop; mgloop.install()\n", "says.py")
    with gunicorn(tmp_path, *options, app=app) as command:
        assert get(listening(command)) == module
        assert command.stop() == 0
        # No loop is running while gunicorn imports the application.
        assert "RuntimeWarning" not in command.output


def test_names_of_workers():
    import mgloop.gunicorn

    with pytest.raises(AttributeError, match="no attribute 'NoWorker'"):
        mgloop.gunicorn.NoWorker  # noqa: B018
