# SPDX-License-Identifier: GPL-2.0-only
"""Programs that run out of memory.

A program sets itself up, calls `stage.arm()`, does its work and calls `stage.disarm()`. Allocations
fail in between only. Both ends of a connection are in the program, and therefore in the process
that runs out of memory, except for the two programs that serve HTTP: their clients are in the
process that starts them.
"""

import asyncio
import base64
import contextlib
import dataclasses
import os
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterable

from tests import certificates

SMALL = b"small " * 40
LARGE = bytes(range(256)) * 600
#: Bound on a client's wait for an answer, in seconds.
PATIENCE = 3.0


class WrongDataError(Exception):
    """Data arrived that was not sent."""


class ToldError(Exception):
    """A client was notified that it gets no answer."""


@dataclasses.dataclass
class Stage:
    """Hold the functions and the materials that a program uses."""

    arm: Callable[[], None]
    disarm: Callable[[], None]
    publish: Callable[[int], None]
    contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None
    #: A descriptor that reaches its end when the client has ended.
    client_end: int


Program = Callable[[Stage], Awaitable[None]]


def compare(got: bytes, wanted: bytes) -> None:
    """Raise WrongDataError if they differ."""
    if got != wanted:
        raise WrongDataError


@contextlib.contextmanager
def without_memory(stage: Stage):
    """Let allocations fail in the block."""
    stage.arm()
    try:
        yield
    finally:
        stage.disarm()


