# SPDX-License-Identifier: GPL-2.0-only
"""The loop survives every failure in a transport, a listener or a waiting call that it calls.

With asyncio all of these run in handles, whose exceptions are reported to the exception handler and
do not end the loop. A loop that calls its transports directly must be as robust: against a peer
that resets the connection at the wrong moment, a factory that makes no protocol, a reader that
closes its socket. Each test provokes one failure and then lets the loop serve another client.
"""

import asyncio
import contextlib
import errno
import functools
import gc
import socket
import sys

import pytest
import support
from peers import (
    Echo,
    Recorder,
    open_server,
    port_of,
    raw_connection,
    reset,
    skip_where_asyncio_forgets_a_transport,
)
from support import Calls, turns

# asyncio leaves connections whose accepting failed to the garbage collector, which warns.
left_to_the_collector = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

NOT_ACCEPTED = "Error on transport creation for incoming connection"


class OopsError(Exception):
    pass


async def assert_serving(loop, server=None):
    """Check that the loop still runs callbacks and timers, and that `server`, if given, serves."""
    await asyncio.sleep(0.001)
    if server is None:
        async with open_server(loop, Echo) as server:
            return await assert_serving(loop, server)
    client = Recorder(loop)
    sock = server.sockets[0]
    if sock.family == socket.AF_UNIX:
        transport, _ = await loop.create_unix_connection(lambda: client, sock.getsockname())
    else:
        transport, _ = await loop.create_connection(lambda: client, *sock.getsockname()[:2])
    transport.write(b"served")
    assert await asyncio.wait_for(client.got(6), support.PATIENCE) == b"served"
    transport.close()
    await client.lost
    await turns(3)
    return None


async def ends(sock, reported):
    """Wait until the other end of `sock` is closed, possibly by the garbage collector.

    Return the reports until then, as (class, message). With asyncio the exception's traceback keeps
    the accepted socket open.
    """
    reports = []

    def ended():
        for context in reported.pop_all():
            reports.append((type(context["exception"]), context["message"]))
        context = None
        gc.collect()
        try:
            return sock.recv(100) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    sock.setblocking(False)
    await support.wait_until(ended)
    return reports


def connect_to(server):
    """Return a plain socket that is connected to `server`, and is in its queue of connections."""
    listening = server.sockets[0]
    sock = socket.socket(listening.family)
    sock.connect(listening.getsockname())
    return sock


@pytest.fixture(params=["TCP", "UNIX"])
def serve(request, loop, tmp_path):
    """Return ``serve(factory)``, a context manager with a server, over TCP or a UNIX socket.

    The tests count the accepted connections. The server therefore has an address of its own:
    clients of other programs that try to reach a closed server connect to 127.0.0.1, where the
    kernel may give the same port to this server.
    """
    if request.param == "TCP":
        return functools.partial(open_server, loop, host="127.83.86.1")
    return functools.partial(open_unix_server, loop, path=str(tmp_path / "socket"))


class open_unix_server:  # noqa: N801 -- used like peers.open_server
    def __init__(self, loop, factory, path, **kwargs):
        self.starting = loop.create_unix_server(factory, path, **kwargs)

    async def __aenter__(self):
        self.server = await self.starting
        return self.server

    async def __aexit__(self, *exc_info):
        self.server.close()
        await asyncio.wait_for(self.server.wait_closed(), support.PATIENCE)


# --- the end of a stream, sent to a closed peer --------------------------------------------------


def give_up(peer):
    """Read the available data, and reset the connection."""
    support.drain(peer)
    reset(peer)


async def test_the_shutdown_after_the_last_byte_fails(loop, reported, protocol):
    """The peer reads everything and resets after the last send() and before the shutdown()."""
    async with raw_connection(loop, protocol, small=True) as (transport, peer):

        def resume_writing():
            Recorder.resume_writing(protocol)
            give_up(peer)

        protocol.resume_writing = resume_writing
        transport.set_write_buffer_limits(0)
        while not protocol.paused:
            transport.write(bytes(10_000))
        transport.write_eof()
        support.drain(peer)
        assert isinstance(await asyncio.wait_for(protocol.lost, support.PATIENCE), OSError)
        context = reported.pop(OSError)
        assert context["exception"].errno == errno.ENOTCONN
        assert context["message"].startswith("Exception in callback ")
        await assert_serving(loop)


