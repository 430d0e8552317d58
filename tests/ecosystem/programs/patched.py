# SPDX-License-Identifier: GPL-2.0-only
"""Use the loop for the programs over gevent and eventlet.

In a patched process an executor's thread is a greenlet, which runs while the loop waits.
"""

import asyncio
import socket
import time
from collections.abc import Callable

from common import expect, loop_class, say

CLIENTS = 50

PAYLOAD = bytes(range(256)) * 400


async def network() -> None:
    """Use timers, streams over TCP and UNIX sockets, datagrams and the ``sock_*()`` methods."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(0.05)
    expect(0.05 <= loop.time() - began < 5, "a timer")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PAYLOAD)
        writer.write_eof()
        expect(await reader.read() == PAYLOAD, "an echo over TCP")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await asyncio.gather(*(client(port) for _ in range(CLIENTS)))

    connection = socket.socket()
    connection.setblocking(False)
    await loop.sock_connect(connection, ("127.0.0.1", port))
    await loop.sock_sendall(connection, b"sock")
    expect(await loop.sock_recv(connection, 10) == b"sock", "an echo by sock_*() methods")
    connection.close()
    server.close()
    await server.wait_closed()

    left, right = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=left)
    right.send(b"pair\n")
    expect(await reader.readline() == b"pair\n", "a line over a socket pair")
    writer.close()
    await writer.wait_closed()
    right.close()

    received = loop.create_future()

    class Receiver(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, address: object) -> None:
            received.set_result(data)

    receiver, _ = await loop.create_datagram_endpoint(Receiver, local_addr=("127.0.0.1", 0))
    address = receiver.get_extra_info("sockname")
    sender, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=address)
    sender.sendto(b"datagram")
    async with asyncio.timeout(30):
        expect(await received == b"datagram", "a datagram")
    sender.close()
    receiver.close()


async def executor() -> None:
    """Wait for threads of the default executor, one after the other and at a time."""
    async with asyncio.timeout(60):
        for number in range(10):
            expect(await asyncio.to_thread(abs, -number) == number, "an answer of a thread")
            await asyncio.sleep(0.01)
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.05) for _ in range(20)))


def in_thread() -> None:
    """Run ``network()`` on a loop of the calling thread."""
    with asyncio.Runner(loop_factory=loop_class()) as runner:
        runner.run(network())


def beside_greenlets(spawn: Callable, in_native_thread: Callable) -> None:
    """Run the loop in a native thread while greenlets take turns in the main thread."""
    turns = 0

    def turn() -> None:
        nonlocal turns
        while True:
            time.sleep(0.001)
            turns += 1

    turning = spawn(turn)
    in_native_thread(in_thread)
    turning.kill()
    say(f"the loop in a native thread; a greenlet in the main thread took {turns} turns meanwhile")