# --- streams ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _closing(writer: asyncio.StreamWriter):
    """Close the writer after the block, and ignore OSError, which the client reports."""
    try:
        yield
    except OSError:
        pass
    finally:
        writer.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with _closing(writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def _ask(connect: Callable[[], Awaitable], payload: bytes) -> None:
    reader, writer = await connect()
    try:
        writer.write(payload)
        await writer.drain()
        compare(await reader.readexactly(len(payload)), payload)
    finally:
        writer.close()
    await writer.wait_closed()


async def _streams(stage: Stage, server: asyncio.Server, connect: Callable) -> None:
    try:
        await _ask(connect, SMALL)
        with without_memory(stage):
            for payload in (SMALL, LARGE):
                await _ask(connect, payload)
    finally:
        server.close()


async def tcp(stage: Stage) -> None:
    """Use streams over TCP."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    await _streams(stage, server, lambda: asyncio.open_connection(*address))


async def tls(stage: Stage) -> None:
    """Use streams over TLS."""
    theirs, ours = stage.contexts
    server = await asyncio.start_server(_echo, "127.0.0.1", 0, ssl=theirs)
    address = server.sockets[0].getsockname()

    def connect() -> Awaitable:
        return asyncio.open_connection(*address, ssl=ours, server_hostname="localhost")

    await _streams(stage, server, connect)


async def unix(stage: Stage) -> None:
    """Use streams over UNIX sockets."""
    path = f"\0mgloop-nomem-{os.getpid()}"
    server = await asyncio.start_unix_server(_echo, path)
    await _streams(stage, server, lambda: asyncio.open_unix_connection(path))


async def native_streams(stage: Stage) -> None:
    """Send lines over mgloop.streams, or over asyncio's streams for the control."""
    from mgloop import Loop, streams

    module = streams if isinstance(asyncio.get_running_loop(), Loop) else asyncio
    server = await module.start_server(_echo_lines, "127.0.0.1", 0, limit=4096)
    address = server.sockets[0].getsockname()

    async def ask(payload: bytes) -> None:
        reader, writer = await module.open_connection(*address, limit=4096)
        try:
            for number in range(3):
                writer.write(payload + b"\n")
                writer.writelines([payload, b"\n"])
                await writer.drain()
                compare(await reader.readline(), payload + b"\n")
                compare(await reader.readexactly(number), payload[:number])
                compare(await reader.readuntil(b"\n"), payload[number:] + b"\n")
            writer.write_eof()
            compare(await reader.read(), b"")
        finally:
            writer.close()
        await writer.wait_closed()

    try:
        await ask(SMALL)
        with without_memory(stage):
            await ask(SMALL)
            await ask(b"a line that does not arrive in one piece " * 90)
    finally:
        server.close()


async def _echo_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with _closing(writer):
        async for line in reader:
            writer.write(line)
            await writer.drain()


# --- protocols --------------------------------------------------------------------------------


class _Ended(asyncio.BaseProtocol):
    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class _EchoInto(_Ended, asyncio.BufferedProtocol):
    room = bytearray(4096)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.room

    def buffer_updated(self, size: int) -> None:
        self.transport.write(self.room[:size])


class _Raises(_Ended, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        raise ExpectedError


class ExpectedError(Exception):
    """Raised by a protocol on purpose."""


class _Collects(_Ended, asyncio.Protocol):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.got = bytearray()

    def data_received(self, data: bytes) -> None:
        self.got += data
        if len(self.got) >= self.size:
            self.transport.close()


async def _protocols(stage: Stage, **tls_options) -> None:
    loop = asyncio.get_running_loop()
    payload = LARGE[:40_000]
    server_side = {"ssl": stage.contexts[0]} if tls_options else {}
    echoing = await loop.create_server(_EchoInto, "127.0.0.1", 0, **server_side)
    raising = await loop.create_server(_Raises, "127.0.0.1", 0, **server_side)

    async def ask(server: asyncio.Server, size: int) -> bytes:
        transport, protocol = await loop.create_connection(
            lambda: _Collects(size), *server.sockets[0].getsockname(), **tls_options
        )
        try:
            transport.write(payload)
            await protocol.ended
        finally:
            transport.abort()
        return bytes(protocol.got)

    try:
        await ask(echoing, len(payload))
        with without_memory(stage):
            got = await ask(echoing, len(payload))
            await ask(raising, 1)
        if got != payload[: len(got)]:
            raise WrongDataError
        if len(got) < len(payload):
            raise ToldError("the connection ended")
    finally:
        echoing.close()
        raising.close()


async def tcp_protocols(stage: Stage) -> None:
    """Use a buffered protocol, and one that raises, over TCP."""
    await _protocols(stage)


async def tls_protocols(stage: Stage) -> None:
    """Use a buffered protocol, and one that raises, over TLS."""
    await _protocols(stage, ssl=stage.contexts[1], server_hostname="localhost")


class _Reflects(_Ended, asyncio.DatagramProtocol):
    def datagram_received(self, data: bytes, address: tuple) -> None:
        self.transport.sendto(data, address)


class _Receives(_Ended, asyncio.DatagramProtocol):
    def __init__(self) -> None:
        super().__init__()
        self.answers: asyncio.Queue = asyncio.Queue()

    def datagram_received(self, data: bytes, address: tuple) -> None:
        self.answers.put_nowait(data)

    def error_received(self, exc: Exception) -> None:
        self.answers.put_nowait(exc)


async def udp(stage: Stage) -> None:
    """Send datagrams to an address, and over a connected socket."""
    loop = asyncio.get_running_loop()
    there, _ = await loop.create_datagram_endpoint(_Reflects, local_addr=("127.0.0.1", 0))
    address = there.get_extra_info("sockname")

    async def ask(**options) -> None:
        here, protocol = await loop.create_datagram_endpoint(_Receives, **options)
        try:
            for number in range(4):
                data = bytes([number]) * 200
                here.sendto(data, None if "remote_addr" in options else address)
                answer = await asyncio.wait_for(protocol.answers.get(), PATIENCE)
                if isinstance(answer, Exception):
                    raise ToldError from answer
                compare(answer, data)
        finally:
            here.close()
            await protocol.ended

    try:
        await ask(remote_addr=address)
        with without_memory(stage):
            await ask(remote_addr=address)
            await ask(local_addr=("127.0.0.1", 0))
    finally:
        there.close()
        await asyncio.sleep(0)


# --- others -----------------------------------------------------------------------------------


async def pipes(stage: Stage) -> None:
    """Use the two ends of a pipe as transports."""
    loop = asyncio.get_running_loop()

    async def send(ends: tuple, payload: bytes) -> None:
        with ends[0] as source, ends[1] as target:
            reader = asyncio.StreamReader()
            receiver, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), source
            )
            try:
                sender, protocol = await loop.connect_write_pipe(_Ended, target)
                try:
                    sender.write(payload)
                    compare(await reader.readexactly(len(payload)), payload)
                finally:
                    sender.close()
                await protocol.ended
                compare(await reader.read(), b"")
            finally:
                receiver.close()

    def pipe() -> tuple:
        source, target = os.pipe()
        return os.fdopen(source, "rb", 0), os.fdopen(target, "wb", 0)

    await send(pipe(), SMALL)
    first, second = pipe(), pipe()
    with first[0], first[1], second[0], second[1], without_memory(stage):
        await send(first, SMALL)
        await send(second, LARGE)