async def test_a_streams_server_whose_clients_read_everything_and_reset(loop, reported):
    """These clients used to kill a server after 20 to 50 connections."""
    size = 3_000_000
    connections = 60

    async def handle(reader, writer):
        try:
            writer.write(bytes(size))
            writer.write_eof()
            await writer.drain()
            await reader.read()
        except OSError as exc:
            exc.with_traceback(None)  # breaks the cycle of the writer and its exception
        finally:
            writer.close()

    def read_and_reset(port):
        for _ in range(connections):
            sock = socket.create_connection(("127.0.0.1", port))
            got = 0
            try:
                while got < size and (data := sock.recv(2**17)):
                    got += len(data)
            finally:
                reset(sock)
            assert got == size

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        await asyncio.wait_for(
            loop.run_in_executor(None, read_and_reset, port_of(server)), support.PATIENCE
        )
        await turns(5)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        assert len(await asyncio.wait_for(reader.read(), support.PATIENCE)) == size
        await support.close(writer)
    await support.wait_until(lambda: len(asyncio.all_tasks()) == 1)
    for context in reported.pop_all():
        assert context["exception"].errno == errno.ENOTCONN


async def in_a_busy_iteration(loop, action):
    """Run `action` among so many callbacks that small writes are deferred."""
    done = loop.create_future()

    def act():
        try:
            done.set_result(action())
        except BaseException as exc:
            done.set_exception(exc)

    for _ in range(8):
        loop.call_soon(Calls())
    loop.call_soon(act)
    for _ in range(8):
        loop.call_soon(Calls())
    return await done


@pytest.mark.parametrize("method", ["write", "writelines"])
async def test_write_eof_after_a_write_to_who_has_gone(loop, method, protocol):
    """A caller sees that write() has closed the transport, so write_eof() does nothing."""
    async with raw_connection(loop, protocol) as (transport, peer):

        def act():
            reset(peer)
            if method == "write":
                transport.write(b"too late")
            else:
                transport.writelines([b"too", b"late"])
            transport.write_eof()
            assert transport.is_closing()

        await in_a_busy_iteration(loop, act)
        assert isinstance(await asyncio.wait_for(protocol.lost, support.PATIENCE), OSError)
        await assert_serving(loop)


async def test_write_eof_to_who_has_gone(loop, protocol):
    """Nothing was written, so write_eof() itself gets the error, and raises it."""
    async with raw_connection(loop, protocol) as (transport, peer):
        reset(peer)
        with pytest.raises(OSError) as info:
            transport.write_eof()
        assert info.value.errno == errno.ENOTCONN
        assert isinstance(await asyncio.wait_for(protocol.lost, support.PATIENCE), OSError)
        await assert_serving(loop)


@pytest.mark.parametrize("method", ["write", "close", "write_eof", "abort"])
async def test_pause_writing_and_resume_writing_that_do_everything_but_wait(loop, method, protocol):
    """The methods are called in the middle of sending, also at the end of a busy iteration."""
    async with raw_connection(loop, protocol, small=True) as (transport, peer):
        acted = []

        def act(name):
            getattr(Recorder, name)(protocol)
            if len(acted) < 2:
                acted.append(name)
                getattr(transport, method)(*([b"more"] if method == "write" else []))

        protocol.pause_writing = functools.partial(act, "pause_writing")
        protocol.resume_writing = functools.partial(act, "resume_writing")

        def write():
            for _ in range(1000):
                if transport.is_closing() or acted:
                    break
                transport.write(bytes(4000))

        await in_a_busy_iteration(loop, write)
        if not acted:
            transport.write(bytes(support.BIG))
        assert acted[0] == "pause_writing"
        while not protocol.lost.done():
            try:
                if not await asyncio.wait_for(loop.sock_recv(peer, 2**18), 0.2):
                    break
            except (TimeoutError, OSError):
                break
        transport.close()
        peer.close()
        await asyncio.wait_for(protocol.lost, support.PATIENCE)
        await assert_serving(loop)


# --- factories -----------------------------------------------------------------------------------


class Nothing:
    pass


class Touchy:
    """An object whose attributes all raise."""

    def __getattr__(self, name):
        raise OopsError(name)


