# SPDX-License-Identifier: GPL-2.0-only
"""asyncio's streams, StreamReader and StreamWriter, over the loop's transports."""

import asyncio
import gc

import pytest
import support
from peers import port_of


class Served:
    """A context manager around asyncio.start_server() that awaits its handlers' tasks."""

    def __init__(self, handler, **kwargs):
        self.handler = handler
        self.kwargs = kwargs
        self.tasks = []

    async def __aenter__(self):
        async def handle(reader, writer):
            self.tasks.append(asyncio.current_task())
            try:
                await self.handler(reader, writer)
            finally:
                writer.close()

        self.server = await asyncio.start_server(handle, "127.0.0.1", 0, **self.kwargs)
        return port_of(self.server)

    async def __aexit__(self, *exc_info):
        self.server.close()
        await asyncio.wait_for(asyncio.gather(*self.tasks), support.PATIENCE)
        await asyncio.wait_for(self.server.wait_closed(), support.PATIENCE)


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def close(writer):
    await support.close(writer)


async def test_lines(loop):
    async def greet(reader, writer):
        async for line in reader:
            writer.write(b"hello " + line)

    async with Served(greet) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.writelines([b"one\n", b"two\n", b"thr"])
        assert await reader.readline() == b"hello one\n"
        assert await reader.readline() == b"hello two\n"
        writer.write(b"ee")
        assert writer.can_write_eof()
        writer.write_eof()
        assert await reader.read() == b"hello three"
        assert reader.at_eof()
        await close(writer)


async def test_read_in_every_way(loop):
    async def send(reader, writer):
        for piece in (b"0123456789", b"key=value;", b"rest"):
            writer.write(piece)
            await asyncio.sleep(0.01)

    async with Served(send) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(3) == b"012"
        assert await reader.read(2) == b"34"
        assert await reader.readuntil(b"=") == b"56789key="
        assert await reader.readuntil(b";") == b"value;"
        with pytest.raises(asyncio.IncompleteReadError) as info:
            await reader.readexactly(10)
        assert info.value.partial == b"rest"
        assert info.value.expected == 10
        assert await reader.read(1) == b""
        await close(writer)


async def test_readuntil_across_reads_and_past_the_limit(loop):
    async def send(reader, writer):
        for byte in b"separated\r\nby two bytes\r\n":
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        writer.write(b"x" * 300 + b"\r\n" + b"the end")

    async with Served(send) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=100)
        assert await reader.readuntil(b"\r\n") == b"separated\r\n"
        assert await reader.readuntil(b"\r\n") == b"by two bytes\r\n"
        with pytest.raises(asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n")
        assert await reader.readexactly(302) == b"x" * 300 + b"\r\n"
        with pytest.raises(asyncio.IncompleteReadError) as info:
            await reader.readuntil(b"\r\n")
        assert info.value.partial == b"the end"
        await close(writer)


async def test_a_slow_reader_stops_the_sender(loop):
    """Back-pressure from end to end: drain() waits while the other side does not read."""
    total = 20_000_000
    sent = 0

    async def send(reader, writer):
        nonlocal sent
        while sent < total:
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000

    async with Served(send) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        assert await support.settled(lambda: sent) < total
        received = 0
        while data := await reader.read(2**20):
            received += len(data)
        assert received == total
        await close(writer)


async def test_large_echo_with_drain(loop):
    message = support.pattern(6_000_000)
    async with Served(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send():
            for start in range(0, len(message), 70_000):
                writer.write(message[start : start + 70_000])
                await writer.drain()

        sending = loop.create_task(send())
        assert await reader.readexactly(len(message)) == message
        await sending
        await close(writer)


async def test_drain_and_wait_closed_tell_of_a_lost_connection(loop):
    async def drop(reader, writer):
        writer.transport.abort()

    async with Served(drop) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)

        async def write_on():
            for _ in range(1000):
                writer.write(bytes(10_000))
                await writer.drain()
                await asyncio.sleep(0.001)

        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await write_on()
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def test_wait_closed_after_an_orderly_end(loop):
    async def answer(reader, writer):
        writer.write(await reader.readline())

    async with Served(answer) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x\n")
        assert await reader.read() == b"x\n"
        assert not writer.is_closing() or writer.transport.is_closing()
        writer.close()
        assert writer.is_closing()
        await writer.wait_closed()
        await writer.wait_closed()


async def test_cancelled_read_loses_nothing(loop):
    async with Served(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(5):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(reader.readexactly(4), 0.01)
        writer.write(b"all ")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.readexactly(8), 0.05)
        writer.write(b"here")
        assert await reader.readexactly(8) == b"all here"
        await close(writer)


async def test_extra_info_and_transport(loop):
    async with Served(echo) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        assert writer.get_extra_info("peername") == ("127.0.0.1", port)
        assert isinstance(writer.transport, asyncio.Transport)
        await close(writer)


async def test_streams_over_tls(loop, server_ssl_context, client_ssl_context):
    message = support.pattern(1_000_000)
    async with Served(echo, ssl=server_ssl_context) as port:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=client_ssl_context)
        assert writer.get_extra_info("cipher")
        writer.write(message)
        assert await reader.readexactly(len(message)) == message
        await close(writer)


async def test_start_tls(loop, server_ssl_context, client_ssl_context):
    """Both StreamWriters upgrade a connection that has already carried data."""

    async def upgrade(reader, writer):
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go ahead\n")
        await writer.drain()
        await writer.start_tls(server_ssl_context)
        assert await reader.readline() == b"in secret\n"
        writer.write(b"understood\n")
        await writer.drain()
        await reader.read()

    async with Served(upgrade) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"STARTTLS\n")
        assert await reader.readline() == b"go ahead\n"
        assert writer.get_extra_info("ssl_object") is None
        await writer.start_tls(client_ssl_context, server_hostname="localhost")
        assert writer.get_extra_info("ssl_object").version()
        writer.write(b"in secret\n")
        assert await reader.readline() == b"understood\n"
        await close(writer)


async def test_many_clients(loop):
    async with Served(echo, backlog=200) as port:

        async def talk(number):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for step in range(5):
                message = b"%d %d " % (number, step) * 50
                writer.write(message)
                await writer.drain()
                assert await reader.readexactly(len(message)) == message
            await close(writer)

        await asyncio.gather(*(talk(number) for number in range(100)))


async def test_a_handler_that_fails_is_reported_and_the_server_goes_on(loop, reported):
    async def handle(reader, writer):
        try:
            line = await reader.readline()
            if line == b"bad\n":
                raise LookupError(line)
            writer.write(line)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    for line, answer in ((b"bad\n", b""), (b"good\n", b"good\n")):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        writer.write(line)
        assert await reader.read() == answer
        await close(writer)
    await support.turns(3)
    # The first versions left the report to the task's destructor, which reports the same.
    gc.collect()
    reported.pop(LookupError)
    await support.close(server)


async def test_callbacks_of_the_data_run_before_the_end(loop, left, right):
    """This holds even if data and end arrive together; aiohttp's WebSocket client relies on it."""
    order = []

    class Ending(asyncio.Protocol):
        def data_received(self, data):
            order.append("data")
            loop.call_soon(order.append, "callback")

        def eof_received(self):
            order.append("end")

    right.send(b"x")
    right.close()
    transport, _ = await loop.create_connection(Ending, sock=left)
    await support.wait_until(lambda: len(order) == 3)
    transport.close()
    await support.turns(3)
    assert order == ["data", "callback", "end"]
