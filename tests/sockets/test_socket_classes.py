# SPDX-License-Identifier: GPL-2.0-only
"""Sockets of classes other than the socket module's own.

The sock_*() methods, transports and servers call the methods of such a class, as asyncio does. They
make direct system calls only for the socket module's class.
"""

import asyncio
import socket

import pytest
import support


def own_class():
    """Return a subclass of WitnessSocket whose `called` is not shared with other tests."""
    return type("Own", (support.WitnessSocket,), {})


@pytest.fixture
def own_pair():
    """Yield a socket of a class with its own methods, and the socket that it is connected to."""
    left, right = socket.socketpair()
    right.setblocking(False)
    with own_class()(left.family, left.type, left.proto, fileno=left.detach()) as own, right:
        own.setblocking(False)
        yield own, right


async def read_exactly(loop, sock, size):
    got = b""
    while len(got) < size:
        got += await loop.sock_recv(sock, 1 << 20)
    return got


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class Receiver(asyncio.Protocol):
    """Collects the data that it receives."""

    def __init__(self):
        self.data = b""
        self.paused = False
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data):
        self.data += data

    def pause_writing(self):
        self.paused = True

    def resume_writing(self):
        self.paused = False

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class TestSocketMethods:
    async def test_receiving_and_sending(self, loop, own_pair):
        own, peer = own_pair
        receiving = loop.create_task(loop.sock_recv(own, 10))
        await support.turns(3)
        peer.send(b"one")
        assert await receiving == b"one"
        receiving = loop.create_task(loop.sock_recv_into(own, bytearray(10)))
        await support.turns(3)
        peer.send(b"two")
        assert await receiving == 3
        data = bytes(support.BIG)
        sending = loop.create_task(loop.sock_sendall(own, data))
        assert await read_exactly(loop, peer, len(data)) == data
        await sending
        assert type(own).called == {"recv", "recv_into", "send"}

    def test_connecting(self, loop, run):
        with support.listening_socket() as listener, own_class()() as own:
            own.setblocking(False)
            run(loop.sock_connect(own, listener.getsockname()))
            assert type(own).called == {"connect"}

    def test_a_connect_that_was_replaced(self, loop, run, monkeypatch):
        """pytest-socket replaces it to forbid connections."""

        def connect(sock, address):
            raise PermissionError(address)

        monkeypatch.setattr(socket.socket, "connect", connect, raising=False)
        with support.listening_socket() as listener, socket.socket() as sock:
            sock.setblocking(False)
            with pytest.raises(PermissionError):
                run(loop.sock_connect(sock, listener.getsockname()))
            with pytest.raises(PermissionError):
                run(loop.create_connection(asyncio.Protocol, *listener.getsockname()))

    @pytest.mark.mgloop_only
    def test_a_fileno_that_closes_another_waiting_call(self, loop, run):
        """The method runs while the calls that wait for the descriptor try again, in order."""

        class Closing(socket.socket):
            victim = None

            def fileno(self):
                if self.victim is not None:
                    self.victim.close()
                return super().fileno()

        async def main():
            first = loop.sock_recv(sock, 10)
            second = loop.sock_recv(sock, 10)
            third = loop.sock_recv(sock, 10)
            futures = [call.send(None) for call in (first, second, third)]
            sock.victim = second
            peer.send(b"a")
            await support.wait_until(futures[0].done)
            assert futures[0].result() == b"a"
            peer.send(b"b")
            await support.wait_until(futures[2].done)
            assert futures[2].result() == b"b"
            assert not futures[1].done()
            sock.victim = None
            for call in (first, third):
                call.close()

        left, peer = socket.socketpair()
        with Closing(fileno=left.detach()) as sock, peer:
            sock.setblocking(False)
            run(main())

    async def test_no_socket_but_as_one(self, loop):
        """The classes of gevent and eventlet do not inherit from socket.socket."""
        with support.listening_socket() as listener:
            sock = support.WrappingSocket()
            sock.setblocking(False)
            await loop.sock_connect(sock, listener.getsockname())
            accepted, _ = listener.accept()
            with accepted:
                await loop.sock_sendall(sock, b"there")
                assert accepted.recv(10) == b"there"
                accepted.send(b"back")
                assert await loop.sock_recv(sock, 10) == b"back"
            sock.close()

    def test_a_class_that_has_taken_the_name_before_the_import(self, in_child):
        """gevent.monkey.patch_all() does this."""
        out, _ = in_child("""
            class Wrapping:
                def __init__(self, *args, **kwargs):
                    self.inner = original(*args, **kwargs)

                def __getattr__(self, name):
                    return getattr(self.inner, name)

            original = socket.socket
            socket.socket = Wrapping
            import mgloop
            socket.socket = original

            async def main():
                with original() as server:
                    server.bind(("127.0.0.1", 0))
                    server.listen()
                    for kind in (Wrapping, original):
                        sock = kind()
                        sock.setblocking(False)
                        await asyncio.get_running_loop().sock_connect(sock, server.getsockname())
                        server.accept()[0].close()
                        sock.close()
                        print("connected")

            run(main())
        """)
        assert out.split() == ["connected", "connected"]


