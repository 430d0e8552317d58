# SPDX-License-Identifier: GPL-2.0-only
"""sock_recv, sock_recv_into and sock_sendall: coroutines over the user's own stream sockets.

The neighbouring files cover connecting and accepting, datagrams, files, bad input, and the reuse of
a descriptor number.
"""

import array
import asyncio
import socket
import sys
import time

import pytest
import support

try:
    import _testcapi
except ImportError:
    _testcapi = None


def test_all_are_coroutines(loop, left):
    """create_task() accepts the results directly."""
    with open(__file__, "rb") as file:
        for awaitable in (
            loop.sock_recv(left, 1),
            loop.sock_recv_into(left, bytearray(1)),
            loop.sock_recvfrom(left, 1),
            loop.sock_recvfrom_into(left, bytearray(1)),
            loop.sock_sendall(left, b"x"),
            loop.sock_sendto(left, b"x", "address"),
            loop.sock_connect(left, "address"),
            loop.sock_accept(left),
            loop.sock_sendfile(left, file),
        ):
            assert asyncio.iscoroutine(awaitable)
            awaitable.close()


@pytest.mark.parametrize("debug", [False, True])
def test_one_that_is_never_awaited_warns(loop, left, right, debug):
    """A forgotten ``await`` is a message that was never sent: Python warns, in any mode."""
    loop.set_debug(debug)
    for forget in (
        lambda: loop.sock_recv(left, 10),
        lambda: loop.sock_recv_into(left, bytearray(10)),
        lambda: loop.sock_sendall(left, b"x"),
    ):
        with pytest.warns(RuntimeWarning, match="was never awaited"):
            forget()
    with pytest.raises(BlockingIOError):
        right.recv(10)


def test_one_that_is_closed_without_being_awaited_does_nothing(loop, left, right):
    loop.sock_sendall(left, b"x").close()
    with pytest.raises(BlockingIOError):
        right.recv(10)


async def test_one_cannot_be_awaited_twice(loop, left):
    sending = loop.sock_sendall(left, b"x")
    await sending
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await sending


class TestRecv:
    def test_available_data(self, loop, run, left, right):
        right.send(b"0123456789")
        assert run(loop.sock_recv(left, 4)) == b"0123"
        assert run(loop.sock_recv(left, 4)) == b"4567"
        assert run(loop.sock_recv(left, 4)) == b"89"

    def test_data_that_arrives_later(self, loop, run, left, right):
        loop.call_later(0.005, right.send, b"later")
        assert run(loop.sock_recv(left, 100)) == b"later"

    def test_end_of_file(self, loop, run, left, right):
        loop.call_later(0.005, right.close)
        assert run(loop.sock_recv(left, 100)) == b""
        assert run(loop.sock_recv(left, 100)) == b""

    async def test_half_close(self, loop, ours, peer):
        peer.send(b"last words")
        peer.shutdown(socket.SHUT_WR)
        assert await loop.sock_recv(ours, 100) == b"last words"
        assert await loop.sock_recv(ours, 100) == b""
        await loop.sock_sendall(ours, b"answer")
        assert await loop.sock_recv(peer, 100) == b"answer"

    def test_reset(self, loop, run, ours, peer):
        loop.call_later(0.005, support.reset, peer)
        with pytest.raises(ConnectionResetError):
            run(loop.sock_recv(ours, 100))

    def test_nothing_asked_for(self, loop, run, left, right):
        right.send(b"x")
        assert run(loop.sock_recv(left, 0)) == b""
        assert run(loop.sock_recv(left, 1)) == b"x"

    def test_nothing_asked_for_is_there_at_once(self, loop, run, left):
        assert run(loop.sock_recv(left, 0)) == b""

    def test_nothing_asked_for_takes_no_datagram(self, loop, run):
        with support.nonblocking_socketpair(kind=socket.SOCK_DGRAM) as (left, right):
            right.send(b"datagram")
            assert run(loop.sock_recv(left, 0)) == b""
            assert run(loop.sock_recv(left, 100)) == b"datagram"

    @pytest.mark.parametrize("size", [1, 1000, 4096, 65536, 1 << 20])
    async def test_sizes(self, loop, ours, peer, size):
        data = support.pattern(300_000)
        sending = loop.create_task(loop.sock_sendall(peer, data[: size * 100]))
        got = bytearray()
        while len(got) < len(data[: size * 100]):
            chunk = await loop.sock_recv(ours, size)
            assert 0 < len(chunk) <= size
            got += chunk
        await sending
        assert got == data[: size * 100]

    async def test_ping_pong(self, loop, left, right):
        async def echo():
            while data := await loop.sock_recv(right, 100):
                await loop.sock_sendall(right, data)

        task = loop.create_task(echo())
        for number in range(500):
            await loop.sock_sendall(left, b"%d" % number)
            assert await loop.sock_recv(left, 100) == b"%d" % number
        left.shutdown(socket.SHUT_WR)
        await task

    def test_one_byte_at_a_time_from_a_slow_thread(self, loop, run, left, right):
        def write():
            for number in range(100):
                right.send(bytes([number]))
                if number % 10 == 0:
                    time.sleep(0.001)

        async def main():
            got = b""
            while len(got) < 100:
                got += await loop.sock_recv(left, 100)
            return got

        with support.in_thread(write):
            assert run(main()) == bytes(range(100))

    async def test_many_at_once(self, loop):
        pairs = [socket.socketpair() for _ in range(100)]
        for left, _ in pairs:
            left.setblocking(False)
        receiving = [loop.create_task(loop.sock_recv(left, 100)) for left, _ in pairs]
        await support.turns(3)
        for number, (_, right) in enumerate(pairs):
            right.send(b"%d" % number)
        got = await asyncio.gather(*receiving)
        assert got == [b"%d" % number for number in range(100)]
        for left, right in pairs:
            left.close()
            right.close()


