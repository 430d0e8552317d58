# SPDX-License-Identifier: GPL-2.0-only
"""add_reader, add_writer and their removal: level-triggered for the user.

test_fd_reuse.py covers descriptors that are closed, duplicated and reused.
"""

import asyncio
import contextlib
import errno
import gc
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import weakref

import pytest
import support
from support import Calls


class BadDescriptorError(Exception):
    """OSError with EBADF."""


class TestReader:
    def test_is_called_with_its_arguments_when_there_is_something_to_read(
        self, loop, run, left, right
    ):
        calls = Calls(lambda: left.recv(10))
        loop.add_reader(left, calls, 1, "two")
        run(asyncio.sleep(0.01))
        assert not calls
        right.send(b"x")
        run(support.wait_until(lambda: calls))
        run(asyncio.sleep(0.01))
        assert calls.args == [(1, "two")]
        loop.remove_reader(left)

    def test_is_called_again_as_long_as_something_is_left(self, loop, run, left, right):
        """Level-triggered, as in asyncio: unread data is reported again."""
        calls = Calls()
        loop.add_reader(left, calls)
        right.send(b"x")
        run(support.wait_until(lambda: len(calls) >= 10))
        left.recv(10)
        count = len(calls)
        run(asyncio.sleep(0.01))
        assert len(calls) <= count + 2
        loop.remove_reader(left)

    def test_once_per_iteration(self, loop, left, right):
        calls = Calls()
        loop.add_reader(left, calls)
        right.send(b"x")
        support.turn(loop, 20)
        assert 15 <= len(calls) <= 20
        loop.remove_reader(left)

    def test_partial_reads(self, loop, run, left, right):
        got = bytearray()
        loop.add_reader(left, lambda: got.extend(left.recv(1)))
        right.send(b"0123456789")
        run(support.wait_until(lambda: len(got) == 10))
        assert got == b"0123456789"
        loop.remove_reader(left)

    def test_end_of_file(self, loop, run, left, right):
        got = []
        loop.add_reader(left, lambda: got.append(left.recv(10)))
        right.close()
        run(support.wait_until(lambda: len(got) >= 3))
        assert set(got) == {b""}
        loop.remove_reader(left)

    def test_reset_by_the_peer(self, loop, run, ours, peer):
        failures = []

        def read():
            try:
                ours.recv(10)
            except ConnectionResetError:
                failures.append("reset")
                loop.remove_reader(ours)

        loop.add_reader(ours, read)
        support.reset(peer)
        run(support.wait_until(lambda: failures))

    def test_data_that_is_there_before_the_registration(self, loop, run, left, right):
        right.send(b"x")
        calls = Calls()
        loop.add_reader(left, calls)
        run(support.wait_until(lambda: len(calls) >= 3))
        loop.remove_reader(left)

    def test_removed_and_added_again_with_data_left(self, loop, run, left, right):
        right.send(b"x")
        for _ in range(3):
            calls = Calls()
            loop.add_reader(left, calls)
            run(support.wait_until(lambda calls=calls: calls))
            assert loop.remove_reader(left) is True
            count = len(calls)
            support.turn(loop, 3)
            assert len(calls) == count

    def test_pipe(self, loop, run):
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        got = []
        loop.add_reader(reading, lambda: got.append(os.read(reading, 10)))
        os.write(writing, b"data")
        run(support.wait_until(lambda: got))
        os.close(writing)
        run(support.wait_until(lambda: got[-1] == b""))
        assert got[0] == b"data"
        loop.remove_reader(reading)
        os.close(reading)

    def test_listening_socket(self, loop, run):
        with support.listening_socket() as listener:
            accepted = []
            loop.add_reader(listener, lambda: accepted.append(listener.accept()[0]))
            clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
            run(support.wait_until(lambda: len(accepted) == 5))
            loop.remove_reader(listener)
        for sock in clients + accepted:
            sock.close()

    def test_exceptions_go_to_the_handler_and_the_reader_stays(self, loop, left, right, reported):
        def fail():
            raise LookupError

        loop.add_reader(left, fail)
        right.send(b"x")
        support.turn(loop, 3)
        assert loop.remove_reader(left) is True
        contexts = reported.pop_all()
        assert len(contexts) >= 2
        assert all(isinstance(context["exception"], LookupError) for context in contexts)

    def test_a_reader_that_removes_itself(self, loop, left, right):
        calls = Calls(lambda: loop.remove_reader(left))
        loop.add_reader(left, calls)
        right.send(b"x")
        support.turn(loop, 5)
        assert len(calls) == 1

    def test_a_reader_that_removes_another_one_that_is_ready(self, loop, run):
        with support.nonblocking_socketpair() as one, support.nonblocking_socketpair() as two:

            def remove_both():
                loop.remove_reader(one[0])
                loop.remove_reader(two[0])

            calls = Calls(remove_both)
            for pair in (one, two):
                pair[1].send(b"x")
                loop.add_reader(pair[0], calls)
            support.turn(loop, 5)
            assert len(calls) == 1

    def test_a_reader_that_replaces_itself(self, loop, run, left, right):
        second = Calls(lambda: left.recv(10))
        first = Calls(lambda: loop.add_reader(left, second))
        loop.add_reader(left, first)
        right.send(b"x")
        run(support.wait_until(lambda: second))
        assert len(first) == 1
        loop.remove_reader(left)

    def test_a_reader_that_closes_its_socket(self, loop):
        left, right = socket.socketpair()
        left.setblocking(False)

        def close():
            loop.remove_reader(left)
            left.close()

        calls = Calls(close)
        loop.add_reader(left, calls)
        right.send(b"x")
        support.turn(loop, 5)
        right.close()
        assert len(calls) == 1

    def test_callback_and_arguments_are_released_by_removal(self, loop, left):
        class Token:
            pass

        for replace in (False, True):
            token = Token()
            alive = weakref.ref(token)
            loop.add_reader(left, print, token)
            del token
            if replace:
                loop.add_reader(left, print)
            else:
                loop.remove_reader(left)
            gc.collect()
            assert alive() is None
        loop.remove_reader(left)

    def test_many_descriptors(self, loop, run):
        pairs = [socket.socketpair() for _ in range(200)]
        got = set()

        def read(number):
            pairs[number][0].recv(10)
            got.add(number)

        for number, (left, _) in enumerate(pairs):
            left.setblocking(False)
            loop.add_reader(left, read, number)
        for number in range(0, 200, 2):
            pairs[number][1].send(b"x")
        run(support.wait_until(lambda: len(got) == 100))
        for number in range(1, 200, 2):
            pairs[number][1].send(b"x")
        run(support.wait_until(lambda: len(got) == 200))
        for left, right in pairs:
            loop.remove_reader(left)
            left.close()
            right.close()

    def test_no_descriptor_is_favoured(self, loop):
        """All of many ready descriptors are called before any is called much more often."""
        with support.nonblocking_socketpair() as busy:
            others = [socket.socketpair() for _ in range(50)]
            busy[1].send(b"x")
            busy_calls = Calls()
            got = set()

            def on_other(number):
                got.add(number)
                if len(got) == 50:
                    loop.stop()

            loop.add_reader(busy[0], busy_calls)
            for number, (left, right) in enumerate(others):
                loop.add_reader(left, on_other, number)
                right.send(b"x")
            loop.run_forever()
            loop.remove_reader(busy[0])
            for left, right in others:
                loop.remove_reader(left)
                left.close()
                right.close()
            assert len(busy_calls) < 20


