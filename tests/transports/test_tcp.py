# SPDX-License-Identifier: GPL-2.0-only
"""Making TCP connections: create_connection, create_server, connect_accepted_socket.

Valid and invalid combinations of arguments and their exceptions; addresses, families and socket
options; happy eyeballs; get_extra_info(). All addresses belong to the loopback interface.
"""

import asyncio
import contextlib
import contextvars
import errno
import socket
import ssl

import pytest
import support
from peers import (
    Echo,
    Recorder,
    connected_pair,
    needs_all_errors,
    needs_keep_alive,
    open_server,
    port_of,
)


def resolve_to(loop, *addresses):
    """Make `loop` resolve every name to `addresses`, in this order."""

    async def getaddrinfo(host, port, **hints):
        return [
            (
                socket.AF_INET6 if ":" in address[0] else socket.AF_INET,
                socket.SOCK_STREAM,
                socket.IPPROTO_TCP,
                "",
                address,
            )
            for address in addresses
        ]

    loop.getaddrinfo = getaddrinfo


@contextlib.contextmanager
def black_hole():
    """Yield an address where a connection attempt is neither accepted nor refused.

    The queue of a listener that never accepts is full after one connection: Linux drops further
    requests to connect.
    """
    with socket.socket() as listener, socket.socket() as filler:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        filler.connect(listener.getsockname())
        yield listener.getsockname()


async def echo_once(loop, **kwargs):
    """Connect with these arguments, check that data is echoed, and close."""
    client = Recorder(loop)
    transport, protocol = await loop.create_connection(lambda: client, **kwargs)
    assert protocol is client
    transport.write(b"hello")
    assert await client.got(5) == b"hello"
    peername = transport.get_extra_info("peername")
    transport.close()
    await client.lost
    return peername


# --- create_connection ---------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", b"127.0.0.1", "localhost"])
async def test_connect_by_host_and_port(loop, host):
    async with open_server(loop, Echo) as server:
        await echo_once(loop, host=host, port=port_of(server), family=socket.AF_INET)


@pytest.mark.parametrize("convert", [str, lambda port: str(port).encode()])
async def test_the_port_may_be_a_string(loop, convert):
    async with open_server(loop, Echo) as server:
        await echo_once(loop, host="127.0.0.1", port=convert(port_of(server)))


@support.needs_ipv6
async def test_connect_over_ipv6(loop):
    async with open_server(loop, Echo, "::1") as server:
        address = server.sockets[0].getsockname()
        assert len(address) == 4
        assert await echo_once(loop, host="::1", port=address[1]) == address


async def test_connect_a_given_socket(loop):
    async with open_server(loop, Echo) as server:
        sock = socket.create_connection(("127.0.0.1", port_of(server)))
        assert sock.getblocking()
        await echo_once(loop, sock=sock)
        await support.turns(2)
        assert sock.fileno() == -1


async def test_a_unix_socket_will_do_as_the_given_socket(loop, left, right, protocol):
    transport, _ = await loop.create_connection(lambda: protocol, sock=left)
    right.send(b"x")
    assert await protocol.got(1) == b"x"
    transport.close()
    await protocol.lost


async def test_connection_refused(loop):
    with support.refused_address() as (host, port), pytest.raises(ConnectionRefusedError) as info:
        await loop.create_connection(asyncio.Protocol, host, port)
    assert info.value.errno == errno.ECONNREFUSED


async def test_the_second_address_is_tried(loop):
    with support.refused_address() as refused:
        async with open_server(loop, Echo) as server:
            resolve_to(loop, refused, ("127.0.0.1", port_of(server)))
            peername = await echo_once(loop, host="a.name", port=1)
            assert peername == ("127.0.0.1", port_of(server))


async def test_every_address_refused(loop):
    with support.refused_address() as first, support.refused_address("127.0.0.2") as second:
        resolve_to(loop, first, second)
        with pytest.raises(OSError, match=r"Multiple exceptions: .*, .*") as info:
            await loop.create_connection(asyncio.Protocol, "a.name", 1)
        for address in (first, second):
            assert str(address[1]) in str(info.value)


