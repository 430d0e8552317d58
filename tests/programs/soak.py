# SPDX-License-Identifier: GPL-2.0-only
"""A soak test: connections with different behaviour, repeatedly, and then a check for leaks.

    python tests/programs/soak.py --seconds 180

Workers run random scenarios over TCP, UNIX sockets and TLS: echo, half-close, abort from either
end, reset, reading paused at random, a peer that never reads, one byte at a time, cancellation in
the middle, servers that start and stop, and a thread that calls the loop. All received data is
compared. The test fails if a byte is wrong, if the loop's exception handler is called, if there
are more descriptors at the end than at the beginning, or if the memory in use grows after the
warm-up. tests/programs/test_soak.py runs it for a few seconds.
"""

import argparse
import asyncio
import contextlib
import gc
import hashlib
import os
import pathlib
import random
import socket
import struct
import sys
import tempfile
import threading
import warnings
from typing import ClassVar

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import support
from soaking import GROWTH, Mix, resident

#: The exceptions of a connection whose other end misbehaves on purpose.
ROUGH = (ConnectionError, asyncio.IncompleteReadError)


class Server:
    """Acts by the first byte: Echo, Hash to the end, Abort, Flood, or Sip (read slowly)."""

    live: ClassVar[set] = set()

    def connection_made(self, transport):
        self.live.add(self)
        self.transport = transport
        self.mood = None
        self.digest = hashlib.md5(usedforsecurity=False)

    def data_received(self, data):
        if self.mood is None:
            self.mood, data = data[:1], data[1:]
            if self.mood == b"F":
                self.transport.write(MESSAGE)
                self.transport.close()
        if self.mood == b"E":
            self.transport.write(data)
        elif self.mood == b"A":
            self.transport.write(b"goodbye")
            self.transport.abort()
        elif self.mood in b"HS":
            self.digest.update(data)
            if self.mood == b"S":
                self.transport.pause_reading()
                asyncio.get_running_loop().call_later(
                    random.random() / 500, self.transport.resume_reading
                )

    def eof_received(self):
        if self.mood is not None and self.mood in b"HS":
            self.transport.write(self.digest.digest())

    def connection_lost(self, exc):
        self.live.remove(self)
        self.transport = None


class PlainServer(Server, asyncio.Protocol):
    pass


