# SPDX-License-Identifier: GPL-2.0-only
"""The servers that answer the C load generator, on whichever loop they are given.

Runs in a child process of its own, on one loop (several: many.py), in one thread (but for the GIL
burner). The code is what a competent user of asyncio would write: no loop gets a shortcut. Each
server ends by being killed; there is nothing to clean up.
"""

import asyncio
import functools
import os
import socket
import ssl
import struct
import threading

from . import many

BACKLOG = 4096
CHUNK = 65536


class Echo(asyncio.Protocol):
    """What comes in goes out, object for object."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class BufferedEcho(asyncio.BufferedProtocol):
    """The same with a buffer of the protocol's own; 256 KiB as in aiohttp's and uvloop's tests."""

    def connection_made(self, transport):
        self.transport = transport
        self.buffer = bytearray(256 * 1024)
        self.view = memoryview(self.buffer)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        # The copy is what any correct user must do: write() may keep what it is given.
        self.transport.write(bytes(self.view[:nbytes]))


class Reply(asyncio.Protocol):
    """Each request of a known size is answered by ``writelines`` of several pieces."""

    def __init__(self, request_size, pieces):
        self.request_size = request_size
        self.pieces = pieces
        self.got = 0

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.got += len(data)
        while self.got >= self.request_size:
            self.got -= self.request_size
            self.transport.writelines(self.pieces)


class Sink(asyncio.Protocol):
    """Counts what comes in; at end of file says how many bytes it was."""

    def __init__(self):
        self.total = 0

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.total += len(data)

    def eof_received(self):
        self.transport.write(struct.pack("=Q", self.total))
        self.transport.close()


class Source(asyncio.Protocol):
    """After the first byte sends for as long as the transport takes it."""

    def __init__(self, chunk):
        self.chunk = chunk
        self.paused = False
        self.started = False

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        if not self.started:
            self.started = True
            self.pour()

    def pause_writing(self):
        self.paused = True

    def resume_writing(self):
        self.paused = False
        asyncio.get_running_loop().call_soon(self.pour)

    def pour(self):
        # Bounded per turn: a transport that never pauses must not keep the loop from its others.
        for _ in range(16):
            if self.paused or self.transport.is_closing():
                return
            self.transport.write(self.chunk)
        asyncio.get_running_loop().call_soon(self.pour)


class Datagrams(asyncio.DatagramProtocol):
    """UDP echo."""

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.transport.sendto(data, addr)


async def stream_echo(reader, writer):
    """The streams API: read what there is, write it, drain."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def sock_echo(loop, client):
    """The sock_* calls on a plain non-blocking socket."""
    with client:
        try:
            while data := await loop.sock_recv(client, 256 * 1024):
                await loop.sock_sendall(client, data)
        except ConnectionError:
            pass


async def sock_serve(loop, listener):
    """Accept for ever, one task per connection."""
    tasks = set()
    while True:
        client, _ = await loop.sock_accept(listener)
        client.setblocking(False)
        if client.family == socket.AF_INET:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = loop.create_task(sock_echo(loop, client))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def listen(config):
    """A listening (or, for UDP, bound) socket where *config* says."""
    transport = config["transport"]
    if transport == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(config["path"])
    else:
        kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
        sock = socket.socket(socket.AF_INET, kind)
        if transport != "udp":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if config.get("many"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", config.get("port", 0)))
    if transport != "udp":
        sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def tls_context(config):
    """The server's context, or None without TLS."""
    if config["transport"] != "tls":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config["cert"], config["key"])
    return context


def burn():
    """Pure Python without an end: the thread that wants the GIL all the time."""
    number = 0
    while True:
        number = (number * 3 + 1) & 0xFFFF


def port_of(sock):
    """The port to announce. Asked before a loop gets the socket: rloop detaches it."""
    return sock.getsockname()[1] if sock.family == socket.AF_INET else 0


def announce(port, tell):
    """Tell the parent that the server listens."""
    tell(port=port, pid=os.getpid())


def protocol_factory(config):
    """The protocol class (or closure) for this kind of server."""
    kind = config["kind"]
    if kind == "reply":
        pieces = [b"w" * config["piece"]] * config["pieces"]
        return lambda: Reply(config["request_size"], pieces)
    if kind == "source":
        chunk = b"w" * CHUNK
        return lambda: Source(chunk)
    return {"protocol": Echo, "buffered": BufferedEcho, "sink": Sink}[kind]


async def serve_pipe(loop, config, tell):
    """Echo from one inherited pipe to another."""
    read_fd, write_fd = config["fds"]
    out = os.fdopen(write_fd, "wb", 0)
    writing, protocol = await loop.connect_write_pipe(asyncio.Protocol, out)

    class PipeEcho(asyncio.Protocol):
        def data_received(self, data):
            writing.write(data)

    await loop.connect_read_pipe(PipeEcho, os.fdopen(read_fd, "rb", 0))
    announce(0, tell)
    return writing, protocol


async def send_files(loop, config, reader, writer):
    """Each byte received is answered by the whole file, by the loop's own sendfile."""
    with open(config["file"], "rb") as file:
        while await reader.read(1):
            file.seek(0)
            await loop.sendfile(writer.transport, file, fallback=False)


async def require_sendfile(loop, config):
    """Raises NotImplementedError now, not under load, when the loop has no sendfile."""
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    try:
        with open(config["file"], "rb") as file:
            await loop.sendfile(transport, file, 0, 1, fallback=False)
    except (RuntimeError, asyncio.SendfileNotAvailableError) as exc:
        raise NotImplementedError(str(exc)) from exc
    finally:
        transport.close()
        listener.close()


def stream_handler(loop, config):
    """The coroutine function behind start_server for this kind of server."""
    if config["kind"] == "sendfile":
        return functools.partial(send_files, loop, config)
    return stream_echo


async def start(loop, config, sock):
    """Start serving on *sock*; what it returns must be kept for as long as it should serve."""
    transport = config["transport"]
    if transport == "udp":
        return await loop.create_datagram_endpoint(Datagrams, sock=sock)
    if config["kind"] in ("streams", "sendfile"):
        handler = stream_handler(loop, config)
        if transport == "unix":
            return await asyncio.start_unix_server(handler, sock=sock, backlog=BACKLOG)
        return await asyncio.start_server(
            handler, sock=sock, ssl=tls_context(config), backlog=BACKLOG
        )
    factory = protocol_factory(config)
    if transport == "unix":
        return await loop.create_unix_server(factory, sock=sock, backlog=BACKLOG)
    return await loop.create_server(factory, sock=sock, ssl=tls_context(config), backlog=BACKLOG)


async def serve(config, tell):
    """Start the server that *config* describes and stay."""
    loop = asyncio.get_running_loop()
    kind, transport = config["kind"], config["transport"]
    if transport == "pipe":
        kept = await serve_pipe(loop, config, tell)
        await loop.create_future()
        del kept
    if kind == "sendfile":
        await require_sendfile(loop, config)
    if config.get("burner"):
        threading.Thread(target=burn, daemon=True).start()
    sock = listen(config)
    port = port_of(sock)
    if kind == "sock":
        announce(port, tell)
        await sock_serve(loop, sock)
    server = await start(loop, config, sock)
    announce(port, tell)
    await loop.create_future()
    del server


def main(config, factory, tell):
    """Entry of the child process."""
    if config.get("many"):
        many.main(serve, config, factory, tell)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(config, tell))