@needs_all_errors
async def test_all_errors(loop):
    with support.refused_address() as first, support.refused_address("127.0.0.2") as second:
        resolve_to(loop, first, second)
        with pytest.raises(ExceptionGroup) as info:
            await loop.create_connection(asyncio.Protocol, "a.name", 1, all_errors=True)
        assert [type(exc) for exc in info.value.exceptions] == [ConnectionRefusedError] * 2


async def test_a_name_without_addresses(loop):
    resolve_to(loop)
    with pytest.raises(OSError, match="returned empty list"):
        await loop.create_connection(asyncio.Protocol, "a.name", 1)


async def test_local_addr(loop, protocol):
    async with open_server(loop, lambda: protocol) as server:
        transport, _ = await loop.create_connection(
            asyncio.Protocol, "127.0.0.1", port_of(server), local_addr=("127.0.0.2", 0)
        )
        assert transport.get_extra_info("sockname")[0] == "127.0.0.2"
        await protocol.made
        assert protocol.transport.get_extra_info("peername")[0] == "127.0.0.2"
        transport.close()
        await protocol.lost


async def test_local_addr_that_is_not_ours(loop):
    async with open_server(loop, Echo) as server:
        with pytest.raises(OSError, match="bind on address") as info:
            await loop.create_connection(
                asyncio.Protocol, "127.0.0.1", port_of(server), local_addr=("192.0.2.1", 0)
            )
        assert info.value.errno == errno.EADDRNOTAVAIL


async def test_happy_eyeballs_does_not_wait_for_a_dead_address(loop):
    with black_hole() as dead:
        async with open_server(loop, Echo) as server:
            resolve_to(loop, dead, ("127.0.0.1", port_of(server)))
            peername = await asyncio.wait_for(
                echo_once(loop, host="a.name", port=1, happy_eyeballs_delay=0.05),
                support.PATIENCE,
            )
            assert peername == ("127.0.0.1", port_of(server))


async def test_happy_eyeballs_prefers_the_first_address(loop):
    async with (
        open_server(loop, Echo) as first,
        open_server(loop, Echo, "127.0.0.2") as second,
    ):
        addresses = [("127.0.0.1", port_of(first)), ("127.0.0.2", port_of(second))]
        resolve_to(loop, *addresses)
        peername = await echo_once(loop, host="a.name", port=1, happy_eyeballs_delay=10)
        assert peername == addresses[0]


async def test_happy_eyeballs_all_refused(loop):
    with support.refused_address() as first, support.refused_address("127.0.0.2") as second:
        resolve_to(loop, first, second)
        with pytest.raises(OSError, match=r"Multiple exceptions|Connect call failed"):
            await loop.create_connection(asyncio.Protocol, "a.name", 1, happy_eyeballs_delay=0.01)


@support.needs_ipv6
async def test_interleave(loop):
    """Families alternate: after the first refused IPv6 address comes an IPv4 one."""
    tried = []
    original = loop.sock_connect

    async def sock_connect(sock, address):
        tried.append(sock.family)
        return await original(sock, address)

    with support.refused_address("::1") as six, support.refused_address() as four:
        resolve_to(loop, six, (six[0], 1, 0, 0), four)
        loop.sock_connect = sock_connect
        with pytest.raises(OSError):
            await loop.create_connection(asyncio.Protocol, "a.name", 1, interleave=1)
    assert tried == [socket.AF_INET6, socket.AF_INET, socket.AF_INET6]


async def test_a_cancelled_attempt_leaves_nothing_behind(loop):
    with black_hole() as (host, port):
        before = support.open_fds()
        task = loop.create_task(loop.create_connection(asyncio.Protocol, host, port))
        await asyncio.sleep(0.05)
        assert not task.done()
        await support.cancel(task)
        assert not support.fds_opened_since(before)


async def test_a_failed_attempt_leaves_nothing_behind(loop):
    before = support.open_fds()
    with support.refused_address() as (host, port):
        for _ in range(10):
            with pytest.raises(ConnectionRefusedError):
                await loop.create_connection(asyncio.Protocol, host, port)
    assert not support.fds_opened_since(before)


