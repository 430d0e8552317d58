# SPDX-License-Identifier: GPL-2.0-only
"""The sock_* methods with bad input, and with reused descriptor numbers.

The user owns the socket, and may close it at any time, give its number away, duplicate it, or use
it from two tasks or two loops. The loop's state for a number must not outlive the socket.
"""

import asyncio
import contextlib
import errno
import os
import socket

import pytest
import support


class TestBadInput:
    @pytest.mark.parametrize("data", ["text", None, 42, [1, 2]])
    def test_sending_what_is_not_bytes(self, loop, run, socketpair, udp_pair, data):
        with pytest.raises(TypeError):
            run(loop.sock_sendall(socketpair[0], data))
        with pytest.raises(TypeError):
            run(loop.sock_sendto(udp_pair[0], data, udp_pair[1].getsockname()))

    @pytest.mark.parametrize("buffer", [b"read-only", memoryview(b"read-only"), "text", None, 42])
    def test_receiving_into_what_is_not_writable(self, loop, run, left, right, buffer):
        right.send(b"kept")
        with pytest.raises(TypeError):
            run(loop.sock_recv_into(left, buffer))
        with pytest.raises(TypeError):
            run(loop.sock_recvfrom_into(left, buffer))
        assert run(loop.sock_recv(left, 10)) == b"kept"

    @pytest.mark.parametrize("count", ["10", None, 1.5])
    def test_a_count_of_the_wrong_type(self, loop, run, socketpair, count):
        with pytest.raises(TypeError):
            run(loop.sock_recv(socketpair[0], count))
        with pytest.raises(TypeError):
            run(loop.sock_recvfrom(socketpair[0], count))

    def test_a_negative_count(self, loop, run, socketpair):
        with pytest.raises(ValueError):
            run(loop.sock_recv(socketpair[0], -1))
        with pytest.raises(ValueError):
            run(loop.sock_recvfrom(socketpair[0], -1))

    def test_a_negative_count_that_compares_as_positive(self, loop, run, left, right):
        """The value of the count decides, not its comparison operators."""
        right.send(b"kept")
        with pytest.raises(ValueError, match="negative buffersize in recv"):
            run(loop.sock_recv(left, support.UntruthfulInt(-5)))
        assert run(loop.sock_recv(left, support.UntruthfulInt(3))) == b"kep"
        assert run(loop.sock_recv(left, 10)) == b"t"

    def test_an_impossible_count(self, loop, run, socketpair):
        with pytest.raises((MemoryError, OverflowError)):
            run(loop.sock_recv(socketpair[0], 2**63 - 1))
        with pytest.raises((MemoryError, OverflowError)):
            run(loop.sock_recv(socketpair[0], 2**70))

    def test_a_released_memoryview(self, loop, run, left, right):
        right.send(b"kept")
        view = memoryview(bytearray(10))
        view.release()
        with pytest.raises(TypeError):
            run(loop.sock_recv_into(left, view))
        with pytest.raises(ValueError):
            run(loop.sock_sendall(left, view))
        assert run(loop.sock_recv(left, 10)) == b"kept"

    async def test_a_memoryview_released_while_waiting(self, loop, left, right):
        view = memoryview(bytearray(10))
        receiving = loop.create_task(loop.sock_recv_into(left, view))
        await support.turns(3)
        view.release()
        right.send(b"kept")
        with pytest.raises(TypeError):
            await receiving
        assert await loop.sock_recv(left, 10) == b"kept"

    async def test_a_bytearray_resized_while_waiting(self, loop, left, right):
        buffer = bytearray(10)
        receiving = loop.create_task(loop.sock_recv_into(left, buffer))
        await support.turns(3)
        del buffer[5:]
        right.send(b"0123456789")
        assert await receiving == 5
        assert buffer == b"01234"
        assert await loop.sock_recv(left, 10) == b"56789"

    @pytest.mark.parametrize("thing", [None, 42, "text", object()])
    def test_not_a_socket(self, loop, run, thing):
        with pytest.raises((AttributeError, TypeError)):
            run(loop.sock_recv(thing, 1))
        with pytest.raises((AttributeError, TypeError)):
            run(loop.sock_sendall(thing, b"x"))
        with pytest.raises((AttributeError, TypeError)):
            run(loop.sock_accept(thing))

    @pytest.mark.without_debug
    def test_a_closed_socket(self, loop, run):
        sock = socket.socket()
        sock.close()
        for operation in (
            loop.sock_recv(sock, 1),
            loop.sock_recv_into(sock, bytearray(1)),
            loop.sock_recvfrom(sock, 1),
            loop.sock_recvfrom_into(sock, bytearray(1)),
            loop.sock_sendall(sock, b"x"),
            loop.sock_sendto(sock, b"x", ("127.0.0.1", 9)),
            loop.sock_connect(sock, ("127.0.0.1", 9)),
            loop.sock_accept(sock),
        ):
            with pytest.raises(OSError) as info:
                run(operation)
            assert info.value.errno == errno.EBADF

    def test_a_socket_that_a_transport_owns(self, loop, run, tcp_pair):
        client, _ = tcp_pair

        async def main():
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=client)
            with pytest.raises(RuntimeError, match="is used by transport"):
                await loop.sock_recv(client, 10)
            with pytest.raises(RuntimeError, match="is used by transport"):
                await loop.sock_recv_into(client, bytearray(10))
            transport.close()
            await support.turns(5)

        run(main())


