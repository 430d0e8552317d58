# SPDX-License-Identifier: GPL-2.0-only
"""Datagram endpoints: UDP and UNIX, connected and not.

A datagram arrives completely or not at all, an empty one is data, and an error is passed to
error_received() and does not close the endpoint.
"""

import asyncio
import contextlib
import contextvars
import errno
import inspect
import os
import socket
import threading
import time

import pytest
import support
from peers import assert_idle

try:
    import _testcapi
except ImportError:
    _testcapi = None


class Datagrams(asyncio.DatagramProtocol):
    """Records its calls, and checks their order."""

    def __init__(self, loop):
        self.transport = None
        self.events = []
        self.received = []
        self.errors = []
        self.paused = False
        self.lost = loop.create_future()
        self._news = asyncio.Event()

    def connection_made(self, transport):
        assert self.transport is None
        self.transport = transport
        self.events.append("made")

    def datagram_received(self, data, addr):
        assert self.events[-1] != "lost"
        assert type(data) is bytes
        self.received.append((data, addr))
        self._news.set()

    def error_received(self, exc):
        assert self.events[-1] != "lost"
        self.errors.append(exc)
        self._news.set()

    def pause_writing(self):
        assert not self.paused
        self.paused = True
        self.events.append("pause")

    def resume_writing(self):
        assert self.paused
        self.paused = False
        self.events.append("resume")

    def connection_lost(self, exc):
        self.events.append("lost")
        self.lost.set_result(exc)

    async def got(self, count):
        """Wait for `count` datagrams in total; return the latest as (data, address)."""
        await self.until(lambda: len(self.received) >= count)
        return self.received[count - 1]

    async def until(self, condition):
        while not condition():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), support.PATIENCE)


class Endpoint:
    """A context manager with a datagram endpoint: (transport, protocol)."""

    def __init__(self, loop, protocol=None, **kwargs):
        self.loop = loop
        self.protocol = protocol or Datagrams(loop)
        self.kwargs = kwargs

    async def __aenter__(self):
        self.transport, protocol = await self.loop.create_datagram_endpoint(
            lambda: self.protocol, **self.kwargs
        )
        assert protocol is self.protocol
        return self.transport, protocol

    async def __aexit__(self, *exc_info):
        if not self.protocol.lost.done():
            self.transport.abort()
        await asyncio.wait_for(asyncio.shield(self.protocol.lost), support.PATIENCE)


LOCAL = ("127.0.0.1", 0)


def address_of(transport):
    return transport.get_extra_info("sockname")


# --- sending and receiving -----------------------------------------------------------------------


async def test_unconnected(loop):
    async with (
        Endpoint(loop, local_addr=LOCAL) as (server, server_protocol),
        Endpoint(loop, local_addr=LOCAL) as (client, client_protocol),
    ):
        client.sendto(b"question", address_of(server))
        assert await server_protocol.got(1) == (b"question", address_of(client))
        server.sendto(b"answer", address_of(client))
        assert await client_protocol.got(1) == (b"answer", address_of(server))


async def test_connected(loop):
    async with Endpoint(loop, local_addr=LOCAL) as (server, server_protocol):
        address = address_of(server)
        async with Endpoint(loop, remote_addr=address) as (client, client_protocol):
            assert client.get_extra_info("peername") == address
            client.sendto(b"one")
            client.sendto(b"two", address)
            client.sendto(b"three", None)
            await server_protocol.got(3)
            assert [data for data, _ in server_protocol.received] == [b"one", b"two", b"three"]
            with pytest.raises(ValueError, match="Invalid address"):
                client.sendto(b"elsewhere", ("127.0.0.1", 1))
            server.sendto(b"answer", address_of(client))
            assert await client_protocol.got(1) == (b"answer", address)


async def test_connected_hears_only_its_peer(loop):
    async with (
        Endpoint(loop, local_addr=LOCAL) as (server, _),
        Endpoint(loop, local_addr=LOCAL) as (stranger, _),
        Endpoint(loop, remote_addr=address_of(server)) as (client, protocol),
    ):
        stranger.sendto(b"spam", address_of(client))
        server.sendto(b"news", address_of(client))
        assert await protocol.got(1) == (b"news", address_of(server))
        assert len(protocol.received) == 1


@support.needs_ipv6
async def test_ipv6(loop):
    async with (
        Endpoint(loop, local_addr=("::1", 0)) as (server, protocol),
        Endpoint(loop, remote_addr=address_of(server)[:2]) as (client, _),
    ):
        assert len(address_of(client)) == 4
        client.sendto(b"six")
        assert await protocol.got(1) == (b"six", address_of(client))


