# SPDX-License-Identifier: GPL-2.0-only
"""Suspected faults, found by reading the code with the question "what if this fails?".

Each test provokes one suspected fault: the loop blocks for as long as a peer keeps up, buffers are
overwritten while they are being copied, waiters are forgotten when one of them is interrupted, a
kind of socket is not supported.
"""

import asyncio
import contextlib
import errno
import gc
import os
import socket
import threading
import time

import pytest
import support

# --- a blocked loop ------------------------------------------------------------------------------

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


# --- buffers that are shared ---------------------------------------------------------------------


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

    def let_others_in(phase, info):
        time.sleep(0)

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

    other = loop_factory()
    threshold = gc.get_threshold()
    gc.callbacks.append(let_others_in)
    gc.set_threshold(2, 1000, 1000)
    try:
        with support.in_thread(other.run_until_complete, receive(b"B")):
            loop.call_later(1.5, stop.set)
            loop.run_until_complete(receive(b"A"))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(let_others_in)
        other.close()
    for protocol in protocols.values():
        assert protocol.wrong == []
        assert protocol.count > 100


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

    def let_others_in(phase, info):
        time.sleep(0)

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

    other = loop_factory()
    threshold = gc.get_threshold()
    gc.callbacks.append(let_others_in)
    gc.set_threshold(2, 1000, 1000)
    try:
        with support.in_thread(other.run_until_complete, receive(b"B")):
            loop.call_later(1.0, stop.set)
            loop.run_until_complete(receive(b"A"))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(let_others_in)
        other.close()
    for protocol in protocols.values():
        assert protocol.wrong == 0
        assert protocol.count > 1000


# --- waiters -------------------------------------------------------------------------------------


class Interrupting(socket.socket):
    """A socket whose fileno() raises `exception` once, if it is set."""

    exception = None

    def fileno(self):
        if self.exception is not None:
            exception, self.exception = self.exception, None
            raise exception
        return super().fileno()


def interrupting_pair():
    left, right = socket.socketpair()
    ours = Interrupting(fileno=left.detach())
    ours.setblocking(False)
    right.setblocking(False)
    return ours, right


# With asyncio the second call replaces the first.
@pytest.mark.mgloop_only
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("waiters", [1, 2, 5])
def test_those_who_wait_when_one_is_interrupted(loop, interruption, waiters):
    """All calls continue to wait, including the interrupted one, and are served in order."""
    ours, peer = interrupting_pair()
    with ours, peer:
        tasks = [loop.create_task(loop.sock_recv(ours, 1)) for _ in range(waiters)]
        support.turn(loop, 2)
        ours.exception = interruption("from fileno()")
        peer.send(b"abcdefgh"[:waiters])
        with pytest.raises(interruption, match="fileno"):
            loop.run_forever()
        got = loop.run_until_complete(
            asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        )
        assert b"".join(got) == b"abcdefgh"[:waiters]


@pytest.mark.mgloop_only
def test_those_who_wait_when_one_fails(loop):
    """An ordinary exception is raised by that call only."""
    ours, peer = interrupting_pair()
    with ours, peer:
        tasks = [loop.create_task(loop.sock_recv(ours, 1)) for _ in range(3)]
        support.turn(loop, 2)
        ours.exception = LookupError("from fileno()")
        peer.send(b"ab")
        got = loop.run_until_complete(
            asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        )
        assert [type(item) for item in got] == [LookupError, bytes, bytes]
        assert got[1:] == [b"a", b"b"]


@pytest.mark.parametrize("with_reader", [False, True])
@pytest.mark.parametrize("then", ["cancel", "cancel later", "another socket"])
def test_cancelled_after_its_socket_was_closed(loop, run, loop_kind, reported, with_reader, then):
    """The call raises CancelledError, and the missing descriptor is not reported."""
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    stack = contextlib.ExitStack()
    with stack, peer:
        if with_reader:
            # With a reader the socket is registered with the kernel in another way.
            loop.add_reader(ours, int)
        support.fill(ours)
        task = loop.create_task(loop.sock_sendall(ours, b"x" * 1000))
        support.turn(loop, 3)
        number = ours.fileno()
        ours.close()
        if then == "cancel later":
            support.turn(loop, 3)
        if then == "another socket":
            other = stack.enter_context(socket.socket())
            assert other.fileno() == number
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            run(task)
        loop.remove_reader(number)
        loop.remove_writer(number)
        forgive_asyncio(loop_kind, reported)


