# SPDX-License-Identifier: GPL-2.0-only
"""loop.start_tls(): a plain connection becomes an encrypted one.

The moment of the change is critical: bytes of the handshake that have already arrived must reach
the TLS layer, and must not be taken for data.
"""

import asyncio
import contextlib
import inspect
import ssl

import pytest
import support
from peers import BufferedRecorder, Recorder, connected_pair, open_server, port_of, raw_connection

hands_over_the_stream_buffer = pytest.mark.skipif(
    "_stream_reader" not in inspect.getsource(asyncio.BaseEventLoop.start_tls),
    reason="this standard library's start_tls() leaves behind what StreamReader has read",
)


async def upgrade(loop, recorder, context, **kwargs):
    """Call start_tls() for a recorder's transport; the recorder uses the new one from then on."""
    recorder.transport = await loop.start_tls(recorder.transport, recorder, context, **kwargs)
    return recorder.transport


class HandshakeByHand:
    """A TLS client over a plain socket, so that a test controls when data is sent."""

    def __init__(self, loop, context, sock):
        self.loop = loop
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()
        #: The first flight, which the test must send.
        self.hello = self.outgoing.read()

    async def run(self, function, *args):
        """Call a method of the TLS object until it has all the data it needs."""
        while True:
            try:
                result = function(*args)
            except ssl.SSLWantReadError:
                await self.flush()
                self.incoming.write(await self.loop.sock_recv(self.sock, 65536))
            else:
                await self.flush()
                return result

    async def flush(self):
        if data := self.outgoing.read():
            await self.loop.sock_sendall(self.sock, data)

    async def talk(self, server):
        """Finish the handshake and send data to the recorder at the other end."""
        await self.run(self.tls.do_handshake)
        server.received.clear()
        await self.run(self.tls.write, b"secret")
        assert await server.got(6) == b"secret"
        server.transport.write(b"answer")
        assert await self.run(self.tls.read, 6) == b"answer"


async def test_both_ends(loop, server_ssl_context, client_ssl_context, client, server):
    message = support.pattern(1_000_000)
    async with connected_pair(loop, client, server) as (ours, _):
        ours.write(b"plain")
        assert await server.got(5) == b"plain"
        await asyncio.gather(
            upgrade(loop, server, server_ssl_context, server_side=True),
            upgrade(loop, client, client_ssl_context, server_hostname="localhost"),
        )
        assert client.transport is not ours
        assert isinstance(client.transport, asyncio.Transport)
        assert client.transport.get_extra_info("peername") == ours.get_extra_info("peername")
        for recorder in (client, server):
            assert recorder.transport.get_extra_info("ssl_object").version()
            recorder.received.clear()
            recorder.transport.write(message)
        assert await server.got(len(message)) == message
        assert await client.got(len(message)) == message
        client.transport.close()
        assert await client.lost is None
        assert await server.lost is None
    assert client.events.count("made") == 1