@support.needs_ipv6
async def test_a_senders_address_is_no_address_for_another_family(loop, reported):
    async with (
        Endpoint(loop, local_addr=LOCAL) as (four, protocol_four),
        Endpoint(loop, local_addr=("::1", 0)) as (six, protocol_six),
    ):
        four.sendto(b"to itself", address_of(four))
        _, of_four = await protocol_four.got(1)
        six.sendto(b"to itself", address_of(six))
        _, of_six = await protocol_six.got(1)
        six.sendto(b"from six to four", of_four)
        assert [type(exc) for exc in protocol_six.errors] == [socket.gaierror]
        four.sendto(b"from four to six", of_six)
        assert isinstance(await protocol_four.lost, TypeError)
        assert isinstance(reported.pop()["exception"], TypeError)


@pytest.mark.parametrize("data", [b"x", bytearray(b"y"), memoryview(b"xyz")[1:]])
async def test_sendto_takes_bytes_like_objects(loop, data):
    async with Endpoint(loop, local_addr=LOCAL) as (transport, protocol):
        transport.sendto(data, address_of(transport))
        assert (await protocol.got(1))[0] == bytes(data)


@pytest.mark.parametrize("data", ["text", None, 1, [b"x"]])
async def test_sendto_refuses_the_rest(loop, data):
    async with Endpoint(loop, local_addr=LOCAL) as (transport, protocol):
        with pytest.raises(TypeError, match="data argument must be a bytes-like object"):
            transport.sendto(data, address_of(transport))
        assert protocol.errors == []


async def test_an_empty_datagram_is_data(loop, loop_kind):
    if loop_kind == "asyncio" and not sends_empty_datagrams():
        pytest.skip("the standard library sends empty datagrams since CPython 3.13")
    async with (
        Endpoint(loop, local_addr=LOCAL) as (server, protocol),
        Endpoint(loop, remote_addr=address_of(server)) as (client, _),
    ):
        client.sendto(b"")
        client.sendto(b"after")
        assert await protocol.got(1) == (b"", address_of(client))
        assert await protocol.got(2) == (b"after", address_of(client))


def sends_empty_datagrams():

    source = inspect.getsource(asyncio.selector_events._SelectorDatagramTransport.sendto)
    return "if not data:" not in source


async def test_an_empty_datagram_from_outside_is_data(loop):
    async with Endpoint(loop, local_addr=LOCAL) as (transport, protocol):
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", address_of(transport))
            sock.sendto(b"after", address_of(transport))
            assert (await protocol.got(1))[0] == b""
            assert (await protocol.got(2))[0] == b"after"


async def test_the_largest_datagram(loop):
    message = support.pattern(65_507)
    async with Endpoint(loop, local_addr=LOCAL) as (transport, protocol):
        transport.sendto(message, address_of(transport))
        assert (await protocol.got(1))[0] == message


async def test_a_datagram_too_large_is_an_error_and_not_the_end(loop):
    async with Endpoint(loop, local_addr=LOCAL) as (transport, protocol):
        transport.sendto(bytes(65_508), address_of(transport))
        await protocol.until(lambda: protocol.errors)
        assert protocol.errors[0].errno == errno.EMSGSIZE
        transport.sendto(b"fits", address_of(transport))
        assert (await protocol.got(1))[0] == b"fits"


async def test_a_burst(loop):
    """As many datagrams as the socket's buffer holds arrive, whatever the number of iterations."""
    count = 100
    async with (
        Endpoint(loop, local_addr=LOCAL) as (server, protocol),
        Endpoint(loop, remote_addr=address_of(server)) as (client, _),
    ):
        for number in range(count):
            client.sendto(b"%d" % number)
        await protocol.got(count)
        assert [data for data, _ in protocol.received] == [b"%d" % n for n in range(count)]


async def test_received_datagrams_are_never_overwritten(loop):
    async with Endpoint(loop, local_addr=LOCAL) as (transport, protocol):
        messages = [bytes([number]) * (number * 20 + 1) for number in range(200)]
        for number, message in enumerate(messages):
            transport.sendto(message, address_of(transport))
            await protocol.got(number + 1)
        assert [data for data, _ in protocol.received] == messages