async def test_a_port_out_of_range(loop):
    before = support.open_fds()
    with pytest.raises(OverflowError):
        await loop.create_connection(asyncio.Protocol, "127.0.0.1", 70000)
    with pytest.raises(OverflowError):
        await loop.create_server(asyncio.Protocol, "127.0.0.1", -1)
    assert not support.fds_opened_since(before)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "no sock specified"),
        ({"server_hostname": "x", "host": "127.0.0.1", "port": 1}, "only meaningful with ssl"),
        ({"ssl_handshake_timeout": 1, "host": "127.0.0.1", "port": 1}, "only meaningful with ssl"),
        ({"ssl_shutdown_timeout": 1, "host": "127.0.0.1", "port": 1}, "only meaningful with ssl"),
        ({"ssl": True, "port": 1}, "You must set server_hostname"),
    ],
)
async def test_create_connection_refuses_combinations(loop, kwargs, message):
    with pytest.raises(ValueError, match=message):
        await loop.create_connection(asyncio.Protocol, **kwargs)


async def test_create_connection_refuses_sockets(loop, ours):
    with pytest.raises(ValueError, match="can not be specified at the same time"):
        await loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, sock=ours)
    with pytest.raises(ValueError, match="You must set server_hostname"):
        await loop.create_connection(asyncio.Protocol, sock=ours, ssl=True)
    with socket.socket(type=socket.SOCK_DGRAM) as datagram:
        with pytest.raises(ValueError, match="A Stream Socket was expected"):
            await loop.create_connection(asyncio.Protocol, sock=datagram)
    with wrapped_socket() as wrapped, pytest.raises(TypeError, match="SSLSocket"):
        await loop.create_connection(asyncio.Protocol, sock=wrapped)