class TestWriter:
    def test_is_called_as_long_as_there_is_room(self, loop, run, left):
        calls = Calls()
        loop.add_writer(left, calls, "argument")
        run(support.wait_until(lambda: len(calls) >= 5))
        assert set(calls.args) == {("argument",)}
        assert loop.remove_writer(left) is True
        count = len(calls)
        support.turn(loop, 3)
        assert len(calls) == count

    def test_waits_until_the_peer_reads(self, loop, run, left, right):
        support.fill(left)
        calls = Calls(lambda: loop.remove_writer(left))
        loop.add_writer(left, calls)
        run(asyncio.sleep(0.01))
        assert not calls
        support.drain(right)
        run(support.wait_until(lambda: calls))

    def test_a_failing_connection(self, loop, run):
        """A refused connect() makes the socket writable, as with select()."""
        with support.refused_address() as address, socket.socket() as sock:
            sock.setblocking(False)
            sock.connect_ex(address)
            calls = Calls(lambda: loop.remove_writer(sock))
            loop.add_writer(sock, calls)
            run(support.wait_until(lambda: calls))
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def test_a_pipe_whose_reader_has_gone(self, loop, run):
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        while True:
            try:
                os.write(writing, b"x" * 65536)
            except BlockingIOError:
                break
        calls = Calls(lambda: loop.remove_writer(writing))
        loop.add_writer(writing, calls)
        run(asyncio.sleep(0.005))
        assert not calls
        os.close(reading)
        run(support.wait_until(lambda: calls))
        os.close(writing)


