# SPDX-License-Identifier: GPL-2.0-only
"""The Server object and its listener.

Start, stop, waiting for the end, clients closed or aborted with the server, serve_forever, and an
accept loop that runs out of descriptors, gets errors, or loses its peers.
"""

import asyncio
import inspect
import socket

import pytest
import support
from peers import (
    WAIT_CLOSED_WAITS,
    Echo,
    Recorder,
    needs_close_clients,
    open_server,
    port_of,
    read_all,
    reset,
)


async def start(loop, **kwargs):
    """Return (server, recorder, client): a server for one recorder, and its connected client."""
    protocol = Recorder(loop, keep_open=True)
    server = await loop.create_server(lambda: protocol, "127.0.0.1", 0, **kwargs)
    client = Recorder(loop)
    await loop.create_connection(lambda: client, "127.0.0.1", port_of(server))
    await protocol.made
    return server, protocol, client


async def finish(server, *recorders):
    server.close()
    for recorder in recorders:
        if not recorder.lost.done():
            recorder.transport.abort()
        await recorder.lost
    await asyncio.wait_for(server.wait_closed(), support.PATIENCE)


async def answers(protocol, client):
    """Check that both ends can still communicate."""
    before = len(protocol.received)
    client.transport.write(b"ping")
    assert (await protocol.got(before + 4))[before:] == b"ping"


# --- the Server object ---------------------------------------------------------------------------


async def test_attributes(loop):
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    assert isinstance(server, asyncio.AbstractServer)
    assert isinstance(server, asyncio.Server)
    assert server.get_loop() is loop
    assert server.is_serving()
    assert isinstance(server.sockets, tuple)
    (sock,) = server.sockets
    assert isinstance(sock, asyncio.trsock.TransportSocket)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    assert str(port_of(server)) in repr(server)
    server.close()
    server.close()
    assert not server.is_serving()
    assert server.sockets == ()
    await server.wait_closed()
    await server.wait_closed()


async def test_async_with_closes(loop):
    async with await loop.create_server(Echo, "127.0.0.1", 0) as server:
        assert server.is_serving()
    assert not server.is_serving()
    assert server.sockets == ()


async def test_start_serving_false(loop):
    server = await loop.create_server(Echo, "127.0.0.1", 0, start_serving=False)
    assert not server.is_serving()
    port = port_of(server)
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    await server.start_serving()
    await server.start_serving()
    assert server.is_serving()
    transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    transport.close()
    await support.close(server)


async def test_close_stops_listening_and_keeps_clients(loop):
    server, protocol, client = await start(loop)
    port = port_of(server)
    server.close()
    await support.turns(2)
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    await answers(protocol, client)
    await finish(server, protocol, client)


async def test_the_port_is_free_after_close(loop):
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    port = port_of(server)
    await support.close(server)
    async with open_server(loop, Echo, port=port) as again:
        assert port_of(again) == port


# --- wait_closed ---------------------------------------------------------------------------------


async def test_wait_closed_and_clients(loop):
    server, protocol, client = await start(loop)
    server.close()
    waiter = loop.create_task(server.wait_closed())
    await support.turns(10)
    assert waiter.done() == (not WAIT_CLOSED_WAITS)
    await answers(protocol, client)
    client.transport.close()
    await protocol.eof
    await support.turns(5)
    assert waiter.done() == (not WAIT_CLOSED_WAITS)
    protocol.transport.close()
    await asyncio.wait_for(waiter, support.PATIENCE)
    await finish(server, protocol, client)


async def test_wait_closed_waits_for_close(loop):
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    waiters = [loop.create_task(server.wait_closed()) for _ in range(3)]
    await support.turns(10)
    assert not any(waiter.done() for waiter in waiters)
    waiters.pop().cancel()
    server.close()
    await asyncio.wait_for(asyncio.gather(*waiters), support.PATIENCE)