async def test_ping_pong(loop):
    class Echo(Datagrams):
        def datagram_received(self, data, addr):
            self.transport.sendto(data, addr)

    async with (
        Endpoint(loop, Echo(loop), local_addr=LOCAL) as (server, _),
        Endpoint(loop, remote_addr=address_of(server)) as (client, protocol),
    ):
        for number in range(300):
            client.sendto(b"%d" % number)
            assert (await protocol.got(number + 1))[0] == b"%d" % number


# --- errors --------------------------------------------------------------------------------------


async def test_a_refused_datagram_is_reported_and_is_not_the_end(loop):
    """Linux reports to a connected UDP socket, at its next call, that the peer's port is closed."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(LOCAL)
        address = sock.getsockname()
    async with Endpoint(loop, remote_addr=address) as (client, protocol):
        client.sendto(b"anybody?")
        await protocol.until(lambda: protocol.errors)
        assert isinstance(protocol.errors[0], ConnectionRefusedError)
        assert not client.is_closing()
        async with Endpoint(loop, local_addr=address) as (_, server_protocol):
            await asyncio.sleep(0.01)
            client.sendto(b"now?")
            client.sendto(b"now?")
            assert (await server_protocol.got(1))[0] == b"now?"


@pytest.mark.parametrize("address", [None, "nonsense", ("127.0.0.1",), ("127.0.0.1", "port"), 5])
async def test_no_address_and_a_nonsensical_one_end_the_endpoint(loop, reported, address):
    """As in asyncio, an exception other than OSError is fatal."""
    async with Endpoint(loop, local_addr=LOCAL) as (transport, protocol):
        transport.sendto(b"x", address)
        exc = await protocol.lost
        assert isinstance(exc, TypeError)
        assert reported.pop(TypeError)["message"] == "Fatal write error on datagram transport"


@pytest.mark.parametrize("method", ["datagram_received", "error_received"])
async def test_a_callback_that_raises_is_reported(loop, reported, method):
    class OopsError(Exception):
        pass

    class Failing(Datagrams):
        pass

    def fail(*args):
        raise OopsError

    protocol = Failing(loop)
    setattr(protocol, method, fail)
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(LOCAL)
        address = sock.getsockname()
        if method == "error_received":
            sock.close()
        async with Endpoint(loop, protocol, remote_addr=address) as (transport, _):
            transport.sendto(b"x")
            if method == "datagram_received":
                sock.sendto(b"y", address_of(transport))
            await support.wait_until(lambda: reported.contexts)
            reported.pop(OopsError)
            assert not transport.is_closing()


# --- flow control and the end --------------------------------------------------------------------


@contextlib.asynccontextmanager
async def full_unix_pair(loop, protocol):
    """Yield an endpoint, and a plain socket, its peer, that reads only when the test does."""
    # Bind to a name that the kernel chooses: asyncio treats an unnamed peer as no peer.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind("")
        peer.setblocking(False)
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.connect(peer.getsockname())
        async with Endpoint(loop, protocol, sock=ours) as (transport, _):
            yield transport, peer


def queue(transport, message):
    """Send ``message(number)`` until some are queued; return how many were sent."""
    sent = 0
    while transport.get_write_buffer_size() < 20_000:
        transport.sendto(message(sent))
        sent += 1
    return sent


async def test_pause_and_resume_writing(loop):
    protocol = Datagrams(loop)
    async with full_unix_pair(loop, protocol) as (transport, peer):
        sent = 0
        while not protocol.paused:
            transport.sendto(b"%04d" % sent + bytes(1000))
            sent += 1
            assert sent < 10_000
        size = transport.get_write_buffer_size()
        assert size > transport.get_write_buffer_limits()[1]
        received = []
        while len(received) < sent:
            received.append(await loop.sock_recv(peer, 2000))
        assert received == [b"%04d" % number + bytes(1000) for number in range(sent)]
        await support.wait_until(lambda: not protocol.paused)
        assert transport.get_write_buffer_size() < size
    assert protocol.events == ["made", "pause", "resume", "lost"]


async def test_queued_data_is_a_copy(loop):
    async with full_unix_pair(loop, Datagrams(loop)) as (transport, peer):
        buffer = bytearray(1000)

        def message(number):
            buffer[:] = bytes([number % 256]) * 1000
            return buffer

        sent = queue(transport, message)
        buffer[:] = b"#" * 1000
        buffer.clear()
        for number in range(sent):
            assert await loop.sock_recv(peer, 2000) == bytes([number % 256]) * 1000


@pytest.mark.parametrize("method", ["close", "abort"])
async def test_close_sends_what_is_queued_and_abort_drops_it(loop, method):
    protocol = Datagrams(loop)
    async with full_unix_pair(loop, protocol) as (transport, peer):
        sent = queue(transport, lambda number: b"%d" % number)
        getattr(transport, method)()
        assert transport.is_closing()
        assert not protocol.lost.done()
        if method == "close":
            await support.turns(3)
            assert not protocol.lost.done()
            for number in range(sent):
                assert await loop.sock_recv(peer, 2000) == b"%d" % number
        assert await protocol.lost is None
        if method == "abort":
            everything = b"".join(b"%d" % number for number in range(sent))
            assert len(support.drain(peer)) < len(everything)


async def test_connection_lost_is_called_later_and_once(loop):
    async with (
        Endpoint(loop, local_addr=LOCAL) as (server, _),
        Endpoint(loop, remote_addr=address_of(server)) as (transport, protocol),
    ):
        address = address_of(transport)
        transport.close()
        transport.close()
        assert protocol.events == ["made"]
        assert await protocol.lost is None
        transport.close()
        transport.abort()
        transport.sendto(b"late")
        await support.turns(5)
        assert address_of(transport) == address
    assert protocol.events == ["made", "lost"]


async def test_closing_in_datagram_received_ends_delivery(loop):
    class Leaving(Datagrams):
        def datagram_received(self, data, addr):
            super().datagram_received(data, addr)
            self.transport.close()

    async with Endpoint(loop, Leaving(loop), local_addr=LOCAL) as (transport, protocol):
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            for _ in range(10):
                sock.sendto(b"x", address_of(transport))
            assert await protocol.lost is None
    assert len(protocol.received) == 1


async def test_an_idle_endpoint_costs_nothing(loop):
    async with Endpoint(loop, local_addr=LOCAL):
        await assert_idle()


async def test_a_flood_starves_nobody(loop):
    """Each received datagram sends another one: the loop must still serve other callbacks."""
    turns = 0

    class Pingpong(Datagrams):
        def datagram_received(self, data, addr):
            if turns < 50:
                self.transport.sendto(data, addr)

    async with Endpoint(loop, Pingpong(loop), local_addr=LOCAL) as (transport, _):
        for _ in range(20):
            transport.sendto(b"ball", address_of(transport))
        while turns < 50:
            await asyncio.sleep(0)
            turns += 1


# --- the buffers that all endpoints of a loop share -----------------------------------------------


class Numbered(asyncio.DatagramProtocol):
    """Checks that each datagram is complete and belongs to this endpoint."""

    def __init__(self, name):
        self.name = name
        self.wrong = []
        self.count = 0

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.count += 1
        if data != self.name * len(data) or addr != self.peer:
            self.wrong.append((data[:20], addr))


def flood(sock, address, name, stop):
    """Send datagrams of all lengths until `stop` is set."""
    size = 0
    while not stop.is_set():
        for _ in range(20):
            size = size % 900 + 1
            with contextlib.suppress(BlockingIOError):
                sock.sendto(name * size, address)
        time.sleep(0.0005)


def test_datagrams_while_the_collector_runs_python(loop, loop_factory):
    """Before 3.12 any new object may start the collector, in the middle of a batch, and a finalizer
    may then let another loop's thread receive."""
    stop = threading.Event()
    protocols = {}

    async def receive(name):
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_datagram_endpoint(
            lambda: Numbered(name), ("127.0.0.1", 0)
        )
        protocols[name] = protocol
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind(("127.0.0.1", 0))
            sender.setblocking(False)
            protocol.peer = sender.getsockname()
            address = transport.get_extra_info("sockname")
            with support.in_thread(flood, sender, address, name, stop):
                while not stop.is_set():
                    await asyncio.sleep(0.001)
        transport.close()
        await asyncio.sleep(0)

    with (
        contextlib.closing(loop_factory()) as other,
        support.frequent_collections(),
        support.in_thread(other.run_until_complete, receive(b"B")),
    ):
        loop.call_later(1.5, stop.set)
        loop.run_until_complete(receive(b"A"))
    for protocol in protocols.values():
        assert protocol.wrong == []
        assert protocol.count > 100