def wrapped_socket():
    """Return an ssl.SSLSocket, which the loop refuses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return context.wrap_socket(socket.socket(), do_handshake_on_connect=False)


# --- create_server -------------------------------------------------------------------------------


async def test_serve_on_several_hosts(loop):
    async with open_server(loop, Echo, ["127.0.0.1", "127.0.0.2"]) as server:
        addresses = {sock.getsockname() for sock in server.sockets}
        assert {host for host, _ in addresses} == {"127.0.0.1", "127.0.0.2"}
        for host, port in addresses:
            assert await echo_once(loop, host=host, port=port) == (host, port)


async def test_a_host_given_twice_is_bound_once(loop):
    async with open_server(loop, Echo, ("127.0.0.1", "127.0.0.1")) as server:
        assert len(server.sockets) == 1


@pytest.mark.parametrize("host", ["", None])
async def test_serve_on_every_interface(loop, host):
    async with open_server(loop, Echo, host, family=socket.AF_INET) as server:
        assert server.sockets[0].getsockname()[0] == "0.0.0.0"
        await echo_once(loop, host="127.0.0.1", port=port_of(server))


@support.needs_ipv6
async def test_an_ipv6_server_leaves_ipv4_alone(loop):
    async with contextlib.AsyncExitStack() as servers:
        # A port that is free for IPv6 may be in use for IPv4: then another one is requested.
        for attempts_left in reversed(range(10)):
            six = await servers.enter_async_context(open_server(loop, Echo, "::"))
            port = port_of(six)
            assert six.sockets[0].getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            try:
                await servers.enter_async_context(open_server(loop, Echo, "0.0.0.0", port))
                break
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE or not attempts_left:
                    raise
        await echo_once(loop, host="127.0.0.1", port=port)
        await echo_once(loop, host="::1", port=port)


async def test_serve_on_a_given_socket(loop):
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = await loop.create_server(Echo, sock=sock)
    await echo_once(loop, host="127.0.0.1", port=sock.getsockname()[1])
    await support.close(server)
    assert sock.fileno() == -1


async def test_reuse_port(loop):
    async with open_server(loop, Echo, reuse_port=True) as first:
        port = port_of(first)
        async with open_server(loop, Echo, port=port, reuse_port=True) as second:
            assert port_of(second) == port
            assert second.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
            for _ in range(10):
                await echo_once(loop, host="127.0.0.1", port=port)
        with pytest.raises(OSError, match="address already in use"):
            await loop.create_server(Echo, "127.0.0.1", port)


@pytest.mark.parametrize("reuse_address", [None, True, False])
async def test_reuse_address(loop, reuse_address):
    async with open_server(loop, Echo, reuse_address=reuse_address) as server:
        option = server.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert bool(option) == (reuse_address is not False)


@needs_keep_alive
@pytest.mark.parametrize("keep_alive", [None, True, False])
async def test_keep_alive(loop, keep_alive, protocol):
    async with open_server(loop, lambda: protocol, keep_alive=keep_alive) as server:
        client, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port_of(server))
        await protocol.made
        accepted = protocol.transport.get_extra_info("socket")
        for sock in (server.sockets[0], accepted):
            option = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert bool(option) == bool(keep_alive)
        client.close()
        await protocol.lost


async def test_an_address_in_use(loop):
    before = support.open_fds()
    with support.listening_socket() as sock:
        port = sock.getsockname()[1]
        with pytest.raises(OSError, match="error while attempting to bind on address") as info:
            await loop.create_server(Echo, "127.0.0.1", port)
    assert info.value.errno == errno.EADDRINUSE
    assert not support.fds_opened_since(before)


async def test_an_address_that_is_not_ours(loop):
    with pytest.raises(OSError, match="bind on a"):
        await loop.create_server(Echo, "192.0.2.1", 0)


@pytest.mark.parametrize(
    ("kwargs", "exception", "message"),
    [
        ({}, ValueError, "Neither host/port nor sock were specified"),
        ({"host": "127.0.0.1", "ssl": True}, TypeError, "ssl argument must be an SSLContext"),
        ({"host": "127.0.0.1", "ssl": False}, TypeError, "ssl argument must be an SSLContext"),
        ({"port": 0, "ssl_handshake_timeout": 1}, ValueError, "only meaningful with ssl"),
        ({"port": 0, "ssl_shutdown_timeout": 1}, ValueError, "only meaningful with ssl"),
    ],
)
async def test_create_server_refuses_combinations(loop, kwargs, exception, message):
    with pytest.raises(exception, match=message):
        await loop.create_server(asyncio.Protocol, **kwargs)


async def test_create_server_refuses_sockets(loop):
    with support.listening_socket() as sock:
        with pytest.raises(ValueError, match="can not be specified at the same time"):
            await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, sock=sock)
    with socket.socket(type=socket.SOCK_DGRAM) as datagram:
        with pytest.raises(ValueError, match="A Stream Socket was expected"):
            await loop.create_server(asyncio.Protocol, sock=datagram)
    with wrapped_socket() as wrapped, pytest.raises(TypeError, match="SSLSocket"):
        await loop.create_server(asyncio.Protocol, sock=wrapped)


# --- connect_accepted_socket ---------------------------------------------------------------------


async def test_connect_accepted_socket(loop):
    with support.listening_socket() as listener, socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        accepted, address = await loop.sock_accept(listener)
        transport, protocol = await loop.connect_accepted_socket(Echo, accepted)
        assert isinstance(protocol, Echo)
        assert protocol.transport is transport
        assert transport.get_extra_info("peername") == address
        await loop.sock_sendall(client, b"hello")
        assert await loop.sock_recv(client, 100) == b"hello"
        transport.close()
        assert await loop.sock_recv(client, 100) == b""


async def test_connect_accepted_socket_refuses(loop, ours):
    for kwargs in ({"ssl_handshake_timeout": 1}, {"ssl_shutdown_timeout": 1}):
        with pytest.raises(ValueError, match="only meaningful with ssl"):
            await loop.connect_accepted_socket(Echo, ours, **kwargs)
    with socket.socket(type=socket.SOCK_DGRAM) as datagram:
        with pytest.raises(ValueError, match="A Stream Socket was expected"):
            await loop.connect_accepted_socket(Echo, datagram)
    with wrapped_socket() as wrapped, pytest.raises(TypeError, match="SSLSocket"):
        await loop.connect_accepted_socket(Echo, wrapped)


# --- what a transport says about itself ----------------------------------------------------------


async def test_extra_info(loop, client, server):
    async with connected_pair(loop, client, server) as (ours, theirs):
        for transport in (ours, theirs):
            sock = transport.get_extra_info("socket")
            assert isinstance(sock, asyncio.trsock.TransportSocket)
            assert (sock.family, sock.type) == (socket.AF_INET, socket.SOCK_STREAM)
            assert sock.proto == socket.IPPROTO_TCP
            assert transport.get_extra_info("sockname") == sock.getsockname()
            assert transport.get_extra_info("peername") == sock.getpeername()
            assert sock.fileno() >= 0
            assert sock.gettimeout() == 0
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not hasattr(sock, "recv")
            assert transport.get_extra_info("no such thing") is None
            assert transport.get_extra_info("no such thing", 5) == 5
            assert transport.get_extra_info("sslcontext", "none") == "none"
        assert ours.get_extra_info("sockname") == theirs.get_extra_info("peername")
        assert ours.get_extra_info("peername") == theirs.get_extra_info("sockname")


async def test_extra_info_outlives_the_connection(loop, client, server):
    async with connected_pair(loop, client, server) as (ours, _):
        sockname = ours.get_extra_info("socket").getsockname()
        ours.close()
        await client.lost
        await support.turns(2)
        assert ours.get_extra_info("sockname") == sockname
        assert ours.get_extra_info("peername")[0] == "127.0.0.1"
        assert ours.get_extra_info("socket").fileno() == -1


async def test_a_peer_that_has_gone_before_the_transport_exists(loop, ours, peer, protocol):
    """getpeername() fails on such a socket, but the transport is made and closed normally."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
    assert transport.get_extra_info("peername") is None
    assert isinstance(await protocol.lost, ConnectionResetError)