class TestKinds:
    """Every kind of file that epoll can watch."""

    def test_eventfd(self, loop, run):
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        got = []
        loop.add_reader(fd, lambda: got.append(os.eventfd_read(fd)))
        loop.call_later(0.001, os.eventfd_write, fd, 42)
        run(support.wait_until(lambda: got))
        assert got == [42]
        loop.remove_reader(fd)
        os.close(fd)

    def test_terminal(self, loop, run):
        master, slave = os.openpty()
        os.set_blocking(master, False)
        got = bytearray()
        loop.add_reader(master, lambda: got.extend(os.read(master, 100)))
        os.write(slave, b"typed")
        run(support.wait_until(lambda: got == b"typed"))
        loop.remove_reader(master)
        os.close(slave)
        os.close(master)

    def test_named_pipe_and_its_next_writer(self, loop, run, tmp_path):
        path = tmp_path / "fifo"
        os.mkfifo(path)
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        got = []
        loop.add_reader(fd, lambda: got.append(os.read(fd, 100)))
        for number in range(3):
            path.write_bytes(b"%d" % number)
            run(support.wait_until(lambda n=number: len(got) == n + 1))
        assert got == [b"0", b"1", b"2"]
        loop.remove_reader(fd)
        os.close(fd)

    @pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open")
    def test_process(self, loop, run):
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        fd = os.pidfd_open(process.pid)
        calls = Calls(lambda: loop.remove_reader(fd))
        loop.add_reader(fd, calls)
        run(asyncio.sleep(0.01))
        assert not calls
        process.communicate(b"\n")
        run(support.wait_until(lambda: calls))
        os.close(fd)

    def test_another_epoll(self, loop, run, left, right):
        with select.epoll() as inner:
            inner.register(left, select.EPOLLIN)
            calls = Calls(lambda: left.recv(10))
            loop.add_reader(inner, calls)
            right.send(b"x")
            run(support.wait_until(lambda: calls))
            loop.remove_reader(inner)

    def test_udp_socket(self, loop, run):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            sock.setblocking(False)
            got = []
            loop.add_reader(sock, lambda: got.append(sock.recv(100)))
            for number in range(3):
                sock.sendto(b"%d" % number, sock.getsockname())
            run(support.wait_until(lambda: len(got) == 3))
            loop.remove_reader(sock)