class TouchyOnce:
    """A protocol whose connection_made raises a different exception each time."""

    def __init__(self):
        self.errors = [AttributeError, OopsError, LookupError]

    def __getattr__(self, name):
        if name == "connection_made":
            raise self.errors.pop()
        raise AttributeError(name)


NO_PROTOCOLS = {
    "None": (lambda: None, AttributeError),
    "a number": (lambda: 5, AttributeError),
    "a class without connection_made": (Nothing, AttributeError),
    "one whose attributes raise": (Touchy, OopsError),
    "one whose attributes raise in turns": (TouchyOnce, LookupError),
}
no_protocol = pytest.mark.parametrize(("make", "error"), NO_PROTOCOLS.values(), ids=NO_PROTOCOLS)
either_mode = pytest.mark.parametrize("debug", [False, True], ids=["normal", "debug"])


@left_to_the_collector
@either_mode
@no_protocol
async def test_a_factory_that_makes_no_protocol(loop, reported, serve, make, error, debug):
    """For an accepted connection: reported in debug mode only, and the connection ends."""
    loop.set_debug(debug)
    made = []

    def factory():
        made.append(Echo if made[2:] else make)
        return made[-1]()

    async with serve(factory) as server:
        clients = [connect_to(server) for _ in range(3)]
        reports = []
        for sock in clients:
            with sock:
                reports += await ends(sock, reported)
        assert len(made) == 3
        assert reports == ([(error, NOT_ACCEPTED)] * 3 if debug else [])
        await assert_serving(loop, server)


@left_to_the_collector
@either_mode
@pytest.mark.parametrize("error", [OopsError, asyncio.CancelledError, GeneratorExit])
async def test_a_factory_that_raises(loop, reported, serve, error, debug):
    loop.set_debug(debug)
    made = []

    def factory():
        made.append(None)
        if len(made) <= 3:
            raise error
        return Echo()

    async with serve(factory) as server:
        for _ in range(3):
            with connect_to(server) as sock:
                reports = await ends(sock, reported)
                assert reports == ([(error, NOT_ACCEPTED)] if debug else [])
        await assert_serving(loop, server)


@left_to_the_collector
@no_protocol
async def test_no_protocol_for_a_connection(loop, loop_kind, run, reported, make, error, tmp_path):
    """The method that makes the connection raises the exception."""
    skip_where_asyncio_forgets_a_transport(loop_kind)
    path = str(tmp_path / "socket")
    async with open_server(loop, Echo) as server, open_unix_server(loop, Echo, path):
        with pytest.raises(error):
            await loop.create_connection(make, "127.0.0.1", port_of(server))
        with pytest.raises(error):
            await loop.create_unix_connection(make, path)
        left, right = socket.socketpair()
        with left, right:
            with pytest.raises(error):
                await loop.connect_accepted_socket(make, left)
        await turns(3)
        gc.collect()
        await assert_serving(loop, server)


@left_to_the_collector
@no_protocol
async def test_no_protocol_for_datagrams_and_pipes(loop, reported, make, error):
    with pytest.raises(error):
        await loop.create_datagram_endpoint(make, local_addr=("127.0.0.1", 0))
    left, right = socket.socketpair()
    with left, right:
        with pytest.raises(error):
            await loop.connect_read_pipe(make, left)
        with pytest.raises(error):
            await loop.connect_write_pipe(make, right)
    await turns(3)
    gc.collect()
    await assert_serving(loop)


@either_mode
async def test_connection_made_that_raises(loop, reported, serve, debug):
    """It is reported, and the connection continues, whether or not it was accepted."""
    loop.set_debug(debug)
    protocols = []

    class Failing(Recorder):
        def connection_made(self, transport):
            protocols.append(self)
            super().connection_made(transport)
            raise OopsError

    async with serve(lambda: Failing(loop) if not protocols else Echo()) as server:
        with connect_to(server) as sock:
            sock.sendall(b"still here")
            await support.wait_until(lambda: protocols)
            (protocol,) = protocols
            assert await asyncio.wait_for(protocol.got(10), support.PATIENCE) == b"still here"
            context = reported.pop(OopsError)
            assert context["message"].startswith("Exception in callback ")
            assert "connection_made" in context["message"]
            context = None
        await asyncio.wait_for(protocol.lost, support.PATIENCE)
        await assert_serving(loop, server)