async def test_wait_closed_counts_clients_that_left_before(loop):
    server, protocol, client = await start(loop)
    client.transport.abort()
    await client.lost
    protocol.transport.close()
    await protocol.lost
    await support.turns(2)
    server.close()
    await asyncio.wait_for(server.wait_closed(), support.PATIENCE)


# --- close_clients and abort_clients -------------------------------------------------------------


@needs_close_clients
async def test_close_clients(loop):
    server, protocol, client = await start(loop)
    message = support.pattern(2_000_000)
    protocol.transport.write(message)
    server.close()
    server.close_clients()
    assert protocol.transport.is_closing()
    assert await client.got(len(message)) == message
    await asyncio.wait_for(server.wait_closed(), support.PATIENCE)
    assert await protocol.lost is None
    await finish(server, client)


@needs_close_clients
async def test_abort_clients(loop):
    server, protocol, client = await start(loop)
    client.transport.pause_reading()
    protocol.transport.write(bytes(support.BIG * 4))
    assert protocol.transport.get_write_buffer_size() > 0
    server.close()
    server.abort_clients()
    assert await protocol.lost is None
    await asyncio.wait_for(server.wait_closed(), support.PATIENCE)
    await finish(server, client)
    assert len(client.received) < support.BIG * 4


@needs_close_clients
async def test_clients_that_have_gone_are_forgotten(loop):
    server, protocol, client = await start(loop)
    client.transport.close()
    protocol.transport.close()
    await protocol.lost
    await client.lost
    await support.turns(2)
    server.close_clients()
    server.abort_clients()
    await finish(server)


# --- serve_forever -------------------------------------------------------------------------------


async def test_serve_forever_starts_and_cancelling_it_closes(loop):
    server = await loop.create_server(Echo, "127.0.0.1", 0, start_serving=False)
    port = port_of(server)
    task = loop.create_task(server.serve_forever())
    await support.turns(3)
    assert server.is_serving()
    with pytest.raises(RuntimeError, match="already being awaited"):
        await server.serve_forever()
    transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    transport.close()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, support.PATIENCE)
    assert not server.is_serving()
    with pytest.raises(RuntimeError, match="is closed"):
        await server.serve_forever()


async def test_closing_the_server_ends_serve_forever(loop):
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    task = loop.create_task(server.serve_forever())
    await support.turns(3)
    server.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, support.PATIENCE)


async def test_cancelling_serve_forever_and_the_clients(loop):
    """The standard library closes the clients since CPython 3.14."""
    closes = "close_clients" in inspect.getsource(asyncio.Server.serve_forever)
    server, protocol, client = await start(loop)
    task = loop.create_task(server.serve_forever())
    await support.turns(3)
    task.cancel()
    await support.turns(5)
    assert not server.is_serving()
    if not closes:
        await answers(protocol, client)
        assert not protocol.lost.done()
        protocol.transport.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, support.PATIENCE)
    if closes:
        assert await protocol.lost is None
        assert await client.lost is None
    await finish(server, protocol, client)


# --- the listener --------------------------------------------------------------------------------


async def test_more_clients_than_the_backlog(loop):
    """The kernel retries a connection that the full queue refused, a second later."""
    ended = []

    class Ending(Echo):
        def connection_lost(self, exc):
            ended.append(exc)

    async def ask(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await support.close(writer)

    async with open_server(loop, Ending, backlog=1) as server:
        port = port_of(server)
        await asyncio.wait_for(asyncio.gather(*(ask(port) for _ in range(10))), 50)
        await support.wait_until(lambda: len(ended) == 10)
    assert ended == [None] * 10


async def test_a_client_that_resets_before_it_is_accepted(loop):
    protocols = []

    def factory():
        protocols.append(Recorder(loop))
        return protocols[-1]

    async with open_server(loop, factory) as server:
        for _ in range(5):
            sock = socket.create_connection(("127.0.0.1", port_of(server)))
            reset(sock)
        await support.wait_until(lambda: len(protocols) == 5)
        for protocol in protocols:
            assert isinstance(await protocol.lost, ConnectionResetError)


async def test_closing_with_connections_still_in_the_queue(loop):
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    socks = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(5)]
    server.close()
    await asyncio.wait_for(server.wait_closed(), support.PATIENCE)
    for sock in socks:
        with sock:
            sock.settimeout(support.PATIENCE)
            try:
                assert sock.recv(1) == b""
            except ConnectionResetError:
                continue