class TestRecvInto:
    def test_available_data_and_data_that_arrives_later(self, loop, run, left, right):
        buffer = bytearray(10)
        right.send(b"now")
        assert run(loop.sock_recv_into(left, buffer)) == 3
        assert bytes(buffer) == b"now" + bytes(7)
        loop.call_later(0.005, right.send, b"later")
        assert run(loop.sock_recv_into(left, memoryview(buffer)[3:])) == 5
        assert bytes(buffer) == b"nowlater" + bytes(2)

    def test_end_of_file(self, loop, run, left, right):
        loop.call_later(0.005, right.close)
        assert run(loop.sock_recv_into(left, bytearray(10))) == 0

    def test_room_for_nothing(self, loop, run, left, right):
        assert run(loop.sock_recv_into(left, bytearray())) == 0
        right.send(b"x")
        assert run(loop.sock_recv_into(left, bytearray())) == 0
        assert run(loop.sock_recv(left, 1)) == b"x"

    def test_other_writable_buffers(self, loop, run, left, right):
        buffer = array.array("I", [0, 0])
        right.send(bytes(8 * [255]))
        assert run(loop.sock_recv_into(left, buffer)) == 8
        assert buffer.tolist() == [2**32 - 1] * 2

    def test_the_buffer_is_free_again_afterwards(self, loop, run, left, right):
        buffer = bytearray(10)
        right.send(b"x")
        run(loop.sock_recv_into(left, buffer))
        buffer.extend(b"may be resized")


class TestSendall:
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_bytes_like(self, loop, run, left, right, kind):
        assert run(loop.sock_sendall(left, kind(b"data"))) is None
        assert right.recv(10) == b"data"

    def test_nothing(self, loop, run, left):
        assert run(loop.sock_sendall(left, b"")) is None

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_more_than_the_socket_takes(self, loop, run, ours, peer, kind):
        data = support.pattern(support.BIG)
        got = bytearray()

        def read_slowly():
            peer.setblocking(True)
            while len(got) < len(data):
                got.extend(peer.recv(300_000))
                time.sleep(0.001)

        with support.in_thread(read_slowly):
            run(loop.sock_sendall(ours, kind(data)))
        assert got == data

    async def test_a_peer_that_begins_to_read_late(self, loop, left, right):
        data = support.pattern(support.BIG)
        sending = loop.create_task(loop.sock_sendall(left, data))
        await asyncio.sleep(0.02)
        assert not sending.done()
        got = bytearray()
        while len(got) < len(data):
            got += await loop.sock_recv(right, 100_000)
        await sending
        assert got == data

    async def test_both_directions_at_once(self, loop, ours, peer):
        data = support.pattern(support.BIG)

        async def receive(sock):
            got = bytearray()
            while len(got) < len(data):
                got += await loop.sock_recv(sock, 1 << 16)
            return got

        got = await asyncio.gather(
            receive(ours),
            receive(peer),
            loop.sock_sendall(ours, data),
            loop.sock_sendall(peer, data),
        )
        assert got[0] == data
        assert got[1] == data

    def test_a_peer_that_has_gone(self, loop, run, left, right):
        right.close()
        with pytest.raises(BrokenPipeError):
            run(loop.sock_sendall(left, b"data"))

    def test_a_peer_that_goes_meanwhile(self, loop, run, left, right):
        loop.call_later(0.01, right.close)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            run(loop.sock_sendall(left, bytes(support.BIG)))

    def test_a_mutable_buffer_is_not_locked_afterwards(self, loop, run, left):
        data = bytearray(b"data")
        run(loop.sock_sendall(left, data))
        data.extend(b"may be resized")

    async def test_cancelled_in_the_middle(self, loop, left, right):
        sending = loop.create_task(loop.sock_sendall(left, bytes(support.BIG)))
        await asyncio.sleep(0.005)
        await support.cancel(sending)
        sent = len(support.drain(right))
        await asyncio.sleep(0.005)
        assert support.drain(right) == b""
        assert 0 < sent < support.BIG
        await loop.sock_sendall(left, b"next")
        assert right.recv(10) == b"next"


