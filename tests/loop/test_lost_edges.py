# SPDX-License-Identifier: GPL-2.0-only
"""An interruption must not lose the kernel's report, which comes only once.

KeyboardInterrupt and SystemExit leave run_forever() in the middle of a callback. A program may run
the loop again to shut down in order, and then everything must continue without loss: the rest of
the data, the end of the stream, the remaining datagrams. asyncio queries the kernel again for every
read; a loop that gets a single report of a change must remember it. The same applies to a clock
written in Python, which may schedule a callback at an unexpected moment.
"""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import threading
import time
import warnings

import pytest
import support

INTERRUPTIONS = [KeyboardInterrupt, SystemExit]
each_interruption = pytest.mark.parametrize("interruption", INTERRUPTIONS)
#: Which calls interrupt: the first, a later one, several in a row.
each_moment = pytest.mark.parametrize("moments", [{1}, {2}, {1, 2, 3}], ids=["1st", "2nd", "1-3"])

#: Seconds after which data that was in the kernel before the loop ran counts as lost.
SOON = 5.0


class Interrupter:
    """Raises `interruption` in the calls whose numbers are in `moments`."""

    def __init__(self, interruption, moments):
        self.interruption = interruption
        self.moments = moments
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls in self.moments:
            raise self.interruption(f"call {self.calls}")

    @property
    def raised(self):
        """Return how many of the moments have passed."""
        return sum(moment <= self.calls for moment in self.moments)


@pytest.fixture
def moments():
    """Return the moments of ``interrupt``; `each_moment` parametrizes them."""
    return {1}


@pytest.fixture(params=INTERRUPTIONS)
def interrupt(request, moments):
    """Return an Interrupter with each kind of interruption."""
    return Interrupter(request.param, moments)


def run_through(loop, interrupter, future):
    """Run the loop repeatedly until `future` is done; return the number of interruptions."""

    async def wait():
        await asyncio.wait_for(asyncio.shield(future), SOON)

    task = loop.create_task(wait())
    interruptions = 0
    while not task.done():
        try:
            loop.run_until_complete(task)
        except interrupter.interruption:
            interruptions += 1
    task.result()
    return interruptions


def soon(loop, predicate):
    """Return a task that waits until ``predicate()`` is true."""
    return loop.create_task(support.wait_until(predicate, timeout=SOON - 1))


class _Ends(asyncio.BaseProtocol):
    """Counts the received data; `over` is done when the connection has ended."""

    def __init__(self, loop, interrupt, where):
        self.interrupt = interrupt
        self.where = where
        self.data = bytearray()
        self.events = []
        self.over = loop.create_future()

    def _at(self, where):
        self.events.append(where)
        if where == self.where:
            self.interrupt()

    def connection_made(self, transport):
        self.transport = transport
        self._at("connection_made")

    def eof_received(self):
        self._at("eof_received")

    def connection_lost(self, exc):
        if not self.over.done():
            self.over.set_result(exc)
        self._at("connection_lost")


class Plain(_Ends, asyncio.Protocol):
    def data_received(self, data):
        self.data += data
        self._at("data")


class Buffered(_Ends, asyncio.BufferedProtocol):
    def __init__(self, *args):
        super().__init__(*args)
        self.buffer = bytearray(65536)

    def get_buffer(self, sizehint):
        if self.where == "get_buffer":
            self.interrupt()
        return self.buffer

    def buffer_updated(self, nbytes):
        self.data += self.buffer[:nbytes]
        self._at("data")


either_protocol = pytest.mark.parametrize("kind", [Plain, Buffered])


@contextlib.contextmanager
def tcp_sockets():
    with support.nonblocking_tcp_pair() as pair:
        yield pair


either_family = pytest.mark.parametrize(
    "sockets", [tcp_sockets, support.nonblocking_socketpair], ids=["TCP", "UNIX"]
)


def connected(loop, sock, protocol):
    """Connect `protocol` over a socket; return it."""
    loop.run_until_complete(loop.create_connection(lambda: protocol, sock=sock))
    return protocol


def pour(sock, data):
    """Send all of `data` to a non-blocking socket, however long it takes, and close it."""
    sock.setblocking(True)
    sock.sendall(data)
    sock.close()