# --- making endpoints ----------------------------------------------------------------------------


async def test_extra_info(loop, loop_kind):
    async with Endpoint(loop, local_addr=LOCAL) as (transport, _):
        # asyncio's own transport is one since CPython 3.12.
        stdlib = asyncio.selector_events._SelectorDatagramTransport
        if loop_kind == "mgloop" or issubclass(stdlib, asyncio.DatagramTransport):
            assert isinstance(transport, asyncio.DatagramTransport)
        assert isinstance(transport, asyncio.BaseTransport)
        sock = transport.get_extra_info("socket")
        assert isinstance(sock, asyncio.trsock.TransportSocket)
        assert (sock.family, sock.type) == (socket.AF_INET, socket.SOCK_DGRAM)
        assert transport.get_extra_info("sockname") == sock.getsockname()
        assert transport.get_extra_info("peername") is None
        assert transport.get_extra_info("nothing", 5) == 5


async def test_a_given_socket(loop):
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind(LOCAL)
    async with Endpoint(loop, sock=sock) as (transport, protocol):
        assert not sock.getblocking()
        transport.sendto(b"x", sock.getsockname())
        assert (await protocol.got(1))[0] == b"x"
    await support.turns(2)
    assert sock.fileno() == -1


async def test_reuse_port(loop):
    async with Endpoint(loop, local_addr=LOCAL, reuse_port=True) as (first, _):
        async with Endpoint(loop, local_addr=address_of(first), reuse_port=True) as (second, _):
            assert address_of(first) == address_of(second)
        with pytest.raises(OSError, match=r"\[Errno 98\]"):
            await loop.create_datagram_endpoint(
                lambda: Datagrams(loop), local_addr=address_of(first)
            )