async def test_a_transport_is_an_asyncio_transport(loop, client, server):
    async with connected_pair(loop, client, server) as (ours, theirs):
        for transport in (ours, theirs):
            for base in ("Transport", "ReadTransport", "WriteTransport", "BaseTransport"):
                assert isinstance(transport, getattr(asyncio, base)), base
            assert not isinstance(transport, asyncio.DatagramTransport)
        assert ours.get_protocol() is client
        assert str(ours.get_extra_info("socket").fileno()) in repr(ours)


async def test_connections_of_a_server_run_in_the_context_it_was_made_in(loop):
    variable = contextvars.ContextVar("variable", default="unset")
    seen = set()

    class Witness(Recorder):
        def __init__(self, loop):
            seen.add(("factory", variable.get()))
            super().__init__(loop)

        def connection_made(self, transport):
            seen.add(("made", variable.get()))
            super().connection_made(transport)

        def data_received(self, data):
            seen.add(("data", variable.get()))
            super().data_received(data)

        def connection_lost(self, exc):
            seen.add(("lost", variable.get()))
            super().connection_lost(exc)

    protocols = []

    def factory():
        protocols.append(Witness(loop))
        return protocols[-1]

    variable.set("server")
    async with open_server(loop, factory) as server:
        variable.set("client")
        client, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port_of(server))
        client.write(b"x")
        await support.wait_until(lambda: protocols)
        await protocols[0].got(1)
        client.close()
        await protocols[0].lost
    assert seen == {(event, "server") for event in ("factory", "made", "data", "lost")}


async def test_many_connections_at_once(loop):
    async with open_server(loop, Echo, backlog=200) as server:
        port = port_of(server)
        await asyncio.gather(*(echo_once(loop, host="127.0.0.1", port=port) for _ in range(200)))


async def test_a_descriptor_reused_at_once_belongs_to_the_new_connection(loop):
    """The kernel assigns the lowest free number: a closed connection's number is reused first."""
    async with open_server(loop, Echo) as server:
        numbers = set()
        for number in range(300):
            message = b"%06d" % number
            client = Recorder(loop)
            transport, _ = await loop.create_connection(
                lambda client=client: client, "127.0.0.1", port_of(server)
            )
            numbers.add(transport.get_extra_info("socket").fileno())
            transport.write(message)
            if number % 3 == 0:
                transport.abort()
            else:
                assert await client.got(6) == message
                transport.close()
            await client.lost
        assert len(numbers) < 100
