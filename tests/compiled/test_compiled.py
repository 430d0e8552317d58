# SPDX-License-Identifier: GPL-2.0-only
"""Protocols whose methods are C functions: the interface that `cimport mgloop` declares."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import socket
import weakref

import peers
import pytest
import support

import mgloop


@contextlib.asynccontextmanager
async def connection(loop, protocol, family=socket.AF_INET):
    """Yield a transport for `protocol` and the socket at the other end."""
    pair = (
        support.nonblocking_tcp_pair()
        if family == socket.AF_INET
        else support.nonblocking_socketpair()
    )
    with pair as (ours, peer):
        transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
        try:
            yield transport, peer
        finally:
            transport.abort()
            await support.turns(5)


def names(protocol):
    return [event[0] for event in protocol.events]


async def exchange(loop, peer, data):
    """Send data to an echo server and return as much."""
    await loop.sock_sendall(peer, data)
    return await peers.read_exactly(loop, peer, len(data))


# --- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["TCP", "UNIX"])
async def test_an_echo(loop, protocols, family):
    async with connection(loop, protocols.Echo(), family) as (_, peer):
        for size in (1, 1000, 70_000):
            data = support.pattern(size)
            assert await exchange(loop, peer, data) == data


async def test_an_echo_server(loop, protocols):
    async with peers.open_server(loop, protocols.Echo) as server:
        client = peers.Recorder(loop)
        transport, _ = await loop.create_connection(
            lambda: client, *server.sockets[0].getsockname()
        )
        transport.write(b"x" * 300_000)
        assert await client.got(300_000) == b"x" * 300_000
        transport.close()
        await client.lost


async def test_an_echo_server_on_a_unix_socket(loop, protocols, short_path):
    server = await loop.create_unix_server(protocols.Echo, short_path)
    client = protocols.Recorder(connection_made=lambda self: self.write(b"hello"))
    transport, _ = await loop.create_unix_connection(lambda: client, short_path)
    await support.wait_until(lambda: client.received() == b"hello")
    transport.close()
    await support.wait_until(lambda: "connection_lost" in names(client))
    server.close()
    await server.wait_closed()


async def test_an_echo_server_over_tls(loop, protocols, server_ssl_context, client_ssl_context):
    data = support.pattern(300_000)
    client = protocols.Recorder()
    async with peers.open_server(loop, protocols.Echo, ssl=server_ssl_context) as server:
        transport, _ = await loop.create_connection(
            lambda: client, *server.sockets[0].getsockname(),
            ssl=client_ssl_context, server_hostname="localhost",
        )  # fmt: skip
        client.write(data)
        await support.wait_until(lambda: len(client.received()) == len(data))
        assert client.received() == data
        transport.close()
        await support.wait_until(lambda: "connection_lost" in names(client))


async def test_a_pipe(loop, protocols):
    reading, writing = os.pipe()
    protocol = protocols.Recorder()
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb", 0))
    os.write(writing, b"hello")
    os.close(writing)
    await support.wait_until(lambda: "connection_lost" in names(protocol))
    assert protocol.received() == b"hello"
    transport.close()


async def test_flow_control(loop, protocols):
    protocol = protocols.Recorder()
    async with connection(loop, protocol) as (_, peer):
        protocol.write(b"x" * support.BIG)
        assert names(protocol) == ["connection_made", "pause_writing"]
        assert await peers.read_exactly(loop, peer, support.BIG) == b"x" * support.BIG
        await support.turns(5)
        assert names(protocol) == ["connection_made", "pause_writing", "resume_writing"]


@pytest.mark.parametrize("keep_open", [True, False])
async def test_the_end_of_the_stream(loop, protocols, keep_open):
    protocol = protocols.Recorder(eof_received=lambda self: keep_open)
    async with connection(loop, protocol) as (transport, peer):
        peer.shutdown(socket.SHUT_WR)
        await support.wait_until(lambda: "eof_received" in names(protocol))
        await support.turns(3)
        assert transport.is_closing() is not keep_open
        assert ("connection_lost", None) in protocol.events or keep_open


async def test_a_reset(loop, protocols):
    protocol = protocols.Recorder()
    async with connection(loop, protocol) as (_, peer):
        support.reset(peer)
        await support.wait_until(lambda: "connection_lost" in names(protocol))
        assert isinstance(protocol.events[-1][1], ConnectionResetError)


async def test_a_pause_of_reading(loop, protocols):
    protocol = protocols.Recorder(data_received=lambda self, data: self.transport.pause_reading())
    async with connection(loop, protocol) as (transport, peer):
        peer.send(b"a")
        await support.wait_until(lambda: protocol.received() == b"a")
        peer.send(b"b")
        await support.turns(5)
        assert protocol.received() == b"a"
        transport.resume_reading()
        await support.wait_until(lambda: protocol.received() == b"ab")


async def test_the_transport_is_otherwise_the_loops(loop, protocols):
    protocol = protocols.Recorder()
    async with connection(loop, protocol) as (transport, _):
        mine = protocol.transport
        assert mine.wrapped is transport
        assert mine.get_protocol() is protocol
        assert mine.get_extra_info("socket") is not None
        assert repr(transport) in repr(mine)
        with pytest.raises(AttributeError):
            mine.no_such_method  # noqa: B018
        with pytest.raises(ValueError, match="negative"):
            protocol.write_size(-1)
        mine.write_eof()
        with pytest.raises(RuntimeError):
            protocol.write(b"late")
        mine.close()
        assert transport.is_closing()


# --- code inside data_received() -----------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_it_may_end_the_connection(loop, protocols, end):
    def act(self, data):
        self.write(b"bye")
        getattr(self.transport, end)()
        self.write(b"lost")

    protocol = protocols.Recorder(data_received=act)
    async with connection(loop, protocol) as (_, peer):
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(peer, b"x" * 300_000)
        await support.wait_until(lambda: "connection_lost" in names(protocol))
        assert names(protocol).count("data_received") == 1
        assert "overwritten" not in protocol.events


async def test_it_may_write_to_another_connection(loop, protocols):
    other = protocols.Recorder()
    protocol = protocols.Recorder(data_received=lambda self, data: other.write(data))
    async with connection(loop, other) as (_, peer), connection(loop, protocol) as (_, sender):
        await loop.sock_sendall(sender, b"to the other")
        assert await peers.read_exactly(loop, peer, 12) == b"to the other"


async def test_it_may_replace_the_protocol(loop, protocols):
    python = peers.Recorder(loop)
    python.events.append("made")

    def replace(self, data):
        self.transport.set_protocol(python)

    first, compiled = protocols.Recorder(data_received=replace), protocols.Recorder()
    async with connection(loop, first) as (transport, peer):
        peer.send(b"1")
        await support.wait_until(lambda: first.received() == b"1")
        peer.send(b"22")
        assert await python.got(2) == b"22"
        transport.set_protocol(compiled)
        compiled.connection_made(mgloop.Transport(transport))
        peer.send(b"333")
        await support.wait_until(lambda: compiled.received() == b"333")
        compiled.write(b"4444")
        assert await peers.read_exactly(loop, peer, 4) == b"4444"


async def test_it_may_read_from_other_sockets(loop, protocols, socketpair):
    """The data must not be overwritten by another read of the same loop."""
    results = []

    def read(self, data):
        call = loop.sock_recv(socketpair[0], 65536)
        try:
            call.send(None)
        except StopIteration as stop:
            results.append(stop.value)

    protocol = protocols.Recorder(data_received=read)
    async with connection(loop, protocol) as (_, peer):
        socketpair[1].send(b"other data" * 100)
        peer.send(b"data" * 100)
        await support.wait_until(lambda: results)
        assert results == [b"other data" * 100]
        assert protocol.received() == b"data" * 100
        assert "overwritten" not in protocol.events


@pytest.mark.mgloop_only
async def test_it_may_run_iterations_of_the_loop(loop, protocols):
    """A compiled protocol that receives in such an iteration must get another buffer."""

    def run(self, data):
        loop.stop()
        sender.send(b"other data" * 100)
        for _ in range(5):
            loop._run_once()
        loop._stopping = False
        lengths.append(len(other.received()))

    lengths = []
    other, protocol = protocols.Recorder(), protocols.Recorder(data_received=run)
    async with connection(loop, other) as (_, sender), connection(loop, protocol) as (_, peer):
        for size in (100, 200):
            peer.send(b"data" * size)
            await support.wait_until(lambda: len(protocol.received()) >= 4 * size)  # noqa: B023
            protocol.events.remove(("data_received", b"data" * size))
        assert lengths == [1000, 2000]
        assert other.received() == b"other data" * 200
        assert "overwritten" not in protocol.events


def test_loops_in_several_threads(loop_factory, protocols):
    async def main(number):
        loop = asyncio.get_running_loop()
        async with connection(loop, protocols.Echo()) as (_, peer):
            for size in range(1, 100_000, 1234):
                data = bytes([number]) * size
                assert await exchange(loop, peer, data) == data

    def run(number):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main(number))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


async def test_it_may_drop_the_last_references(loop, protocols):
    kept = []

    def drop(self, data):
        self.transport.abort()
        self.transport.set_protocol(asyncio.Protocol())
        kept.clear()
        gc.collect()

    kept.append(protocols.Recorder(data_received=drop))
    async with connection(loop, kept[0]) as (_, peer):
        peer.send(b"data")
        await support.wait_until(lambda: not kept)


async def test_a_protocol_is_freed_after_its_connection(loop, protocols):
    protocol = protocols.Recorder()
    async with connection(loop, protocol):
        pass
    reference = weakref.ref(protocol)
    del protocol
    gc.collect()
    assert reference() is None


# --- exceptions ----------------------------------------------------------------------------------


def fail(self, *arguments):
    raise ZeroDivisionError


async def test_exceptions_of_data_received_end_the_connection(loop, protocols, reported):
    protocol = protocols.Recorder(data_received=fail)
    async with connection(loop, protocol) as (transport, peer):
        peer.send(b"data")
        await support.wait_until(lambda: "connection_lost" in names(protocol))
        context = reported.pop(ZeroDivisionError)
        assert context["message"] == "Fatal error: protocol.data_received() call failed."
        assert context["protocol"] is protocol
        assert context["transport"] is transport
        assert isinstance(protocol.events[-1][1], ZeroDivisionError)


@pytest.mark.parametrize("method", ["connection_made", "eof_received", "connection_lost"])
async def test_exceptions_of_the_other_methods_are_reported(loop, protocols, reported, method):
    protocol = protocols.Recorder(**{method: fail})
    async with connection(loop, protocol) as (_, peer):
        peer.shutdown(socket.SHUT_WR)
        await support.wait_until(lambda: "connection_lost" in names(protocol))
        await support.turns(2)
        reported.pop(ZeroDivisionError)


@pytest.mark.parametrize(("result", "kind"), [(-1, SystemError), (0, (SystemError, ValueError))])
async def test_a_result_that_contradicts_the_exception(loop, protocols, reported, result, kind):
    async with connection(loop, protocols.Failing(result)) as (transport, peer):
        peer.send(b"data")
        await support.wait_until(lambda: reported.contexts)
        reported.pop(kind)
        assert transport.is_closing()


async def test_a_result_that_is_no_error(loop, protocols):
    async with connection(loop, protocols.Failing(7)) as (transport, peer):
        peer.send(b"data")
        await support.turns(5)
        assert not transport.is_closing()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_loop(loop, protocols, kind):
    def interrupt(self, data):
        raise kind

    async def main():
        async with connection(loop, protocol) as (_, peer):
            peer.send(b"data")
            await asyncio.sleep(support.PATIENCE)

    protocol = protocols.Recorder(data_received=interrupt)
    task = loop.create_task(main())
    with pytest.raises(kind):
        loop.run_until_complete(task)
    assert protocol.received() == b"data"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


async def test_a_transport_that_is_not_connected(loop, protocols):
    protocol = protocols.Recorder()
    with pytest.raises(RuntimeError, match="not connected"):
        protocol.write(b"data")
    with pytest.raises(RuntimeError, match="not connected"):
        protocol.transport.close()
    with pytest.raises(TypeError):
        type(protocol).__mro__[2]()


# --- subclasses in Python ------------------------------------------------------------------------


async def test_methods_in_python_replace_those_in_c(loop, protocols):
    class Subclass(protocols.Recorder):
        def data_received(self, data):
            self.events.append(("python", data))

    class Slotted(protocols.Recorder):
        __slots__ = ()

    for protocol in (Subclass(), protocols.Recorder(), Slotted()):
        async with connection(loop, protocol) as (_, peer):
            peer.send(b"data")
            await support.wait_until(lambda: len(protocol.events) > 1)  # noqa: B023
            name = "python" if isinstance(protocol, Subclass) else "data_received"
            assert protocol.events[1] == (name, b"data")


async def test_a_method_replaced_later(loop, protocols):
    class Subclass(protocols.Recorder):
        pass

    protocol = Subclass()
    async with connection(loop, protocol) as (_, peer):
        got = []
        protocol.data_received = got.append
        peer.send(b"data")
        await support.wait_until(lambda: got)
        assert got == [b"data"]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_data_received_takes_bytes_like_objects(protocols, kind):
    protocol = protocols.Recorder()
    protocol.data_received(kind(b"data"))
    assert protocol.received() == b"data"
    with pytest.raises(TypeError):
        protocol.data_received("text")


# --- debug mode ----------------------------------------------------------------------------------


async def test_debug_mode_detects_use_after_close(loop, protocols):
    loop.set_debug(True)
    protocol = protocols.Recorder()
    async with connection(loop, protocol):
        protocol.transport.close()
        with pytest.raises(RuntimeError, match="after the transport was closed"):
            protocol.write(b"data")
        loop.set_debug(False)
        protocol.write(b"ignored, as by asyncio")


async def test_debug_mode_detects_another_thread(loop, protocols):
    loop.set_debug(True)
    protocol = protocols.Recorder()
    async with connection(loop, protocol):
        with pytest.raises(RuntimeError, match="thread"):
            await asyncio.to_thread(protocol.write, b"data")


@pytest.mark.mgloop_only
async def test_debug_mode_invalidates_the_data_after_the_call(loop, protocols):
    loop.set_debug(True)
    protocol = protocols.Keeping()
    async with connection(loop, protocol) as (_, peer):
        peer.send(b"data")
        await support.turns(5)
        assert protocol.kept() == b"\xdd" * 4


# --- callbacks -----------------------------------------------------------------------------------


async def test_functions_as_callbacks(loop, protocols):
    calls = []
    protocols.later(loop, 0.001, calls.append, 2)
    protocols.soon(loop, calls.append, 1)
    protocols.soon(loop, calls.append, 0).cancel()
    await support.wait_until(lambda: len(calls) == 2)
    assert calls == [1, 2]
    with pytest.raises(ValueError, match="NULL"):
        protocols.null(loop)


async def test_exceptions_of_functions_are_reported(loop, protocols, reported):
    protocols.soon(loop, fail, 1)
    await support.turns(2)
    assert "C function at" in reported.pop(ZeroDivisionError)["message"]