async def subprocess(stage: Stage) -> None:
    """Start a child that returns the data that it gets."""

    async def run() -> None:
        child = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            got, _ = await child.communicate(SMALL)
            compare(got, SMALL)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            raise

    await run()
    with without_memory(stage):
        await run()


async def timers(stage: Stage) -> None:
    """Use timers, some of them cancelled, and timeouts."""
    loop = asyncio.get_running_loop()
    ran: list[int] = []
    with without_memory(stage):
        for number in range(40):
            handle = loop.call_later(0.001 * (number % 5), ran.append, number)
            if number % 2:
                handle.cancel()
        await asyncio.sleep(0.005)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(60)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 0.001)
    if sorted(ran) != list(range(0, 40, 2)):
        raise WrongDataError


async def sock(stage: Stage) -> None:
    """Use the loop's socket calls."""
    loop = asyncio.get_running_loop()

    async def serve(listener: socket.socket) -> None:
        connection, _ = await loop.sock_accept(listener)
        with connection:
            while data := await loop.sock_recv(connection, 65536):
                await loop.sock_sendall(connection, data)

    async def ask(listener: socket.socket, payload: bytes) -> None:
        with socket.socket() as connection:
            connection.setblocking(False)
            async with asyncio.TaskGroup() as group:
                group.create_task(serve(listener))
                await loop.sock_connect(connection, listener.getsockname())
                await loop.sock_sendall(connection, payload)
                got = b""
                while len(got) < len(payload):
                    data = await loop.sock_recv(connection, 65536)
                    if not data:
                        raise ToldError("the connection ended")
                    got += data
                compare(got, payload)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        await ask(listener, SMALL)
        with without_memory(stage):
            await ask(listener, SMALL)
            await ask(listener, LARGE[:50_000])


# --- mgloop serve -----------------------------------------------------------------------------


async def _application(scope: dict, receive: Callable, send: Callable) -> None:
    if scope["type"] == "websocket":
        await _conversation(receive, send)
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    sized = scope["path"] == "/sized"
    headers = [(b"content-length", str(len(body)).encode())] if sized else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body"})


async def _conversation(receive: Callable, send: Callable) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        await send(message | {"type": "websocket.send"})


def _wsgi_application(environ: dict, start_response: Callable) -> Iterable[bytes]:
    body = environ["wsgi.input"].read()
    size = ("Content-Length", str(len(body)))
    if environ["PATH_INFO"] == "/sized":
        start_response("200 OK", [size])
        return [body]
    if environ["PATH_INFO"] == "/file":
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the server closes it
        file.write(body)
        file.seek(0)
        start_response("200 OK", [size])
        return environ["wsgi.file_wrapper"](file)
    start_response("200 OK", [])
    return (body[start : start + 5000] for start in range(0, len(body), 5000))


async def serve(stage: Stage) -> None:
    """Run `mgloop serve` until its client ends."""
    await _serve(stage, app=_application, interface="asgi3")


async def wsgi_inline(stage: Stage) -> None:
    """Serve a WSGI application in the thread of the loop."""
    await _serve(stage, app=_wsgi_application, interface="wsgi", wsgi_threads=0)


async def wsgi_threads(stage: Stage) -> None:
    """Serve a WSGI application in threads."""
    await _serve(stage, app=_wsgi_application, interface="wsgi", wsgi_threads=2)


async def wsgi_stream(stage: Stage) -> None:
    """Serve a WSGI application that reads the body while it arrives."""
    await _serve(
        stage, app=_wsgi_application, interface="wsgi", wsgi_threads=2, wsgi_stream_input=True
    )


