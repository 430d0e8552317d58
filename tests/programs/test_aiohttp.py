# SPDX-License-Identifier: GPL-2.0-only
"""The main use: examples/aiohttp_hello.py, as a program, with a real aiohttp client.

The program runs in a separate process on the loop under test; the client runs in this process, also
on the loop under test.
"""

import asyncio
import contextlib
import hashlib
import io
import pathlib
import re
import signal
import subprocess
import sys

import pytest
import support

aiohttp = pytest.importorskip("aiohttp")

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "aiohttp_hello.py"

#: The beginning of the program's line about its loop.
LOOPS = {"asyncio": "Event loop: asyncio.", "mgloop": "Event loop: mgloop."}


class Server:
    """The running program: `url` is its address."""

    def __init__(self, loop_kind, *options):
        self.process = subprocess.Popen(
            [sys.executable, "-u", PROGRAM, "--loop", loop_kind, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.url = self.expect("Listening on ").rstrip("/")
        self.expect(LOOPS[loop_kind])

    def expect(self, start):
        """Read a line of output that begins with `start`; return the rest of it."""
        line = self.process.stdout.readline()
        if not line.startswith(start):
            self.process.kill()
            raise AssertionError(f"expected {start!r}, got {line!r}: {self.process.stderr.read()}")
        return line[len(start) :].strip()

    def finish(self):
        """Wait for the end, and check that it was orderly."""
        out, err = self.process.communicate(timeout=support.PATIENCE)
        # Debug mode reports slow callbacks, which is not a failure on a busy machine.
        err = re.sub(r"^Executing .* took [0-9.]+ seconds\n", "", err, flags=re.MULTILINE)
        assert (self.process.returncode, out, err) == (0, "Stopped.\n", "")

    def stop(self, signum=signal.SIGTERM):
        self.process.send_signal(signum)


@contextlib.contextmanager
def running(loop_kind, *options):
    """Yield a Server; stop it at the end, and check that the end was orderly."""
    server = Server(loop_kind, *options)
    try:
        yield server
        if server.process.poll() is None:
            server.stop()
        server.finish()
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


async def finish(loop, server):
    """Wait for the end of the server without blocking the loop."""
    await loop.run_in_executor(None, server.finish)


async def check_hello(session, url):
    async with session.get(f"{url}/") as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        assert await response.json() == {"message": "Hello, World!"}


async def check_all_routes(session, url):
    """Send a request of every kind."""
    await check_hello(session, url)

    body = support.pattern(5 * 1024 * 1024)
    async with session.post(f"{url}/upload", data=io.BytesIO(body)) as response:
        assert await response.json() == {
            "size": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }

    async with session.get(f"{url}/download", params={"size": len(body)}) as response:
        assert response.headers["Content-Length"] == str(len(body))
        assert await response.read() == bytes(range(256)) * (len(body) // 256)

    for wrong in ("-1", "many"):
        async with session.get(f"{url}/download", params={"size": wrong}) as response:
            assert response.status == 400

    async with session.ws_connect(f"{url}/ws") as ws:
        await ws.send_str("grüß dich")
        assert await ws.receive_str() == "grüß dich"
        for size in (0, 1, 70_000, 1_000_000):
            await ws.send_bytes(body[:size])
            assert await ws.receive_bytes() == body[:size]


async def test_a_thousand_requests_on_fifty_connections(loop, loop_kind):
    with running(loop_kind) as server:
        connector = aiohttp.TCPConnector(limit=50)
        async with aiohttp.ClientSession(connector=connector) as session:
            opened = 0
            create_connection = loop.create_connection

            async def counting(*args, **kwargs):
                nonlocal opened
                opened += 1
                return await create_connection(*args, **kwargs)

            loop.create_connection = counting

            async def client():
                for _ in range(20):
                    await check_hello(session, server.url)

            await asyncio.gather(*(client() for _ in range(50)))
            # aiohappyeyeballs makes the sockets; the loop only wraps each once.
            assert opened == 50


async def test_every_route(loop, loop_kind):
    with running(loop_kind) as server:
        async with aiohttp.ClientSession() as session:
            await check_all_routes(session, server.url)


async def test_every_route_over_tls(
    loop, loop_kind, server_certificate, client_ssl_context, tmp_path
):
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(b"".join(pem.bytes() for pem in server_certificate.cert_chain_pems))
    key.write_bytes(server_certificate.private_key_pem.bytes())
    with running(loop_kind, "--certfile", str(chain), "--keyfile", str(key)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        connector = aiohttp.TCPConnector(ssl=client_ssl_context)
        async with aiohttp.ClientSession(connector=connector) as session:
            await check_all_routes(session, server.url)
            await asyncio.gather(*(check_hello(session, server.url) for _ in range(50)))


async def test_pipelined_requests(loop, loop_kind):
    """Fifty requests in one packet get fifty responses, in order, on one connection."""
    with running(loop_kind) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        request = "GET /download?size={} HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write("".join(request.format(size) for size in range(50)).encode())
        for size in range(50):
            head = await reader.readuntil(b"\r\n\r\n")
            assert f"Content-Length: {size}\r\n".encode() in head
            assert await reader.readexactly(size) == bytes(range(size))
        await support.close(writer)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
async def test_an_idle_server_stops_at_once(loop, loop_kind, signum):
    with running(loop_kind) as server:
        async with aiohttp.ClientSession() as session:
            await check_hello(session, server.url)
            server.stop(signum)
            await finish(loop, server)


async def test_graceful_shutdown_loses_no_response(loop, loop_kind):
    """Requests begun before the signal are finished after it; new connections are refused."""
    with running(loop_kind) as server:
        size = 30_000_000
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3 * support.PATIENCE))
        async with session:
            may_go_on = asyncio.Event()
            begun = asyncio.Semaphore(0)
            body = [support.pattern(100_000)] * 10

            async def slow_body():
                yield body[0]
                begun.release()
                await may_go_on.wait()
                for part in body[1:]:
                    yield part

            async def upload():
                async with session.post(f"{server.url}/upload", data=slow_body()) as response:
                    answer = await response.json()
                    assert answer["size"] == 1_000_000
                    assert answer["sha256"] == hashlib.sha256(b"".join(body)).hexdigest()

            async def download():
                params = {"size": size}
                async with session.get(f"{server.url}/download", params=params) as response:
                    received = len(await response.content.readexactly(1000))
                    begun.release()
                    await may_go_on.wait()
                    async for chunk in response.content.iter_any():
                        received += len(chunk)
                    assert received == size

            async def websocket():
                async with session.ws_connect(f"{server.url}/ws") as ws:
                    await ws.send_str("here")
                    assert await ws.receive_str() == "here"
                    begun.release()
                    message = await ws.receive()
                    assert message.type is aiohttp.WSMsgType.CLOSE
                    assert message.data == aiohttp.WSCloseCode.GOING_AWAY

            async with asyncio.TaskGroup() as group:
                jobs = [upload, upload, upload, download, download, websocket]
                for job in jobs:
                    group.create_task(job())
                for _ in jobs:
                    await begun.acquire()
                server.stop()
                await refused(loop, server)
                assert server.process.poll() is None
                may_go_on.set()
            await finish(loop, server)


async def refused(loop, server):
    """Wait until the server accepts no more connections."""
    host, port = server.url.removeprefix("http://").split(":")
    while True:
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, host, int(port))
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # it was still in the backlog when the server closed its socket
        transport.close()
        await asyncio.sleep(0.01)


async def test_shutdown_under_fire_answers_all_it_accepted(loop, loop_kind):
    """Requests arrive while the server stops: each is answered completely or not accepted."""
    with running(loop_kind) as server:
        answered = 0
        connector = aiohttp.TCPConnector(limit=20)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def client():
                nonlocal answered
                while True:
                    try:
                        response = await session.get(f"{server.url}/download?size=100000")
                    except aiohttp.ClientConnectionError:
                        # Refused, or an idle connection that the server closed under the request.
                        if await loop.run_in_executor(None, closed, server):
                            return
                        continue
                    # After the head, the body must be complete, too.
                    async with response:
                        assert len(await response.read()) == 100_000
                    answered += 1

            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(client())
                await support.wait_until(lambda: answered > 200)
                server.stop()
            await finish(loop, server)


def closed(server):
    """Return whether the server's listening socket is closed; wait a moment for it."""
    host, port = server.url.removeprefix("http://").split(":")
    try:
        support.socket.create_connection((host, int(port)), timeout=1).close()
    except ConnectionError:
        return True
    return False


def run_program(*options):
    return support.finished([sys.executable, PROGRAM, *options])


@pytest.mark.mgloop_only  # the options are read before there is a loop
def test_help_and_wrong_options(loop_kind):
    assert run_program("--help").returncode == 0
    for options in (
        ["--keyfile", "x"],
        ["--certfile", "/no/such/file"],
        ["--certfile", __file__],
        ["--port", "x"],
        ["--loop", "x"],
    ):
        done = run_program("--loop", loop_kind, *options)
        assert done.returncode == 2
        assert "error:" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_port_in_use(loop_kind):
    with support.listening_socket() as sock:
        port = sock.getsockname()[1]
        done = run_program("--loop", loop_kind, "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Cannot listen on 127.0.0.1 port {port}: ")
    assert "Traceback" not in done.stderr
