# SPDX-License-Identifier: GPL-2.0-only
"""The deliberate differences from asyncio in the use of descriptors: sockets and transports.

test_differences.py has the others.
"""

import asyncio
import contextlib
import contextvars
import errno
import gc
import inspect
import os
import socket
import ssl
import subprocess
import sys
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import support
from peers import BufferedRecorder, Recorder, connected_pair
from test_differences import side

import mgloop

variable = contextvars.ContextVar("variable", default="unset")

#: Whether asyncio's transports of stream sockets call the protocol in one context.
ONE_CONTEXT = sys.version_info >= (3, 15)


class Events(asyncio.Protocol):
    """Records the received data, and the value of `variable` at each event."""

    def __init__(self):
        self.chunks = []
        self.seen = {}
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.seen["connection_made"] = variable.get()

    def data_received(self, data):
        self.chunks.append(data)
        self.seen["data_received"] = variable.get()

    def connection_lost(self, exc):
        self.seen["connection_lost"] = variable.get()
        self.lost.set_result(exc)


@contextlib.asynccontextmanager
async def connected(sock, factory=Events):
    """Yield a transport over one end of a socket pair, and its protocol."""
    transport, protocol = await asyncio.get_running_loop().create_connection(factory, sock=sock)
    try:
        yield transport, protocol
    finally:
        transport.abort()
        await protocol.lost


# --- interest in descriptors, sock_*() ----------------------------------------------------------


class TestDescriptors:
    def test_a_number_that_was_closed_and_given_out_again(self, loop, loop_kind):
        seen = []
        first, second = socket.socketpair()
        number = first.fileno()
        loop.add_reader(number, print)
        first.close()  # without remove_reader()
        with second, contextlib.ExitStack() as stack:
            again, other = (stack.enter_context(s) for s in socket.socketpair())
            if again.fileno() != number:
                os.dup2(again.fileno(), number)
                stack.callback(os.close, number)
            loop.add_reader(number, lambda: seen.append(os.read(number, 1)))
            other.send(b"x")
            loop.run_until_complete(asyncio.sleep(0.02))
            # asyncio's selector assumes that the kernel still watches the number.
            assert seen == side(loop_kind, asyncio=[], mgloop=[b"x"])
            with contextlib.suppress(FileNotFoundError):
                loop.remove_reader(number)

    def test_the_selector_is_a_view(self, loop, loop_kind, left, right):
        loop.add_reader(left, print)
        assert loop._selector.get_key(left).fd == left.fileno()
        with pytest.raises(KeyError):
            loop._selector.get_key(right)
        assert hasattr(loop._selector, "select") is side(loop_kind, asyncio=True, mgloop=False)
        loop.remove_reader(left)
        # asyncio's own socket pair is in its selector; mgloop lists the user's descriptors only.
        assert len(loop._selector.get_map()) == side(loop_kind, asyncio=1, mgloop=0)

    async def test_a_listening_socket_belongs_to_its_server(self, loop, loop_kind):
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        refused = side(
            loop_kind, asyncio=contextlib.nullcontext(), mgloop=pytest.raises(RuntimeError)
        )
        with refused:
            loop.remove_reader(server.sockets[0].fileno())
        await support.close(server)