class TestTransports:
    async def test_a_stream(self, loop, own_pair):
        own, peer = own_pair
        transport, protocol = await loop.create_connection(Receiver, sock=own)
        peer.send(b"received")
        await support.wait_until(lambda: protocol.data == b"received")
        data = bytes(support.BIG)
        transport.write(data)
        assert protocol.paused
        assert await read_exactly(loop, peer, len(data)) == data
        await support.wait_until(lambda: not protocol.paused)
        transport.close()
        await protocol.lost
        assert {"recv", "send"} <= type(own).called

    async def test_its_descriptor_is_its_own(self, loop, own_pair):
        own, _peer = own_pair
        transport, protocol = await loop.create_connection(Receiver, sock=own)
        for method in ("add_reader", "add_writer"):
            with pytest.raises(RuntimeError, match="is used by transport"):
                getattr(loop, method)(own.fileno(), print)
        with pytest.raises(RuntimeError, match="is used by transport"):
            loop.remove_reader(own)
        transport.close()
        await protocol.lost

    def test_sendfile(self, loop, run, own_pair):
        own, peer = own_pair
        with open(__file__, "rb") as file:
            content = file.read()

            async def main():
                transport, protocol = await loop.create_connection(Receiver, sock=own)
                assert await loop.sendfile(transport, file) == len(content)
                assert await read_exactly(loop, peer, len(content)) == content
                transport.close()
                await protocol.lost

            run(main())

    async def test_tls(self, loop, own_pair, client_ssl_context, server_ssl_context):
        own, peer = own_pair
        serving = loop.create_task(loop.connect_accepted_socket(Echo, peer, ssl=server_ssl_context))
        transport, protocol = await loop.create_connection(
            Receiver, sock=own, ssl=client_ssl_context, server_hostname="localhost"
        )
        theirs, _ = await serving
        transport.write(b"secret")
        await support.wait_until(lambda: protocol.data == b"secret")
        transport.close()
        await protocol.lost
        theirs.abort()
        await support.turns(3)
        # asyncio reads into the buffer of its TLS protocol, as with any buffered protocol.
        assert "send" in type(own).called
        assert {"recv", "recv_into"} & type(own).called

    async def test_datagrams(self, loop):
        class Collector(asyncio.DatagramProtocol):
            def __init__(self):
                self.got = []

            def datagram_received(self, data, addr):
                self.got.append(data)

        kind = own_class()
        sock = kind(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        transport, protocol = await loop.create_datagram_endpoint(Collector, sock=sock)
        transport.sendto(b"datagram", sock.getsockname())
        await support.wait_until(lambda: protocol.got == [b"datagram"])
        transport.close()
        await support.turns(3)
        assert kind.called == {"recvfrom", "sendto"}

    def test_a_server(self, loop, run):
        kind = own_class()
        run(ask_server(loop, kind(), b"echo"))
        assert kind.called == {"accept"}

    @pytest.mark.mgloop_only
    def test_a_server_that_is_closed_by_its_accept(self, loop, run):
        """The connection that accept() returns is closed. asyncio leaves it to the collector."""

        class Listening(own_class()):
            def accept(self):
                accepted = super().accept()
                self.server.close()
                return accepted

        run(ask_server(loop, Listening(), b""))


async def ask_server(loop, listening, answer):
    """Serve Echo on the socket, and connect to it."""
    listening.bind(("127.0.0.1", 0))
    address = listening.getsockname()
    listening.server = await loop.create_server(Echo, sock=listening)
    with socket.create_connection(address) as client:
        client.setblocking(False)
        client.send(b"echo")
        try:
            assert await loop.sock_recv(client, 10) == answer
        except ConnectionResetError:
            assert answer == b""
    listening.server.close()
    await listening.server.wait_closed()
    await support.turns(5)
