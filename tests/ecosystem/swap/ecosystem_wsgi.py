# SPDX-License-Identifier: GPL-2.0-only
"""pytest plugin for suites of WSGI projects: their test clients call the application over a socket.

The clients of these projects call the application in the thread of the test. The plugin replaces
that call: it sends the request to a server in a thread, which is mgloop's with a pool of threads if
the loop under test is mgloop, and gunicorn's gthread worker otherwise. ECOSYSTEM_WSGI names the
project whose client is replaced.

One server serves all applications of the run. The number of the call, in a header, tells it the
application. A request over a socket has a method, a target, headers and a body; the other entries
of the environ that a client made are added by the server's application. An exception of the
application goes to the server, and is then raised in the test as well, and a call ends when the
server has called close() of the iterable.
"""

import asyncio
import http.client
import itertools
import os
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from urllib.parse import quote

OURS = os.environ["ECOSYSTEM_LOOP"].startswith("mgloop")

#: Seconds for the server to start, to answer, and to close an iterable.
PATIENCE = 20

NUMBER = "HTTP_X_ECOSYSTEM_NUMBER"

#: The entries of an environ that the server makes.
OF_THE_SERVER = frozenset(
    {
        *("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "CONTENT_TYPE", "CONTENT_LENGTH"),
        *("SERVER_PROTOCOL", "RAW_URI", "REQUEST_URI", "wsgi.version", "wsgi.input"),
        *("wsgi.input_terminated", "wsgi.multithread", "wsgi.multiprocess", "wsgi.run_once"),
        "wsgi.file_wrapper",
    }
)


class _Iterable:
    """The iterable of an application; its close() ends the call."""

    def __init__(self, call, iterable):
        self._call, self._iterable = call, iterable

    def __iter__(self):
        with self._call.recording():
            yield from self._iterable

    def close(self):
        try:
            with self._call.recording():
                if hasattr(self._iterable, "close"):
                    self._iterable.close()
        finally:
            self._call.ended.set()


class _Call:
    """One call of an application by a client."""

    def __init__(self, app, extra):
        self.app, self.extra = app, extra
        self.raised = []
        self.exc_info = None
        self.names = []
        self.begun = False
        self.ended = threading.Event()

    def recording(self):
        return _Recording(self.raised)

    def run(self, environ, start_response):
        def start(status, headers, exc_info=None):
            if exc_info:
                self.exc_info = exc_info
            self.names = [name.lower() for name, _ in headers]
            return start_response(status, headers, *([exc_info] if exc_info else []))

        self.begun = True
        try:
            with self.recording():
                iterable = self.app(environ | self.extra, start)
        except BaseException as exc:
            self.ended.set()
            if not OURS and not isinstance(exc, Exception):
                # It would end gunicorn's worker, and with it the run.
                raise RuntimeError("the application raised more than an Exception") from exc
            raise
        wrapper = environ.get("wsgi.file_wrapper")
        if isinstance(iterable, (list, tuple)) or (
            isinstance(wrapper, type) and isinstance(iterable, wrapper)
        ):
            self.ended.set()
            return iterable
        return _Iterable(self, iterable)


class _Recording:
    def __init__(self, raised):
        self._raised = raised

    def __enter__(self):
        return self

    def __exit__(self, _kind, exc, _traceback):
        if exc is not None and not isinstance(exc, GeneratorExit):
            self._raised.append(exc)


class _Server:
    """The server under test in a thread, with the application `app`."""

    def __init__(self, app, port=0):
        self.app = app
        self.address = None
        self._port = port
        self._ready = threading.Event()
        self._thread = None
        self._failure = None

    def start(self):
        """Start the server unless it runs; raise the OSError with which it failed."""
        if self._thread is None:
            run = self._ours if OURS else self._gunicorn
            self._thread = threading.Thread(target=run, daemon=True)
            self._thread.start()
            if not self._ready.wait(PATIENCE):
                raise TimeoutError("the server did not start")
        if self._failure is not None:
            raise self._failure

    def _ours(self):
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        finally:
            self._ready.set()

    async def _serve(self):
        from mgloop.http import Config, Server, StartError

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        options = {"host": "127.0.0.1", "port": self._port, "log_level": "critical"}
        try:
            async with Server(Config(app=self.app, interface="wsgi", **options)) as server:
                self.address = server.sockets[0].getsockname()
                self._ready.set()
                await self._stop.wait()
        except StartError as exc:
            self._failure = exc.__cause__ or exc

    def _gunicorn(self):
        from gunicorn.config import Config
        from gunicorn.glogging import Logger
        from gunicorn.workers.gthread import ThreadWorker

        class App:
            def wsgi(self):
                return server.app

        class Worker(ThreadWorker):
            def init_signals(self):
                """Leave the signals alone, which only the main thread can handle."""

            def run(self):
                server._ready.set()
                super().run()

        server = self
        # The run must show that it used the standard library's loops (upstream.py).
        asyncio.new_event_loop().close()
        config = Config()
        config.set("threads", 4)
        config.set("loglevel", "critical")
        config.set("keepalive", 60)
        try:
            sock = socket.create_server(("127.0.0.1", self._port))
        except OSError as exc:
            self._failure = exc
            self._ready.set()
            return
        self.address = sock.getsockname()
        self._worker = Worker(0, os.getppid(), [sock], App(), 600, config, Logger(config))
        with suppress(SystemExit):
            self._worker.init_process()

    def stop(self):
        if self._thread is None:
            return
        if OURS:
            self._loop.call_soon_threadsafe(self._stop.set)
        else:
            self._worker.handle_exit(None, None)
        self._thread.join(PATIENCE)


class _Switchboard(_Server):
    """The server of the run, which calls the applications of the clients."""

    def __init__(self):
        super().__init__(self.switch)
        self.calls = {}
        self.numbers = itertools.count(1)
        self.requests = 0

    def switch(self, environ, start_response):
        return self.calls[int(environ.pop(NUMBER))].run(environ, start_response)

    def exchange(self, app, environ):
        """Send a request; return the _Call, the status line's text, the headers and the body."""
        self.start()
        call, number = _Call(app, extras(environ)), next(self.numbers)
        self.calls[number] = call
        self.requests += 1
        try:
            connection = http.client.HTTPConnection(*self.address[:2], timeout=PATIENCE)
            try:
                send(connection, environ, number)
                response = connection.getresponse()
                while response.status < 200:
                    response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                if call.raised:
                    raise call.raised[0] from None
                raise
            finally:
                connection.close()
            if call.raised:
                raise call.raised[0]
            # A server answers some requests itself, such as one with an invalid Host.
            if call.begun and not call.ended.wait(PATIENCE):
                raise TimeoutError("close() of the iterable was not called")
        finally:
            del self.calls[number]
        headers = [pair for pair in response.getheaders() if pair[0].lower() in call.names]
        return call, f"{response.status} {response.reason}", headers, body


SERVER = _Switchboard()


def extras(environ):
    """Return the entries of a client's environ that no request can carry."""
    return {
        name: value
        for name, value in environ.items()
        if name not in OF_THE_SERVER and not name.startswith("HTTP_")
    } | ({} if has_path(environ) else {"PATH_INFO": environ.get("PATH_INFO", "")})


def has_path(environ):
    """Return whether the path can be sent; the empty path and "a" cannot."""
    return environ.get("PATH_INFO", "").startswith("/")


def send(connection, environ, number):
    path = environ["PATH_INFO"] if has_path(environ) else "/"
    path = quote(path, safe="/:;=@!$&'()*+,~", encoding="latin-1")
    query = "".join(
        char if "!" <= char <= "~" else quote(char, encoding="latin-1")
        for char in environ.get("QUERY_STRING", "")
    )
    target = f"{path}?{query}" if query else path
    connection.putrequest(
        environ.get("REQUEST_METHOD", "GET"), target, skip_host=True, skip_accept_encoding=True
    )
    if not environ.get("HTTP_HOST"):
        connection.putheader("Host", environ.get("SERVER_NAME") or "localhost")
    for name, value in environ.items():
        if name.startswith("HTTP_") and name not in ("HTTP_TRANSFER_ENCODING", "HTTP_CONNECTION"):
            connection.putheader(name[5:].replace("_", "-").title(), value.encode("latin-1"))
    connection.putheader(NUMBER[5:].replace("_", "-"), str(number))
    if environ.get("CONTENT_TYPE"):
        connection.putheader("Content-Type", environ["CONTENT_TYPE"].encode("latin-1"))
    body = read_body(environ)
    if body is None:
        connection.endheaders()
    elif environ.get("CONTENT_LENGTH"):
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
    else:
        connection.putheader("Transfer-Encoding", "chunked")
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        connection.endheaders(chunk + b"0\r\n\r\n")


def read_body(environ):
    """Return the body that the client wants to send, or None."""
    stream = environ.get("wsgi.input")
    length = environ.get("CONTENT_LENGTH")
    if stream is None:
        return None
    if length:
        return read_and_rewind(stream, int(length))
    if environ.get("wsgi.input_terminated") or "HTTP_TRANSFER_ENCODING" in environ:
        return read_and_rewind(stream)
    return None


def read_and_rewind(stream, *size):
    """Read a stream that the client may send again, after a redirect."""
    try:
        position = stream.tell()
    except (AttributeError, OSError):
        return stream.read(*size)
    body = stream.read(*size)
    stream.seek(position)
    return body


# --- the clients ---------------------------------------------------------------------------------


def replace_werkzeug():
    """Replace the call of werkzeug's and Flask's test clients."""
    import werkzeug.test
    from werkzeug.datastructures import Headers

    original = werkzeug.test.run_wsgi_app

    def run_wsgi_app(app, environ, buffered=False):
        if "werkzeug.debug.preserve_context" in environ:
            # Flask's client in a `with` block: the test wants the context of the request.
            return original(app, environ, buffered)
        environ = werkzeug.test._get_environ(environ).copy()
        call, status, headers, body = SERVER.exchange(app, environ)
        if call.exc_info:
            raise call.exc_info[1]
        return [body], status, Headers(headers)

    werkzeug.test.run_wsgi_app = run_wsgi_app


def replace_webob():
    import webob.request

    def call_application(request, application, catch_exc_info=False):
        if request.is_body_seekable:
            request.body_file_raw.seek(0)
        call, status, headers, body = SERVER.exchange(application, request.environ)
        if call.exc_info and not catch_exc_info:
            raise call.exc_info[1]
        found = (status, headers, [body])
        return (*found, call.exc_info) if catch_exc_info else found

    webob.request.BaseRequest.call_application = call_application


def replace_bottle():
    """Replace the application that bottle's tests call by one that is elsewhere."""
    sys.path.insert(0, os.getcwd())
    from test import tools

    set_up = tools.ServerTestBase.setUp

    def over_a_socket(test):
        set_up(test)
        app = test.wsgiapp

        def wsgiapp(environ, start_response):
            _, status, headers, body = SERVER.exchange(app, environ)
            start_response(status, headers)
            return [body]

        test.wsgiapp = wsgiapp

    tools.ServerTestBase.setUp = over_a_socket


def replace_whitenoise():
    """Replace wsgiref's server, which the tests use over a socket, too."""
    import requests

    from tests import utils

    class AppServer:
        PREFIX = "subdir"

        def __init__(self, application):
            self.application = application
            SERVER.start()
            self._call = _Call(self.serve_under_prefix, {})
            self._number = next(SERVER.numbers)
            SERVER.calls[self._number] = self._call
            self.url = "http://{}:{}".format(*SERVER.address[:2])

        def serve_under_prefix(self, environ, start_response):
            from wsgiref.util import shift_path_info

            if shift_path_info(environ) != self.PREFIX:
                start_response("404 Not Found", [])
                return []
            return self.application(environ, start_response)

        def get(self, *args, **kwargs):
            return self.request("get", *args, **kwargs)

        def request(self, method, path, *args, **kwargs):
            SERVER.requests += 1
            number = {NUMBER[5:].replace("_", "-"): str(self._number)}
            kwargs["headers"] = {**(kwargs.get("headers") or {}), **number}
            # The tests' paths have the prefix already.
            url = f"{self.url}{path}"
            return requests.request(method, url, *args, timeout=PATIENCE, **kwargs)

        def close(self):
            del SERVER.calls[self._number]

    utils.AppServer = AppServer


def replace_django():
    """Replace the test client's call of the handler, and the server of LiveServerTestCase."""
    sys.path.insert(0, os.path.join(os.getcwd(), "tests"))
    os.environ["DJANGO_SETTINGS_MODULE"] = "test_sqlite"
    os.environ.setdefault("TMPDIR", tempfile.gettempdir())
    import runtests
    from django.test.utils import get_runner

    labels = ["handlers", "servers", "wsgi"]
    runtests.setup_run_tests(0, None, None, test_labels=labels)
    runner = get_runner(runtests.settings, "django.test.runner.DiscoverRunner")(verbosity=0)
    runner.setup_test_environment()
    runner.setup_databases()
    replace_django_client()
    replace_django_server()


def replace_django_client():
    """Make the client return Django's response object, which cannot be sent over a socket.

    The test gets that object, after its parts have been compared with those of the answer.
    """
    from django.core.handlers.wsgi import WSGIRequest
    from django.test.client import ClientHandler

    original = ClientHandler.__call__

    def over_a_socket(handler, environ):
        found = []

        def app(environ, start_response):
            # Django reads the body again after the request, from the wsgi.input of the client.
            found.append(response := original(handler, environ))
            headers = [*response.items()]
            headers += [("Set-Cookie", c.OutputString()) for c in response.cookies.values()]
            start_response(f"{response.status_code} {response.reason_phrase}", headers)
            return [] if response.streaming else [response.content]

        _, status, headers, body = SERVER.exchange(app, environ)
        (response,) = found
        assert status == f"{response.status_code} {response.reason_phrase}"
        for name, value in response.items():
            assert (name, value) in headers, (name, value, headers)
        if not response.streaming and environ["REQUEST_METHOD"] != "HEAD":
            assert body == response.content
        assert isinstance(response.wsgi_request, WSGIRequest)
        return response

    ClientHandler.__call__ = over_a_socket


def replace_django_server():
    from django.core.handlers.wsgi import WSGIHandler
    from django.db import connections
    from django.test.testcases import LiveServerThread, _MediaFilesHandler

    def run(thread):
        handler = thread.static_handler(_MediaFilesHandler(WSGIHandler()))

        def app(environ, start_response):
            SERVER.requests += 1
            for alias, connection in (thread.connections_override or {}).items():
                connections[alias] = connection
            return handler(environ, start_response)

        thread.ecosystem_server = _Server(app, thread.port)
        try:
            thread.ecosystem_server.start()
            thread.port = thread.ecosystem_server.address[1]
        except Exception as exc:
            thread.error = exc
        thread.is_ready.set()

    def terminate(thread):
        thread.ecosystem_server.stop()
        thread.join()

    LiveServerThread.run = run
    LiveServerThread.terminate = terminate


globals()[f"replace_{os.environ['ECOSYSTEM_WSGI']}"]()


def pytest_terminal_summary(terminalreporter):
    server = "mgloop" if OURS else "gunicorn"
    terminalreporter.write_line(f"{SERVER.requests} requests over sockets to {server}")


def pytest_sessionfinish():
    SERVER.stop()