# --- streams -------------------------------------------------------------------------------------


class TestStreams:
    @each_moment
    @either_protocol
    @either_family
    @pytest.mark.parametrize("ends", [True, False], ids=["and its end", "without an end"])
    def test_the_rest_of_the_data(self, loop, interrupt, kind, sockets, ends):
        """All of it is in the kernel before the loop runs: no new data arrives to wake it."""
        data = support.pattern(100_000)
        with sockets() as (ours, peer):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 400_000)
            protocol = connected(loop, ours, kind(loop, interrupt, "data"))
            assert peer.send(data) == len(data)
            if ends:
                peer.close()
                assert run_through(loop, interrupt, protocol.over) == interrupt.raised
                assert protocol.events[-2:] == ["eof_received", "connection_lost"]
            else:
                arrived = soon(loop, lambda: len(protocol.data) == len(data))
                run_through(loop, interrupt, arrived)
                protocol.transport.abort()
                run_through(loop, interrupt, protocol.over)
        assert protocol.data == data

    @either_protocol
    def test_at_every_call_while_data_keeps_coming(self, loop, interrupt, kind):
        data = support.pattern(3_000_000)
        interrupt.moments = range(1, 10_000)
        with tcp_sockets() as (ours, peer):
            protocol = connected(loop, ours, kind(loop, interrupt, "data"))
            with support.in_thread(pour, peer, data):
                run_through(loop, interrupt, protocol.over)
        assert protocol.data == data

    @either_family
    def test_asked_for_a_buffer(self, loop, interrupt, sockets):
        interrupt.moments = {1, 2}
        with sockets() as (ours, peer):
            protocol = connected(loop, ours, Buffered(loop, interrupt, "get_buffer"))
            peer.send(b"data")
            peer.close()
            assert run_through(loop, interrupt, protocol.over) == 2
        assert protocol.data == b"data"

    @either_protocol
    @either_family
    def test_the_end_of_the_stream(self, loop, interrupt, kind, sockets):
        """The end of the stream has not been processed, and is reported again."""
        with sockets() as (ours, peer):
            protocol = connected(loop, ours, kind(loop, interrupt, "eof_received"))
            peer.close()
            assert run_through(loop, interrupt, protocol.over) == 1
        assert protocol.events == [
            "connection_made", "eof_received", "eof_received", "connection_lost"
        ]  # fmt: skip

    @either_protocol
    @either_family
    @pytest.mark.parametrize("accepted", [False, True], ids=["sock=", "accepted"])
    def test_connection_made(self, loop, interrupt, kind, sockets, accepted):
        with sockets() as (ours, peer):
            protocol = kind(loop, interrupt, "connection_made")
            peer.send(b"data")
            peer.close()
            if accepted:
                connecting = loop.connect_accepted_socket(lambda: protocol, ours)
            else:
                connecting = loop.create_connection(lambda: protocol, sock=ours)
            task = loop.create_task(connecting)
            assert run_through(loop, interrupt, protocol.over) == 1
            assert loop.run_until_complete(task)[1] is protocol
        assert protocol.data == b"data"
        assert protocol.events == ["connection_made", "data", "eof_received", "connection_lost"]

    @either_family
    def test_connection_lost(self, loop, interrupt, sockets):
        """The descriptor is closed nevertheless: the peer sees the end."""
        with sockets() as (ours, peer):
            protocol = connected(loop, ours, Plain(loop, interrupt, "connection_lost"))
            protocol.transport.close()
            assert run_through(loop, interrupt, protocol.over) <= 1
            support.turn(loop, 2)
            assert interrupt.calls == 1
            peer.setblocking(True)
            peer.settimeout(support.PATIENCE)
            assert peer.recv(10) == b""

    @pytest.mark.parametrize("family", ["TCP", "UNIX"])
    def test_a_factory(self, loop, interrupt, family, tmp_path, reported):
        """It loses its own connection at most; later ones in the backlog are accepted."""
        interrupt.moments = {1, 3}
        made = []
        enough = loop.create_future()

        class Served(asyncio.Protocol):
            def __init__(self):
                interrupt()

            def connection_made(self, transport):
                made.append(transport)
                if len(made) == 4:
                    enough.set_result(None)

        if family == "TCP":
            server = loop.run_until_complete(loop.create_server(Served, "127.0.0.1", 0))
            make = socket.create_connection
        else:
            path = str(tmp_path / "socket")
            server = loop.run_until_complete(loop.create_unix_server(Served, path))

            def make(address):
                sock = socket.socket(socket.AF_UNIX)
                sock.connect(address)
                return sock

        with contextlib.ExitStack() as stack:
            for _ in range(6):
                stack.enter_context(make(server.sockets[0].getsockname()))
            assert run_through(loop, interrupt, enough) == 2
            for transport in made:
                transport.abort()
            server.close()
            loop.run_until_complete(server.wait_closed())
        # asyncio's accepting tasks report the exception again, and leave their sockets to the
        # garbage collector.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        for context in reported.pop_all():
            assert type(context["exception"]) is interrupt.interruption

    @either_family
    def test_resume_writing(self, loop, interrupt, sockets):
        """The queued data is still sent."""
        interrupt.moments = {1, 2}
        data = support.pattern(support.BIG)

        class Writer(Plain):
            def pause_writing(self):
                pass

            def resume_writing(self):
                interrupt()

        with sockets() as (ours, peer):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            protocol = Writer(loop, interrupt, None)
            transport, _ = loop.run_until_complete(
                loop.create_connection(lambda: protocol, sock=ours)
            )
            transport.set_write_buffer_limits(high=len(data) // 2, low=len(data) // 4)
            transport.write(data)
            transport.close()
            received = bytearray()

            def receive():
                peer.setblocking(True)
                while chunk := peer.recv(65536):
                    received.extend(chunk)

            with support.in_thread(receive):
                assert run_through(loop, interrupt, protocol.over) == 1
        assert received == data

    def test_other_transports_have_their_turn(self, loop, interrupt):
        """Transports whose events came in the same poll are served as well."""
        interrupt.moments = {1, 2, 3, 4, 5}
        with contextlib.ExitStack() as stack:
            pairs = [stack.enter_context(tcp_sockets()) for _ in range(10)]
            protocols = [Plain(loop, interrupt, "data") for _ in pairs]
            for protocol, (ours, _) in zip(protocols, pairs, strict=True):
                loop.run_until_complete(loop.create_connection(lambda p=protocol: p, sock=ours))
            for _, peer in pairs:
                peer.send(b"data")
                peer.close()
            over = asyncio.gather(*(protocol.over for protocol in protocols))
            assert run_through(loop, interrupt, over) == 5
        assert all(protocol.data == b"data" for protocol in protocols)

    @each_moment
    @pytest.mark.parametrize("waits", [False, True], ids=["", "when nothing more comes"])
    def test_over_tls(
        self, loop, interrupt, moments, waits, server_ssl_context, client_ssl_context
    ):
        """Or several records are in the kernel before the loop continues, and no more arrive.

        This test does not cover the end of the stream in TLS.
        """
        data = support.pattern(60_000 if waits else 1_000_000)
        protocol = Plain(loop, interrupt, "data")
        server = loop.run_until_complete(
            loop.create_server(lambda: protocol, "127.0.0.1", 0, ssl=server_ssl_context)
        )
        greeted, sent, release = threading.Event(), threading.Event(), threading.Event()

        def client():
            address = server.sockets[0].getsockname()
            with (
                socket.create_connection(address) as sock,
                client_ssl_context.wrap_socket(sock, server_hostname="localhost") as tls,
            ):
                greeted.wait(support.PATIENCE)
                for start in range(0, len(data), 5000 if waits else len(data)):
                    tls.sendall(data[start : start + 5000] if waits else data)
                sent.set()
                release.wait(support.PATIENCE)

        with support.in_thread(client):
            loop.run_until_complete(support.wait_until(lambda: protocol.events))
            greeted.set()
            assert not waits or sent.wait(support.PATIENCE)
            arrived = soon(loop, lambda: len(protocol.data) == len(data))
            try:
                interruptions = run_through(loop, interrupt, arrived)
            finally:
                release.set()
        run_through(loop, interrupt, protocol.over)
        server.close()
        loop.run_until_complete(server.wait_closed())
        assert protocol.data == data
        assert waits or interruptions == len(moments)


# --- datagrams -----------------------------------------------------------------------------------


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, loop, interrupt, where="datagram"):
        self.interrupt = interrupt
        self.where = where
        self.got = []
        self.errors = []
        self.over = loop.create_future()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.got.append(data)
        if self.where == "datagram":
            self.interrupt()

    def error_received(self, exc):
        self.errors.append(exc.errno)
        if self.where == "error":
            self.interrupt()

    def connection_lost(self, exc):
        self.over.set_result(exc)