async def _serve(stage: Stage, **options) -> None:
    from mgloop.http import Config, Server

    loop = asyncio.get_running_loop()
    config = Config(host="127.0.0.1", port=0, lifespan="off", access_log=False, **options)
    server = Server(config, quiet=True)
    ended = loop.create_future()
    await server.start()
    try:
        loop.add_reader(stage.client_end, lambda: ended.done() or ended.set_result(None))
        stage.publish(server.sockets[0].getsockname()[1])
        with without_memory(stage):
            await ended
    finally:
        loop.remove_reader(stage.client_end)
        server.stop(now=True)
        await server.close()


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def _read_response(stream) -> bytes:
    status = stream.readline()
    if not status.startswith(b"HTTP/1.1 200"):
        raise ToldError(status.decode())
    headers = {}
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if b"content-length" in headers:
        return stream.read(int(headers[b"content-length"]))
    body = b""
    while size := int(stream.readline() or b"0", 16):
        body += stream.read(size)
        stream.readline()
    stream.readline()
    return body


def http_client(port: int) -> None:
    """Send requests with a small and a large body on each connection."""
    _exchange(port, ("/sized", SMALL), ("/chunked", LARGE[:30_000]))


def wsgi_client(port: int) -> None:
    """Send the same requests, and one whose response is a file that the loop sends."""
    _exchange(port, ("/sized", SMALL), ("/chunked", LARGE[:30_000]), ("/file", LARGE))


def _exchange(port: int, *requests: tuple[str, bytes]) -> None:
    for _ in range(2):
        with _connect(port) as connection, connection.makefile("rb") as stream:
            for path, body in requests:
                head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                got = _read_response(stream)
                if len(got) < len(body):
                    raise ToldError("the response is cut short")
                compare(got, body)


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


def _read_frame(stream) -> tuple[int, bytes]:
    head = stream.read(2)
    if len(head) < 2:
        raise ToldError("the connection ended")
    size = head[1] & 127
    if size == 126:
        size = int.from_bytes(stream.read(2), "big")
    return head[0] & 15, stream.read(size)


def websocket_client(port: int) -> None:
    """Send messages and a ping, and close with the closing handshake."""
    key = base64.b64encode(bytes(16)).decode()
    with _connect(port) as connection, connection.makefile("rb") as stream:
        connection.sendall(
            f"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        if not stream.readline().startswith(b"HTTP/1.1 101"):
            raise ToldError("the handshake is refused")
        while stream.readline() not in (b"\r\n", b""):
            pass
        for opcode, payload in ((1, b"text" * 30), (2, LARGE[:20_000]), (9, b"ping")):
            connection.sendall(_frame(opcode, payload))
            kind, got = _read_frame(stream)
            if kind == 8:
                raise ToldError("the server has closed the connection")
            compare(got, payload)
        connection.sendall(_frame(8, (1000).to_bytes(2, "big")))
        _read_frame(stream)


@dataclasses.dataclass(frozen=True)
class Entry:
    """Describe a program and its requirements."""

    main: Program
    needs_tls: bool = False
    client: Callable[[int], None] | None = None


PROGRAMS = {
    "tcp": Entry(tcp),
    "native_streams": Entry(native_streams),
    "tcp_protocols": Entry(tcp_protocols),
    "tls": Entry(tls, needs_tls=True),
    "tls_protocols": Entry(tls_protocols, needs_tls=True),
    "http": Entry(serve, client=http_client),
    "websocket": Entry(serve, client=websocket_client),
    "wsgi_inline": Entry(wsgi_inline, client=wsgi_client),
    "wsgi_threads": Entry(wsgi_threads, client=wsgi_client),
    "wsgi_stream": Entry(wsgi_stream, client=wsgi_client),
    "udp": Entry(udp),
    "unix": Entry(unix),
    "sock": Entry(sock),
    "pipes": Entry(pipes),
    "timers": Entry(timers),
    "subprocess": Entry(subprocess),
}


def make_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the TLS contexts of both ends, or None if no certificates can be made."""
    return certificates.contexts() if certificates.available else None
