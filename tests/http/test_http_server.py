# SPDX-License-Identifier: GPL-2.0-only
"""Server: embedded in a program, and as a process with signals, time limits and TLS."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import ssl
import threading

import certificates
import pytest
import support
from commands import (
    APPLICATION,
    Command,
    complaints,
    connect,
    fails,
    get,
    pending,
    serve,
    write_app,
)

from mgloop.http import Config, LifespanError, Server, StartError
from mgloop.http.wire._peer import distinguished_name


async def hello(scope, receive, send):
    if scope["type"] == "lifespan":
        raise ValueError("no lifespan")
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]}
    )
    await send({"type": "http.response.body", "body": b"hello"})


async def fetch(server, path="/"):
    """Send GET `path` from the loop that serves it; return the response's body."""
    host, port = server.sockets[0].getsockname()[:2]
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        return await reader.readexactly(length)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class Gate:
    """An application that answers once it is permitted to."""

    def __init__(self):
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = False
        self.log = []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.log.append("shutdown")
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.entered.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        self.log.append("answered")
        await hello(scope, receive, send)


async def test_it_serves_while_the_context_lasts(loop):
    async with Server(Config(app=hello, port=0)) as server:
        assert server.started
        assert server.url == f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await fetch(server) == b"hello"
        assert server.site.requests == 1
        address = server.sockets[0].getsockname()
    assert not server.started
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


async def test_two_servers_on_one_loop(loop):
    async with Server(Config(app=hello, port=0)) as one:
        async with Server(Config(app=hello, port=0)) as two:
            assert one.url != two.url
            assert await fetch(one) == await fetch(two) == b"hello"


async def test_a_start_that_fails_leaves_nothing(loop):
    async with Server(Config(app=hello, port=0)) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StartError, match="address already in use"):
            await Server(Config(app=hello, port=port)).start()
        with pytest.raises(LifespanError):
            await Server(Config(app=hello, port=0, lifespan="on")).start()
        with pytest.raises(StartError, match="could not import module"):
            await Server(Config(app="not_there:app", port=0)).start()


async def test_a_start_that_fails_closes_every_socket(loop):
    """The given sockets are closed, as are those bound when the metrics' port was in use."""
    with support.listening_socket() as taken, support.listening_socket() as given:
        config = Config(app=hello, port=0, ssl_certfile="nowhere")
        with pytest.raises(StartError, match="cannot load the certificate"):
            await Server(config, listeners=[given]).start()
        assert given.fileno() == -1
        server = Server(Config(app=hello, port=0, metrics_port=taken.getsockname()[1]))
        with pytest.raises(StartError):  # also raised if prometheus_client is not installed
            await server.start()
        assert [sock.fileno() for sock in server.sockets] == [-1]


async def test_a_certificate_without_its_key_names_the_option(loop, tmp_path, authority):
    options = over_tls(tmp_path, authority)
    config = Config(app=hello, port=0, ssl_certfile=options["ssl_certfile"])
    with pytest.raises(StartError, match=r"no private key found in .*cert\.pem.*--ssl-keyfile"):
        await Server(config).start()


def test_the_end_says_what_it_waits_for(run, caplog):
    """The log names a response that has not ended, then an application that has not returned."""
    caplog.set_level(logging.INFO, "mgloop.http")
    gate = Gate()
    returns = None

    async def app(scope, receive, send):
        await gate(scope, receive, send)
        if scope["type"] == "http":
            await returns.wait()

    async def said(text):
        message = f"Waiting for {text} (CTRL+C to force quit)"
        await support.wait_until(lambda: message in caplog.messages)

    async def main():
        nonlocal returns
        returns = asyncio.Event()
        async with Server(Config(app=app, port=0)) as server:
            fetching = asyncio.ensure_future(fetch(server))
            await gate.entered.wait()
            closing = asyncio.ensure_future(server.close())
            await said("connections to close.")
            gate.open.set()
            await fetching
            await said("background tasks to complete.")
            returns.set()
            await closing

    run(main())


async def test_an_end_without_requests_waits_for_nothing(loop, caplog):
    caplog.set_level(logging.INFO, "mgloop.http")
    config = Config(app=hello, port=0, lifespan="off", access_log=False)
    async with Server(config) as server:
        await fetch(server)
    assert caplog.messages == ["Shutting down"]


