# SPDX-License-Identifier: GPL-2.0-only
"""Stream transports under load: no byte is lost or moved, no connection forgotten or starved."""

import asyncio
import contextlib
import hashlib
import resource
import socket
import threading
import time

import pytest
import support
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peers import (
    BufferedRecorder,
    Echo,
    Recorder,
    connected_pair,
    open_server,
    port_of,
    raw_connection,
    read_all,
    read_exactly,
)

BURST = 1500

#: Sizes around every threshold at which a loop may change how it reads or writes.
sizes = st.one_of(
    st.integers(1, 64),
    st.integers(4090, 4100),
    st.integers(16_000, 70_000),
    st.integers(250_000, 300_000),
)


@st.composite
def conversations(draw):
    """Draw a list of (sizes of the pieces, gathered or one by one, pause afterwards)."""
    step = st.tuples(st.lists(sizes, min_size=1, max_size=6), st.booleans(), st.integers(0, 3))
    return draw(st.lists(step, min_size=1, max_size=8))


@settings(
    max_examples=40,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    conversation=conversations(),
    buffer=st.sampled_from([None, 1000, 65_536, 300_000]),
    kind=st.sampled_from([bytes, bytearray, memoryview]),
)
def test_an_echo_of_any_shape(loop, conversation, buffer, kind):
    """Random sizes, gathering, pauses, buffer types and buffer sizes: the echo is equal."""

    class EchoBack:
        def _took(self, data):
            super()._took(data)
            self.transport.write(bytes(data))

    class EchoProtocol(EchoBack, Recorder):
        pass

    class EchoBuffered(EchoBack, BufferedRecorder):
        pass

    async def main():
        server = EchoProtocol(loop) if buffer is None else EchoBuffered(loop, size=buffer)
        client = Recorder(loop)
        sent = bytearray()
        async with connected_pair(loop, client, server) as (ours, _):
            number = 0
            for pieces, gather, turns in conversation:
                blocks = []
                for size in pieces:
                    number += 1
                    blocks.append(hashlib.sha256(b"%d" % number).digest() * (size // 32 + 1))
                    blocks[-1] = blocks[-1][:size]
                    sent += blocks[-1]
                # Mutable buffers must not be reused, because asyncio keeps views of them.
                if gather:
                    ours.writelines([kind(block) for block in blocks])
                else:
                    for block in blocks:
                        ours.write(kind(block))
                await support.turns(turns)
            ours.write(b".")
            sent += b"."
            assert await client.got(len(sent)) == sent

    loop.run_until_complete(main())


async def test_bulk_both_ways_over_many_connections(loop):
    """Ten connections send 3 MB each way concurrently."""
    message = support.pattern(3_000_000)
    async with open_server(loop, Echo) as server:

        async def talk(number):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            mine = message[number:]

            async def send():
                for start in range(0, len(mine), 50_000 + number):
                    writer.write(mine[start : start + 50_000 + number])
                    await writer.drain()

            sending = asyncio.ensure_future(send())
            assert await reader.readexactly(len(mine)) == mine
            await sending
            await support.close(writer)

        await asyncio.gather(*(talk(number) for number in range(10)))


@pytest.fixture
def many_descriptors():
    """Raise the soft limit on descriptors during the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * BURST + 200
    if hard < needed:
        pytest.skip(f"needs {needed} descriptors, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_burst_of_connections_is_answered_in_full(loop, many_descriptors):
    """1,500 clients connect, and speak, before the loop accepts the first."""
    async with open_server(loop, Echo, backlog=2 * BURST) as server:
        address = ("127.0.0.1", port_of(server))
        clients = [socket.socket() for _ in range(BURST)]
        try:
            for client in clients:
                client.setblocking(False)
                client.connect_ex(address)

            async def talk(number, client):
                message = b"client %6d" % number
                await loop.sock_sendall(client, message)
                assert await read_exactly(loop, client, len(message)) == message
                client.shutdown(socket.SHUT_WR)
                assert await read_all(loop, client) == b""

            await asyncio.gather(*(talk(*pair) for pair in enumerate(clients)))
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize("buffered", [False, True], ids=["Protocol", "BufferedProtocol"])
async def test_a_firehose_starves_nobody(loop, buffered):
    """A socket that is readable again after every read must not starve the others.

    A loop that reads until the socket is empty never returns, because each delivery refills it.
    """
    refills = 0

    class Firehose:
        def _took(self, data):
            nonlocal refills
            refills += 1
            assert refills < 200_000, "nobody else got a turn"
            if not done.is_set():
                support.fill(peer)

    class FirehoseProtocol(Firehose, Recorder):
        pass

    class FirehoseBuffered(Firehose, BufferedRecorder):
        pass

    done = asyncio.Event()
    protocol = FirehoseBuffered(loop, size=65_536) if buffered else FirehoseProtocol(loop)
    async with raw_connection(loop, protocol) as (_, peer), open_server(loop, Echo) as server:
        support.fill(peer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        for number in range(50):
            writer.write(b"%4d" % number)
            assert await reader.readexactly(4) == b"%4d" % number
        done.set()
        assert refills
        await support.close(writer)


#: Bytes sent while the longest pause between two iterations is measured.
MUCH = 32 * 1024 * 1024


def swallow(sock, count):
    """Read `count` bytes as fast as possible."""
    sock.setblocking(True)
    buffer = bytearray(1024 * 1024)
    while count > 0:
        taken = sock.recv_into(buffer)
        assert taken, f"{count} bytes are missing"
        count -= taken


async def longest_pause(loop, sending):
    """Return the longest time between two iterations until the awaitable `sending` is done."""
    longest = 0.0
    done = asyncio.ensure_future(sending)
    last = time.perf_counter()
    while not done.done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
    await done
    return longest


async def by_write(loop, sock):
    protocol = support.RecordingProtocol(loop)
    transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
    transport.write(bytes(MUCH))
    transport.close()
    await protocol.lost


async def by_many_writes(loop, sock):
    protocol = support.RecordingProtocol(loop)
    transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
    block = bytes(16 * 1024)
    for _ in range(MUCH // len(block)):
        transport.write(block)
    transport.close()
    await protocol.lost


async def by_sock_sendall(loop, sock):
    await loop.sock_sendall(sock, bytes(MUCH))


@pytest.mark.mgloop_only  # the test measures asyncio's loop as well
@pytest.mark.parametrize("send", [by_write, by_sock_sendall, by_many_writes])
@pytest.mark.parametrize("family", ["TCP", "UNIX"])
def test_a_peer_that_keeps_up_does_not_stop_the_loop(loop, send, family):
    def measure(loop):
        pair = (
            support.nonblocking_tcp_pair() if family == "TCP" else support.nonblocking_socketpair()
        )
        with pair as (ours, peer), support.in_thread(swallow, peer, MUCH):
            return loop.run_until_complete(longest_pause(loop, send(loop, ours)))

    # A machine that is busy with other work pauses, too: the best of three counts, against
    # asyncio's worst.
    here = min(measure(loop) for _ in range(3))
    reference = support.new_loop("asyncio")
    try:
        there = max(measure(reference) for _ in range(3))
    finally:
        support.finish(reference)
    assert here < 2 * there + 0.01, f"{here:.3f} s, asyncio {there:.3f} s"


async def test_everybody_talks_to_everybody_in_small_pieces(loop):
    """200 connections exchange 20 messages each in step, with writes at the iteration's end."""

    class Upper(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            for piece in data.split(b" "):
                self.transport.write(piece.upper())

    async with open_server(loop, Upper, backlog=300) as server:
        clients = [Recorder(loop) for _ in range(200)]
        for client in clients:
            await loop.create_connection(lambda client=client: client, "127.0.0.1", port_of(server))
        for step in range(1, 21):
            for number, client in enumerate(clients):
                client.transport.write(b"a b c %04d" % number)
            for number, client in enumerate(clients):
                assert await client.got(7 * step) == b"ABC%04d" % number * step
        for client in clients:
            client.transport.close()
        await asyncio.gather(*(client.lost for client in clients))


class Fragments(asyncio.Protocol):
    """Checks that every byte of a stream belongs to that stream."""

    def __init__(self, loop, name):
        self.name = name
        self.wrong = 0
        self.count = 0
        self.over = loop.create_future()

    def data_received(self, data):
        self.count += len(data)
        if data != self.name * len(data):
            self.wrong += 1

    def connection_lost(self, exc):
        self.over.set_result(exc)


def test_streams_while_the_collector_runs_python(loop, loop_factory):
    """All connections of the process receive into the same buffers."""
    stop = threading.Event()
    protocols = {}

    def feed(sock, name):
        size = 0
        with sock:
            while not stop.is_set():
                for _ in range(20):
                    size = size % 900 + 1
                    sock.sendall(name * size)
                time.sleep(0.0005)

    async def receive(name):
        loop = asyncio.get_running_loop()
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        protocols[name] = protocol = Fragments(loop, name)
        await loop.create_connection(lambda: protocol, sock=ours)
        with support.in_thread(feed, peer, name):
            await protocol.over

    with (
        contextlib.closing(loop_factory()) as other,
        support.frequent_collections(),
        support.in_thread(other.run_until_complete, receive(b"B")),
    ):
        loop.call_later(1.0, stop.set)
        loop.run_until_complete(receive(b"A"))
    for protocol in protocols.values():
        assert protocol.wrong == 0
        assert protocol.count > 1000