class TestSocketMethods:
    def test_the_results_are_not_native_coroutines(self, loop, loop_kind, run, left, right):
        right.send(b"x")
        call = loop.sock_recv(left, 10)
        assert asyncio.iscoroutine(call)
        assert inspect.isawaitable(call)
        native = side(loop_kind, asyncio=True, mgloop=False)
        assert isinstance(call, types.CoroutineType) is native
        assert inspect.iscoroutinefunction(loop.sock_recv) is native
        assert run(call) == b"x"

    async def test_two_that_wait_are_served_in_order(self, loop, loop_kind, left, right):
        first = loop.create_task(loop.sock_recv(left, 1))
        await support.turns()
        second = loop.create_task(loop.sock_recv(left, 1))
        await support.turns()
        right.send(b"12")
        assert await second == side(loop_kind, asyncio=b"1", mgloop=b"2")
        assert first.done() is side(loop_kind, asyncio=False, mgloop=True)
        first.cancel()
        await asyncio.wait([first])

    async def test_beside_a_reader_of_the_same_socket(self, loop, loop_kind, left, right):
        calls = []
        loop.add_reader(left, calls.append, None)
        waiting = loop.create_task(loop.sock_recv(left, 1))
        await support.turns()
        right.send(b"1")
        assert await waiting == b"1"
        right.send(b"2")
        await asyncio.sleep(0.01)
        # asyncio's sock_recv() replaced the reader.
        assert loop.remove_reader(left) is side(loop_kind, asyncio=False, mgloop=True)
        assert bool(calls) is side(loop_kind, asyncio=False, mgloop=True)

    @pytest.mark.mgloop_only
    async def test_a_wait_on_a_closed_socket_fails_once_its_number_is_used_again(self, loop):
        with contextlib.ExitStack() as stack:
            left, right = socket.socketpair()
            stack.enter_context(right)
            left.setblocking(False)
            number = left.fileno()
            waiting = loop.create_task(loop.sock_recv(left, 1))
            await support.turns()
            left.close()
            again = [stack.enter_context(s) for s in socket.socketpair()]
            heir = next((s for s in again if s.fileno() == number), None)
            assert heir is not None, "the lowest free number is given out first"
            heir.setblocking(False)
            other = loop.create_task(loop.sock_recv(heir, 1))
            with pytest.raises(OSError, match="closed while this call was waiting"):
                await waiting
            again[again.index(heir) - 1].send(b"x")
            assert await other == b"x"

    def test_replaced_methods_of_the_socket_class_are_not_called(
        self, loop, loop_kind, run, left, right, monkeypatch
    ):
        def recv(sock, *args):
            return socket.SocketType.recv(sock, *args).upper()

        right.send(b"quiet")
        monkeypatch.setattr(socket.socket, "recv", recv, raising=False)
        expected = side(loop_kind, asyncio=b"QUIET", mgloop=b"quiet")
        assert run(loop.sock_recv(left, 100)) == expected

    def test_literal_addresses_need_no_thread(self, loop, loop_kind, run):
        submitted = []

        class Executor(ThreadPoolExecutor):
            def submit(self, function, *args):
                submitted.append(function)
                return super().submit(function, *args)

        loop.set_default_executor(Executor(1))
        answer = run(loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM))
        assert answer == socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
        assert len(submitted) == side(loop_kind, asyncio=1, mgloop=0)


# --- transports ----------------------------------------------------------------------------------


