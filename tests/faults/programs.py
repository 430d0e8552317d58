# SPDX-License-Identifier: GPL-2.0-only
"""The programs that have to live with the faults.

Each is a coroutine function of one argument, the :class:`Stage` that it plays on; those that need
another end outside the process under test have a peer as well, a plain function over blocking
sockets that runs in a process without faults. A program raises exceptions that it cannot handle,
passes the errors that its callbacks get to ``stage.report()``, and states by ``stage.missing()``
the data that did not arrive although no error was reported. The programs avoid the timeouts of the
loop, because a timer that ends a wait would hide a lost wake-up.
"""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import http.client
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from http.server import BaseHTTPRequestHandler

try:
    import aiohttp
    from aiohttp import web
except ImportError:
    aiohttp = web = None

SIZE = 300_000
CONNECTIONS = 3
SMALL_BUFFER = 16_384
LATE = 0.75


def payload(seed: int, size: int = SIZE) -> bytes:
    """Return bytes in which a lost, repeated or swapped block is detectable."""
    return hashlib.shake_128(seed.to_bytes(4, "big")).digest(size)


class Stage:
    """The input of a program and its peer, and the results of the run."""

    def __init__(self, address: Callable[[], object], publish: Callable[[object], None]) -> None:
        self.address = address
        self.publish = publish
        self.errors: list[str] = []
        self.lost: list[str] = []
        self.reached = 0

    def report(self, error: object) -> None:
        """Record an error that the loop has reported."""
        self.errors.append(f"{type(error).__name__}: {error}"[:200])

    def missing(self, what: str) -> None:
        """Record that data did not arrive in time without a report."""
        self.lost.append(what)

    def compare(self, name: str, got: bytes, wanted: bytes) -> None:
        """Count a goal as reached if *got* equals *wanted*."""
        if got == wanted:
            self.reached += 1
        else:
            same = "the first" if wanted.startswith(got) else "not the first"
            self.missing(f"{name}: {len(got)} bytes, {same} of {len(wanted)}")

    @contextlib.contextmanager
    def reporting(self):
        """Record an error of the block as a report; the error ends the block."""
        try:
            yield
        except Exception as exc:
            self.report(exc)


def small_buffers(transport: asyncio.BaseTransport) -> None:
    """Make the kernel's buffers so small that a write does not succeed immediately."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)


async def forever() -> None:
    """Serve until the peer has ended, which is a signal."""
    await asyncio.get_running_loop().create_future()


# --- TCP, streams --------------------------------------------------------------------------------


def _echo_client(stage: Stage, address: object, number: int) -> None:
    wanted = payload(number)
    with stage.reporting(), socket.create_connection(address) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)

        def send() -> None:
            with stage.reporting():
                sock.sendall(wanted)
                sock.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        got = bytearray()
        while chunk := sock.recv(65536):
            got += chunk
        stage.compare(f"connection {number}", bytes(got), wanted)
        sender.join()


def _threads(target: Callable, stage: Stage, address: object) -> None:
    threads = [
        threading.Thread(target=target, args=(stage, address, number), daemon=True)
        for number in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tcp_server_peer(stage: Stage) -> None:
    """Run several clients at a time, each of which expects its bytes back."""
    _threads(_echo_client, stage, stage.address())


async def tcp_server(stage: Stage) -> None:
    """Run an echo server over streams."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with stage.reporting():
            small_buffers(writer.transport)
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    stage.publish(server.sockets[0].getsockname()[:2])
    await forever()


# --- TCP, a protocol -----------------------------------------------------------------------------


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        # A peer that resets is the business of the program under test.
        with contextlib.suppress(OSError):
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
            while data := self.request.recv(65536):
                self.request.sendall(data)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Do nothing: the other end detects each fault."""


def tcp_client_peer(stage: Stage) -> None:
    """Run an echo server without a loop."""
    with _Server(("127.0.0.1", 0), _Echo) as server:
        stage.publish(server.server_address)
        server.serve_forever()


class Sender(asyncio.Protocol):
    """Writes a payload in pieces as the transport allows, and collects the echo."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage = stage
        self.number = number
        self.wanted = payload(number)
        self.sent = 0
        self.paused = False
        self.ending = False
        self.got = bytearray()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        small_buffers(transport)
        self.send()

    def send(self) -> None:
        while self.sent < len(self.wanted) and not self.paused:
            piece = self.wanted[self.sent : self.sent + 20_000]
            self.sent += len(piece)
            self.transport.write(piece)
        if self.sent == len(self.wanted) and not self.ending:
            # Later: within resume_writing() asyncio's would shut the socket down a second time.
            self.ending = True
            asyncio.get_running_loop().call_soon(self.transport.write_eof)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.send()

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.stage.report(exc)
        else:
            self.stage.compare(f"connection {self.number}", bytes(self.got), self.wanted)
        self.done.set_result(None)


