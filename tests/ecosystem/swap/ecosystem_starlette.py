# SPDX-License-Identifier: GPL-2.0-only
"""pytest plugin for starlette's own suite: its TestClient calls the application over a socket.

The fixture test_client_factory returns a TestClient whose transport starts a real server in a
thread, over loopback or with TLS, as the URL says: mgloop.http.Server where the loop under test is
mgloop, else uvicorn. Requests are httpx2's, WebSockets those of the package websockets. Tests that
make no client with the fixture are left out, and so are those of TestClient itself.

A test that wants its application's exception gets it from a wrapper round the application, which
hands it on to the server as well; and as with TestClient a request is over when the application
has returned. Tests of features that only
TestClient has (its extensions, the addresses of its scope) fail over both servers.
"""

import asyncio
import os
import socket
import ssl
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
import trustme
import websockets
from starlette.testclient import TestClient, WebSocketDenialResponse, WebSocketTestSession, _Upgrade
from websockets.sync.client import connect

OURS = os.environ["ECOSYSTEM_LOOP"].startswith("mgloop")

#: Seconds for a server, and for an application whose client has gone.
PATIENCE = 20

#: The transports of the test that runs.
_transports = []


class _Certificate:
    """A certificate for localhost, for the servers of one client."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="eco-")
        self.chain, self.key = (Path(self.folder.name, name) for name in ("chain", "key"))
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(self.key)
        for index, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(self.chain, append=index > 0)
        # The names of the tests' URLs are anything.
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.check_hostname = False
        authority.configure_trust(self.client)


class _Watched:
    """The application, and the outcomes of its calls."""

    def __init__(self, app):
        self.app = app
        self.raised = []
        self.lifespan_raised = None
        self._running = 0
        self._changed = threading.Condition()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            try:
                await self.app(scope, receive, send)
            except BaseException as exc:
                self.lifespan_raised = exc
                raise
            return
        with self._changed:
            self._running += 1
        try:
            await self.app(scope, receive, send)
        except Exception as exc:
            self.raised.append(exc)
            raise
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def returned(self):
        """Wait until no call is running; return the first exception of a call."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, PATIENCE)
        raised, self.raised = self.raised, []
        return raised[0] if raised else None


class _Served:
    """Serve the application by a server of its own in a thread."""

    def __init__(self, app, lifespan, root_path, certificate):
        self.app = app
        self.port = None
        self._options = {
            "host": "127.0.0.1",
            "port": 0,
            "lifespan": "on" if lifespan else "off",
            "root_path": root_path,
            "interface": "asgi3",
            "log_level": "critical",
            "timeout_graceful_shutdown": 5,
        }
        if certificate:
            self._options |= {
                "ssl_certfile": str(certificate.chain),
                "ssl_keyfile": str(certificate.key),
            }
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        if not self._ready.wait(PATIENCE):
            raise TimeoutError("the server did not start")

    def _run(self):
        try:
            with asyncio.Runner() as runner:
                runner.run(self._ours() if OURS else self._uvicorn())
        finally:
            self._ready.set()

    def _serving(self, port):
        self.port = port
        self._ready.set()

    async def _ours(self):
        from mgloop.http import Config, Server, StartError

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with suppress(StartError):
            async with Server(Config(app=self.app, **self._options)) as server:
                self._serving(server.sockets[0].getsockname()[1])
                await self._stop.wait()

    async def _uvicorn(self):
        import uvicorn

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        config = uvicorn.Config(self.app, log_config=None, http="httptools", **self._options)
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.002)
        if not serving.done():
            self._serving(server.servers[0].sockets[0].getsockname()[1])
            await self._stop.wait()
            server.should_exit = True
        await serving

    def stop(self):
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise TimeoutError("the server did not stop")


class _Session(WebSocketTestSession):
    """TestClient's session over a real WebSocket."""

    def __init__(self, transport, request):
        self._transport = transport
        self._request = request
        self.accepted_subprotocol = None
        self.extra_headers = None

    def __enter__(self):
        request, transport = self._request, self._transport
        port = transport.port(request.url.scheme)
        handshake = ("host", "connection", "upgrade", "user-agent")
        headers = [
            (name, value)
            for name, value in request.headers.multi_items()
            if name not in handshake and not name.startswith("sec-websocket-")
        ]
        offered = request.headers.get("sec-websocket-protocol")
        options = {}
        if request.url.scheme == "wss":
            options = {"ssl": transport.certificate().client, "server_hostname": "localhost"}
        raw = transport.raw_path(request.url).decode()
        try:
            self._connection = connect(
                f"{request.url.scheme}://{request.headers['host']}{raw}",
                sock=socket.create_connection(("127.0.0.1", port), PATIENCE),
                additional_headers=headers,
                subprotocols=[name.strip() for name in offered.split(",")] if offered else None,
                user_agent_header=request.headers.get("user-agent"),
                open_timeout=PATIENCE,
                close_timeout=PATIENCE,
                proxy=None,
                **options,
            )
            self._ws = self._connection.__enter__()
        except websockets.InvalidStatus as exc:
            transport.raise_what_was_raised()
            answer = exc.response
            if answer.status_code == 403 and not answer.body:
                self._raise_on_close({"type": "websocket.close", "code": 1006})
            raise WebSocketDenialResponse(
                status_code=answer.status_code,
                headers=[
                    (name, value)
                    for name, value in answer.headers.raw_items()
                    if name.lower() != "transfer-encoding"
                ],
                content=bytes(answer.body or b""),
            ) from None
        self.accepted_subprotocol = self._ws.subprotocol
        added = ("upgrade", "connection", "date", "server")
        self.extra_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in self._ws.response.headers.raw_items()
            if name.lower() not in added and not name.lower().startswith("sec-websocket-")
        ]
        return self

    def __exit__(self, *exc_info):
        self._connection.__exit__(*exc_info)
        self._transport.raise_what_was_raised()

    def send(self, message):
        if message["type"] == "websocket.disconnect":
            self._ws.close(message["code"], message.get("reason") or "")
        else:
            text = message.get("text")
            with suppress(websockets.ConnectionClosed):
                self._ws.send(text if text is not None else message["bytes"])

    def receive(self):
        try:
            message = self._ws.recv(PATIENCE)
        except websockets.ConnectionClosed:
            code, reason = self._ws.close_code, self._ws.close_reason
            return {"type": "websocket.close", "code": code, "reason": reason}
        kind = "text" if isinstance(message, str) else "bytes"
        return {"type": "websocket.send", kind: message}


