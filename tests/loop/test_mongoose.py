# SPDX-License-Identifier: GPL-2.0-only
"""mgloop's use of Mongoose: Mongoose is really used, and an idle loop costs nothing.

Stock Mongoose walks all its connections in every poll, and spins on a descriptor that is readable
but unused. mgloop's port parks the connections; these tests fail if it no longer does.
"""

import asyncio
import resource
import shutil
import socket
import threading
import time

import pytest
import support

pytestmark = pytest.mark.mgloop_only

#: Seconds of CPU time that a loop may use in half a second without work: Python's own bookkeeping
#: for the run takes a millisecond or two, spinning takes all of it.
IDLE_CPU = 0.1

#: How often a thread may go to sleep in half a second without work.
IDLE_WAITS = 25


def voluntary_waits():
    """Return how often the calling thread has voluntarily given up the processor."""
    with open("/proc/thread-self/status") as status:
        for line in status:
            if line.startswith("voluntary_ctxt_switches"):
                return int(line.split()[1])
    raise AssertionError("the kernel does not say")


@pytest.fixture
def assert_idle(loop):
    """Return a function that runs the loop for half a second and checks that it slept."""

    def check():
        loop.call_later(0.5, loop.stop)
        cpu, waits = time.thread_time(), voluntary_waits()
        loop.run_forever()
        cpu, waits = time.thread_time() - cpu, voluntary_waits() - waits
        assert cpu < IDLE_CPU
        assert waits < IDLE_WAITS

    return check


class TestMongoose:
    def test_version(self):
        import mgloop

        assert mgloop.MONGOOSE_VERSION == "7.23"

    def test_its_functions_are_in_the_extension(self):
        """Mongoose is linked in: the extension contains the machine code of poll and wake-up."""
        from mgloop import _loop

        nm = shutil.which("nm")
        if nm is None:
            pytest.skip("needs nm of binutils")
        listing = support.finished([nm, _loop.__file__], check=True, timeout=60).stdout
        if "no symbols" in listing or not listing:
            pytest.skip("the extension is stripped")
        symbols = {line.split()[-1] for line in listing.splitlines() if line}
        for name in ("mg_mgr_poll", "mg_mgr_init", "mg_mgr_free", "mg_wakeup"):
            assert name in symbols

    def test_the_loop_waits_in_one_epoll_descriptor(self, loop_factory):
        before = support.open_fds()
        loop = loop_factory()
        loop.run_until_complete(asyncio.sleep(0.001))
        own = [what for fd, what in support.open_fds().items() if fd not in before]
        assert sum("eventpoll" in what for what in own) == 1
        loop.close()
        assert support.open_fds() == before

    def test_without_wake_up_there_are_fewer_descriptors(self, loop_factory):
        before = support.open_fds()
        loop = loop_factory()
        with_wakeup = len(support.open_fds()) - len(before)
        loop.close()
        loop = loop_factory(enable_wakeup=False)
        without_wakeup = len(support.open_fds()) - len(before)
        loop.close()
        assert without_wakeup < with_wakeup