@left_to_the_collector
@either_mode
@pytest.mark.parametrize("clients", [1, 5])
async def test_a_factory_that_closes_its_own_server(
    loop, loop_kind, reported, serve, monkeypatch, clients, debug
):
    """asyncio's Server then accepts no connections: an AssertionError, reported in debug mode."""
    if loop_kind == "asyncio":
        # The half-made transport leaves the Server in its __del__, which fails in some versions.
        monkeypatch.setattr(sys, "unraisablehook", lambda args: None)
    loop.set_debug(debug)
    made = []
    async with serve(lambda: factory()) as server:

        def factory():
            made.append(Echo())
            server.close()
            return made[-1]

        socks = [connect_to(server) for _ in range(clients)]
        reports = []
        for sock in socks:
            with sock:
                reports += await ends(sock, reported)
        assert 1 <= len(made) <= clients
        assert reports == ([(AssertionError, NOT_ACCEPTED)] * len(made) if debug else [])
        assert not server.is_serving()
    await assert_serving(loop)


async def test_connection_made_that_closes_its_own_server(loop, reported, serve):
    lost = []
    async with serve(lambda: Closing(loop)) as server:

        class Closing(Recorder):
            def connection_made(self, transport):
                super().connection_made(transport)
                server.close()
                transport.write(b"the last one")
                transport.close()

            def connection_lost(self, exc):
                super().connection_lost(exc)
                lost.append(exc)

        with connect_to(server) as sock:
            await support.wait_until(lambda: lost)
            assert sock.recv(100) == b"the last one"
    assert lost == [None]
    await assert_serving(loop)


@left_to_the_collector
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("way", ["TLS", "debug mode"])
async def test_a_task_factory_that_raises_as_a_connection_is_accepted(
    loop, reported, server_ssl_context, way
):
    """It is reported, the connection ends, and the next one is served."""
    loop.set_debug(way == "debug mode")
    async with (
        open_server(loop, Echo, ssl=server_ssl_context if way == "TLS" else None) as server,
        open_server(loop, Echo) as other,
    ):
        calls = []

        def task_factory(loop, coro, **kwargs):
            calls.append(coro)
            raise OopsError

        loop.set_task_factory(task_factory)
        clients = [connect_to(server) for _ in range(3)]
        await support.wait_until(lambda: len(calls) == 3)
        await turns(3)
        loop.set_task_factory(None)
        calls.clear()
        reports = []
        for sock in clients:
            with sock:
                reports += await ends(sock, reported)
        assert [error for error, _ in reports] == [OopsError] * 3
        assert all(message.startswith("Exception in callback ") for _, message in reports)
        await assert_serving(loop, other)
        if way == "debug mode":
            await assert_serving(loop, server)


# --- calls that wait for a socket ----------------------------------------------------------------

HOW_TO_CLOSE = ["close", "remove, then close", "close, then remove"]


def close_in(loop, sock, side, how):
    number = sock.fileno()
    remove = getattr(loop, f"remove_{side}")
    if how.startswith("remove"):
        remove(number)
    sock.close()
    if how.endswith("remove"):
        remove(number)


@pytest.mark.without_debug
@pytest.mark.parametrize("how", HOW_TO_CLOSE)
@pytest.mark.parametrize("side", ["reader", "writer"])
@pytest.mark.parametrize("first", ["callback", "call"])
async def test_a_socket_that_its_reader_or_writer_closes_while_a_call_waits(
    loop, reported, side, how, first
):
    """With asyncio the second of the two replaces the first. The call returns, or fails because
    its socket is closed, or waits forever; the loop continues."""
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    number = left.fileno()
    closed = []
    if side == "writer":
        support.fill(left)

    def close():
        closed.append(True)
        close_in(loop, left, side, how)

    def add():
        getattr(loop, f"add_{side}")(left, close)

    if first == "callback":
        add()
    if side == "reader":
        call = loop.create_task(loop.sock_recv(left, 100))
    else:
        call = loop.create_task(loop.sock_sendall(left, b"more"))
    await turns(3)
    if first == "call":
        add()
        await turns(3)
    assert not call.done()
    if side == "reader":
        right.send(b"data")
    else:
        support.drain(right)
    await turns(5)
    if not closed:
        # In asyncio the call has replaced the callback.
        assert call.done()
    call.cancel()
    (result,) = await asyncio.gather(call, return_exceptions=True)
    if isinstance(result, OSError):
        assert result.errno == errno.EBADF
    else:
        assert result in (b"data", None) or isinstance(result, asyncio.CancelledError)
    if not closed:
        close_in(loop, left, side, how)
    right.close()
    for remove in (loop.remove_reader, loop.remove_writer):
        remove(number)  # made up for where asyncio wants it
    await assert_serving(loop)