async def tcp_client(stage: Stage) -> None:
    """Make connections that send and receive at the same time."""
    loop = asyncio.get_running_loop()
    address = stage.address()
    senders = []
    for number in range(CONNECTIONS):
        with stage.reporting():
            _, sender = await loop.create_connection(
                functools.partial(Sender, stage, number), *address
            )
            senders.append(sender)
    for sender in senders:
        await sender.done


# --- UNIX sockets --------------------------------------------------------------------------------


async def unix(stage: Stage) -> None:
    """Run a server and its clients in one loop."""
    loop = asyncio.get_running_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with stage.reporting():
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

    path = f"\0mgloop-faults-{os.getpid()}"
    server = await asyncio.start_unix_server(serve, path)
    senders = []
    for number in range(CONNECTIONS):
        with stage.reporting():
            _, sender = await loop.create_unix_connection(
                functools.partial(Sender, stage, number), path
            )
            senders.append(sender)
    for sender in senders:
        await sender.done
    server.close()


# --- sock_*() and readers ------------------------------------------------------------------------


async def sock(stage: Stage) -> None:
    """Use both ends of connections by the loop's socket calls."""
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)

    async def serve() -> None:
        connection, _ = await loop.sock_accept(listener)
        with connection:
            while data := await loop.sock_recv(connection, 65536):
                await loop.sock_sendall(connection, data)

    async def receive(connection: socket.socket) -> bytes:
        got = bytearray()
        while data := await loop.sock_recv(connection, 65536):
            got += data
        return bytes(got)

    with listener:
        for number in range(2):
            wanted = payload(number)
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
            connection.setblocking(False)
            with connection:
                async with asyncio.TaskGroup() as group:
                    group.create_task(serve())
                    await loop.sock_connect(connection, listener.getsockname())
                    receiver = group.create_task(receive(connection))
                    await loop.sock_sendall(connection, wanted)
                    connection.shutdown(socket.SHUT_WR)
                    stage.compare(f"connection {number}", await receiver, wanted)


async def readers(stage: Stage) -> None:
    """Use add_reader() and add_writer() on sockets of the program."""
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        wanted = payload(0)
        got = bytearray()
        sent = 0
        done = loop.create_future()

        def fail(exc: Exception) -> None:
            stage.report(exc)
            if not done.done():
                done.set_result(None)

        def read() -> None:
            try:
                data = right.recv(65536)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                fail(exc)
                return
            got.extend(data)
            if not data or len(got) >= len(wanted):
                loop.remove_reader(right)
                if not done.done():
                    done.set_result(None)

        def write() -> None:
            nonlocal sent
            try:
                sent += left.send(wanted[sent : sent + 30_000])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                fail(exc)
                return
            if sent == len(wanted):
                loop.remove_writer(left)

        loop.add_reader(right, read)
        loop.add_writer(left, write)
        try:
            await done
        finally:
            loop.remove_reader(right)
            loop.remove_writer(left)
        if not stage.errors:
            stage.compare("pair", bytes(got), wanted)


# --- UDP -----------------------------------------------------------------------------------------