class TestDatagrams:
    @each_moment
    @pytest.mark.parametrize("count", [3, 16, 17, 40])
    @pytest.mark.parametrize("family", ["UDP", "UNIX"])
    def test_those_that_are_queued(self, loop, interrupt, count, family, tmp_path):
        protocol = Datagrams(loop, interrupt)
        if family == "UDP":
            kind, address = socket.AF_INET, ("127.0.0.1", 0)
        else:
            kind, address = socket.AF_UNIX, str(tmp_path / "socket")
        transport, _ = loop.run_until_complete(
            loop.create_datagram_endpoint(lambda: protocol, address, family=kind)
        )
        address = transport.get_extra_info("sockname")
        sent = [b"%d" % number for number in range(count)]
        with socket.socket(kind, socket.SOCK_DGRAM) as peer:
            peer.setblocking(False)
            waiting = list(sent)
            # A UNIX socket queues only a few: the rest follows when it is writable.
            with contextlib.suppress(BlockingIOError):
                while waiting:
                    peer.sendto(waiting[0], address)
                    waiting.pop(0)
            in_kernel = len(sent) - len(waiting)
            arrived = soon(loop, lambda: len(protocol.got) == in_kernel)
            interruptions = run_through(loop, interrupt, arrived)
        assert protocol.got == sent[:in_kernel]
        assert interruptions == interrupt.raised
        transport.close()
        loop.run_until_complete(protocol.over)

    def test_those_behind_an_error(self, loop, interrupt):
        protocol = Datagrams(loop, interrupt, "error")
        peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with peer:
            peer.bind(("127.0.0.1", 0))
            transport, _ = loop.run_until_complete(
                loop.create_datagram_endpoint(lambda: protocol, remote_addr=peer.getsockname())
            )
            for _ in range(3):
                peer.sendto(b"before", transport.get_extra_info("sockname"))
        transport.get_extra_info("socket")  # creates the Python socket if it does not exist yet
        transport.sendto(b"refused")
        arrived = soon(loop, lambda: len(protocol.got) == 3 and protocol.errors)
        assert run_through(loop, interrupt, arrived) == 1
        assert protocol.errors == [errno.ECONNREFUSED]
        transport.close()
        loop.run_until_complete(protocol.over)

    def test_queued_and_paused_by_turns(self, loop, interrupt):
        """Interrupted, paused, resumed: each leaves part of the datagrams that were read."""
        protocol = Datagrams(loop, None, None)
        transport, _ = loop.run_until_complete(
            loop.create_datagram_endpoint(lambda: protocol, ("127.0.0.1", 0))
        )
        interrupt.moments = {5, 21}

        def received(data, addr):
            protocol.got.append(data)
            if len(protocol.got) % 4 == 0:
                transport.pause_reading()
                loop.call_later(0.001, transport.resume_reading)
            interrupt()

        try:
            transport.pause_reading()
        except (AttributeError, NotImplementedError):
            transport.close()
            loop.run_until_complete(protocol.over)
            pytest.skip("asyncio's datagram transports cannot pause reading")
        transport.resume_reading()
        protocol.datagram_received = received
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            for number in range(40):
                peer.sendto(b"%d" % number, transport.get_extra_info("sockname"))
        arrived = soon(loop, lambda: len(protocol.got) == 40)
        assert run_through(loop, interrupt, arrived) == 2
        assert protocol.got == [b"%d" % number for number in range(40)]
        transport.close()
        loop.run_until_complete(protocol.over)