async def test_allow_broadcast(loop):
    async with Endpoint(loop, local_addr=LOCAL, allow_broadcast=True) as (transport, protocol):
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST)
        # Sending to the loopback network's broadcast address is now allowed, even if it is lost.
        transport.sendto(b"x", ("127.255.255.255", address_of(transport)[1]))
        await support.turns(3)
        assert [exc.errno for exc in protocol.errors if exc.errno == errno.EACCES] == []
    async with Endpoint(loop, local_addr=LOCAL) as (transport, protocol):
        transport.sendto(b"x", ("255.255.255.255", 9))
        await protocol.until(lambda: protocol.errors)
        assert protocol.errors[0].errno in (errno.EACCES, errno.ENETUNREACH)


async def test_it_is_no_stream(loop):
    async with Endpoint(loop, local_addr=LOCAL) as (transport, _):
        for call in (
            lambda: transport.write(b"x"),
            lambda: transport.writelines([b"x"]),
            transport.write_eof,
            transport.can_write_eof,
        ):
            with pytest.raises(NotImplementedError):
                call()


async def test_an_endpoint_by_family_alone(loop):
    async with Endpoint(loop, family=socket.AF_INET) as (transport, _):
        assert transport.get_extra_info("socket").family == socket.AF_INET


async def test_local_and_remote(loop):
    async with Endpoint(loop, local_addr=LOCAL) as (server, protocol):
        async with Endpoint(loop, local_addr=("127.0.0.2", 0), remote_addr=address_of(server)) as (
            client,
            _,
        ):
            client.sendto(b"x")
            assert (await protocol.got(1))[1] == address_of(client)
            assert address_of(client)[0] == "127.0.0.2"


async def test_context(loop):
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    class Witness(Datagrams):
        def connection_made(self, transport):
            seen.append(variable.get())
            super().connection_made(transport)

        def datagram_received(self, data, addr):
            seen.append(variable.get())
            super().datagram_received(data, addr)

    variable.set("endpoint")
    async with Endpoint(loop, Witness(loop), local_addr=LOCAL) as (transport, protocol):
        variable.set("later")
        transport.sendto(b"x", address_of(transport))
        await protocol.got(1)
    assert seen == ["endpoint", "endpoint"]


@pytest.mark.parametrize(
    ("kwargs", "exception", "message"),
    [
        ({}, ValueError, "unexpected address family"),
        ({"local_addr": "127.0.0.1"}, TypeError, "2-tuple is expected"),
        ({"local_addr": ("127.0.0.1",)}, TypeError, "2-tuple is expected"),
        ({"remote_addr": ("127.0.0.1", 1, 2)}, TypeError, "2-tuple is expected"),
        ({"local_addr": 5, "family": socket.AF_UNIX}, TypeError, "string is expected"),
        ({"local_addr": ("192.0.2.1", 0)}, OSError, r"\[Errno 99\]"),
        ({"local_addr": "x" * 200, "family": socket.AF_UNIX}, OSError, "path too long"),
    ],
)
async def test_arguments_that_make_no_endpoint(loop, kwargs, exception, message):
    before = support.open_fds()
    with pytest.raises(exception, match=message):
        await loop.create_datagram_endpoint(asyncio.DatagramProtocol, **kwargs)
    assert not support.fds_opened_since(before)