class TestIdle:
    def test_nothing_to_do(self, assert_idle):
        assert_idle()

    def test_far_and_cancelled_timers(self, loop, assert_idle):
        timers = [loop.call_later(1000 + number, print) for number in range(1000)]
        for timer in timers[::2]:
            timer.cancel()
        assert_idle()
        for timer in timers:
            timer.cancel()

    def test_a_timer_that_was_cancelled_while_it_was_the_nearest(self, loop, assert_idle):
        for number in range(100):
            loop.call_later(0.001 * number, print).cancel()
        assert_idle()

    def test_after_wake_ups_from_threads(self, loop, assert_idle):
        for _ in range(50):
            with support.in_thread(loop.call_soon_threadsafe, loop.stop):
                loop.run_forever()
        assert_idle()

    def test_after_wake_ups_that_nobody_waited_for(self, loop, assert_idle):
        def other():
            for _ in range(5000):
                loop.call_soon_threadsafe(int)

        with support.in_thread(other):
            pass
        support.turn(loop, 2)
        assert_idle()

    def test_after_jobs_in_threads(self, loop, run, assert_idle):
        run(asyncio.sleep(0))
        for _ in range(20):
            run(loop.run_in_executor(None, threading.get_ident))
        assert_idle()

    def test_a_quiet_reader_with_room_to_write(self, loop, assert_idle, socketpair):
        """Readiness without a registered callback must not wake the loop."""
        loop.add_reader(socketpair[0], print)
        assert_idle()
        loop.remove_reader(socketpair[0])

    def test_a_removed_reader_whose_data_is_still_there(self, loop, assert_idle, left, right):
        right.send(b"x")
        loop.add_reader(left, print, "called by mistake")
        loop.remove_reader(left)
        assert_idle()

    def test_a_writer_on_a_full_socket(self, loop, assert_idle, socketpair):
        support.fill(socketpair[0])
        loop.add_writer(socketpair[0], print)
        assert_idle()
        loop.remove_writer(socketpair[0])

    def test_a_writer_with_data_to_read(self, loop, assert_idle, left, right):
        support.fill(left)
        right.send(b"x")
        loop.add_writer(left, print)
        assert_idle()
        loop.remove_writer(left)

    def test_sock_methods_that_wait(self, loop, run, assert_idle, left, right):
        support.fill(left)
        receiving = loop.create_task(loop.sock_recv(left, 10))
        sending = loop.create_task(loop.sock_sendall(left, b"x"))
        support.turn(loop, 3)
        assert_idle()
        support.drain(right)
        run(sending)
        right.send(b"x")
        assert run(receiving) == b"x"

    def test_after_sock_methods_with_more_to_read(self, loop, run, assert_idle, left, right):
        receiving = loop.create_task(loop.sock_recv(left, 1))
        support.turn(loop, 3)
        right.send(b"0123456789")
        assert run(receiving) == b"0"
        assert_idle()
        right.close()
        assert_idle()
        assert run(loop.sock_recv(left, 100)) == b"123456789"

    def test_a_paused_transport_with_data_and_end_of_file(self, loop, run, assert_idle):
        left, right = socket.socketpair()

        async def connect():
            transport, protocol = await loop.connect_accepted_socket(
                lambda: support.RecordingProtocol(loop, keep_open=True), left
            )
            transport.pause_reading()
            return transport, protocol

        transport, protocol = run(connect())
        right.send(b"unread")
        assert_idle()
        right.shutdown(socket.SHUT_WR)
        assert_idle()
        assert protocol.events == ["connection_made"]
        transport.resume_reading()
        run(protocol.ended)
        assert protocol.data == b"unread"
        assert_idle()
        transport.close()
        run(protocol.lost)
        right.close()

    def test_a_transport_whose_peer_does_not_read(self, loop, run, assert_idle):
        left, right = socket.socketpair()

        async def connect():
            return await loop.connect_accepted_socket(lambda: support.RecordingProtocol(loop), left)

        transport, protocol = run(connect())
        transport.write(bytes(support.BIG))
        assert_idle()
        transport.abort()
        run(protocol.lost)
        right.close()

    def test_descriptors_closed_behind_the_loops_back(self, loop, assert_idle):
        left, right = socket.socketpair()
        right.send(b"x")
        number = left.fileno()
        duplicate = left.dup()
        loop.add_reader(left, print, "called by mistake")
        loop.remove_reader(left)
        left.close()
        assert_idle()
        duplicate.close()
        right.close()
        assert loop.remove_reader(number) is False

    def test_a_server_without_clients(self, loop, run, assert_idle):
        server = run(loop.create_server(asyncio.Protocol, "127.0.0.1", 0))
        assert_idle()
        server.close()
        run(server.wait_closed())


class TestParking:
    """The cost of an iteration depends on the ready descriptors, not on the connected ones."""

    CONNECTIONS = 400
    ITERATIONS = 300

    def best_time(self, loop, left, right):
        """Return the minimum time of several rounds of iterations with one ready descriptor."""
        best = float("inf")
        count = 0

        def read():
            nonlocal count
            left.recv(10)
            count += 1
            if count % self.ITERATIONS:
                right.send(b"x")
            else:
                loop.stop()

        loop.add_reader(left, read)
        for _ in range(8):
            right.send(b"x")
            start = time.perf_counter()
            loop.run_forever()
            best = min(best, time.perf_counter() - start)
        loop.remove_reader(left)
        return best

    @pytest.fixture
    def room_for_descriptors(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 4 * self.CONNECTIONS
        if soft < wanted:
            if hard < wanted:
                pytest.skip("needs more descriptors than this process may have")
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        yield
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_idle_connections_cost_nothing(self, loop, left, right, room_for_descriptors):
        alone = self.best_time(loop, left, right)
        pairs = [socket.socketpair() for _ in range(self.CONNECTIONS)]
        for idle, _ in pairs:
            loop.add_reader(idle, print)
        among_others = self.best_time(loop, left, right)
        for idle, peer in pairs:
            loop.remove_reader(idle)
            idle.close()
            peer.close()
        # Walking 400 connections takes longer than the whole iteration.
        assert among_others < 2 * alone