class TestBoth:
    def test_reader_and_writer_on_one_descriptor(self, loop, run, left, right):
        reads = Calls(lambda: left.recv(10))
        writes = Calls()
        loop.add_reader(left, reads)
        loop.add_writer(left, writes)
        run(support.wait_until(lambda: writes))
        assert not reads
        right.send(b"x")
        run(support.wait_until(lambda: reads))
        assert loop.remove_writer(left) is True
        count = len(writes)
        right.send(b"x")
        run(support.wait_until(lambda: len(reads) == 2))
        assert len(writes) == count
        assert loop.remove_reader(left) is True

    def test_removing_one_keeps_the_other(self, loop, run, left, right):
        reads, writes = Calls(), Calls()
        loop.add_reader(left, reads)
        loop.add_writer(left, writes)
        assert loop.remove_reader(left) is True
        right.send(b"x")
        run(support.wait_until(lambda: len(writes) >= 3))
        assert not reads
        loop.remove_writer(left)

    async def test_a_reader_beside_a_waiting_sock_sendall(self, loop, left, right):
        data = support.pattern(support.BIG)
        got = []
        loop.add_reader(left, lambda: got.append(left.recv(10)))
        sending = loop.create_task(loop.sock_sendall(left, data))
        await support.turns(3)
        right.send(b"x")
        await support.wait_until(lambda: got)
        arrived = bytearray()
        while len(arrived) < len(data):
            arrived += await loop.sock_recv(right, 1 << 16)
        await sending
        assert arrived == data
        right.send(b"y")
        await support.wait_until(lambda: len(got) == 2)
        assert got == [b"x", b"y"]
        assert loop.remove_reader(left) is True

    async def test_a_writer_beside_a_waiting_sock_recv(self, loop, left, right):
        calls = Calls()
        receiving = loop.create_task(loop.sock_recv(left, 10))
        await support.turns(3)
        loop.add_writer(left, calls)
        await support.wait_until(lambda: len(calls) > 2)
        assert not receiving.done()
        right.send(b"data")
        assert await receiving == b"data"
        assert loop.remove_writer(left) is True
        receiving = loop.create_task(loop.sock_recv(left, 10))
        await support.turns(3)
        right.send(b"more")
        assert await receiving == b"more"

    def test_the_two_ends_of_one_pair(self, loop, run, left, right):
        got = []
        loop.add_reader(left, lambda: got.append(left.recv(10)))

        def write():
            right.send(b"x")
            loop.remove_writer(right)

        loop.add_writer(right, write)
        run(support.wait_until(lambda: got == [b"x"]))
        loop.remove_reader(left)

    @pytest.mark.parametrize("side", ["reader", "writer"])
    def test_adding_again_replaces(self, loop, run, left, right, side):
        right.send(b"x")
        add, remove = getattr(loop, f"add_{side}"), getattr(loop, f"remove_{side}")
        first, second = Calls(), Calls()
        add(left, first)
        add(left, second)
        run(support.wait_until(lambda: second))
        assert not first
        assert remove(left) is True
        assert remove(left) is False

    @pytest.mark.parametrize("side", ["reader", "writer"])
    def test_removing_what_was_never_added(self, loop, left, side):
        assert getattr(loop, f"remove_{side}")(left) is False
        assert getattr(loop, f"remove_{side}")(12345) is False
        other = {"reader": "writer", "writer": "reader"}[side]
        getattr(loop, f"add_{other}")(left, print)
        assert getattr(loop, f"remove_{side}")(left) is False
        assert getattr(loop, f"remove_{other}")(left) is True

    @pytest.mark.parametrize("form", [lambda s: s, lambda s: s.fileno()], ids=["object", "number"])
    def test_number_and_object_mean_the_same(self, loop, run, left, right, form):
        right.send(b"x")
        calls = Calls()
        loop.add_reader(form(left), calls)
        run(support.wait_until(lambda: calls))
        assert loop.remove_reader(left.fileno()) is True
        loop.add_reader(left.fileno(), calls)
        assert loop.remove_reader(form(left)) is True

    def test_anything_with_fileno(self, loop, run, left, right):
        class Wrapper:
            def __init__(self, sock):
                self.sock = sock

            def fileno(self):
                return self.sock.fileno()

        right.send(b"x")
        calls = Calls()
        loop.add_reader(Wrapper(left), calls)
        run(support.wait_until(lambda: calls))
        assert loop.remove_reader(Wrapper(left)) is True

    def test_registered_in_one_loop_and_another(self, loop, run, loop_factory, left, right):
        other = loop_factory()
        right.send(b"x")
        calls, other_calls = Calls(), Calls()
        loop.add_reader(left, calls)
        other.add_reader(left, other_calls)
        support.turn(loop, 2)
        support.turn(other, 2)
        assert calls
        assert other_calls
        loop.remove_reader(left)
        other.remove_reader(left)
        other.close()