class TestLives:
    """One number, many sockets: the state of an old socket must not apply to a new one."""

    async def test_closed_after_a_wait_and_used_again(self, loop):
        """close() ends the kernel's registration; the loop must not rely on its own record."""
        numbers = set()
        for life in range(30):
            left, right = socket.socketpair()
            left.setblocking(False)
            numbers.add(left.fileno())
            receiving = loop.create_task(loop.sock_recv(left, 100))
            await support.turns(3)
            right.send(b"life %d" % life)
            assert await receiving == b"life %d" % life
            left.close()
            right.close()
        assert len(numbers) < 5

    async def test_closed_while_another_task_waits(self, loop):
        """The wait continues (asyncio's behaviour), can be cancelled, and the number is free."""
        left, right = socket.socketpair()
        left.setblocking(False)
        receiving = loop.create_task(loop.sock_recv(left, 100))
        await support.turns(3)
        left.close()
        right.close()
        await asyncio.sleep(0.002)
        receiving.cancel()
        with pytest.raises((asyncio.CancelledError, OSError)):
            await receiving
        with support.nonblocking_socketpair() as (new, peer):
            receiving = loop.create_task(loop.sock_recv(new, 100))
            await support.turns(3)
            peer.send(b"new life")
            assert await receiving == b"new life"

    @pytest.mark.parametrize("operation", ["recv", "sendall"])
    @pytest.mark.parametrize("with_handler", [False, True])
    @pytest.mark.parametrize("then", ["cancel", "cancel later", "another socket"])
    def test_cancelled_after_its_socket_was_closed(
        self, loop, run, loop_kind, reported, operation, with_handler, then
    ):
        """The call raises CancelledError, and the missing descriptor is not reported."""
        with contextlib.ExitStack() as stack:
            ours, peer = socket.socketpair()
            stack.enter_context(peer)
            ours.setblocking(False)
            # With a reader or writer the socket is registered with the kernel in another way.
            if operation == "recv":
                if with_handler:
                    loop.add_writer(ours, int)
                waiting = loop.create_task(loop.sock_recv(ours, 10))
            else:
                if with_handler:
                    loop.add_reader(ours, int)
                support.fill(ours)
                waiting = loop.create_task(loop.sock_sendall(ours, b"x" * 1000))
            support.turn(loop, 3)
            number = ours.fileno()
            ours.close()
            if then == "cancel later":
                support.turn(loop, 3)
            if then == "another socket":
                other = stack.enter_context(socket.socket())
                assert other.fileno() == number
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                run(waiting)
            loop.remove_reader(number)
            loop.remove_writer(number)
        if loop_kind == "asyncio":
            # A callback of the future cannot remove the descriptor.
            assert all(isinstance(item["exception"], OSError) for item in reported.pop_all())

    @pytest.mark.without_debug
    @pytest.mark.parametrize("operation", ["recv", "sendall"])
    async def test_a_duplicate_keeps_the_registration_alive(self, loop, operation):
        """Events of the duplicate arrive under the old number, which another socket may use now."""
        left, right = socket.socketpair()
        left.setblocking(False)
        number = left.fileno()
        duplicate = left.dup()
        if operation == "recv":
            waiting = loop.create_task(loop.sock_recv(left, 100))
        else:
            waiting = loop.create_task(loop.sock_sendall(left, bytes(support.BIG)))
        await support.turns(3)
        await support.cancel(waiting)
        with support.nonblocking_socketpair() as (new, peer):
            left.close()
            os.dup2(new.fileno(), number)
            reused = socket.socket(fileno=number)
            receiving = loop.create_task(loop.sock_recv(reused, 100))
            await support.turns(3)
            right.send(b"for the duplicate")
            right.setblocking(False)
            support.drain(right)
            await asyncio.sleep(0.005)
            assert not receiving.done()
            peer.send(b"for the new one")
            assert await receiving == b"for the new one"
            assert await loop.sock_recv(duplicate, 100) == b"for the duplicate"
            reused.close()
        duplicate.close()
        right.close()

    @pytest.mark.without_debug
    async def test_detached(self, loop):
        left, right = socket.socketpair()
        left.setblocking(False)
        right.send(b"first")
        assert await loop.sock_recv(left, 100) == b"first"
        again = socket.socket(fileno=left.detach())
        receiving = loop.create_task(loop.sock_recv(again, 100))
        await support.turns(3)
        right.send(b"second")
        assert await receiving == b"second"
        again.close()
        right.close()

    @pytest.mark.without_debug
    def test_one_socket_two_loops(self, loop, run, loop_factory, left, right):
        other = loop_factory()
        for number in range(3):
            for each in (loop, other):
                each.call_later(0.002, right.send, b"%d" % number)
                assert each.run_until_complete(each.sock_recv(left, 100)) == b"%d" % number
        other.close()

    async def test_sock_methods_and_readers_in_turns(self, loop, left, right):
        got = []
        for number in range(10):
            loop.add_reader(left, lambda: got.append(left.recv(100)))
            right.send(b"reader %d" % number)
            await support.wait_until(lambda: got)
            assert got.pop() == b"reader %d" % number
            loop.remove_reader(left)
            receiving = loop.create_task(loop.sock_recv(left, 100))
            await support.turns(2)
            right.send(b"method %d" % number)
            assert await receiving == b"method %d" % number

    async def test_sock_methods_then_a_transport(self, loop, ours, peer):
        """Websocket and proxy libraries greet with the sock methods, then pass the socket on."""
        greeting = loop.create_task(loop.sock_recv(ours, 100))
        await support.turns(3)
        peer.send(b"greeting")
        assert await greeting == b"greeting"
        await loop.sock_sendall(ours, b"answer")
        assert peer.recv(100) == b"answer"
        transport, protocol = await loop.create_connection(
            lambda: support.RecordingProtocol(loop), sock=ours
        )
        peer.send(b"to the transport")
        assert await protocol.received(16) == b"to the transport"
        transport.close()
        await protocol.lost

    def test_pending_operations_when_the_loop_closes(self, loop_factory):
        loop = loop_factory()
        with support.nonblocking_socketpair() as (left, right):
            support.fill(right)
            receiving = loop.create_task(loop.sock_recv(right, 100))
            sending = loop.create_task(loop.sock_sendall(right, b"x"))
            support.turn(loop, 3)
            for task in (receiving, sending):
                task.cancel()
            support.turn(loop, 3)
            loop.close()
            assert receiving.cancelled()
            assert sending.cancelled()
            assert left.fileno() != -1

    @pytest.mark.mgloop_only  # over asyncio the reader replaces the call
    def test_a_call_that_ends_after_its_loop(self, loop_factory, socketpair):
        """In the meantime a reader and a writer were registered for the same socket."""
        loop = loop_factory()

        async def receive():
            await loop.sock_recv(socketpair[0], 5)

        call = receive()
        task = loop.create_task(call)
        support.turn(loop)
        loop.add_reader(socketpair[0], print)
        loop.add_writer(socketpair[0], print)
        loop.close()
        call.close()
        task._log_destroy_pending = False