async def test_a_request_in_hand_is_answered_before_the_end(loop):
    app = Gate()
    server = Server(Config(app=app, port=0))
    await server.start()
    request = asyncio.ensure_future(fetch(server))
    await app.entered.wait()
    closing = asyncio.ensure_future(server.close())
    await support.wait_until(lambda: server.site.draining)
    assert not closing.done()
    app.open.set()
    assert await request == b"hello"
    await closing
    assert app.log == ["answered", "shutdown"]


async def test_a_request_that_outlasts_the_deadline_is_cancelled(loop, caplog):
    app = Gate()
    server = Server(Config(app=app, port=0, timeout_graceful_shutdown=0.05))
    await server.start()
    request = asyncio.ensure_future(fetch(server))
    await app.entered.wait()
    await server.close()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError, IndexError)):
        await request
    assert app.log == ["cancelled", "shutdown"]
    told = (
        "Cancelling 1 request(s) and closing 1 connection(s), timeout graceful shutdown exceeded."
    )
    assert told in caplog.messages


@pytest.mark.parametrize("how", ["serve", "close"])
async def test_cancelling_it_releases_everything(loop, how):
    gate = Gate()
    server = Server(Config(app=gate, port=0))
    if how == "serve":
        task = asyncio.ensure_future(server.serve(handle_signals=False))
        await support.wait_until(lambda: server.started)
    else:
        await server.start()
    request = asyncio.ensure_future(fetch(server))
    await gate.entered.wait()
    if how == "close":
        task = asyncio.ensure_future(server.close())
        await asyncio.sleep(0)
    await support.cancel(task)
    assert gate.log == ["cancelled", "shutdown"]
    assert [sock.fileno() for sock in server.sockets] == [-1]
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await request


@pytest.mark.parametrize("how", ["is cancelled", "stops now"])
async def test_a_serve_that_ends_while_it_starts_leaves_nothing_behind(loop, how):
    waiting = asyncio.Event()

    async def app(scope, receive, send):
        waiting.set()
        await asyncio.Event().wait()

    server = Server(Config(app=app, port=0))
    task = asyncio.ensure_future(server.serve(handle_signals=False))
    await waiting.wait()
    if how == "is cancelled":
        await support.cancel(task)
    else:
        server.stop(now=True)
        await task
    assert [sock.fileno() for sock in server.sockets] == [-1]


async def test_an_idle_connection_is_no_obstacle(loop):
    async with Server(Config(app=hello, port=0, timeout_keep_alive=600)) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await reader.readuntil(b"hello")
    assert await reader.read() == b""
    await support.close(writer)


@pytest.mark.parametrize("limit", [None, 2])
async def test_serve_ends_when_it_is_stopped_or_at_the_limit_of_requests(loop, limit):
    server = Server(Config(app=hello, port=0, limit_max_requests=limit))
    started = asyncio.Event()
    serving = asyncio.ensure_future(server.serve(handle_signals=False, on_start=started.set))
    await started.wait()
    assert await fetch(server) == b"hello"
    assert not serving.done()
    if limit is None:
        server.stop()
    else:
        assert await fetch(server) == b"hello"
    await serving


async def test_a_signal_ends_all_servers_of_a_loop(loop):
    before = signal.getsignal(signal.SIGTERM)
    servers = [Server(Config(app=hello, port=0)) for _ in range(2)]
    started = [asyncio.Event() for _ in servers]
    serving = [
        asyncio.ensure_future(server.serve(on_start=event.set))
        for server, event in zip(servers, started, strict=True)
    ]
    for event in started:
        await event.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*serving), support.PATIENCE)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_server_in_another_thread_leaves_signals_to_the_program(loop, run):
    before = signal.getsignal(signal.SIGTERM)
    answers = []

    async def main():
        server = Server(Config(app=hello, port=0))
        started = loop.create_future()
        serving = asyncio.ensure_future(server.serve(on_start=lambda: started.set_result(None)))
        await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
        answers.append(await fetch(server))
        answers.append(signal.getsignal(signal.SIGTERM))
        server.stop()
        await serving

    thread = threading.Thread(target=run, args=(main(),))
    thread.start()
    thread.join()
    assert answers == [b"hello", before]


async def test_at_the_limit_of_memory_serve_ends(loop, caplog):
    await Server(Config(app=hello, port=0, limit_max_memory="1M")).serve(handle_signals=False)
    assert "Reached limit_max_memory" in caplog.text