class BufferedServer(Server, asyncio.BufferedProtocol):
    """The same server with its own buffer."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self.buffer = bytearray(random.choice([1000, 20_000, 100_000]))

    def get_buffer(self, sizehint):
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes):
        self.data_received(bytes(self.buffer[:nbytes]))


MESSAGE = support.pattern(1_000_000)


class Soak(Mix):
    def __init__(self, loop, directory):
        super().__init__()
        self.loop = loop
        self.directory = directory
        self.reported = []
        self.thread_calls = 0
        self.tls_server, self.tls_client = tls_contexts()
        loop.set_exception_handler(lambda loop, context: self.reported.append(context))

    # --- connections ---

    async def start(self):
        path = os.path.join(self.directory, "soak")
        self.servers = [
            await self.loop.create_server(PlainServer, "127.0.0.1", 0, backlog=200),
            await self.loop.create_server(BufferedServer, "127.0.0.1", 0, backlog=200),
            await self.loop.create_unix_server(PlainServer, path, backlog=200),
        ]
        ports = [server.sockets[0].getsockname()[1] for server in self.servers[:2]]
        self.connectors = [
            lambda: asyncio.open_connection("127.0.0.1", ports[0]),
            lambda: asyncio.open_connection("127.0.0.1", ports[1]),
            lambda: asyncio.open_unix_connection(path),
        ]
        self.tcp_port = ports[0]
        if self.tls_server is not None:
            server = await self.loop.create_server(
                PlainServer, "127.0.0.1", 0, ssl=self.tls_server, ssl_shutdown_timeout=5
            )
            self.servers.append(server)
            self.tls_port = server.sockets[0].getsockname()[1]

    def connect_tls(self):
        return asyncio.open_connection("localhost", self.tls_port, ssl=self.tls_client)

    @contextlib.asynccontextmanager
    async def connected(self, mood, *, tls=True):
        """Connect to a random server, send it `mood`, yield the streams; close them at the end."""
        connectors = list(self.connectors)
        if tls and self.tls_server is not None:
            connectors.append(self.connect_tls)
        reader, writer = await self.random.choice(connectors)()
        try:
            writer.write(mood)
            yield reader, writer
        finally:
            writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def message(self):
        size = self.random.choice([1, 100, 4096, 30_000, 300_000, len(MESSAGE)])
        start = self.random.randrange(len(MESSAGE) - size + 1)
        return MESSAGE[start : start + size]

    # --- scenarios ---

    async def echo(self):
        async with self.connected(b"E") as (reader, writer):
            for _ in range(self.random.randrange(1, 5)):
                message = self.message()
                if self.random.random() < 0.5:
                    half = len(message) // 2
                    writer.writelines([message[:half], message[half:]])
                else:
                    writer.write(message)
                assert await reader.readexactly(len(message)) == message

    async def half_close(self):
        """Write, half-close, and get the hash of all data from a server that may read slowly."""
        mood = self.random.choice([b"H", b"S"])
        async with self.connected(mood, tls=False) as (reader, writer):
            message = self.message()
            writer.write(message)
            writer.write_eof()
            assert await reader.read() == hashlib.md5(message, usedforsecurity=False).digest()

    async def one_byte_at_a_time(self):
        async with self.connected(b"E") as (reader, writer):
            for byte in b"drip drip drip":
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert await reader.readexactly(14) == b"drip drip drip"

    async def abort_by_us(self):
        async with self.connected(self.random.choice([b"E", b"H", b"S"])) as (reader, writer):
            writer.write(self.message())
            await asyncio.sleep(self.random.choice([0, 0.001]))
            writer.transport.abort()
            with contextlib.suppress(*ROUGH):
                await reader.read()

    async def abort_by_server(self):
        async with self.connected(b"A") as (reader, writer):
            with contextlib.suppress(*ROUGH):
                for _ in range(1000):
                    writer.write(bytes(1000))
                    await writer.drain()
                    await asyncio.sleep(0)
                raise AssertionError("the connection outlived its abort")
            with contextlib.suppress(*ROUGH):
                assert await reader.read() in (b"", b"goodbye")

    async def reset(self):
        with socket.socket() as sock:
            sock.setblocking(False)
            await self.loop.sock_connect(sock, ("127.0.0.1", self.tcp_port))
            await self.loop.sock_sendall(sock, self.random.choice([b"E", b"F", b"H"]) * 100)
            await asyncio.sleep(self.random.choice([0, 0.001]))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def pause(self):
        """Receive a flood of data, with reading paused and resumed at random."""
        async with self.connected(b"F") as (reader, writer):
            for _ in range(5):
                writer.transport.pause_reading()
                await asyncio.sleep(self.random.random() / 500)
                writer.transport.resume_reading()
                await asyncio.sleep(0)
            assert await reader.read() == MESSAGE

    async def never_read(self):
        with socket.socket() as sock:
            sock.setblocking(False)
            await self.loop.sock_connect(sock, ("127.0.0.1", self.tcp_port))
            await self.loop.sock_sendall(sock, b"F")
            await asyncio.sleep(0.02)

    async def cancel(self):
        """Cancel a conversation at a random point."""
        task = self.loop.create_task(self.half_close())
        await asyncio.sleep(self.random.random() / 300)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def server_of_its_own(self):
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    async def thread_calls_in(self):
        done = self.loop.create_future()

        def call():
            self.thread_calls += 1
            self.loop.call_soon_threadsafe(done.set_result, None)

        thread = threading.Thread(target=call)
        thread.start()
        await done
        thread.join()

    async def timers(self):
        handles = [self.loop.call_later(3600 + number, print) for number in range(50)]
        await asyncio.sleep(0.001)
        for handle in handles:
            handle.cancel()

    # --- the run ---

    def scenarios(self):
        return [
            self.echo,
            self.half_close,
            self.one_byte_at_a_time,
            self.abort_by_us,
            self.abort_by_server,
            self.reset,
            self.pause,
            self.never_read,
            self.cancel,
            self.server_of_its_own,
            self.thread_calls_in,
            self.timers,
        ]

    async def run(self, seconds):
        """Return the resident memory after the warm-up and at the end, in bytes."""
        await self.start()
        before = await self.soak(seconds)
        for server in self.servers:
            server.close()
        for server in self.servers:
            await asyncio.wait_for(server.wait_closed(), 30)
        # Before CPython 3.12, wait_closed() did not wait for the clients.
        await support.wait_until(lambda: not Server.live, 30)
        await support.turns(5)
        return before, resident()


def tls_contexts():
    """Return contexts for a server and a client, or None twice if no certificate can be made."""
    import certificates

    return certificates.contexts() if certificates.available else (None, None)


def main():
    parser = argparse.ArgumentParser(description="Soak a loop and account for what is left.")
    parser.add_argument("--loop", default="mgloop", choices=("mgloop", "asyncio"))
    parser.add_argument("--seconds", type=float, default=180.0)
    args = parser.parse_args()

    # A first, short loop allocates the memory that the process keeps.
    support.finish(support.new_loop(args.loop))
    gc.collect()
    descriptors = support.open_fds()
    loop = support.new_loop(args.loop)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        soak = Soak(loop, directory)
        before, after = loop.run_until_complete(soak.run(args.seconds))
        pending = support.finish(loop)
        gc.collect()
    left = support.fds_opened_since(descriptors)

    print(f"loop: {type(loop).__module__}.{type(loop).__qualname__}, {args.seconds:g} s")
    for name, count in sorted(soak.counts.items()):
        print(f"{count:8} {name}")
    print(f"resident memory: {before / 2**20:.1f} MiB warm, {after / 2**20:.1f} MiB at the end")
    print(f"descriptors: {len(descriptors)} before, {len(support.open_fds())} after")

    failures = []
    if soak.reported:
        failures.append(f"{len(soak.reported)} reports, the first: {soak.reported[0]}")
    if warned:
        failures.append(f"{len(warned)} warnings, the first: {warned[0].message}")
    if pending:
        failures.append(f"pending tasks: {pending}")
    if left:
        failures.append(f"descriptors left: {left}")
    if after - before > GROWTH:
        failures.append(f"memory grew by {(after - before) / 2**20:.1f} MiB")
    if soak.never_run():
        failures.append(f"never run: {soak.never_run()}")
    for failure in failures:
        print(f"FAILED: {failure}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