class TestTransports:
    @pytest.mark.skipif(sys.version_info < (3, 12), reason="both can be had: no asyncio to compare")
    async def test_a_second_one_is_refused_and_the_first_goes_on(
        self, loop, loop_kind, left, right
    ):
        creates = inspect.getsource(asyncio.BaseEventLoop._create_connection_transport)
        async with connected(left) as (transport, _):
            loop = asyncio.get_running_loop()
            with pytest.raises(RuntimeError, match="is used by transport"):
                await loop.create_connection(asyncio.Protocol, sock=left)
            goes_on = side(loop_kind, asyncio="sock.close()" not in creates, mgloop=True)
            assert (left.fileno() >= 0) is goes_on
            if goes_on:
                transport.write(b"data")
                assert right.recv(10) == b"data"

    async def test_their_type_is_native(self, loop, loop_kind, socketpair):
        async with connected(socketpair[0]) as (transport, _):
            assert isinstance(transport, asyncio.Transport)
            native = side(loop_kind, asyncio=False, mgloop=True)
            assert (not issubclass(type(transport), asyncio.Transport)) is native
            assert repr(transport).startswith("<mgloop.Stream fd=") is native

    @pytest.mark.mgloop_only
    def test_a_socket_with_methods_of_its_own_gets_asyncios_transport(self, loop, run):
        class Own(socket.socket):
            def send(self, data, *flags):
                return super().send(data, *flags)

        left, right = socket.socketpair()

        async def main():
            async with connected(Own(fileno=left.detach())) as (transport, _):
                assert type(transport).__module__ == "asyncio.selector_events"
                assert loop.stats().connections["unix"].opened == 0

        with right:
            run(main())

    @pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
    async def test_get_buffer_alone_makes_a_buffered_protocol(
        self, loop, loop_kind, tls, server_ssl_context, client_ssl_context
    ):
        reported = []
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))

        class Duck:
            def __init__(self):
                self.buffer = bytearray(100)
                self.seen = b""
                self.lost = loop.create_future()

            def connection_made(self, transport):
                pass

            def get_buffer(self, sizehint):
                return self.buffer

            def buffer_updated(self, nbytes):
                self.seen += self.buffer[:nbytes]

            def eof_received(self):
                pass

            def connection_lost(self, exc):
                self.lost.set_result(exc)

        duck = Duck()
        server = await loop.create_server(
            lambda: duck, "127.0.0.1", 0, ssl=server_ssl_context if tls else None
        )
        _, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname(),
            ssl=client_ssl_context if tls else None,
            server_hostname="localhost" if tls else None,
        )
        writer.write(b"data")
        await support.wait_until(lambda: duck.seen or reported)
        writer.close()
        server.close()
        seen = duck.seen
        assert seen == side(loop_kind, asyncio=b"", mgloop=b"data")
        assert [type(exc) for exc in reported] == side(
            loop_kind, asyncio=[AttributeError], mgloop=[]
        )

    async def test_several_reads_in_one_turn(self, loop, loop_kind, socketpair):
        order = []

        class Small(asyncio.BufferedProtocol):
            def __init__(self):
                self.buffer = bytearray(100)
                self.lost = loop.create_future()

            def get_buffer(self, sizehint):
                return self.buffer

            def buffer_updated(self, nbytes):
                order.append("read")
                if len(order) == 1:
                    loop.call_soon(order.append, "callback")

            def connection_lost(self, exc):
                self.lost.set_result(exc)

        socketpair[1].send(bytes(600))
        async with connected(socketpair[0], Small):
            await support.wait_until(lambda: order.count("read") == 6)
        assert order.index("callback") == side(loop_kind, asyncio=1, mgloop=4)

    async def test_the_end_of_the_stream_is_reported_once(self, loop_kind, loop, socketpair):
        told = []

        class Open(Events):
            def eof_received(self):
                told.append("eof")
                return True

        socketpair[1].shutdown(socket.SHUT_WR)
        async with connected(socketpair[0], Open) as (transport, _):
            await support.wait_until(lambda: told)
            transport.pause_reading()
            transport.resume_reading()
            await asyncio.sleep(0.02)
        assert told == ["eof"] * side(loop_kind, asyncio=2, mgloop=1)

    async def test_small_writes_leave_at_the_end_of_a_busy_iteration(
        self, loop, loop_kind, left, right
    ):
        seen = []

        def look():
            try:
                seen.append(right.recv(100))
            except BlockingIOError:
                seen.append(None)

        def write(transport):
            transport.write(b"one")
            look()

        async with connected(left) as (transport, _):
            for _ in range(3):
                loop.call_soon(support.Calls())
            loop.call_soon(write, transport)
            for _ in range(3):
                loop.call_soon(support.Calls())
            await support.turns(10)
            if loop_kind == "mgloop":
                look()
            # A query sends the deferred data.
            for _ in range(6):
                loop.call_soon(support.Calls())
            loop.call_soon(lambda: (transport.write(b"two"), seen.append("two is written")))
            loop.call_soon(lambda: seen.append(transport.get_write_buffer_size()))
            loop.call_soon(look)
            await support.turns(10)
        expected = ["two is written", 0, b"two"]
        assert seen == side(loop_kind, asyncio=[b"one"], mgloop=[None, b"one"]) + expected

    async def test_long_writes_in_a_row_leave_at_the_end_of_the_iteration(
        self, loop, loop_kind, left, right
    ):
        """Except for the first write, and at the latest when the high-water mark is passed."""
        seen = []

        def look():
            seen.append(len(support.drain(right)))

        def write(transport):
            for _ in range(3):
                transport.write(bytes(5000))
                look()
            transport.write(bytes(5000))
            transport.write(bytes(60_000))
            look()

        async with connected(left) as (transport, _):
            loop.call_soon(write, transport)
            await support.turns(3)
            look()
            # Writes in separate iterations, and writes followed by a query, are not deferred.
            for _ in range(2):
                loop.call_soon(transport.write, bytes(5000))
                await support.turns(3)
                look()
            transport.write(bytes(5000))
            transport.write(bytes(5000))
            assert transport.get_write_buffer_size() == 0
            look()
        apart = side(
            loop_kind, asyncio=[5000, 5000, 5000, 65_000, 0], mgloop=[5000, 0, 0, 75_000, 0]
        )
        assert seen == [*apart, 5000, 5000, 10_000]

    def test_a_descriptor_kept_from_before_is_ahead_of_small_writes(
        self, loop, loop_kind, run, left, right
    ):
        async def main():
            async with connected(left) as (transport, _):
                kept = left.dup()

                def write():
                    transport.write(b"first ")
                    kept.send(b"second ")

                for _ in range(8):
                    loop.call_soon(support.Calls())
                loop.call_soon(write)
                await support.turns(3)
                kept.close()
                return right.recv(100)

        assert run(main()) == side(loop_kind, asyncio=b"first second ", mgloop=b"second first ")

    @pytest.mark.parametrize("how", ["os._exit(0)", "os.execvp('true', ['true'])"])
    def test_small_writes_are_lost_when_the_process_ends_at_once(self, loop_kind, in_child, how):
        out, _ = in_child(f"""
            ours, peer = socket.socketpair()
            if os.fork() == 0:
                peer.close()
                ours.setblocking(False)
                loop = new_loop()
                transport, _ = loop.run_until_complete(
                    loop.create_connection(asyncio.Protocol, sock=ours))
                def end():
                    transport.write(b"last words")
                    {how}
                call_in_a_crowd(loop, end)
                loop.run_forever()
            ours.close()
            print(peer.recv(100).decode())
            os.wait()
        """)
        assert out == side(loop_kind, asyncio="last words\n", mgloop="\n")

    async def test_buffered_data_is_a_copy(self, loop, loop_kind, left, right):
        if loop_kind == "asyncio" and not hasattr(
            asyncio.selector_events._SelectorSocketTransport, "_write_sendmsg"
        ):
            pytest.skip("asyncio copied as well before 3.12")
        async with connected(left) as (transport, _):
            transport.set_write_buffer_limits(high=2**30)
            head = support.BIG
            transport.write(bytes(head))
            assert transport.get_write_buffer_size() > 0
            data = bytearray(b"first")
            transport.write(data)
            data[:] = b"later"
            received = bytearray()
            while len(received) < head + 5:
                with contextlib.suppress(BlockingIOError):
                    received += right.recv(2**20)
                await asyncio.sleep(0)
            assert received[head:] == side(loop_kind, asyncio=b"later", mgloop=b"first")

    async def test_a_buffer_that_cannot_be_sent_raises(self, loop, loop_kind, socketpair, reported):
        async with connected(socketpair[0]) as (transport, _):
            strided = memoryview(bytes(10))[::2]
            refused = side(
                loop_kind, asyncio=contextlib.nullcontext(), mgloop=pytest.raises(BufferError)
            )
            with refused:
                transport.write(strided)
            # asyncio reports it, and gives up the connection.
            assert transport.is_closing() is side(loop_kind, asyncio=True, mgloop=False)
        if loop_kind == "asyncio":
            reported.pop(BufferError)

    async def test_native_code_does_not_go_through_a_replaced_method(self, loop, loop_kind, left):
        seen = []

        def call_soon(callback, *args, context=None):
            seen.append(getattr(callback, "__name__", None))
            return type(loop).call_soon(loop, callback, *args, context=context)

        async with connected(left):
            loop.call_soon = call_soon
            loop.call_soon(support.Calls())
        del loop.call_soon
        assert None in seen  # Python code sees the replacement
        assert ("_call_connection_lost" in seen) is side(loop_kind, asyncio=True, mgloop=False)

    async def test_the_protocol_runs_in_the_transports_context(self, loop, loop_kind, left, right):
        variable.set("made")
        async with connected(left) as (transport, protocol):
            transport.pause_reading()
            variable.set("resumed")
            transport.resume_reading()
            right.send(b"x")
            await support.wait_until(lambda: protocol.chunks)
            variable.set("closed")
        one_context = dict.fromkeys(("connection_made", "data_received", "connection_lost"), "made")
        contexts = one_context | {"data_received": "resumed", "connection_lost": "closed"}
        assert protocol.seen == side(
            loop_kind, asyncio=one_context if ONE_CONTEXT else contexts, mgloop=one_context
        )

    async def test_the_protocols_methods_share_a_context(self, loop, loop_kind, left, right):
        class Setting(Events):
            def connection_made(self, transport):
                super().connection_made(transport)
                variable.set("set in connection_made")

        async with connected(left, Setting) as (_, protocol):
            right.send(b"x")
            await support.wait_until(lambda: protocol.chunks)
            one_context = loop_kind == "mgloop" or ONE_CONTEXT
            assert protocol.seen["data_received"] == (
                "set in connection_made" if one_context else "unset"
            )

    @pytest.mark.without_debug
    async def test_accepting_takes_no_task(self, loop, loop_kind):
        tasks = []
        order = []

        class Accepted(Events):
            def connection_made(self, transport):
                super().connection_made(transport)
                order.append("made")

        def factory():
            tasks.append(asyncio.current_task())
            loop.call_soon(order.append, "callback")
            protocol = Accepted()
            protocols.append(protocol)
            return protocol

        protocols = []
        server = await loop.create_server(factory, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            await support.wait_until(lambda: len(order) == 2)
            protocols[0].transport.close()
            await protocols[0].lost
        await support.close(server)
        assert (tasks == [None]) is side(loop_kind, asyncio=False, mgloop=True)
        # connection_made() follows the factory immediately, without an iteration between them.
        assert order == side(loop_kind, asyncio=["callback", "made"], mgloop=["made", "callback"])

    @pytest.mark.mgloop_only
    async def test_a_cancelled_sendfile_leaves_the_transport_as_it_was(self, loop, left, right):
        data = bytes(support.BIG)
        async with connected(left) as (transport, _):
            transport.write(data)
            with open(__file__, "rb") as file:
                sending = loop.create_task(loop.sendfile(transport, file))
                await support.turns(3)
                await support.cancel(sending)
            transport.write(b"more")
            assert transport.is_reading()
            got = 0
            while got < len(data) + 4:
                got += len(await loop.sock_recv(right, 1 << 20))

    @pytest.mark.without_debug
    @pytest.mark.mgloop_only
    def test_a_factory_that_raises_closes_the_connection_at_once(self, loop, run):
        calls = []

        def factory():
            calls.append(None)
            raise ZeroDivisionError

        async def main():
            server = await loop.create_server(factory, "127.0.0.1", 0)
            with socket.create_connection(server.sockets[0].getsockname()) as client:
                client.setblocking(False)
                assert await loop.sock_recv(client, 1) == b""
            await support.close(server)

        gc.disable()
        try:
            run(main())
        finally:
            gc.enable()
        assert calls == [None]

    async def test_tcp_nodelay_is_set_on_the_listener(self, loop, loop_kind):
        server = await loop.create_server(Events, "127.0.0.1", 0)
        option = server.sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert bool(option) is side(loop_kind, asyncio=False, mgloop=True)
        await support.close(server)


# --- datagrams -----------------------------------------------------------------------------------


# --- pipes and processes ------------------------------------------------------------------------


class TestStreams:
    """The compiled streams, which a program has to switch on."""

    @pytest.fixture(params=["asyncio", "mgloop"])
    def streams_of(self, request):
        return request.param

    @pytest.fixture
    def reader(self, loop, streams_of):
        module = side(streams_of, asyncio=asyncio, mgloop=mgloop.streams)
        return module.StreamReader(loop=loop)

    @pytest.mark.mgloop_only
    async def test_their_methods_return_native_awaitables(self, loop, reader, streams_of):
        a_coroutine = side(streams_of, asyncio=True, mgloop=False)
        call = reader.read(1)
        assert asyncio.iscoroutine(call)
        assert inspect.isawaitable(call)
        assert inspect.iscoroutine(call) is a_coroutine
        assert inspect.iscoroutinefunction(reader.read) is a_coroutine
        call.close()

    @pytest.mark.mgloop_only
    async def test_a_read_that_continues_does_not_disturb_another_that_waits(
        self, loop, reader, streams_of
    ):
        first = asyncio.create_task(reader.read(10))
        await support.turns()
        second = asyncio.create_task(reader.readexactly(10))
        reader.feed_data(b"ab")
        await support.turns()
        assert await first == b"ab"
        reader.feed_data(b"0123456789")
        await support.turns()
        assert second.done() is side(streams_of, asyncio=False, mgloop=True)
        second.cancel()


class Flow(asyncio.Protocol):
    """Records how much data was left to write at each resume_writing()."""

    def __init__(self):
        self.left = []

    def connection_made(self, transport):
        self.transport = transport

    def resume_writing(self):
        self.left.append(self.transport.get_write_buffer_size())


class TestPipes:
    async def test_writing_is_resumed_at_the_low_water_mark(self, loop, loop_kind):
        reading, writing = os.pipe()
        transport, flow = await loop.connect_write_pipe(Flow, os.fdopen(writing, "wb", 0))
        transport.set_write_buffer_limits(high=200_000, low=100_000)
        transport.write(bytes(300_000))
        while not flow.left:
            os.read(reading, 20_000)
            await asyncio.sleep(0.001)
        transport.abort()
        os.close(reading)
        (left,) = flow.left
        assert left == 0 if loop_kind == "asyncio" else 0 < left <= 100_000

    async def test_a_second_abort_does_nothing(self, loop, loop_kind, reported):
        reading, writing = os.pipe()
        transport, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(writing, "wb"))
        transport.abort()
        transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        os.close(reading)
        # asyncio calls connection_lost() again, and fails.
        assert len(reported.pop_all()) == side(loop_kind, asyncio=1, mgloop=0)