@pytest.mark.without_debug
async def test_descriptors_reused_thousands_of_times_beside_calls_that_wait(loop, reported):
    """Each reader closes its socket while a call waits for it, and the number is reused before the
    call notices. No event of the old socket may reach a new one."""
    calls, strays, numbers = [], [], set()
    lives = 3000
    pair = None
    finished = loop.create_future()

    def begin(life):
        nonlocal pair
        pair = socket.socketpair()
        for sock in pair:
            sock.setblocking(False)
        left, right = pair
        numbers.add(left.fileno())
        if life % 3:
            calls.append((life, loop.create_task(loop.sock_recv(left, 100))))
        loop.call_soon(loop.call_soon, watch, life, left, right)

    def watch(life, left, right):
        loop.add_reader(left, read, life, left, right)
        right.send(b"life %d" % life)

    def read(life, left, right):
        if left is not pair[0]:
            strays.append(life)
            return
        number = left.fileno()
        # With asyncio the reader has replaced the call; here the call follows.
        left.close()
        right.close()
        loop.remove_reader(number)
        if life == lives:
            finished.set_result(None)
        else:
            begin(life + 1)

    begin(0)
    await asyncio.wait_for(finished, 40)
    await turns(5)
    assert strays == []
    assert len(numbers) < 20
    for life, call in calls:
        call.cancel()
        (result,) = await asyncio.gather(call, return_exceptions=True)
        if isinstance(result, OSError):
            assert result.errno == errno.EBADF
        elif not isinstance(result, asyncio.CancelledError):
            assert result == b"life %d" % life
    await assert_serving(loop)


@pytest.mark.without_debug
async def test_a_call_on_the_next_life_of_a_number(loop, reported):
    """The reader closes the socket, and the same callback waits for the number's next owner."""
    for life in range(300):
        old, old_peer = socket.socketpair()
        old.setblocking(False)
        outcome = loop.create_future()

        def read(old=old, old_peer=old_peer, outcome=outcome):
            number = old.fileno()
            old.close()
            old_peer.close()
            loop.remove_reader(number)
            pair = socket.socketpair()
            for sock in pair:
                sock.setblocking(False)
            outcome.set_result((pair, loop.create_task(loop.sock_recv(pair[0], 100))))

        lost = loop.create_task(loop.sock_recv(old, 100))
        await turns(2)
        loop.add_reader(old, read)
        old_peer.send(b"old")
        (new, new_peer), call = await asyncio.wait_for(outcome, support.PATIENCE)
        await turns(3)
        assert not call.done()
        new_peer.send(b"life %d" % life)
        assert await asyncio.wait_for(call, support.PATIENCE) == b"life %d" % life
        lost.cancel()
        (result,) = await asyncio.gather(lost, return_exceptions=True)
        assert isinstance(result, (OSError, asyncio.CancelledError))
        new.close()
        new_peer.close()
    await assert_serving(loop)


# --- datagrams -----------------------------------------------------------------------------------


class Datagrams(asyncio.DatagramProtocol):
    """Records the calls of its methods, which then raise if they are named in `raises`."""

    def __init__(self, loop, raises=()):
        self.raises = raises
        self.errors = []
        self.received = []
        self.lost = loop.create_future()

    def act(self, name):
        if name in self.raises:
            raise OopsError(name)

    def datagram_received(self, data, addr):
        self.received.append(data)
        self.act("datagram_received")

    def error_received(self, exc):
        self.errors.append(exc)
        self.act("error_received")

    def pause_writing(self):
        self.act("pause_writing")

    def resume_writing(self):
        self.act("resume_writing")

    def connection_lost(self, exc):
        self.lost.set_result(exc)
        self.act("connection_lost")


