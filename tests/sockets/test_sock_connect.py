# SPDX-License-Identifier: GPL-2.0-only
"""sock_connect and sock_accept, over TCP and AF_UNIX: refused, cancelled, late, concurrent."""

import asyncio
import contextlib
import errno
import os
import socket
import sys

import pytest
import support
from peers import skip_on_asyncio

try:
    import _testcapi
except ImportError:
    _testcapi = None


class TestConnectAndAccept:
    async def test_both(self, loop):
        with support.listening_socket() as listener, socket.socket() as client:
            client.setblocking(False)
            accepting = loop.create_task(loop.sock_accept(listener))
            assert await loop.sock_connect(client, listener.getsockname()) is None
            server, address = await accepting
            with server:
                assert server.gettimeout() == 0
                assert address == client.getsockname()
                assert server.type == socket.SOCK_STREAM
                assert not os.get_inheritable(server.fileno())
                await loop.sock_sendall(client, b"data")
                assert await loop.sock_recv(server, 10) == b"data"

    @support.needs_ipv6
    async def test_ipv6(self, loop):
        with support.listening_socket("::1") as listener:
            with socket.socket(socket.AF_INET6) as client:
                client.setblocking(False)
                await loop.sock_connect(client, listener.getsockname())
                server, address = await loop.sock_accept(listener)
                server.close()
                assert address == client.getsockname()

    async def test_a_host_name_is_resolved(self, loop):
        with support.listening_socket() as listener, socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, ("localhost", listener.getsockname()[1]))
            server, _ = await loop.sock_accept(listener)
            server.close()

    async def test_refused(self, loop):
        with support.refused_address() as address, socket.socket() as client:
            client.setblocking(False)
            with pytest.raises(ConnectionRefusedError) as info:
                await loop.sock_connect(client, address)
            assert info.value.errno == errno.ECONNREFUSED

    @pytest.mark.parametrize(
        "family", [socket.AF_INET, pytest.param(socket.AF_INET6, marks=support.needs_ipv6)]
    )
    def test_why_it_was_refused(self, loop, run, family):
        host, more = ("127.0.0.1", ()) if family == socket.AF_INET else ("::1", (0, 0))

        async def main():
            with support.refused_address(host) as address, socket.socket(family) as client:
                client.setblocking(False)
                with pytest.raises(ConnectionRefusedError) as info:
                    await loop.sock_connect(client, address[:2])
                return info.value.strerror, address[1]

        told, port = run(main())
        assert told == f"Connect call failed {(host, port, *more)}"

    @pytest.mark.parametrize(
        ("address", "error"),
        [(("127.0.0.1", 70_000), OverflowError), (("127.0.0.1",), ValueError),
         (("127.0.0.1", "no such service"), OSError)],
    )  # fmt: skip
    def test_bad_addresses(self, loop, run, address, error):
        with socket.socket() as client:
            client.setblocking(False)
            with pytest.raises(error):
                run(loop.sock_connect(client, address))

    @pytest.mark.without_debug
    @pytest.mark.parametrize("how", ["accepted", "refused"])
    def test_the_iteration_of_the_outcome(self, loop, how):
        """The same as with asyncio, however soon the kernel has connected."""

        async def connect(address):
            with socket.socket() as client:
                client.setblocking(False)
                running = asyncio.get_running_loop()
                task = running.create_task(running.sock_connect(client, address))
                iterations = 0
                while not task.done():
                    iterations += 1
                    await asyncio.sleep(0)
                return iterations, type(task.exception())

        def outcome(loop):
            if how == "refused":
                with support.refused_address() as address:
                    return loop.run_until_complete(connect(address))
            with support.listening_socket() as listener:
                return loop.run_until_complete(connect(listener.getsockname()))

        for _ in range(5):  # a busy machine may connect later
            reference = support.new_loop("asyncio")
            there = outcome(reference)
            support.finish(reference)
            here = outcome(loop)
            if here == there:
                break
        assert here == there

    def test_begun_before_the_loop_runs(self, loop):
        with support.listening_socket() as listener, socket.socket() as client:
            client.setblocking(False)
            connecting = loop.sock_connect(client, listener.getsockname())
            future = connecting.send(None)
            loop.run_until_complete(asyncio.wait([future], timeout=support.PATIENCE))
            with pytest.raises(StopIteration):
                connecting.send(None)
            assert client.getpeername() == listener.getsockname()

    @pytest.mark.parametrize("how", ["accepted", "refused"])
    async def test_an_answer_that_comes_late(self, loop, how):
        """After a second the kernel retries a request that a full backlog has left unanswered."""
        with support.listening_socket(backlog=0) as listener, contextlib.ExitStack() as stack:
            for _ in range(20):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                pending = loop.create_task(loop.sock_connect(client, listener.getsockname()))
                done, _ = await asyncio.wait({pending}, timeout=0.05)
                if not done:
                    break
            assert not pending.done()
            if how == "accepted":
                with contextlib.suppress(BlockingIOError):
                    while True:
                        listener.accept()[0].close()
                await asyncio.wait_for(pending, support.PATIENCE)
                assert client.getpeername() == listener.getsockname()
            else:
                listener.close()
                with pytest.raises(ConnectionRefusedError, match="Connect call failed"):
                    await asyncio.wait_for(pending, support.PATIENCE)

    def test_already_connected(self, loop, run, ours, peer):
        with pytest.raises(OSError) as info:
            run(loop.sock_connect(ours, peer.getsockname()))
        assert info.value.errno == errno.EISCONN

    async def test_cancelled_connect(self, loop):
        """A listener with a full backlog does not answer a connection attempt."""
        with support.listening_socket(backlog=0) as listener:
            clients = []
            pending = None
            for _ in range(20):
                client = socket.socket()
                client.setblocking(False)
                clients.append(client)
                pending = loop.create_task(loop.sock_connect(client, listener.getsockname()))
                done, _ = await asyncio.wait({pending}, timeout=0.05)
                if not done:
                    break
            assert not pending.done()
            await support.cancel(pending)
            number = clients[-1].fileno()
            assert loop.remove_writer(number) is False
            for client in clients:
                client.close()

    async def test_accept_later_and_many(self, loop):
        with support.listening_socket() as listener:

            async def accept():
                return [await loop.sock_accept(listener) for _ in range(20)]

            accepting = loop.create_task(accept())
            await asyncio.sleep(0.002)
            clients = []
            for number in range(20):
                client = socket.create_connection(listener.getsockname())
                clients.append(client)
                if number % 5 == 0:
                    await asyncio.sleep(0.001)
            accepted = await accepting
            assert [address for _, address in accepted] == [
                client.getsockname() for client in clients
            ]
            for server, _ in accepted:
                server.close()
            for client in clients:
                client.close()

    async def test_cancelled_accept(self, loop):
        with support.listening_socket() as listener:
            accepting = loop.create_task(loop.sock_accept(listener))
            await support.turns(3)
            await support.cancel(accepting)
            with socket.create_connection(listener.getsockname()) as client:
                server, address = await loop.sock_accept(listener)
                server.close()
                assert address == client.getsockname()

    def test_accept_on_a_socket_that_does_not_listen(self, loop, run):
        with socket.socket() as sock:
            sock.setblocking(False)
            with pytest.raises(OSError) as info:
                run(loop.sock_accept(sock))
            assert info.value.errno == errno.EINVAL

    @pytest.mark.parametrize("abstract", [False, True])
    async def test_unix(self, loop, short_path, abstract):
        address = b"\0mgloop test %d" % os.getpid() if abstract else short_path
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            listener.bind(address)
            listener.listen()
            listener.setblocking(False)
            client.setblocking(False)
            await loop.sock_connect(client, address)
            server, peer = await loop.sock_accept(listener)
            with server:
                assert peer in ("", b"")
                assert server.family == socket.AF_UNIX
                await loop.sock_sendall(server, b"data")
                assert await loop.sock_recv(client, 10) == b"data"

    def test_unix_path_that_is_not_there(self, loop, run, short_path):
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            with pytest.raises(FileNotFoundError):
                run(loop.sock_connect(client, short_path))

    def test_unix_path_where_nobody_listens(self, loop, run, short_path):
        with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as client:
            dead.bind(short_path)
            client.setblocking(False)
            with pytest.raises(ConnectionRefusedError):
                run(loop.sock_connect(client, short_path))

    async def test_connected_then_written_at_once(self, loop):
        with support.listening_socket() as listener:
            for number in range(30):
                with socket.socket() as client:
                    client.setblocking(False)
                    await loop.sock_connect(client, listener.getsockname())
                    await loop.sock_sendall(client, b"%d" % number)
                    server, _ = await loop.sock_accept(listener)
                    with server:
                        assert await loop.sock_recv(server, 10) == b"%d" % number