def forgive_asyncio(loop_kind, reported):
    """Discard asyncio's report, from a future's callback, that it cannot remove the descriptor."""
    if loop_kind == "asyncio":
        assert all(isinstance(item["exception"], OSError) for item in reported.pop_all())


def test_cancelled_receiving_after_its_socket_was_closed(loop, run, loop_kind, reported):
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    with peer:
        number = ours.fileno()
        loop.add_writer(ours, int)
        task = loop.create_task(loop.sock_recv(ours, 10))
        support.turn(loop, 3)
        ours.close()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            run(task)
        loop.remove_writer(number)
        forgive_asyncio(loop_kind, reported)


# --- handlers that cannot be added ---------------------------------------------------------------


def test_a_regular_file_cannot_be_watched(loop, tmp_path):
    with (tmp_path / "file").open("wb") as file:
        for _ in range(2):
            with pytest.raises(PermissionError):
                loop.add_reader(file, pytest.fail)
            with pytest.raises(PermissionError):
                loop.add_writer(file.fileno(), pytest.fail)
        assert loop.remove_reader(file) is False
        assert loop.remove_writer(file) is False
        with pytest.raises(KeyError):
            loop._selector.get_key(file)


def test_a_number_that_is_no_descriptor(loop):
    left, right = socket.socketpair()
    number = left.fileno()
    left.close()
    right.close()
    for add in (loop.add_reader, loop.add_writer):
        with pytest.raises(OSError) as failure:
            add(number, pytest.fail)
        assert failure.value.errno == errno.EBADF
    assert loop.remove_reader(number) is False
    assert loop.remove_writer(number) is False


def test_a_number_that_was_watched_and_is_no_descriptor_any_more(loop, loop_kind):
    """Whatever add_writer() raises, the loop continues, and the number can be watched when it is a
    file again."""
    left, right = socket.socketpair()
    number = left.fileno()
    loop.add_reader(number, int)
    left.close()
    with right, contextlib.suppress(OSError):
        loop.add_writer(number, pytest.fail)
    support.turn(loop, 2)
    loop.remove_reader(number)
    loop.remove_writer(number)
    again, peer = socket.socketpair()
    with again, peer:
        calls = support.Calls(loop.stop)
        loop.add_reader(again, calls)
        peer.send(b"x")
        loop.run_forever()
        assert len(calls) >= 1
        loop.remove_reader(again)


# --- a descriptor that is gone -------------------------------------------------------------------


# asyncio fails half-way, and leaves the transport and the server unchanged.
@pytest.mark.mgloop_only
def test_the_end_of_a_connection_whose_descriptor_somebody_has_closed(loop, run, reported):
    """connection_lost() is called, and the server's count of connections decreases, although the
    address can no longer be queried."""
    protocol = support.RecordingProtocol(loop)
    server = run(loop.create_server(lambda: protocol, "0.0.0.0", 0))
    port = server.sockets[0].getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        transport = run(protocol.made)
        support.turn(loop, 3)
        # Do not request the socket, because that would query its address.
        os.close(transport._sock_fd)
        transport.abort()
        assert run(asyncio.wait_for(protocol.lost, support.PATIENCE)) is None
        support.turn(loop, 3)
        for context in reported.pop_all():
            assert context["exception"].errno == errno.EBADF
        server.close()
        run(asyncio.wait_for(server.wait_closed(), support.PATIENCE))
    support.turn(loop, 2)


# --- other families ------------------------------------------------------------------------------


def rare_families():
    """Yield families of stream sockets other than IP and UNIX that can be created here."""
    for name in ("AF_VSOCK", "AF_TIPC", "AF_BLUETOOTH"):
        family = getattr(socket, name, None)
        if family is None:
            continue
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM):
            yield name, family