class TestBadDescriptors:
    @pytest.mark.parametrize("side", ["reader", "writer"])
    @pytest.mark.parametrize("fd", [-1, -100, "text", None, 1.5, object()])
    def test_not_a_descriptor(self, loop, side, fd):
        with pytest.raises(ValueError):
            getattr(loop, f"add_{side}")(fd, print)

    @pytest.mark.parametrize("side", ["reader", "writer"])
    def test_a_closed_descriptor(self, loop, side):
        reading, writing = os.pipe()
        os.close(reading)
        os.close(writing)
        with pytest.raises(OSError) as info:
            getattr(loop, f"add_{side}")(reading, print)
        assert info.value.errno == 9
        assert getattr(loop, f"remove_{side}")(reading) is False

    @pytest.mark.parametrize("side", ["reader", "writer"])
    def test_a_closed_socket_object(self, loop, side):
        sock = socket.socket()
        sock.close()
        with pytest.raises(ValueError):
            getattr(loop, f"add_{side}")(sock, print)
        with pytest.raises(ValueError):
            getattr(loop, f"remove_{side}")(sock)

    @pytest.mark.parametrize("side", ["reader", "writer"])
    def test_a_socket_closed_while_it_is_watched(self, loop, side, socketpair):
        """anyio closes the socket first and removes it afterwards."""
        add, remove = getattr(loop, f"add_{side}"), getattr(loop, f"remove_{side}")
        add(socketpair[0], print)
        add(socketpair[1], print)
        number = socketpair[0].fileno()
        socketpair[0].close()
        assert remove(socketpair[0]) is True
        with pytest.raises(ValueError):
            remove(socketpair[0])
        assert remove(number) is False
        assert remove(socketpair[1]) is True

    def test_a_watched_file_object_is_kept_alive(self, loop, socketpair):
        """asyncio keeps the object that it was given, not only its number."""

        class File:
            fileno = socketpair[0].fileno

        file = File()
        kept = weakref.ref(file)
        loop.add_reader(file, print)
        loop.add_writer(file, print)
        del file
        gc.collect()
        loop.remove_writer(socketpair[0])
        assert kept() is not None
        loop.remove_reader(socketpair[0])
        gc.collect()
        assert kept() is None

    @pytest.mark.parametrize("side", ["reader", "writer"])
    def test_a_regular_file(self, loop, side, tmp_path):
        with open(tmp_path / "file", "w+b") as file:
            for _ in range(2):
                with pytest.raises(PermissionError):
                    getattr(loop, f"add_{side}")(file, print)
            assert getattr(loop, f"remove_{side}")(file) is False
            with pytest.raises(KeyError):
                loop._selector.get_key(file)

    @pytest.mark.parametrize("side", ["reader", "writer"])
    def test_a_number_beyond_every_limit(self, loop, side):
        with pytest.raises((OSError, OverflowError)):
            getattr(loop, f"add_{side}")(2**31 - 1, print)
        with pytest.raises((OSError, OverflowError, ValueError)):
            getattr(loop, f"add_{side}")(2**70, print)

    @pytest.mark.parametrize("side", ["reader", "writer"])
    def test_a_negative_number_that_compares_as_positive(self, loop, side):
        with pytest.raises((OSError, OverflowError, ValueError)):
            getattr(loop, f"add_{side}")(support.UntruthfulInt(-5), print)

    @pytest.mark.parametrize("number", [2**20, 2**29, 2**30, 2**31 - 1])
    def test_a_transport_over_a_socket_whose_number_no_process_has(
        self, loop, run, reported, number
    ):
        """The loop's table must not grow for such a number: 2**29 would need 8 GiB, and from 2**30
        on the loop hung. The address space is limited so that a large table fails."""

        class Socket(socket.socket):
            def fileno(self):
                return number

        left, right = socket.socketpair()

        async def create():
            # If asyncio makes a transport, its loop reports the error.
            with contextlib.suppress(BadDescriptorError):
                try:
                    transport, _ = await loop.create_connection(asyncio.Protocol, sock=sock)
                except OSError as exc:
                    raise BadDescriptorError if exc.errno == errno.EBADF else exc from exc
                transport.abort()
            await support.turns(3)

        with right, Socket(left.family, left.type, left.proto, fileno=left.detach()) as sock:
            sock.setblocking(False)
            limits = resource.getrlimit(resource.RLIMIT_AS)
            with open("/proc/self/statm") as statm:
                used = int(statm.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 512 * 2**20, limits[1]))
            try:
                run(create())
            finally:
                resource.setrlimit(resource.RLIMIT_AS, limits)
        for context in reported.pop_all():
            assert context["exception"].errno == errno.EBADF

    def test_a_failed_registration_leaves_nothing_behind(self, loop, run, tmp_path, socketpair):
        with open(tmp_path / "file", "w+b") as file:
            with pytest.raises(PermissionError):
                loop.add_reader(file, print)
            number = file.fileno()
        # The number is free again; the next file with it must be registered as new.
        replacement = os.dup(socketpair[0].fileno())
        assert replacement == number
        socketpair[1].send(b"x")
        calls = Calls()
        loop.add_reader(replacement, calls)
        run(support.wait_until(lambda: calls))
        loop.remove_reader(replacement)
        os.close(replacement)

    def test_missing_callback(self, loop, socketpair):
        with pytest.raises(TypeError):
            loop.add_reader(socketpair[0])
        with pytest.raises(TypeError):
            loop.remove_reader()

    @pytest.mark.parametrize(
        "method", ["add_reader", "add_writer", "remove_reader", "remove_writer"]
    )
    def test_a_descriptor_that_a_transport_owns(self, loop, run, tcp_pair, method):
        client, _ = tcp_pair

        async def main():
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=client)
            args = (print,) if method.startswith("add") else ()
            with pytest.raises(RuntimeError, match="is used by transport"):
                getattr(loop, method)(client.fileno(), *args)
            with pytest.raises(RuntimeError, match="is used by transport"):
                getattr(loop, method)(client, *args)
            transport.close()
            await support.turns(5)

        run(main())

    async def test_a_number_that_a_transport_owned(self, loop):
        """Once the transport is closed, its descriptor number may be reused."""
        with (
            support.nonblocking_socketpair() as (left, right),
            support.nonblocking_tcp_pair() as (client, _),
        ):
            number = client.fileno()
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=client)
            transport.close()
            await support.wait_until(lambda: client.fileno() == -1)
            os.dup2(left.fileno(), number)
            right.send(b"x")
            calls = Calls()
            loop.add_reader(number, calls)
            await support.wait_until(lambda: calls)
            loop.remove_reader(number)
            os.close(number)


def test_registration_from_another_thread_is_seen(loop, left, right):
    """Register with call_soon_threadsafe while the loop waits for another event."""
    right.send(b"x")

    def other():
        loop.call_soon_threadsafe(loop.add_reader, left, loop.stop)

    timer = threading.Timer(0.02, other)
    timer.start()
    loop.run_forever()
    timer.join()
    loop.remove_reader(left)