# --- the user's descriptors, and pipes -----------------------------------------------------------


class TestDescriptors:
    def test_a_reader_that_has_not_read(self, loop, interrupt, left, right):
        interrupt.moments = {1, 2, 3}
        got = loop.create_future()

        def readable():
            interrupt()
            got.set_result(left.recv(100))
            loop.remove_reader(left)

        loop.add_reader(left, readable)
        right.send(b"data")
        assert run_through(loop, interrupt, got) == 3
        assert got.result() == b"data"

    def test_readers_that_were_reported_together(self, loop, interrupt):
        interrupt.moments = {1, 2, 3}
        done = loop.create_future()
        called = []

        def readable(number, sock):
            sock.recv(100)
            loop.remove_reader(sock)
            called.append(number)
            if len(called) == 6:
                done.set_result(None)
            interrupt()

        with contextlib.ExitStack() as stack:
            for number in range(6):
                ours, peer = stack.enter_context(support.nonblocking_socketpair())
                loop.add_reader(ours, readable, number, ours)
                peer.send(b"x")
            assert run_through(loop, interrupt, done) == 3
        assert sorted(called) == list(range(6))

    def test_a_writer(self, loop, interrupt, left):
        interrupt.moments = {1, 2}
        done = loop.create_future()

        def writable():
            interrupt()
            loop.remove_writer(left)
            done.set_result(None)

        loop.add_writer(left, writable)
        assert run_through(loop, interrupt, done) == 2

    @each_moment
    @pytest.mark.parametrize("where", ["data", "connection_made"])
    def test_a_pipe(self, loop, interrupt, moments, where):
        interrupt.moments = moments if where == "data" else {1}
        data = support.pattern(60_000)
        protocol = Plain(loop, interrupt, where)
        read_end, write_end = os.pipe()
        task = loop.create_task(
            loop.connect_read_pipe(lambda: protocol, os.fdopen(read_end, "rb", 0))
        )
        with os.fdopen(write_end, "wb", 0) as writer:
            assert writer.write(data) == len(data)
            if 2 in moments:
                arrived = soon(loop, lambda: len(protocol.data) == len(data))
                run_through(loop, interrupt, arrived)
                assert writer.write(b"more") == 4
        run_through(loop, interrupt, protocol.over)
        loop.run_until_complete(task)
        assert protocol.data == data + (b"more" if 2 in moments else b"")
        assert protocol.events[-2:] == ["eof_received", "connection_lost"]

    def test_the_output_of_a_child(self, loop, interrupt):
        interrupt.moments = {1, 2}

        class Output(asyncio.SubprocessProtocol):
            def __init__(self):
                self.data = bytearray()
                self.over = loop.create_future()

            def pipe_data_received(self, fd, data):
                self.data += data
                interrupt()

            def connection_lost(self, exc):
                self.over.set_result(None)

        transport, protocol = loop.run_until_complete(
            loop.subprocess_exec(Output, "sh", "-c", "read x; echo one; read x; echo two")
        )
        for _ in range(2):
            transport.get_pipe_transport(0).write(b"go on\n")
        run_through(loop, interrupt, protocol.over)
        transport.close()
        assert protocol.data == b"one\ntwo\n"

    @each_interruption
    def test_tasks_that_wait_for_sockets(self, loop, interruption, left, right):
        """An interruption in one task does not take the data of the other."""
        other_ours, other_peer = socket.socketpair()
        with other_ours, other_peer:
            other_ours.setblocking(False)
            interrupt = Interrupter(interruption, {1, 2})
            got = []

            async def receive(sock):
                while chunk := await loop.sock_recv(sock, 1):
                    got.append(chunk)
                    interrupt()

            tasks = [loop.create_task(receive(sock)) for sock in (left, other_ours)]
            support.turn(loop, 3)
            right.send(b"abc")
            other_peer.send(b"def")
            arrived = loop.create_task(support.wait_until(lambda: len(got) == 2, timeout=SOON - 1))
            assert run_through(loop, interrupt, arrived) == 2
            assert all(type(task.exception()) is interruption for task in tasks)
            assert sorted(got) == [b"a", b"d"]
            assert left.recv(10) == b"bc"
            assert other_ours.recv(10) == b"ef"