class TestProcesses:
    @pytest.mark.mgloop_only
    async def test_the_exit_code_of_a_child_that_popen_has_reaped(self, loop):
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", "read line; exit 7", stdin=reading
        )
        os.close(reading)
        os.close(writing)  # it ends only now, before the loop can notice
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process._transport.get_extra_info("subprocess").poll()
        assert await process.wait() == 7

    @pytest.mark.mgloop_only
    @pytest.mark.parametrize("failing", ["connect_write_pipe", "connect_read_pipe"])
    def test_a_pipe_that_cannot_be_connected(self, loop, run, monkeypatch, failing):
        async def connect(*args):
            raise OSError(errno.ENOSPC, "max_user_watches")

        async def main():
            before = support.children()
            with pytest.raises(OSError, match="max_user_watches"):
                await asyncio.create_subprocess_exec(
                    "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            assert support.children() <= before  # it has been reaped

        monkeypatch.setattr(loop, failing, connect)
        run(asyncio.wait_for(main(), 10))


class Datagrams(asyncio.DatagramProtocol):
    """Records the received datagrams, and their order in `order`."""

    def __init__(self, order):
        self.order = order
        self.lost = asyncio.get_running_loop().create_future()

    def datagram_received(self, data, addr):
        self.order.append(data)
        if len(self.order) == 1:
            asyncio.get_running_loop().call_soon(self.order.append, "callback")

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class TestDatagrams:
    async def test_several_in_one_turn(self, loop, loop_kind):
        order = []
        transport, protocol = await loop.create_datagram_endpoint(
            lambda: Datagrams(order), local_addr=("127.0.0.1", 0)
        )
        address = transport.get_extra_info("sockname")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for data in (b"1", b"2", b"3"):
                sender.sendto(data, address)
        await support.wait_until(lambda: len(order) == 4)
        transport.close()
        await protocol.lost
        assert order == side(
            loop_kind, asyncio=[b"1", "callback", b"2", b"3"], mgloop=[b"1", b"2", b"3", "callback"]
        )

    @pytest.mark.mgloop_only
    async def test_an_empty_one_is_sent_on_every_version(self, loop):
        order = []
        transport, protocol = await loop.create_datagram_endpoint(
            lambda: Datagrams(order), local_addr=("127.0.0.1", 0)
        )
        sender, sending = await loop.create_datagram_endpoint(
            lambda: Datagrams([]), remote_addr=transport.get_extra_info("sockname")
        )
        sender.sendto(b"")
        await support.wait_until(lambda: order)
        for end, ended in ((transport, protocol), (sender, sending)):
            end.close()
            await ended.lost
        assert order[0] == b""

    async def test_to_a_peer_without_an_address(self, loop, loop_kind):
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        reported = []
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        transport, protocol = await loop.create_datagram_endpoint(lambda: Datagrams([]), sock=ours)
        transport.sendto(b"data")
        transport.close()
        await protocol.lost
        with peer:
            if loop_kind == "mgloop":
                assert peer.recv(10) == b"data"
                assert not reported
            else:
                assert [type(exc) for exc in reported] == [TypeError]


# --- TLS -----------------------------------------------------------------------------------------


class Client:
    """A TLS client over a plain socket, which records the types of arriving records."""

    def __init__(self, loop, sock, context):
        self.loop, self.sock = loop, sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.arrived = bytearray()

    async def flush(self, prefix=b""):
        await self.loop.sock_sendall(self.sock, prefix + self.outgoing.read())

    async def until_done(self, step):
        """Call ``step()`` until it no longer needs to read; return its result."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self.flush()
                data = await self.loop.sock_recv(self.sock, 65536)
                assert data, "the server has closed the connection"
                self.arrived += data
                self.incoming.write(data)
            else:
                await self.flush()
                return result

    def records(self):
        """Return the content types of the records that arrived since the last call."""
        types, data = [], self.arrived
        while data:
            types.append(data[0])
            del data[: 5 + int.from_bytes(data[3:5], "big")]
        return types


class TestTls:
    async def test_small_writes_in_data_received_make_one_record(
        self, loop, loop_kind, server_ssl_context, client_ssl_context
    ):
        application_data = 23

        class Answering(Events):
            def data_received(self, data):
                for piece in (b"one", b"two", b"three"):
                    self.transport.write(piece)
                super().data_received(data)

        protocols = []

        def factory():
            protocols.append(Answering())
            return protocols[-1]

        # TLS 1.2, because from 1.3 on all records look alike.
        client_ssl_context.maximum_version = ssl.TLSVersion.TLSv1_2
        server = await loop.create_server(factory, "127.0.0.1", 0, ssl=server_ssl_context)
        with socket.create_connection(server.sockets[0].getsockname()) as sock:
            sock.setblocking(False)
            client = Client(loop, sock, client_ssl_context)
            await client.until_done(client.tls.do_handshake)
            client.records()
            client.tls.write(b"x")
            await client.flush()
            answer = b""
            while len(answer) < len(b"onetwothree"):
                answer += await client.until_done(lambda: client.tls.read(100))
            assert answer == b"onetwothree"
            count = client.records().count(application_data)
        await protocols[0].lost
        await support.close(server)
        assert count == side(loop_kind, asyncio=3, mgloop=1)

    def test_the_end_that_follows_an_interruption(
        self, loop, loop_kind, server_ssl_context, client_ssl_context
    ):
        class Interrupted(Events):
            ended = False

            def data_received(self, data):
                super().data_received(data)
                if b"last words" in data:
                    raise KeyboardInterrupt

            def eof_received(self):
                self.ended = True

        protocols = []

        def factory():
            protocols.append(Interrupted())
            return protocols[-1]

        async def main():
            server = await loop.create_server(factory, "127.0.0.1", 0, ssl=server_ssl_context)
            with socket.create_connection(server.sockets[0].getsockname()) as sock:
                sock.setblocking(False)
                client = Client(loop, sock, client_ssl_context)
                await client.until_done(client.tls.do_handshake)
                # The handshake ends at the server later than at the client, and asyncio would read
                # data of the same segment before it returns from the end of the handshake.
                await support.wait_until(lambda: protocols and protocols[0].seen)
                # Send the data and the closing alert in one piece.
                client.tls.write(b"last words")
                with pytest.raises(ssl.SSLWantReadError):
                    client.tls.unwrap()
                await client.flush()
                with contextlib.suppress(AssertionError):
                    await support.wait_until(lambda: protocols[0].ended, timeout=0.5)
            await protocols[0].lost
            await support.close(server)
            return protocols[0].ended

        task = loop.create_task(main())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
        assert loop.run_until_complete(task) is side(loop_kind, asyncio=False, mgloop=True)
        assert b"".join(protocols[0].chunks) == b"last words"

    @pytest.mark.mgloop_only
    async def test_start_tls_takes_what_a_stream_has_read_too_far(
        self, loop, server_ssl_context, client_ssl_context
    ):
        async def serve(reader, writer):
            assert await reader.readline() == b"go\n"
            await writer.start_tls(server_ssl_context)
            writer.write(await reader.readline())
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as sock:
            sock.setblocking(False)
            client = Client(loop, sock, client_ssl_context)
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.do_handshake()
            # Send the request and the first message of the handshake in one piece.
            await client.flush(prefix=b"go\n")
            await client.until_done(client.tls.do_handshake)
            client.tls.write(b"hello\n")
            await client.flush()
            assert await client.until_done(lambda: client.tls.read(100)) == b"hello\n"
        await support.close(server)

    async def test_a_transport_tells_its_engine(
        self, loop, loop_kind, server_ssl_context, client_ssl_context
    ):
        server = await loop.create_server(Events, "127.0.0.1", 0, ssl=server_ssl_context)
        transport, _ = await loop.create_connection(
            Events, *server.sockets[0].getsockname(), ssl=client_ssl_context
        )
        engine = transport.get_extra_info("tls_engine")
        transport.abort()
        await support.close(server)
        assert engine is None if loop_kind == "asyncio" else engine in ("openssl", "ssl")

    @pytest.mark.parametrize("within_tls", [False, True])
    def test_delivery_after_resume_runs_in_the_transports_context(
        self, loop, loop_kind, run, contexts, within_tls
    ):
        class Seeing(Recorder):
            def data_received(self, data):
                super().data_received(data)
                self.seen = variable.get()
                variable.set("set in data_received")

        async def main():
            variable.set("made")
            client, server = Recorder(loop), Seeing(loop)
            async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
                if within_tls:
                    ours, theirs = await asyncio.gather(
                        loop.start_tls(
                            ours, client, contexts["client_ssl"], server_hostname="localhost"
                        ),
                        loop.start_tls(theirs, server, contexts["server_ssl"], server_side=True),
                    )
                seen = []
                for count in (1, 2):
                    theirs.pause_reading()
                    ours.write(b"x")
                    await support.wait_until(theirs.get_read_buffer_size)
                    variable.set("resumed")
                    theirs.resume_reading()
                    await server.got(count)
                    seen.append(server.seen)
                return seen

        assert run(main()) == side(
            loop_kind, asyncio=["resumed", "resumed"], mgloop=["made", "set in data_received"]
        )

    async def test_a_shutdown_keeps_no_context_of_who_has_closed(
        self, loop, loop_kind, ours, peer, contexts
    ):
        class Value:
            pass

        async def close(transport):
            value = Value()
            variable.set(value)
            transport.close()
            return weakref.ref(value)

        protocol, silent = Recorder(loop), Recorder(loop)
        await asyncio.gather(
            loop.create_connection(
                lambda: protocol, sock=ours, ssl=contexts["client_ssl"],
                server_hostname="localhost",
            ),
            loop.connect_accepted_socket(lambda: silent, peer, ssl=contexts["server_ssl"]),
        )  # fmt: skip
        silent.transport._ssl_protocol._transport.pause_reading()  # sends no closing alert
        value = await loop.create_task(close(protocol.transport))
        await support.turns()
        gc.collect()
        kept = value() is not None
        for recorder in (protocol, silent):
            recorder.transport.abort()
            await recorder.lost
        assert kept is side(loop_kind, asyncio=True, mgloop=False)

    def test_an_empty_buffer_is_an_error(self, loop, loop_kind, run, reported, contexts):
        """asyncio treats it as the end of the stream."""

        async def main():
            client, server = Recorder(loop), BufferedRecorder(loop, size=0)
            async with connected_pair(loop, client, server, **contexts) as (ours, _):
                ours.write(b"data")
                await server.lost
                return "eof" in server.events

        assert run(main()) is side(loop_kind, asyncio=True, mgloop=False)
        if loop_kind == "mgloop":
            assert "empty buffer" in str(reported.pop(RuntimeError)["exception"])

    def test_a_high_limit_of_zero_does_not_pause_an_empty_buffer(
        self, loop, loop_kind, run, contexts
    ):
        async def main():
            client, server = Recorder(loop), Recorder(loop)
            async with connected_pair(loop, client, server, **contexts) as (ours, _):
                ours.set_write_buffer_limits(high=0)
                return client.paused

        assert run(main()) is side(loop_kind, asyncio=True, mgloop=False)

    def test_the_rest_of_a_large_write_counts_as_waiting(self, loop, loop_kind, run, contexts):
        async def main():
            client, server = Recorder(loop), Recorder(loop)
            async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
                theirs.pause_reading()
                ours.write(bytes(32 << 20))
                seen = client.paused, ours.get_write_buffer_size() > 1 << 20
                ours.abort()
                return seen

        assert run(main()) == side(loop_kind, asyncio=(False, False), mgloop=(True, True))

    def test_closing_below_counts_as_closing(self, loop, loop_kind, run, contexts):
        later = hasattr(asyncio.sslproto.SSLProtocol, "_is_transport_closing")

        async def main():
            client, server = Recorder(loop), Recorder(loop)
            async with connected_pair(loop, client, server, **contexts) as (ours, _):
                ours._ssl_protocol._transport.close()
                return ours.is_closing()

        assert run(main()) is side(loop_kind, asyncio=later, mgloop=True)

    def test_writelines_raises_for_what_is_not_bytes(
        self, loop, loop_kind, run, reported, contexts
    ):
        """asyncio closes the connection and reports it."""

        async def main():
            client, server = Recorder(loop), Recorder(loop)
            async with connected_pair(loop, client, server, **contexts) as (ours, _):
                try:
                    ours.writelines(["x"])
                except TypeError:
                    assert not ours.is_closing()
                    return "raised"
                await client.lost
                return "closed"

        assert run(main()) == side(loop_kind, asyncio="closed", mgloop="raised")
        if loop_kind == "asyncio":
            reported.pop(TypeError)