class _Body(httpx2.SyncByteStream):
    """The body of a response. Its end raises the application's exception, if that is requested."""

    def __init__(self, transport, stream):
        self._transport = transport
        self._stream = stream

    def __iter__(self):
        with self._transport.raising():
            yield from self._stream

    def close(self):
        self._stream.close()
        self._transport.raise_what_was_raised()


class _Transport(httpx2.BaseTransport):
    """Starts servers for the schemes of the URLs, and sends to them whatever the host's name."""

    def __init__(self, app, raise_server_exceptions, root_path):
        self.app = _Watched(app)
        self._raises = raise_server_exceptions
        self._root_path = root_path
        self._served = {}
        self._http = None
        self._certificate = None
        _transports.append(self)

    def certificate(self):
        if self._certificate is None:
            self._certificate = _Certificate()
        return self._certificate

    def start(self, scheme, lifespan):
        scheme = scheme.replace("ws", "http")
        if scheme not in self._served:
            certificate = self.certificate() if scheme == "https" else None
            self._served[scheme] = _Served(self.app, lifespan, self._root_path, certificate)
        return self._served[scheme]

    def port(self, scheme):
        return self.start(scheme, False).port

    def raw_path(self, url):
        """Return the path as a proxy sends it that serves the application below root_path."""
        raw = url.raw_path
        root = self._root_path.rstrip("/").encode()
        return (raw.removeprefix(root) or b"/") if root and raw.startswith(root) else raw

    def raise_what_was_raised(self):
        raised = self.app.returned()
        if raised is not None and self._raises:
            raise raised

    @contextmanager
    def raising(self):
        """Raise the application's exception instead of the client's."""
        try:
            yield
        except httpx2.TransportError:
            self.raise_what_was_raised()
            raise

    def handle_request(self, request):
        if request.url.scheme in ("ws", "wss"):
            raise _Upgrade(_Session(self, request))
        port = self.port(request.url.scheme)
        if self._http is None:
            verify = self.certificate().client if request.url.scheme == "https" else False
            self._http = httpx2.HTTPTransport(verify=verify)
        url = request.url.copy_with(
            host="127.0.0.1", port=port, raw_path=self.raw_path(request.url)
        )
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), PATIENCE)
        sent = httpx2.Request(
            request.method,
            url,
            headers=request.headers,
            stream=request.stream,
            extensions={"timeout": timeout},
        )
        with self.raising():
            response = self._http.handle_request(sent)
        # Of the server, not of the application.
        headers = [
            (name, value)
            for name, value in response.headers.raw
            if name.lower() not in (b"date", b"server")
        ]
        return httpx2.Response(
            response.status_code,
            headers=headers,
            stream=_Body(self, response.stream),
            extensions=response.extensions,
        )

    def close(self):
        if self._http is not None:
            self._http.close()
            self._http = None
        while self._served:
            self._served.popitem()[1].stop()
        if self._certificate is not None:
            self._certificate.folder.cleanup()
            self._certificate = None


class SocketClient(TestClient):
    """A TestClient that uses a socket."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        inner = self._transport
        self._transport = _Transport(self.app, inner.raise_server_exceptions, inner.root_path)

    def __enter__(self):
        served = self._transport.start(self.base_url.scheme, True)
        if served.port is None:
            self._transport.close()
            raised = self._transport.app.lifespan_raised
            raise raised or AssertionError("the application's start-up failed")
        return self

    def __exit__(self, *exc_info):
        self._transport.close()
        if self._transport.app.lifespan_raised is not None:
            raise self._transport.app.lifespan_raised


@pytest.fixture(autouse=True)
def _clients_over_sockets(monkeypatch):
    from tests import conftest

    monkeypatch.setattr(conftest, "TestClient", SocketClient)
    yield
    while _transports:
        _transports.pop().close()


def pytest_collection_modifyitems(config, items):
    """Keep the tests that make clients with the fixture, and do not examine the client."""
    kept = [
        item
        for item in items
        if "test_client_factory" in item.fixturenames and item.path.name != "test_testclient.py"
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