class TestCancellation:
    @pytest.mark.parametrize("cancel_first", [True, False])
    async def test_data_and_cancellation_in_the_same_iteration(
        self, loop, left, right, cancel_first
    ):
        for number in range(20):
            receiving = loop.create_task(loop.sock_recv(left, 100))
            await support.turns(number % 4 + 1 if cancel_first else 3)
            if cancel_first:
                receiving.cancel()
            right.send(b"%d" % number)
            await support.cancel(receiving)
            assert await loop.sock_recv(left, 100) == b"%d" % number

    async def test_cancelled_before_the_first_step(self, loop, left, right):
        right.send(b"kept")
        receiving = loop.create_task(loop.sock_recv(left, 100))
        await support.cancel(receiving)
        assert await loop.sock_recv(left, 100) == b"kept"

    async def test_timeout(self, loop, left, right):
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.002):
                    await loop.sock_recv(left, 100)
        right.send(b"kept")
        assert await loop.sock_recv(left, 100) == b"kept"

    async def test_a_coroutine_closed_while_waiting(self, loop, left, right):
        """GeneratorExit instead of CancelledError causes the same clean-up."""
        receiving = loop.sock_recv(left, 100)
        waiting_for = receiving.send(None)
        receiving.close()
        waiting_for.cancel()
        await support.turns(3)
        right.send(b"kept")
        assert await loop.sock_recv(left, 100) == b"kept"

    async def test_a_second_recv_takes_over(self, loop, left, right):
        """As in asyncio, only one call waits at a time; cancelling the replaced one is harmless."""
        first = loop.create_task(loop.sock_recv(left, 100))
        await support.turns(3)
        second = loop.create_task(loop.sock_recv(left, 100))
        await support.turns(3)
        first.cancel()
        await support.turns(3)
        right.send(b"data")
        assert await second == b"data"
        with pytest.raises(asyncio.CancelledError):
            await first


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


class TestWaiting:
    """Several calls wait for one socket."""

    # With asyncio the second call replaces the first.
    @pytest.mark.mgloop_only
    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
    @pytest.mark.parametrize("waiters", [1, 2, 5])
    def test_those_who_wait_when_one_is_interrupted(self, loop, interruption, waiters):
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
    def test_those_who_wait_when_one_fails(self, loop):
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


@pytest.mark.mgloop_only  # socket.recv() shrinks its object after it has received, which may fail
@pytest.mark.skipif(_testcapi is None, reason="this interpreter cannot let allocations fail")
@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="await makes a StopIteration for the result since 3.12"
)
async def test_no_byte_is_lost_when_memory_runs_out(loop, left, right):
    """Whichever allocation fails, the bytes are returned by this call or by the next one."""
    outcomes = set()
    for number in range(8):
        right.send(b"all")
        call = loop.sock_recv(left, 100)
        received = None
        _testcapi.set_nomemory(number, number + 1)
        try:
            received = await call
        except MemoryError:
            pass
        finally:
            _testcapi.remove_mem_hooks()
        outcomes.add(received)
        assert (received or left.recv(100)) == b"all", number
    assert outcomes <= {None, b"all"}
    assert b"all" in outcomes