def test_jitter_moves_the_limit():
    limits = {
        Server(
            Config(app=hello, limit_max_requests=10, limit_max_requests_jitter=5)
        ).config.limit_max_requests
        for _ in range(200)
    }
    assert limits <= set(range(10, 16))
    assert len(limits) > 1


async def test_the_access_log_goes_to_logging_where_somebody_listens(loop, caplog):
    async with Server(Config(app=hello, port=0)) as server:
        assert await fetch(server, "/silent") == b"hello"
        assert server.site.access_log is None
    caplog.set_level(logging.INFO, "mgloop.http.access")
    async with Server(Config(app=hello, port=0)) as server:
        assert await fetch(server, "/a?b") == b"hello"
    async with Server(Config(app=hello, port=0, access_log=False)) as server:
        assert server.site.access_log is None
    assert "silent" not in caplog.text
    assert '"GET /a?b HTTP/1.1" 200' in caplog.text


# --- as a process --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_finish_and_exits_0(folder, number):
    with serve(folder) as command:
        url = command.url()
        with contextlib.closing(connect(url)) as connection, pending(url, "/gate") as answer:
            command.wait_for("in the gate")
            connection.request("GET", "/open")  # begun before the shutdown, so it is answered
            assert connection.getresponse().read()
            command.send(number)
            assert answer() == (200, str(command.pid))
        assert command.end() == 0
    assert "the application has shut down" in command.lines


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_start_up_is_status_3(tmp_path, workers):
    write_app(
        tmp_path,
        """
        async def app(scope, receive, send):
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no database"})
        """,
    )
    arguments = ("serve", "main:app", "--port", 0, "--workers", workers)
    lines = fails(*arguments, cwd=tmp_path, status=3)
    index = lines.index("ERROR:    no database")
    if workers == 1:
        assert lines[index + 1 :] == ["ERROR:    Application startup failed. Exiting."]


def test_threads_serve_side_by_side(folder):
    with serve(folder, "--threads", 3) as command:
        url = command.url()
        assert {get(url) for _ in range(12)} == {str(command.pid)}
        assert command.stop() == 0
    assert command.output.count("the application has shut down") == 3


def test_threads_on_a_unix_socket(folder):
    path = folder / "a.sock"
    with serve(folder, "--uds", path, "--threads", 2) as command:
        url = command.url()
        assert {get(url) for _ in range(4)} == {str(command.pid)}
        assert command.stop(signal.SIGINT) == 0
    assert not path.exists()


def test_threads_that_cannot_start_are_one_error(tmp_path):
    lines = fails("serve", "main:app", "--port", 0, "--threads", 2, cwd=tmp_path, status=1)
    assert "could not import module 'main'" in lines[-1]


def test_serve_from_a_program(tmp_path):
    write_app(
        tmp_path,
        """
        import os, signal
        import mgloop, mgloop.http
        from main import app

        try:
            mgloop.serve(app, prot=1)
        except mgloop.http.ConfigError as exc:
            print(exc)
        async def on_request(scope, receive, send):
            await app(scope, receive, send)
            if scope["type"] == "http":
                os.kill(os.getpid(), signal.SIGTERM)
        mgloop.serve(on_request, port=0)
        print("served")
        """,
        name="program.py",
    )
    write_app(tmp_path)
    with Command(module="program", cwd=tmp_path) as command:
        command.wait_for("unknown option 'prot'; did you mean 'port'?")
        get(command.url())
        command.wait_for("^served$")


def test_a_module_that_serves_itself_is_told_how(tmp_path):
    write_app(tmp_path, APPLICATION + "\nimport mgloop\nmgloop.serve('main:app', port=0)\n")
    with Command(module="main", cwd=tmp_path) as command:
        assert command.end() == 1
    assert "call serve() under if __name__ == '__main__'" in command.lines[-1]


# --- TLS -----------------------------------------------------------------------------------------


TLS = ("--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem")


def over_tls(folder, authority):
    certificates.write(folder, authority)
    return {"ssl_certfile": folder / "cert.pem", "ssl_keyfile": folder / "key.pem"}


@pytest.fixture
def secure_server(tmp_path, authority):
    """Return ``secure_server(app=hello, **options)``, which makes a Server with TLS."""

    def make(app=hello, **options):
        options = {"lifespan": "off", **over_tls(tmp_path, authority), **options}
        return Server(Config(app=app, port=0, **options))

    return make