async def full_endpoint(loop, protocol, path, queued):
    """Yield a UNIX datagram transport with `queued` datagrams waiting, and the receiving socket."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    receiver.bind(path)
    transport, _ = await loop.create_datagram_endpoint(
        lambda: protocol, remote_addr=path, family=socket.AF_UNIX
    )
    while not transport.get_write_buffer_size():
        transport.sendto(bytes(100))
    for _ in range(queued - 1):
        transport.sendto(bytes(100))
    return transport, receiver


@pytest.mark.parametrize("closing", [False, True], ids=["open", "closing"])
async def test_error_received_that_raises_for_a_queued_datagram(loop, reported, tmp_path, closing):
    """It is called once per datagram that the kernel refuses, and each failure is reported."""
    protocol = Datagrams(loop, ["error_received"])
    transport, receiver = await full_endpoint(loop, protocol, str(tmp_path / "socket"), 5)
    if closing:
        transport.close()
    receiver.close()
    await support.wait_until(lambda: len(protocol.errors) == 5)
    await turns(5)
    assert len(protocol.errors) == 5
    assert all(isinstance(exc, OSError) for exc in protocol.errors)
    contexts = reported.pop_all()
    assert len(contexts) == 5
    for context in contexts:
        assert type(context["exception"]) is OopsError
        assert context["message"].startswith("Exception in callback ")
    assert transport.is_closing() == closing
    if not closing:
        assert transport.get_write_buffer_size() < 100  # asyncio 3.13.0 forgets the headers
        transport.close()
    assert await asyncio.wait_for(protocol.lost, support.PATIENCE) is None
    await assert_serving(loop)


async def test_error_received_that_raises_in_sendto(loop, reported, tmp_path):
    """The datagram is not queued, so the caller of sendto() gets the exception."""
    path = str(tmp_path / "socket")
    protocol = Datagrams(loop, ["error_received"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        transport, _ = await loop.create_datagram_endpoint(
            lambda: protocol, remote_addr=path, family=socket.AF_UNIX
        )
    with pytest.raises(OopsError):
        transport.sendto(b"to nobody")
    assert len(protocol.errors) == 1
    transport.close()
    assert await asyncio.wait_for(protocol.lost, support.PATIENCE) is None
    await assert_serving(loop)


async def test_error_received_that_raises_for_what_the_peer_sends_back(loop, reported):
    """The next recv() reports ICMP's "port unreachable"."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        address = unused.getsockname()
    protocol = Datagrams(loop, ["error_received"])
    transport, _ = await loop.create_datagram_endpoint(lambda: protocol, remote_addr=address)
    transport.sendto(b"to nobody")
    await support.wait_until(lambda: protocol.errors)
    await turns(3)
    context = reported.pop(OopsError)
    assert context["message"].startswith("Exception in callback ")
    assert not transport.is_closing()
    transport.close()
    await asyncio.wait_for(protocol.lost, support.PATIENCE)
    await assert_serving(loop)


async def test_resume_writing_that_raises_for_datagrams(loop, reported, tmp_path):
    protocol = Datagrams(loop, ["pause_writing", "resume_writing"])
    transport, receiver = await full_endpoint(loop, protocol, str(tmp_path / "socket"), 3)
    assert reported.contexts == []
    transport.set_write_buffer_limits(high=300, low=200)
    transport.sendto(bytes(100))
    assert reported.pop(OopsError)["message"] == "protocol.pause_writing() failed"
    with receiver:

        def take():
            with contextlib.suppress(BlockingIOError):
                receiver.recv(100)

        await support.wait_until(lambda: take() or reported.contexts)
        assert reported.pop(OopsError)["message"] == "protocol.resume_writing() failed"
        assert not transport.is_closing()
        transport.close()
        await support.wait_until(lambda: take() or protocol.lost.done())
    await assert_serving(loop)


async def test_datagram_received_that_raises(loop, reported):
    """Each exception is reported, and the endpoint stays open."""
    protocol = Datagrams(loop, ["datagram_received"])
    transport, _ = await loop.create_datagram_endpoint(
        lambda: protocol, local_addr=("127.0.0.1", 0)
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(40):
            sender.sendto(b"%d" % number, transport.get_extra_info("sockname"))
        await support.wait_until(lambda: len(protocol.received) == 40)
    await turns(3)
    contexts = reported.pop_all()
    assert len(contexts) == 40
    for context in contexts:
        assert type(context["exception"]) is OopsError
        assert context["message"].startswith("Exception in callback ")
    transport.close()
    await asyncio.wait_for(protocol.lost, support.PATIENCE)
    await assert_serving(loop)