class _Reports(asyncio.DatagramProtocol):
    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self.transport = transport

    def error_received(self, exc: Exception) -> None:
        self.stage.report(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.stage.report(exc)


class _Reflector(_Reports):
    def datagram_received(self, data: bytes, address: object) -> None:
        self.transport.sendto(data, address)


class _Asker(_Reports):
    answers: asyncio.Queue

    def datagram_received(self, data: bytes, address: object) -> None:
        self.answers.put_nowait(data)


async def udp(stage: Stage) -> None:
    """Run requests one after the other, and then several concurrently."""
    loop = asyncio.get_running_loop()
    there, _ = await loop.create_datagram_endpoint(
        lambda: _Reflector(stage), local_addr=("127.0.0.1", 0)
    )
    here, asker = await loop.create_datagram_endpoint(
        lambda: _Asker(stage), remote_addr=there.get_extra_info("sockname")[:2]
    )
    asker.answers = asyncio.Queue()
    losses = number = 0
    for burst in [1] * 20 + [20]:
        expected = {payload(number + n, 100) for n in range(burst)}
        number += burst
        for data in expected:
            here.sendto(data)
        while expected:
            # Datagrams may be lost: this program is the only one that needs a timeout.
            try:
                expected.discard(await asyncio.wait_for(asker.answers.get(), 0.2))
            except TimeoutError:
                losses += len(expected)
                break
        if losses > 3:
            break
    if not losses:
        stage.reached += 1
    elif losses > len(stage.errors):
        stage.missing(f"{losses} of {number} datagrams, with {len(stage.errors)} errors received")
    here.close()
    there.close()
    await asyncio.sleep(0)


# --- processes, pipes, threads, signals, timers --------------------------------------------------


async def subprocess(stage: Stage) -> None:
    """Run children: compare their output and their exit statuses."""
    for number in range(2):
        wanted = payload(number)
        child = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            out, _ = await child.communicate(wanted)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            raise
        if child.returncode != 0:
            stage.report(RuntimeError(f"cat ended with {child.returncode}"))
        else:
            stage.compare(f"child {number}", out, wanted)
    child = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
    if await child.wait() == 3:
        stage.reached += 1
    else:
        stage.missing(f"exit status 3, but got {child.returncode}")


async def pipes(stage: Stage) -> None:
    """Use the two ends of a pipe as transports."""
    loop = asyncio.get_running_loop()
    read_fd, write_fd = os.pipe()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", 0)
    )
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(write_fd, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    wanted = payload(0)

    async def write() -> None:
        for start in range(0, len(wanted), 20_000):
            writer.write(wanted[start : start + 20_000])
            await writer.drain()
        writer.close()

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        got = await reader.read()
    stage.compare("pipe", got, wanted)


async def threads(stage: Stage) -> None:
    """Call the loop from other threads. Only these calls end its wait, and each must do so soon."""
    loop = asyncio.get_running_loop()
    for number in range(15):
        began = time.monotonic()
        await loop.run_in_executor(None, time.sleep, 0.02)
        if time.monotonic() - began > LATE:
            stage.missing(f"job {number} ended after {time.monotonic() - began:.2f} s")
    calls: list[int] = []
    done = loop.create_future()

    def arrived(number: int) -> None:
        calls.append(number)
        if len(calls) == 30:
            done.set_result(None)

    def caller(first: int) -> None:
        for number in range(first, first + 10):
            loop.call_soon_threadsafe(arrived, number)
            time.sleep(0.001)

    callers = [threading.Thread(target=caller, args=(first,)) for first in (0, 10, 20)]
    for thread in callers:
        thread.start()
    await done
    for thread in callers:
        thread.join()
    if sorted(calls) == list(range(30)):
        stage.reached += 1
    else:
        stage.missing(f"calls from threads: {sorted(calls)}")


async def signals(stage: Stage) -> None:
    """Send signals, for which the loop has a handler, while nothing else happens."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR2, arrived.set)
    try:
        for number in range(12):
            began = time.monotonic()
            sender = threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGUSR2))
            sender.start()
            await arrived.wait()
            arrived.clear()
            sender.join()
            if time.monotonic() - began > LATE:
                stage.missing(f"signal {number} came after {time.monotonic() - began:.2f} s")
    finally:
        loop.remove_signal_handler(signal.SIGUSR2)
    stage.reached += 1


async def timers(stage: Stage) -> None:
    """Check that timers are on time, that cancelled ones do not run, and that waiting is free."""
    loop = asyncio.get_running_loop()
    ran: dict[int, float] = {}
    start = loop.time()
    wanted = {number: 0.4 * (number * 7 % 30) / 30 for number in range(30)}
    for number, delay in wanted.items():
        loop.call_at(start + delay, lambda number=number: ran.setdefault(number, loop.time()))
        loop.call_later(delay / 2, stage.missing, "a cancelled timer ran").cancel()
    await asyncio.sleep(0.7)
    for number, delay in wanted.items():
        late = ran.get(number, start + 99) - start - delay
        if not -0.001 < late < LATE:
            stage.missing(f"timer {number} was {late:.3f} s late")
    stage.reached += 1


# --- aiohttp -------------------------------------------------------------------------------------


async def http_server(stage: Stage) -> None:
    """Run an aiohttp server with short responses, long ones and uploads."""

    async def hello(request: "web.Request") -> "web.Response":
        return web.Response(text="hello")

    async def big(request: "web.Request") -> "web.Response":
        small_buffers(request.transport)
        return web.Response(body=payload(7))

    async def echo(request: "web.Request") -> "web.Response":
        return web.Response(body=await request.read())

    application = web.Application()
    application.add_routes([web.get("/", hello), web.get("/big", big), web.post("/echo", echo)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stage.publish(runner.addresses[0][:2])
    await forever()


def _http_session(stage: Stage, address: tuple, number: int) -> None:
    with stage.reporting():
        connection = http.client.HTTPConnection(*address)
        for method, path, body, wanted in (
            ("GET", "/", None, b"hello"),
            ("GET", "/big", None, payload(7)),
            ("POST", "/echo", payload(number, 100_000), payload(number, 100_000)),
            ("GET", "/", None, b"hello"),
        ):
            connection.request(method, path, body)
            response = connection.getresponse()
            got = response.read()
            if response.status != 200:
                stage.report(RuntimeError(f"{path}: status {response.status}"))
                return
            stage.compare(f"{number} {path}", got, wanted)
        connection.close()


def http_server_peer(stage: Stage) -> None:
    """Run several clients, each with a connection that it keeps."""
    _threads(_http_session, stage, stage.address())


class _Pages(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer(payload(7))

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *args: object) -> None:
        """Do not log."""


def http_client_peer(stage: Stage) -> None:
    """Run an HTTP server without a loop."""
    with _Server(("127.0.0.1", 0), _Pages) as server:
        stage.publish(server.server_address)
        server.serve_forever()


async def http_client(stage: Stage) -> None:
    """Run an aiohttp client with several requests at a time."""
    host, port = stage.address()
    base = f"http://{host}:{port}/"

    async def session(client: "aiohttp.ClientSession", number: int) -> None:
        with stage.reporting():
            async with client.get(base) as response:
                stage.compare("page", await response.read(), payload(7))
            body = payload(number, 100_000)
            async with client.post(base, data=body) as response:
                stage.compare("upload", await response.read(), body)

    async with aiohttp.ClientSession() as client:
        await asyncio.gather(*(session(client, number) for number in range(CONNECTIONS)))


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, the condition of its success, and the program at the other end."""

    main: Callable[[Stage], Coroutine]
    goals: int = 1
    peer: Callable[[Stage], None] | None = None
    #: The peer's goals count, and its end is the program's; otherwise it only serves.
    peer_decides: bool = False


PROGRAMS = {
    "tcp_server": Program(tcp_server, CONNECTIONS, tcp_server_peer, peer_decides=True),
    "tcp_client": Program(tcp_client, CONNECTIONS, tcp_client_peer),
    "http_server": Program(http_server, CONNECTIONS * 4, http_server_peer, peer_decides=True),
    "http_client": Program(http_client, CONNECTIONS * 2, http_client_peer),
    "unix": Program(unix, CONNECTIONS),
    "sock": Program(sock, 2),
    "readers": Program(readers),
    "udp": Program(udp),
    "subprocess": Program(subprocess, 3),
    "pipes": Program(pipes),
    "threads": Program(threads),
    "signals": Program(signals),
    "timers": Program(timers),
}


def missing_packages(name: str) -> str:
    """Return the reason why the program cannot run here, or an empty string."""
    if name.startswith("http") and aiohttp is None:
        return f"{name} is left out: aiohttp is not installed for {sys.executable}"
    return ""