async def test_a_given_socket_and_anything_else(loop):
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        for kwargs in (
            {"local_addr": LOCAL},
            {"remote_addr": ("127.0.0.1", 1)},
            {"family": 1},
            {"proto": 1},
            {"flags": 1},
            {"reuse_port": True},
            {"allow_broadcast": True},
        ):
            with pytest.raises(ValueError, match="can not be used when sock is specified"):
                await loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=sock, **kwargs)
    with socket.socket() as stream:
        with pytest.raises(ValueError, match=r"(datagram|UDP) [Ss]ocket was expected"):
            await loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=stream)


# --- UNIX ----------------------------------------------------------------------------------------


async def test_unix_paths(loop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kwargs = {"family": socket.AF_UNIX}
    async with Endpoint(loop, local_addr="server", **kwargs) as (server, server_protocol):
        assert address_of(server) == "server"
        async with Endpoint(loop, local_addr="client", **kwargs) as (client, client_protocol):
            client.sendto(b"question", "server")
            assert await server_protocol.got(1) == (b"question", "client")
            server.sendto(b"answer", "client")
            assert await client_protocol.got(1) == (b"answer", "server")
        async with Endpoint(loop, remote_addr="server", **kwargs) as (client, _):
            assert client.get_extra_info("peername") == "server"
            client.sendto(b"connected")
            data, address = await server_protocol.got(2)
            assert data == b"connected"
            assert not address
        server.sendto(b"nobody", "client-that-never-was")
        await server_protocol.until(lambda: server_protocol.errors)
        assert isinstance(server_protocol.errors[0], FileNotFoundError)


async def test_unix_abstract_names(loop):
    names = [f"\0mgloop-test-{os.getpid()}-{number}" for number in range(2)]
    async with (
        Endpoint(loop, local_addr=names[0], family=socket.AF_UNIX) as (first, first_protocol),
        Endpoint(loop, local_addr=names[1], family=socket.AF_UNIX) as (second, protocol),
    ):
        second.sendto(b"question", names[0])
        data, address = await first_protocol.got(1)
        assert (data, address) == (b"question", names[1].encode())
        first.sendto(b"answer", address)
        assert await protocol.got(1) == (b"answer", names[0].encode())


async def test_unix_stale_file(loop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        async with Endpoint(loop, local_addr="socket", family=socket.AF_UNIX):
            pass
        assert os.path.exists("socket")


# --- without memory -------------------------------------------------------------------------------


class Keeps(asyncio.DatagramProtocol):
    """Keep the datagrams in a set, which has room for some without an allocation."""

    def __init__(self, loop):
        self.received = set()
        self.datagram_received = lambda data, addr: self.received.add(data)
        self.lost = loop.create_future()

    def connection_lost(self, exc):
        self.lost.set_result(exc)

    def settled(self):
        return self.received or self.lost.done()


@pytest.mark.skipif(_testcapi is None, reason="this interpreter cannot let allocations fail")
def test_a_failed_allocation_ends_the_endpoint_or_has_no_effect(loop, reported):
    """Whichever allocation fails, the datagram arrives, or connection_lost() gets the error."""
    outcomes = set()
    for number in range(25):
        transport, protocol = loop.run_until_complete(
            loop.create_datagram_endpoint(lambda: Keeps(loop), local_addr=LOCAL)
        )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"all", address_of(transport))
        loop.call_soon(_testcapi.set_nomemory, number, number + 1)
        loop.call_later(0.01, _testcapi.remove_mem_hooks)
        stop = loop.call_later(0.02, loop.stop)
        with contextlib.suppress(MemoryError):
            loop.run_forever()
        _testcapi.remove_mem_hooks()
        stop.cancel()
        loop.run_until_complete(support.wait_until(protocol.settled))
        arrived = bool(protocol.received)
        transport.close()
        lost = loop.run_until_complete(asyncio.wait_for(protocol.lost, support.PATIENCE))
        assert protocol.received == {b"all"} or isinstance(lost, MemoryError), number
        outcomes.add(arrived)
        reported.pop_all()
    assert True in outcomes