@pytest.mark.skipif(_testcapi is None, reason="this interpreter cannot let allocations fail")
def test_a_task_that_cannot_be_woken_is_reported(loop, loop_kind, reported):
    """A future whose callback cannot be scheduled for want of memory is done, and wakes nothing."""
    if sys.version_info >= (3, 14):
        skip_on_asyncio(loop_kind, "the interpreter crashes if memory runs out there")
    outcomes = set()
    with support.listening_socket(backlog=100) as listener:
        for number in range(30):
            with socket.socket() as client:
                client.setblocking(False)
                loop.call_soon(_testcapi.set_nomemory, number, number + 1)
                call = loop.sock_connect(client, listener.getsockname())
                future = call.send(None)
                woken = []
                future.add_done_callback(woken.append)
                loop.call_later(0.01, _testcapi.remove_mem_hooks)
                stop = loop.call_later(0.02, loop.stop)
                with contextlib.suppress(MemoryError):
                    loop.run_forever()
                _testcapi.remove_mem_hooks()
                stop.cancel()
                loop.run_until_complete(asyncio.sleep(0))
                contexts = reported.pop_all()
                assert woken or contexts or not future.done(), number
                outcomes.add(bool(woken))
                future.cancel()
                loop.run_until_complete(asyncio.sleep(0))
                call.close()
    assert outcomes == {True, False}