RARE = dict(rare_families())
needs_rare_family = pytest.mark.skipif(
    not RARE, reason="this kernel has no stream sockets but IP and UNIX ones"
)


class Options(socket.socket):
    """A socket that records which options are set."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.options = []

    def setsockopt(self, level, option, *value):
        self.options.append((level, option))
        super().setsockopt(level, option, *value)


@needs_rare_family
@pytest.mark.parametrize("name", RARE)
def test_a_transport_of_a_rare_family(loop, name):
    """It is not connected, so it ends immediately; no unsupported socket option is set."""

    def connect(loop):
        sock = Options(RARE[name], socket.SOCK_STREAM)
        sock.setblocking(False)
        protocol = support.RecordingProtocol(loop)

        async def main():
            transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
            await asyncio.sleep(0.01)
            transport.abort()
            await protocol.lost
            return sock.options, protocol.events

        return loop.run_until_complete(main())

    reference = support.new_loop("asyncio")
    try:
        there = connect(reference)
    finally:
        support.finish(reference)
    here = connect(loop)
    assert here == there
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY) not in here[0]


def vsock_listener():
    """Return a listening AF_VSOCK socket; skip the test if the kernel does not support it."""
    if "AF_VSOCK" not in RARE:
        pytest.skip("this kernel has no AF_VSOCK")
    sock = Options(socket.AF_VSOCK, socket.SOCK_STREAM)
    try:
        sock.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
        sock.listen()
    except OSError as exc:
        sock.close()
        pytest.skip(f"AF_VSOCK cannot be listened on: {exc}")
    sock.setblocking(False)
    return sock


def test_a_server_of_a_rare_family(loop, run):
    with vsock_listener() as sock:
        server = run(loop.create_server(asyncio.Protocol, sock=sock))
        assert server.is_serving()
        support.turn(loop, 2)
        server.close()
        run(server.wait_closed())
        assert (socket.IPPROTO_TCP, socket.TCP_NODELAY) not in sock.options


def test_a_connection_of_a_rare_family(loop, run):
    """Data is sent both ways, if the kernel can connect a machine to itself."""
    local = 1  # VMADDR_CID_LOCAL
    with vsock_listener() as listener:
        address = local, listener.getsockname()[1]
        client = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        client.settimeout(0.5)
        try:
            client.connect(address)
        except OSError as exc:
            client.close()
            pytest.skip(f"AF_VSOCK has no loopback here: {exc}")
        client.setblocking(False)
        served = support.RecordingProtocol(loop)

        async def main():
            server = await loop.create_server(lambda: served, sock=listener)
            protocol = support.RecordingProtocol(loop)
            transport, _ = await loop.create_connection(lambda: protocol, sock=client)
            transport.write(b"there")
            assert await served.received(5) == b"there"
            served.transport.write(b"back")
            assert await protocol.received(4) == b"back"
            assert transport.get_extra_info("peername") == address
            assert served.transport.get_extra_info("peername")[0] == local
            transport.close()
            await served.lost
            server.close()
            await server.wait_closed()

        run(main())


@pytest.mark.parametrize("protocol", ["IPPROTO_SCTP", "IPPROTO_MPTCP"])
def test_a_stream_of_another_protocol(loop, run, protocol):
    """TCP_NODELAY is an option of TCP only."""
    number = getattr(socket, protocol, {"IPPROTO_MPTCP": 262}.get(protocol))
    try:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, number)
    except OSError as exc:
        pytest.skip(f"this kernel has no {protocol}: {exc}")
    with listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        served = support.RecordingProtocol(loop)

        async def main():
            server = await loop.create_server(lambda: served, sock=listener)
            client = Options(socket.AF_INET, socket.SOCK_STREAM, number)
            client.connect(listener.getsockname())
            client.setblocking(False)
            protocol = support.RecordingProtocol(loop)
            transport, _ = await loop.create_connection(lambda: protocol, sock=client)
            transport.write(b"there")
            assert await served.received(5) == b"there"
            transport.close()
            await served.lost
            server.close()
            await server.wait_closed()
            return client.options

        assert (socket.IPPROTO_TCP, socket.TCP_NODELAY) not in run(main())
