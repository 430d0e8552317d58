# SPDX-License-Identifier: GPL-2.0-only
"""anyio on its asyncio back end: TCP, UNIX, UDP, TLS, processes, threads, signals."""

import os
import signal
import ssl
import sys
import tempfile

import anyio
import trustme
from anyio.streams.tls import TLSListener, TLSStream
from common import expect, run, say


async def echo(stream: anyio.abc.ByteStream) -> None:
    """Send back the received data until the peer has finished."""
    async with stream:
        async for chunk in stream:
            await stream.send(chunk)


async def exchange(stream: anyio.abc.ByteStream, size: int) -> None:
    """*size* bytes out while the echo comes in, then half-close where the stream can."""
    data = os.urandom(size)
    received = bytearray()
    async with stream, anyio.create_task_group() as group:
        group.start_soon(stream.send, data)
        while len(received) < size:
            received += await stream.receive()
    expect(bytes(received) == data, f"{size} bytes came back")


async def streams() -> None:
    """TCP from 100 clients, a UNIX socket, TLS, and UDP."""
    authority = trustme.CA()
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_tls)
    client_tls = ssl.create_default_context()
    authority.configure_trust(client_tls)

    async with anyio.create_task_group() as group:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        group.start_soon(listener.serve, echo)
        async with anyio.create_task_group() as clients:
            for _ in range(100):
                clients.start_soon(exchange, await anyio.connect_tcp("127.0.0.1", port), 100_000)
        say("TCP: 100 clients with 100 kB each")

        with tempfile.TemporaryDirectory() as folder:
            unix = await anyio.create_unix_listener(f"{folder}/socket")
            group.start_soon(unix.serve, echo)
            await exchange(await anyio.connect_unix(f"{folder}/socket"), 4 << 20)
        say("UNIX socket: 4 MiB")

        inner = await anyio.create_tcp_listener(local_host="127.0.0.1")
        tls_port = inner.extra(anyio.abc.SocketAttribute.local_port)
        group.start_soon(TLSListener(inner, server_tls, standard_compatible=False).serve, echo)
        plain = await anyio.connect_tcp("127.0.0.1", tls_port)
        secure = await TLSStream.wrap(
            plain, hostname="localhost", ssl_context=client_tls, standard_compatible=False
        )
        await exchange(secure, 4 << 20)
        say("TLS: 4 MiB")
        group.cancel_scope.cancel()
    for opened in (listener, unix, inner):
        await opened.aclose()

    async with await anyio.create_udp_socket(local_host="127.0.0.1") as one:
        one_port = one.extra(anyio.abc.SocketAttribute.local_port)
        async with await anyio.create_connected_udp_socket("127.0.0.1", one_port) as two:
            for number in range(100):
                await two.send(str(number).encode())
                packet, address = await one.receive()
                await one.sendto(packet + b"!", *address)
                expect(await two.receive() == f"{number}!".encode(), "the datagram came back")
    say("UDP: 100 datagrams there and back")


async def system() -> None:
    """A process with pipes, worker threads, and a signal."""
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1]); sys.exit(3)"
    result = await anyio.run_process(
        [sys.executable, "-c", code], input=b"abc" * 100_000, check=False
    )
    expect(result.returncode == 3 and result.stdout == b"cba" * 100_000, "the process answered")
    say("a process with 300 kB through its pipes and status 3")

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(
                anyio.to_thread.run_sync, lambda: anyio.from_thread.run(anyio.sleep, 0.01)
            )
    say("20 worker threads that call back into the loop")

    with anyio.fail_after(30), anyio.open_signal_receiver(signal.SIGUSR1) as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        async for number in signals:
            expect(number == signal.SIGUSR1, "the signal arrived")
            break
    with anyio.move_on_after(0.05) as scope:
        await anyio.sleep(30)
    expect(scope.cancelled_caught, "a cancel scope ends a sleep")
    say("a signal, and a cancel scope that ended a sleep")


async def main() -> None:
    """Everything above."""
    await streams()
    await system()


run(main())