async def test_closing_the_server_in_connection_made(loop):
    """Connections in the queue are served or refused; none is forgotten or leaks."""
    served = []

    class Closing(asyncio.Protocol):
        def connection_made(self, transport):
            served.append(transport)
            transport.write(b"served")
            transport.close()
            server.close()

    server = await loop.create_server(Closing, "127.0.0.1", 0)
    socks = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(10)]
    await asyncio.wait_for(server.wait_closed(), support.PATIENCE)
    answers = []
    for sock in socks:
        with sock:
            sock.setblocking(False)
            try:
                answers.append(await read_all(loop, sock))
            except ConnectionResetError:
                answers.append(b"")
    assert set(answers) <= {b"served", b""}
    assert answers.count(b"served") == len(served) >= 1


def test_out_of_descriptors(in_child):
    """accept() fails with EMFILE: it is reported and retried later, and all clients are served."""
    out, _ = in_child(
        """
        import errno, resource

        class Hello(asyncio.Protocol):
            def connection_made(self, transport):
                transport.write(b"hello")
                transport.close()

        async def main():
            loop = asyncio.get_running_loop()
            contexts = []
            loop.set_exception_handler(lambda loop, context: contexts.append(context))
            server = await loop.create_server(Hello, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            clients = [socket.socket() for _ in range(5)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            hoard = []
            try:
                while True:
                    hoard.append(os.dup(0))
            except OSError:
                pass
            for client in clients:
                client.setblocking(False)
                await loop.sock_connect(client, address)

            started = time.process_time()
            await asyncio.sleep(0.5)
            assert time.process_time() - started < 0.25, "busy while out of descriptors"
            assert contexts
            first = contexts[0]
            assert first["message"] == "socket.accept() out of system resource", first
            assert first["exception"].errno == errno.EMFILE, first
            assert first["socket"].getsockname() == address, first
            for client in clients:
                try:
                    client.recv(10)
                except BlockingIOError:
                    pass
                else:
                    raise AssertionError("served without a descriptor")

            for fd in hoard:
                os.close(fd)
            for client in clients:
                assert await loop.sock_recv(client, 10) == b"hello"
                client.close()
            contexts.clear()
            server.close()
            await server.wait_closed()
            await asyncio.sleep(1.2)
            # asyncio may try to go on listening on the socket of the closed server.
            if KIND == "mgloop":
                assert not contexts, contexts
            print("served")

        run(main())
        """,
        "-Wdefault",
    )
    assert out == "served\n"


def test_closing_while_out_of_descriptors(in_child):
    """The listener is closed before its retry."""
    out, err = in_child("""
        import resource

        async def main():
            loop = asyncio.get_running_loop()
            contexts = []
            loop.set_exception_handler(lambda loop, context: contexts.append(context))
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            client = socket.socket()
            client.setblocking(False)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            hoard = []
            try:
                while True:
                    hoard.append(os.dup(0))
            except OSError:
                pass
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await asyncio.sleep(0.1)
            assert contexts
            contexts.clear()
            server.close()
            await asyncio.wait_for(server.wait_closed(), 5)
            for fd in hoard:
                os.close(fd)
            await asyncio.sleep(1.3)
            if KIND == "mgloop":
                assert not contexts, contexts
            client.close()
            print("closed")

        run(main())
    """)
    assert out == "closed\n", err