def serial(url, context):
    """Return the serial number of the server's certificate, as seen by a new connection."""
    connection = connect(url, context)
    connection.connect()
    try:
        return connection.sock.getpeercert()["serialNumber"]
    finally:
        connection.close()


def test_tls_certificates_are_reloaded_at_sighup(folder, authority):
    certificates.write(folder, authority)
    context = certificates.trusting(authority)
    with serve(folder, *TLS) as command:
        url = command.url()
        assert url.startswith("https://")
        assert get(url, context=context) == str(command.pid)
        first = serial(url, context)

        certificates.write(folder, authority)
        assert serial(url, context) == first
        command.send(signal.SIGHUP)
        command.wait_for("Reloaded certificates")
        second = serial(url, context)
        assert second != first

        (folder / "key.pem").write_text("nothing of PEM")
        command.send(signal.SIGHUP)
        command.wait_for("Failed to reload certificates, keeping the current ones: cannot load")
        assert serial(url, context) == second
        assert command.stop() == 0


def serial_of(writer):
    return writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]


@contextlib.asynccontextmanager
async def connected(server, authority):
    reader, writer = await asyncio.open_connection(
        *server.sockets[0].getsockname()[:2],
        ssl=certificates.trusting(authority),
        server_hostname="localhost",
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def get_from(reader, writer):
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    return await reader.readexactly(5)


async def test_a_certificate_that_changes_while_it_is_loaded(
    loop, tmp_path, authority, secure_server, caplog, monkeypatch
):
    """The server uses the old or the new certificate, and never one with the wrong key."""

    def load(context, *arguments):
        original(context, *arguments)
        (tmp_path / "key.pem").write_text("the key of another certificate")

    original = ssl.SSLContext.load_cert_chain
    caplog.set_level(logging.INFO)
    async with secure_server() as server:
        async with connected(server, authority) as before:
            first = serial_of(before[1])
            over_tls(tmp_path, authority)
            monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
            server.reload_certificates()
            await support.wait_until(lambda: "ertificates" in caplog.text)
            assert "Reloaded certificates." in caplog.text
            async with connected(server, authority) as after:
                second = serial_of(after[1])
                assert second != first
                assert await get_from(*after) == b"hello"
            assert await get_from(*before) == b"hello"
        caplog.clear()
        server.reload_certificates()
        assert "Failed to reload certificates, keeping the current ones: cannot load" in caplog.text
        async with connected(server, authority) as after:
            assert serial_of(after[1]) == second


async def test_a_certificate_with_another_type_of_key(loop, tmp_path, caplog):
    """OpenSSL keeps one certificate per type: the old one must no longer be used."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()

    def write(kind):
        leaf = authority.issue_cert("localhost", key_type=kind)
        leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")

    caplog.set_level(logging.INFO)
    write(trustme.KeyType.RSA)
    config = Config(app=hello, port=0, lifespan="off", ssl_certfile=tmp_path / "both.pem")
    async with Server(config) as server:
        write(trustme.KeyType.ECDSA)
        server.reload_certificates()
        await support.wait_until(lambda: "Reloaded certificates." in caplog.text)
        client = certificates.trusting(authority)
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        client.set_ciphers("ECDHE+aRSA")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(
                *server.sockets[0].getsockname()[:2], ssl=client, server_hostname="localhost"
            )
        async with connected(server, authority) as connection:
            assert await get_from(*connection) == b"hello"


async def test_no_connection_is_lost_while_certificates_are_loaded(
    loop, authority, secure_server, caplog
):
    """This includes a connection that was accepted in the same iteration of the loop."""

    async def connect_until(done, server):
        while not done.is_set():
            async with connected(server, authority) as connection:
                assert await get_from(*connection) == b"hello"

    caplog.set_level(logging.INFO, logger="mgloop.http")
    done = asyncio.Event()
    async with secure_server() as server:
        clients = [asyncio.ensure_future(connect_until(done, server)) for _ in range(8)]
        for i in range(1, 16):
            server.reload_certificates()
            await support.wait_until(lambda i=i: caplog.text.count("Reloaded cert") == i)
        done.set()
        await asyncio.gather(*clients)


async def test_certificates_are_loaded_while_the_server_ends(loop, secure_server):
    server = secure_server()
    await server.start()
    server.reload_certificates()
    server.reload_certificates()
    await asyncio.sleep(0)
    address = server.sockets[0].getsockname()[:2]
    await server.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # asyncio's, for refused sockets
async def test_handshakes_count_as_connections(loop, authority, secure_server):
    """The server accepts as many silent clients as over TCP, and one more, which can get a 503."""
    async with secure_server(limit_connections=2, timeout_head=20) as server:
        address = server.sockets[0].getsockname()[:2]
        clients = [await asyncio.open_connection(*address) for _ in range(10)]
        reading = [asyncio.ensure_future(reader.read()) for reader, _ in clients]
        await support.wait_until(lambda: sum(map(asyncio.Future.done, reading)) == 7)
        for _, writer in clients:
            writer.close()
        await asyncio.gather(*reading, return_exceptions=True)
        reading.clear()
        gc.collect()  # collect asyncio's failed handshakes
        await support.wait_until(lambda: not server.site.shaking_hands)
        async with connected(server, authority) as one, connected(server, authority) as two:
            assert await get_from(*one) == b"hello"
            assert await get_from(*two) == b"hello"
            async with connected(server, authority) as (reader, _):
                assert (await reader.read()).startswith(b"HTTP/1.1 503 ")


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # asyncio's, for refused sockets
def test_handshakes_that_time_out_do_not_count_as_connections(run, authority, secure_server):
    """This includes handshakes that only the garbage collector would release."""

    async def main():
        async with secure_server(limit_connections=1, timeout_head=0.3) as server:
            address = server.sockets[0].getsockname()[:2]
            clients = [await asyncio.open_connection(*address) for _ in range(2)]
            for reader, writer in clients:
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()
            await support.wait_until(lambda: not server.site.shaking_hands)
            async with connected(server, authority) as connection:
                assert await get_from(*connection) == b"hello"

    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()


async def test_no_scope_shares_the_tls_extension(loop, authority, secure_server):
    async def app(scope, receive, send):
        extension = scope["extensions"]["tls"]
        seen.append(repr(extension))
        extension["client_cert_chain"].append("mine")
        extension["mine"] = True
        await hello(scope, receive, send)

    seen = []
    async with secure_server(app) as server, connected(server, authority) as connection:
        for _ in range(2):
            assert await get_from(*connection) == b"hello"

    assert seen[0] == seen[1]
    assert "mine" not in seen[1]


def test_client_certificates(folder, authority):
    certificates.write(folder, authority)
    (folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
    options = [*TLS, "--ssl-cert-reqs", 2, "--ssl-ca-certs", "ca.pem"]
    with serve(folder, *options) as command:
        url = command.url()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(url, context=certificates.trusting(authority))
        context = certificates.trusting(authority)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        assert get(url, context=context) == str(command.pid)
        assert command.stop() == 0


def test_the_name_of_a_client_certificate():
    """The name has the form of RFC 4514, in which a comma in a value does not start a new part."""
    assert distinguished_name(()) == ""
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "A, CN=root"),),
        (("commonName", '#1 <"a+b;c\\>'), ("userId", " x ")),
        (("emailAddress", "a@b"),),
    )
    assert distinguished_name(subject) == (
        r"emailAddress=a@b,CN=\#1 \<\"a\+b\;c\\\>+UID=\ x\ ,O=A\, CN=root,C=DE"
    )


class ByHand:
    """A TLS client of `server` whose records are sent when send() is called."""

    def __init__(self, server, authority):
        self.server = server
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = certificates.trusting(authority).wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )

    async def __aenter__(self):
        """Connect and exchange the first messages, so that both ends have begun the handshake."""
        address = self.server.sockets[0].getsockname()[:2]
        self.reader, self.writer = await asyncio.open_connection(*address)
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()
        self.send()
        await self.receive()
        return self

    async def __aexit__(self, *exc_info):
        self.writer.close()

    def send(self):
        self.writer.write(self.outgoing.read())

    async def receive(self):
        self.incoming.write(await self.reader.read(1 << 16))

    async def through(self, call, *arguments):
        while True:
            try:
                return call(*arguments)
            except ssl.SSLWantReadError:
                self.send()
                await self.receive()


async def test_a_handshake_that_has_begun_is_served_before_the_end(loop, authority, secure_server):
    """A client may have been accepted just before a worker is replaced."""
    server = secure_server(lifespan="auto")
    await server.start()
    async with ByHand(server, authority) as client:
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0.5)  # longer than the server waits for an idle connection
        assert not closing.done()
        await client.through(client.tls.do_handshake)
        client.tls.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        client.send()
        answer = await client.through(client.tls.read, 1 << 16)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer
    await closing


def test_the_closing_alert_comes_with_the_request_for_a_file(
    run, tmp_path, authority, secure_server, caplog
):
    """The client has closed before the file is begun, or while it is sent."""
    (tmp_path / "file").write_bytes(bytes(5_000_000))

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.pathsend", "path": str(tmp_path / "file")})
        ended.set_result((await receive())["type"])

    async def main():
        nonlocal ended
        ended = asyncio.get_running_loop().create_future()
        async with secure_server(app) as server, ByHand(server, authority) as client:
            await client.through(client.tls.do_handshake)
            client.tls.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.unwrap()
            client.send()
            assert await ended == "http.disconnect"

    ended = None
    run(main())
    assert [record.getMessage() for record in caplog.records if record.levelno > 20] == []


def test_a_body_is_received_while_a_file_is_sent_over_tls(run, tmp_path, authority, secure_server):
    """asyncio's protocol, which temporarily replaces the connection, must not receive the body."""
    (tmp_path / "file").write_bytes(bytes(5_000_000))
    bodies = []

    async def app(scope, receive, send):
        (connection,) = server.site.members
        await send({"type": "http.response.start", "status": 200})
        with open(tmp_path / "file", "rb") as file:
            message = {"type": "http.response.zerocopysend", "file": file, "more_body": True}
            sending = asyncio.create_task(send(message))
            transport = connection.transport
            await support.wait_until(lambda: transport.get_protocol() is not connection)
            bodies.append((await receive())["body"])
            begun.set()
            bodies.append((await receive())["body"])
            await sending
        await send({"type": "http.response.body", "body": b"end"})

    async def main():
        nonlocal begun, server
        begun = asyncio.Event()
        async with (
            secure_server(app, body_buffer=1) as server,
            connected(server, authority) as (reader, writer),
        ):
            head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"
            writer.write(head + b"a")
            await begun.wait()
            writer.write(b"b")
            assert (await reader.read()).endswith(bytes(5) + b"\r\n3\r\nend\r\n0\r\n\r\n")

    begun = server = None
    run(main())
    assert bodies == [b"a", b"b"]


async def test_a_handshake_that_fails_does_not_hold_up_the_end(loop, secure_server):
    server = secure_server(lifespan="auto", timeout_head=0.3)
    await server.start()
    address = server.sockets[0].getsockname()[:2]
    for data in (b"GET / HTTP/1.1\r\n\r\n", b""):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await reader.read()  # until the request is refused, or its time is over
        writer.close()
    await server.close()
    assert not server.site.shaking_hands


def test_tls_options_that_cannot_be(folder, authority):
    certificates.write(folder, authority)
    client = int(ssl.PROTOCOL_TLS_CLIENT)
    cases = {
        ("--ssl-ciphers", "NOTHING"): "ssl_ciphers: no cipher can be selected from 'NOTHING'",
        ("--ssl-version", 99): "ssl_version: 99 is not a server protocol",
        ("--ssl-version", client): "ssl_version: 16 is not a server protocol",
        ("--ssl-cert-reqs", 1, "--ssl-ca-certs", "none"): "cannot load the CA certificates none",
    }
    found = complaints(*(("main:app", "--port", 0, *TLS, *case) for case in cases), cwd=folder)
    for (line, status), says in zip(found, cases.values(), strict=True):
        assert says in line
        assert status == 1


def test_a_wrong_password_is_one_line_and_nobody_is_asked(folder, authority):
    certificates.write(folder, authority)
    key = folder / "key.pem"
    form = pytest.importorskip("cryptography.hazmat.primitives.serialization")

    loaded = form.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"right")
        )
    )
    for password, says in (
        ([], "the key in key.pem is encrypted: set ssl_keyfile_password"),
        (["--ssl-keyfile-password", "wrong"], "wrong password"),
    ):
        (line,) = fails("serve", "main:app", *TLS, *password, cwd=folder, status=1)
        assert says in line
    arguments = ["serve", "main:app", *TLS, "--ssl-keyfile-password", "right", "--check"]
    with Command(*arguments, cwd=folder) as command:
        assert command.end() == 0
        assert "right" not in command.output
