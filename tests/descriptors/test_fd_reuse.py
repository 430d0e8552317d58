# SPDX-License-Identifier: GPL-2.0-only
"""One owner per descriptor, however often its number is reused.

The kernel ties an epoll registration to the open file description, not to the descriptor's number.
The registration outlives close() as long as a duplicate is open. Otherwise it vanishes without
notice to the loop, and the number may soon refer to another file.
"""

import asyncio
import contextlib
import os
import random
import socket

import pytest
import support
from peers import skip_on_asyncio
from support import Calls


class TestDescriptorReuse:
    @pytest.mark.parametrize("ready", [False, True])
    def test_closed_behind_the_loops_back(self, loop, run, ready):
        """The user forgets to remove the reader: no crash, no spin, and removal returns True."""
        left, right = socket.socketpair()
        if ready:
            right.send(b"x")
        calls = Calls()
        loop.add_reader(left, calls)
        number = left.fileno()
        left.close()
        right.close()
        run(asyncio.sleep(0.01))
        assert loop.remove_reader(number) is True
        assert loop.remove_reader(number) is False
        run(asyncio.sleep(0))

    def test_a_writer_added_after_the_reader_was_closed_behind_the_loops_back(self, loop):
        """add_writer() may raise OSError; then the loop can watch the next file with the number."""
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

    @pytest.mark.parametrize("side", ["reader", "writer"])
    @pytest.mark.parametrize("removed", [True, False], ids=["late removal", "no removal"])
    def test_a_number_used_again(self, loop, loop_kind, run, socketpair, side, removed):
        """The removal comes when the number refers to another file, or does not come."""
        if not removed:
            skip_on_asyncio(loop_kind, "assumes that the number is already registered")
        add, remove = getattr(loop, f"add_{side}"), getattr(loop, f"remove_{side}")
        new, peer = socketpair
        left, right = socket.socketpair()
        stale, fresh = Calls(), Calls()
        if removed:
            support.fill(new)
        left.setblocking(False)
        support.fill(left)
        add(left, stale)
        if not removed:
            run(asyncio.sleep(0))
        number = left.fileno()
        left.close()
        right.close()
        os.dup2(new.fileno(), number)
        if removed:
            assert remove(number) is True
        add(number, fresh)
        peer.send(b"x")
        support.drain(peer)
        run(support.wait_until(lambda: fresh))
        assert not stale
        assert remove(number) is True
        os.close(number)

    def test_removed_then_reused(self, loop, run):
        """A number is reused many times; each reader gets only its own socket's events."""
        for life in range(50):
            left, right = socket.socketpair()
            left.setblocking(False)
            got = []
            loop.add_reader(left, lambda left=left, got=got: got.append(left.recv(10)))
            message = b"life %d" % life
            right.send(message)
            run(support.wait_until(lambda got=got: got))
            assert got == [message]
            loop.remove_reader(left)
            left.close()
            right.close()

    def test_a_duplicate_outlives_the_original(self, loop, run, left, right):
        """The kernel would continue to report the closed number because of the duplicate."""
        duplicate = left.dup()
        calls = Calls()
        loop.add_reader(left, calls)
        loop.remove_reader(left)
        left.close()
        right.send(b"x")
        support.turn(loop, 5)
        assert not calls
        duplicate_calls = Calls()
        loop.add_reader(duplicate, duplicate_calls)
        run(support.wait_until(lambda: duplicate_calls))
        assert not calls
        loop.remove_reader(duplicate)
        duplicate.close()

    def test_original_and_duplicate_are_separate(self, loop, run, left, right):
        with left.dup() as duplicate:
            calls, duplicate_calls = Calls(), Calls()
            loop.add_reader(left, calls)
            loop.add_reader(duplicate, duplicate_calls)
            right.send(b"x")
            run(support.wait_until(lambda: calls and duplicate_calls))
            loop.remove_reader(left)
            count = len(duplicate_calls)
            run(support.wait_until(lambda: len(duplicate_calls) > count))
            loop.remove_reader(duplicate)

    def test_closed_and_reused_by_an_earlier_callback_of_the_same_iteration(self, loop, run):
        """Both are ready; the first closes the second, and a new socket gets its number.

        The new socket's reader must not receive events of the old one.
        """
        for _ in range(20):
            first, second = socket.socketpair(), socket.socketpair()
            new = []
            old_calls = Calls()

            def swap(first=first, second=second, new=new):
                loop.remove_reader(first[0])
                number = second[0].fileno()
                loop.remove_reader(number)
                second[0].close()
                new.extend(socket.socketpair())
                assert number in (new[0].fileno(), new[1].fileno())
                for sock in new:
                    loop.add_reader(sock, new.append, "called by mistake")

            for pair, callback in ((first, swap), (second, old_calls)):
                pair[1].send(b"x")
                loop.add_reader(pair[0], callback)
            support.turn(loop, 5)
            if len(old_calls):
                # The kernel chooses the order of ready descriptors: this round proves nothing.
                assert new
            assert len(new) == 2
            for sock in new:
                loop.remove_reader(sock)
            for sock in (*first, *second, *new):
                sock.close()

    async def test_storm(self, loop):
        """Descriptors are opened, closed and reused at random, by readers and by transports.

        uvloop once sent one connection's answer to another under such conditions. Every message
        carries the identity of its connection, and each end checks the messages it receives.
        """
        chance = random.Random(645)
        failures = []
        finished = []

        class Echo(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport

            def data_received(self, data):
                self.transport.write(data)
                if chance.random() < 0.2:
                    self.transport.close()

        async def through_transport(number):
            left, right = socket.socketpair()
            right.setblocking(False)
            transport, _ = await loop.connect_accepted_socket(Echo, left)
            message = b"<%d>" % number
            await loop.sock_sendall(right, message)
            got = await loop.sock_recv(right, 100)
            if got != message:
                failures.append((message, got))
            if chance.random() < 0.5:
                transport.abort()
            else:
                transport.close()
            right.close()

        async def through_reader(number):
            left, right = socket.socketpair()
            left.setblocking(False)
            right.setblocking(False)
            message = b"<%d>" % number
            done = loop.create_future()

            def read():
                got = left.recv(100)
                if got != message:
                    failures.append((message, got))
                loop.remove_reader(left)
                left.close()
                done.set_result(None)

            loop.add_reader(left, read)
            if chance.random() < 0.3:
                await asyncio.sleep(0)
            right.send(message)
            await done
            right.close()

        async def cancelled_receive(number):
            left, right = socket.socketpair()
            left.setblocking(False)
            task = loop.create_task(loop.sock_recv(left, 100))
            await support.turns(chance.randrange(3))
            if chance.random() < 0.5:
                right.send(b"<%d>" % number)
            task.cancel()
            got = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(got, bytes) and got != b"<%d>" % number:
                failures.append((number, got))
            left.close()
            right.close()

        async def worker(first):
            for number in range(first, first + 150):
                kind = chance.choice([through_transport, through_reader, cancelled_receive])
                await kind(number)
            finished.append(first)

        await asyncio.gather(*(worker(1000 * number) for number in range(10)))
        await support.turns(5)
        assert not failures
        assert len(finished) == 10