async def test_a_handshake_that_is_already_in_the_socket(
    loop, server_ssl_context, client_ssl_context
):
    """The hello arrives while reading is paused before the upgrade, and no further edge follows."""

    class Pausing(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()

    server = Pausing(loop)
    async with raw_connection(loop, server) as (_, peer):
        client = HandshakeByHand(loop, client_ssl_context, peer)
        peer.send(b"STARTTLS\n")
        assert await server.got(9) == b"STARTTLS\n"
        peer.send(client.hello)
        await asyncio.sleep(0.02)
        # This protocol must pause only the plain transport for good.
        server.data_received = lambda data: Recorder.data_received(server, data)
        talking = loop.create_task(client.run(client.tls.do_handshake))
        await upgrade(loop, server, server_ssl_context, server_side=True)
        await talking
        await client.talk(server)
        server.transport.abort()
        await server.lost


async def test_a_handshake_in_the_same_packet_as_the_command(
    loop, server_ssl_context, client_ssl_context
):
    """The protocol's buffer holds only the command; the rest must remain for the TLS layer."""
    upgrading = loop.create_future()

    class Upgrading(BufferedRecorder):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            if not upgrading.done():
                upgrading.set_result(
                    loop.create_task(upgrade(loop, self, server_ssl_context, server_side=True))
                )
                self.transport.pause_reading()
                self.buffer = memoryview(bytearray(1000))

    server = Upgrading(loop, size=9)
    async with raw_connection(loop, server) as (_, peer):
        client = HandshakeByHand(loop, client_ssl_context, peer)
        peer.send(b"STARTTLS\n" + client.hello)
        talking = loop.create_task(client.run(client.tls.do_handshake))
        await (await upgrading)
        assert server.received == b"STARTTLS\n"
        await talking
        await client.talk(server)
        server.transport.abort()
        await server.lost


@hands_over_the_stream_buffer
async def test_a_handshake_that_the_stream_reader_has_read(
    loop, server_ssl_context, client_ssl_context
):
    lines = []

    async def handle(reader, writer):
        lines.append(await reader.readline())
        await asyncio.sleep(0.02)
        await writer.start_tls(server_ssl_context)
        lines.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    with support.socket.create_connection(("127.0.0.1", port_of(server))) as peer:
        peer.setblocking(False)
        client = HandshakeByHand(loop, client_ssl_context, peer)
        peer.send(b"STARTTLS\n" + client.hello)
        await client.run(client.tls.do_handshake)
        await client.run(client.tls.write, b"secret\n")
        await support.wait_until(lambda: len(lines) == 2)
    assert lines == [b"STARTTLS\n", b"secret\n"]
    await support.close(server)


async def test_tls_inside_tls(loop, server_ssl_context, client_ssl_context, client, server):
    message = support.pattern(300_000)
    async with connected_pair(
        loop, client, server, client_ssl=client_ssl_context, server_ssl=server_ssl_context
    ):
        await asyncio.gather(
            upgrade(loop, server, server_ssl_context, server_side=True),
            upgrade(loop, client, client_ssl_context, server_hostname="localhost"),
        )
        client.transport.write(message)
        assert await server.got(len(message)) == message
        server.transport.write(message)
        assert await client.got(len(message)) == message


class Completing(asyncio.Transport):
    """Requests a buffer before the data arrives, as a transport over completion ports does."""

    _start_tls_compatible = True

    def __init__(self, loop, sock):
        super().__init__()
        self.loop = loop
        self.sock = sock
        self.reading = None

    def set_protocol(self, protocol):
        self.protocol = protocol

    def pause_reading(self):
        assert self.reading is None

    def resume_reading(self):
        self.reading = self.loop.create_task(self.read())

    async def read(self):
        with contextlib.suppress(OSError):
            while size := await self.loop.sock_recv_into(
                self.sock, buffer := self.protocol.get_buffer(-1)
            ):
                received = bytes(buffer[:size])
                await support.turns(2)
                assert buffer[:size] == received, "somebody else has written into it"
                self.protocol.buffer_updated(size)
            self.protocol.eof_received()
        self.protocol.connection_lost(None)

    def write(self, data):
        assert self.sock.send(data) == len(data)

    def is_closing(self):
        return self.sock.fileno() < 0

    def close(self):
        self.sock.shutdown(support.socket.SHUT_RDWR)


async def test_transports_that_take_a_buffer_before_the_data_is_there(
    loop, server_ssl_context, client_ssl_context
):
    async def talk(number):
        with support.nonblocking_socketpair() as (ours, peer):
            server = Recorder(loop)
            transport = Completing(loop, ours)
            server.connection_made(transport)
            server.transport, (reader, writer) = await asyncio.gather(
                loop.start_tls(transport, server, server_ssl_context, server_side=True),
                asyncio.open_connection(
                    sock=peer, ssl=client_ssl_context, server_hostname="localhost"
                ),
            )
            message = b"%d" % number * 5000
            writer.write(message)
            assert await server.got(len(message)) == message
            server.transport.write(message)
            assert await reader.readexactly(len(message)) == message
            await support.close(writer)
            await transport.reading

    await asyncio.gather(*(talk(number) for number in range(3)))


async def test_an_upgrade_that_fails_closes_the_connection(
    loop, server_ssl_context, client, server
):
    async with connected_pair(loop, client, server) as (ours, theirs):
        results = await asyncio.gather(
            upgrade(loop, server, server_ssl_context, server_side=True),
            upgrade(
                loop,
                client,
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                server_hostname="localhost",
            ),
            return_exceptions=True,
        )
        assert isinstance(results[1], ssl.SSLCertVerificationError)
        assert isinstance(results[0], (ssl.SSLError, ConnectionError))
        assert ours.is_closing()
        assert theirs.is_closing()
        for recorder in (client, server):
            await support.turns(5)
            if not recorder.lost.done():
                # The application's protocol was never connected to the TLS transport.
                recorder.lost.set_result(None)


async def test_an_upgrade_that_nobody_answers(loop, client_ssl_context, protocol):
    async with raw_connection(loop, protocol) as (transport, _):
        with pytest.raises(ConnectionAbortedError, match="SSL handshake is taking longer"):
            await loop.start_tls(
                transport,
                protocol,
                client_ssl_context,
                server_hostname="localhost",
                ssl_handshake_timeout=0.1,
            )
        assert transport.is_closing()
        await support.turns(5)
        protocol.lost.done() or protocol.lost.set_result(None)


async def test_invalid_arguments(loop, client_ssl_context, protocol):
    async with raw_connection(loop, protocol) as (transport, _):
        for context in (None, True, "context"):
            with pytest.raises(TypeError, match="sslcontext is expected"):
                await loop.start_tls(transport, protocol, context)
        for other in (None, object(), asyncio.Transport()):
            with pytest.raises(TypeError, match=r"not supported by start_tls\(\)"):
                await loop.start_tls(other, protocol, client_ssl_context)
        transport.write(b"unharmed")
        assert not transport.is_closing()


async def test_reading_goes_on_after_an_upgrade_by_one_end_of_a_slow_connection(
    loop, server_ssl_context, client_ssl_context
):
    """The hello arrives byte by byte."""
    server = Recorder(loop)
    async with open_server(loop, lambda: server) as listener:
        with support.socket.create_connection(("127.0.0.1", port_of(listener))) as peer:
            peer.setblocking(False)
            client = HandshakeByHand(loop, client_ssl_context, peer)
            await server.made
            upgrading = loop.create_task(
                upgrade(loop, server, server_ssl_context, server_side=True)
            )
            for byte in client.hello:
                peer.send(bytes([byte]))
                await support.turns(1)
            await client.run(client.tls.do_handshake)
            await upgrading
            await client.talk(server)
        await server.lost
