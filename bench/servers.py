# SPDX-License-Identifier: GPL-2.0-only
"""The servers that answer the C load generator, on whichever loop they are given.

This module runs in its own child process, on one loop (several: many.py), in one thread (except for
the GIL burner). The code is written as a competent user of asyncio would write it: no loop gets a
shortcut. Each server ends by being killed; it needs no cleanup.
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
    """Sends back each received bytes object unchanged."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class BufferedEcho(asyncio.BufferedProtocol):
    """Echoes with a buffer of its own; 256 KiB as in aiohttp's and uvloop's tests."""

    def connection_made(self, transport):
        self.transport = transport
        self.buffer = bytearray(256 * 1024)
        self.view = memoryview(self.buffer)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        # Every correct program has to copy here, because write() may keep its argument.
        self.transport.write(bytes(self.view[:nbytes]))


class Reply(asyncio.Protocol):
    """Answers each request of a known size with ``writelines`` of several pieces."""

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
    """Counts the received bytes; at end of file sends their number."""

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
    """Sends without end after the first byte, and pauses when the transport asks for it."""

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
        # Bounded per call: a transport that never pauses must not block the loop's other work.
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
    """Echo with the streams API: read, write, drain."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def sock_echo(loop, client):
    """Echo with the sock_* calls on a plain non-blocking socket."""
    with client:
        try:
            while data := await loop.sock_recv(client, 256 * 1024):
                await loop.sock_sendall(client, data)
        except ConnectionError:
            pass


async def sock_serve(loop, listener):
    """Accept connections forever, with one task per connection."""
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
    """Return a listening (or, for UDP, bound) socket at the address of *config*."""
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
    """Return the server's TLS context, or None without TLS."""
    if config["transport"] != "tls":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config["cert"], config["key"])
    return context


def burn():
    """Run pure Python forever, in a thread that always competes for the GIL."""
    number = 0
    while True:
        number = (number * 3 + 1) & 0xFFFF


def port_of(sock):
    """Return the port to announce. Call it before a loop gets the socket: rloop detaches it."""
    return sock.getsockname()[1] if sock.family == socket.AF_INET else 0


def announce(port, tell):
    """Report to the parent that the server listens."""
    tell(port=port, pid=os.getpid())


def protocol_factory(config):
    """Return the protocol class (or closure) for this kind of server."""
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
    """Answer each received byte with the whole file, using the loop's own sendfile."""
    with open(config["file"], "rb") as file:
        while await reader.read(1):
            file.seek(0)
            await loop.sendfile(writer.transport, file, fallback=False)


async def require_sendfile(loop, config):
    """Raise NotImplementedError now, not under load, if the loop does not support sendfile."""
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
    """Return the start_server callback for this kind of server."""
    if config["kind"] == "sendfile":
        return functools.partial(send_files, loop, config)
    return stream_echo


async def start(loop, config, sock):
    """Start serving on *sock*. The caller must keep the result for as long as it should serve."""
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
    """Start the server that *config* describes and serve forever."""
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
    """Run the child process."""
    if config.get("many"):
        many.main(serve, config, factory, tell)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(config, tell))