# --- a clock in Python ---------------------------------------------------------------------------

#: Longer than the calls under test take, shorter than a test may take.
FAR = 3.0


class Clock:
    """Replaces loop.time(); runs `action` once, at its `at`-th call while the loop runs."""

    def __init__(self, loop, action, at=1):
        self.loop = loop
        self.action = action
        self.at = at
        self.calls = 0
        self.original = loop.time

    def __call__(self):
        if self.loop.is_running():
            self.calls += 1
            if self.calls == self.at:
                self.action()
        return self.original()


def run_with_clock(loop, action, at=1):
    """Run with a distant timer and a clock with `action`; return the seconds until loop.stop()."""
    far = loop.call_later(FAR, loop.stop)
    clock = Clock(loop, action, at)
    loop.time = clock
    start = time.monotonic()
    loop.run_forever()
    took = time.monotonic() - start
    del loop.time
    far.cancel()
    assert clock.calls >= at
    return took


class TestClocks:
    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_that_calls_the_loop_as_from_another_thread(self, loop, at):
        if at > 1:
            loop.call_later(0.001, int)
            loop.call_later(0.002, int)
        took = run_with_clock(loop, lambda: loop.call_soon_threadsafe(loop.stop), at)
        assert took < FAR / 2

    def test_during_which_another_thread_calls(self, loop):
        """The clock releases the GIL, as any line of Python may."""

        def let_another_in():
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=(loop.stop,))
            thread.start()
            thread.join()

        assert run_with_clock(loop, let_another_in) < FAR / 2

    def test_during_which_a_job_ends(self, loop):
        """run_in_executor() notifies the loop from the job's thread."""
        release = threading.Event()

        def let_it_end():
            release.set()
            time.sleep(0.05)

        async def main():
            await loop.run_in_executor(None, release.wait)
            loop.stop()

        task = loop.create_task(main())
        support.turn(loop, 5)
        assert run_with_clock(loop, let_it_end) < FAR / 2
        loop.run_until_complete(task)

    def test_during_which_a_signal_comes(self, loop):
        loop.add_signal_handler(signal.SIGUSR1, loop.stop)
        support.turn(loop)
        took = run_with_clock(loop, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        loop.remove_signal_handler(signal.SIGUSR1)
        assert took < FAR / 2

    def test_during_which_data_comes(self, loop, left, right):
        loop.add_reader(left, loop.stop)
        took = run_with_clock(loop, lambda: right.send(b"x"))
        loop.remove_reader(left)
        assert took < FAR / 2

    @pytest.mark.mgloop_only  # asyncio waits for the next timer
    @pytest.mark.parametrize("at", [1, 2])
    def test_that_schedules_a_callback(self, loop, at):
        if at > 1:
            loop.call_later(0.001, int)
        assert run_with_clock(loop, lambda: loop.call_soon(loop.stop), at) < FAR / 2

    @pytest.mark.mgloop_only  # asyncio waits for the timer that was the first before
    @pytest.mark.parametrize("at", [1, 2])
    def test_that_sets_a_nearer_timer(self, loop, at):
        if at > 1:
            loop.call_later(0.001, int)
        assert run_with_clock(loop, lambda: loop.call_later(0.01, loop.stop), at) < FAR / 2

    def test_that_cancels_the_only_timer(self, loop, left, right):
        loop.add_reader(left, loop.stop)
        timer = loop.call_later(FAR, pytest.fail)
        clock = Clock(loop, timer.cancel)
        loop.time = clock
        threading.Timer(0.05, right.send, (b"x",)).start()
        loop.run_forever()
        del loop.time
        loop.remove_reader(left)

    @each_interruption
    def test_that_interrupts(self, loop, interruption):
        calls = []

        def action():
            loop.call_soon_threadsafe(loop.stop)
            raise interruption("from the clock")

        far = loop.call_later(FAR, calls.append, "far")
        near = loop.call_later(0.01, calls.append, "near")
        clock = Clock(loop, action)
        loop.time = clock
        with pytest.raises(interruption):
            loop.run_forever()
        loop.run_forever()
        del loop.time
        loop.run_until_complete(asyncio.sleep(0.02))
        far.cancel()
        near.cancel()
        assert calls == ["near"]
