# SPDX-License-Identifier: GPL-2.0-only
"""Deferred writes must not be distinguishable from writes that were sent.

When many callbacks are ready in an iteration, a loop may defer small writes to its end. asyncio
sends immediately, and programs rely on that: they shut the socket down without the transport's
knowledge, pass on a duplicate, or fork. Each must see the same as if write() had sent the data.
docs/differences.md lists the exceptions, and tests/differences/ has their tests.
"""

import asyncio
import contextlib
import fcntl
import functools
import os
import socket
import struct
import termios
import textwrap

import certificates
import pytest
import support

#: An ioctl of a stream socket: the bytes that the peer has not acknowledged, or not read.
SIOCOUTQ = termios.TIOCOUTQ


def in_a_busy_iteration(loop, action):
    """Run `action` among enough callbacks that a loop would defer writes; return its result."""
    outcome = loop.create_future()

    def act():
        try:
            outcome.set_result(action())
        except Exception as exc:
            outcome.set_exception(exc)

    support.call_in_a_crowd(loop, act)
    return loop.run_until_complete(outcome)


@contextlib.contextmanager
def connected(loop, family):
    """Yield (transport, plain socket at its other end)."""
    pair = support.nonblocking_tcp_pair() if family == "TCP" else support.nonblocking_socketpair()
    with pair as (ours, peer):
        protocol = support.RecordingProtocol(loop)
        transport, _ = loop.run_until_complete(loop.create_connection(lambda: protocol, sock=ours))
        try:
            yield transport, peer
        finally:
            transport.abort()
            loop.run_until_complete(protocol.lost)


families = pytest.mark.parametrize("family", ["TCP", "UNIX"])
writes = pytest.mark.parametrize(
    "write",
    [
        lambda transport: transport.write(b"deferred"),
        lambda transport: transport.write(bytearray(b"deferred")),
        lambda transport: transport.writelines([b"defer", b"red"]),
        lambda transport: [transport.write(b"%c" % byte) for byte in b"deferred"],
    ],
    ids=["write", "bytearray", "writelines", "several"],
)


def recv_all(sock):
    """Return all data up to the end of the stream; block until it arrives."""
    sock.setblocking(True)
    sock.settimeout(support.PATIENCE)
    chunks = []
    while chunk := sock.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)


# --- the socket of a transport -------------------------------------------------------------------


def duplicate_and_send(sock):
    with sock.dup() as other:
        other.send(b" and more")


def write_by_number(sock):
    os.write(sock.fileno(), b" and more")


def object_by_number(sock):
    with socket.socket(fileno=os.dup(sock.fileno())) as other:
        other.send(b" and more")


@contextlib.contextmanager
def connected_by_tls(loop, server_protocol, server_context, client_context):
    """Return the client's protocol of a TLS connection to a server with `server_protocol`."""
    server = loop.run_until_complete(
        loop.create_server(lambda: server_protocol, "127.0.0.1", 0, ssl=server_context)
    )
    transport, client_protocol = loop.run_until_complete(
        loop.create_connection(
            lambda: support.RecordingProtocol(loop),
            *server.sockets[0].getsockname(),
            ssl=client_context,
            server_hostname="localhost",
        )
    )
    try:
        loop.run_until_complete(server_protocol.made)
        yield client_protocol
    finally:
        transport.abort()
        server_protocol.transport.abort()
        server.close()
        loop.run_until_complete(asyncio.gather(server_protocol.lost, client_protocol.lost))
        loop.run_until_complete(server.wait_closed())


class TestTransportSocket:
    """The socket was requested before the write, because another request might send the data."""

    @families
    @writes
    @pytest.mark.parametrize(
        ("act", "read", "expected"),
        [
            (lambda sock: sock.shutdown(socket.SHUT_WR), recv_all, b"deferred"),
            (lambda sock: sock.shutdown(socket.SHUT_RDWR), recv_all, b"deferred"),
            (duplicate_and_send, support.drain, b"deferred and more"),
            (write_by_number, support.drain, b"deferred and more"),
            (object_by_number, support.drain, b"deferred and more"),
        ],
        ids=["SHUT_WR", "SHUT_RDWR", "duplicate", "by number", "object by number"],
    )
    def test_another_way_to_the_same_socket(self, loop, family, write, act, read, expected):
        """It ends the stream, or sends data, after the data that was written before."""
        with connected(loop, family) as (transport, peer):
            sock = transport.get_extra_info("socket")
            in_a_busy_iteration(loop, lambda: (write(transport), act(sock)))
            support.turn(loop, 3)
            assert read(peer) == expected

    @families
    @pytest.mark.parametrize(
        "call",
        [
            lambda sock: sock.fileno(),
            lambda sock: sock.dup().close(),
            lambda sock: sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE),
            lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            lambda sock: sock.shutdown(socket.SHUT_RD),
        ],
        ids=["fileno", "dup", "getsockopt", "setsockopt", "shutdown"],
    )
    def test_each_method_sends_first(self, loop, family, call):
        with connected(loop, family) as (transport, peer):
            sock = transport.get_extra_info("socket")

            def action():
                transport.write(b"deferred")
                call(sock)
                return support.drain(peer)

            assert in_a_busy_iteration(loop, action) == b"deferred"

    @families
    def test_asked_for_after_the_write(self, loop, family):
        with connected(loop, family) as (transport, peer):

            def action():
                transport.write(b"deferred")
                transport.get_extra_info("socket").shutdown(socket.SHUT_WR)

            in_a_busy_iteration(loop, action)
            assert recv_all(peer) == b"deferred"

    def test_the_kernel_counts_the_data(self, loop):
        """A program asks the kernel how much data the peer has not received."""
        with connected(loop, "UNIX") as (transport, _):
            sock = transport.get_extra_info("socket")

            def action():
                transport.write(b"deferred")
                answer = fcntl.ioctl(sock.fileno(), SIOCOUTQ, bytes(4))
                return struct.unpack("i", answer)[0]

            assert in_a_busy_iteration(loop, action) > 0

    @families
    def test_it_is_what_asyncio_gives(self, loop, family):
        with connected(loop, family) as (transport, _):
            sock = transport.get_extra_info("socket")
            assert isinstance(sock, asyncio.trsock.TransportSocket)
            assert transport.get_extra_info("socket") is sock
            assert repr(sock).startswith("<asyncio.TransportSocket ")
            assert sock.fileno() == sock._sock.fileno()
            assert sock.gettimeout() == 0
            with pytest.raises(ValueError, match="blocking"):
                sock.setblocking(True)
            for banned in ("close", "recv", "send", "sendall", "detach"):
                assert not hasattr(sock, banned)

    @families
    def test_after_the_end(self, loop, family):
        with connected(loop, family) as (transport, _):
            sock = transport.get_extra_info("socket")
            transport.write(b"x")
            transport.close()
            support.turn(loop, 3)
            assert sock.fileno() == -1
            with pytest.raises(OSError):
                sock.shutdown(socket.SHUT_WR)
            with pytest.raises(OSError):
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
            assert "fd=-1" in repr(sock)

    def test_shutdown_below_tls(self, loop, server_ssl_context, client_ssl_context):
        server = support.RecordingProtocol(loop)
        with connected_by_tls(loop, server, server_ssl_context, client_ssl_context) as client:
            sock = client.transport.get_extra_info("socket")

            def action():
                client.transport.write(b"deferred")
                sock.shutdown(socket.SHUT_WR)

            in_a_busy_iteration(loop, action)
            loop.run_until_complete(asyncio.wait({server.lost}, timeout=support.PATIENCE))
        assert server.data == b"deferred"

    @pytest.mark.parametrize("size", [8, 9000], ids=["gathered", "encrypted"])
    @pytest.mark.parametrize("bare", [False, True], ids=["by its method", "by the descriptor"])
    def test_shutdown_below_tls_in_a_callback(
        self, loop, server_ssl_context, client_ssl_context, bare, size
    ):
        """Data written by data_received() of a TLS connection must leave the TLS layer before."""

        class Answering(support.RecordingProtocol):
            def data_received(self, data):
                sock = self.transport.get_extra_info("socket")
                if bare:
                    other = socket.socket(fileno=os.dup(sock.fileno()))
                self.transport.write(bytes(size))
                if bare:
                    with other:
                        other.shutdown(socket.SHUT_WR)
                else:
                    sock.shutdown(socket.SHUT_WR)

        server = Answering(loop)
        with connected_by_tls(loop, server, server_ssl_context, client_ssl_context) as client:
            client.transport.write(b"go")
            loop.run_until_complete(asyncio.wait({client.lost}, timeout=support.PATIENCE))
        assert client.data == bytes(size)


# --- fork ----------------------------------------------------------------------------------------

#: How the child leaves the callback in which it was forked. asyncio has sent the data by then.
DEPARTURES = {
    "SystemExit": "raise SystemExit(0)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "exception and stop": "loop.stop(); raise ValueError",
    "return and stop": "loop.stop(); return",
    "os._exit": "os._exit(0)",
    "sys.exit after a write": "transport.close(); raise SystemExit(0)",
}

_FORK = """
    import contextlib, gc
    loop = new_loop()
    loop.set_exception_handler(lambda loop, context: None)
    warnings.simplefilter("ignore")
    transports, peers = zip(*[connect(loop) for _ in range({transports})])
    transport = transports[0]
    parent = os.getpid()

    def seen(sock):
        with contextlib.suppress(BlockingIOError):
            return sock.recv(100, socket.MSG_DONTWAIT | socket.MSG_PEEK)

    at_fork = []

    def act():
        for other in transports:
            other.write(b"once")
        pid = os.fork()
        if pid == 0:
            {departure}
        at_fork.extend(map(seen, peers))
        os.waitpid(pid, 0)

    try:
        run_in_a_crowd(loop, act)
    except BaseException:
        if os.getpid() == parent:
            raise
    if os.getpid() != parent:
        {afterwards}
    print(at_fork)
    for other in transports:
        other.close()
    turn(loop, 3)
    print([peer.recv(100) for peer in peers])
    print([peer.recv(100) for peer in peers])
    for peer in peers:
        peer.close()
    loop.close()
    """


def in_a_callback_over_tls(loop_kind, program):
    """Return how many bytes a client gets from the program's class `Served`, which forks when it
    receives data; the client runs `prepare(reader, writer)` before."""
    if not certificates.available:
        pytest.skip(certificates.SKIPPED)
    begin = """
        import certificates
        warnings.simplefilter("ignore")
        server_context, client_context = certificates.contexts()
        loop = new_loop()
        parent = os.getpid()
    """
    end = """
        async def main():
            server = await loop.create_server(Served, "127.0.0.1", 0, ssl=server_context)
            reader, writer = await asyncio.open_connection(
                *server.sockets[0].getsockname(), server_hostname="localhost", ssl=client_context)
            await prepare(reader, writer)
            writer.write(b"go")
            print(len(await reader.read()))
            writer.close()
            server.close()

        try:
            loop.run_until_complete(main())
        except BaseException:
            if os.getpid() == parent:
                raise
        if os.getpid() != parent:
            os._exit(0)
        loop.close()
    """
    out, _ = support.run_python(loop_kind, "".join(map(textwrap.dedent, (begin, program, end))))
    return int(out)


#: Functions of the programs that fork.
_TOOLS = """
    def connect(loop):
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        transport, _ = loop.run_until_complete(
            loop.create_connection(asyncio.Protocol, sock=ours))
        return transport, peer

    def run_in_a_crowd(loop, act):
        call_in_a_crowd(loop, act, lambda: loop.call_soon(loop.stop))
        loop.run_forever()
"""


@pytest.fixture
def in_child(in_child):
    """Return a function that runs a program with the functions above in a process of its own."""
    return lambda code: in_child(textwrap.dedent(_TOOLS) + textwrap.dedent(code))


class TestFork:
    @pytest.mark.parametrize("transports", [1, 3])
    @pytest.mark.parametrize(
        "afterwards", ["os._exit(0)", "sys.exit(0)"], ids=["then _exit", "then sys.exit"]
    )
    @pytest.mark.parametrize("departure", DEPARTURES)
    def test_nothing_is_sent_twice(self, in_child, departure, afterwards, transports):
        program = _FORK.format(
            departure=DEPARTURES[departure], afterwards=afterwards, transports=transports
        )
        out, _ = in_child(program)
        _, received, end = out.splitlines()
        assert received == repr([b"once"] * transports)
        assert end == repr([b""] * transports)

    def test_it_has_been_sent_when_the_child_begins(self, in_child):
        """The data is sent before the fork, so the child may answer, or the parent may die."""
        program = _FORK.format(departure="os._exit(0)", afterwards="pass", transports=3)
        out, _ = in_child(program)
        assert out.splitlines()[0] == repr([b"once"] * 3)

    @pytest.mark.parametrize("size", [8, 9000], ids=["gathered", "encrypted"])
    @pytest.mark.parametrize("departure", ["raise SystemExit(0)", "return", "os._exit(0)"])
    def test_in_a_callback_over_tls(self, loop_kind, departure, size):
        """The peer would refuse a record that was sent twice."""
        read = in_a_callback_over_tls(
            loop_kind,
            f"""
            class Forking(asyncio.Protocol):
                def connection_made(self, transport):
                    self.transport = transport
                def data_received(self, data):
                    self.transport.write(bytes({size}))
                    pid = os.fork()
                    if pid == 0:
                        loop.stop()
                        {departure}
                    else:
                        os.waitpid(pid, 0)
                        self.transport.write(b"end")
                        self.transport.close()

            Served = Forking

            async def prepare(reader, writer):
                pass
            """,
        )
        assert read == size + 3

    @pytest.mark.parametrize("size", [8, 9000], ids=["gathered", "encrypted"])
    def test_in_a_callback_over_tls_in_tls(self, loop_kind, size):
        """The inner connection's data waits in the outer one, which is also in a callback."""
        read = in_a_callback_over_tls(
            loop_kind,
            f"""
            class Forking(asyncio.Protocol):
                def data_received(self, data):
                    self.transport.write(bytes({size}))
                    pid = os.fork()
                    if pid == 0:
                        raise SystemExit(0)
                    os.waitpid(pid, 0)
                    self.transport.close()

            class Served(asyncio.Protocol):
                def connection_made(self, transport):
                    transport.pause_reading()
                    self.upgrading = loop.create_task(self.upgrade(transport))
                async def upgrade(self, transport):
                    inner = Forking()
                    inner.transport = await loop.start_tls(
                        transport, inner, server_context, server_side=True)
                    inner.transport.write(b"ready")

            async def prepare(reader, writer):
                await writer.start_tls(client_context, server_hostname="localhost")
                assert await reader.readexactly(5) == b"ready"
            """,
        )
        assert read == size

    def test_a_process_of_multiprocessing(self, in_child):
        in_child("""
            import multiprocessing
            warnings.simplefilter("ignore")
            loop = new_loop()
            transport, peer = connect(loop)

            def in_child():
                # What a child of a fork-server or a worker does: a loop of its own.
                asyncio.set_event_loop(None)
                run(asyncio.sleep(0.001))

            def act():
                transport.write(b"once")
                process = multiprocessing.get_context("fork").Process(target=in_child)
                asyncio._set_running_loop(None)
                process.start()
                asyncio._set_running_loop(loop)
                process.join()
                assert process.exitcode == 0, process.exitcode

            run_in_a_crowd(loop, act)
            transport.close()
            turn(loop, 3)
            assert peer.recv(100) == b"once"
            assert peer.recv(100) == b""
            peer.close()
            loop.close()
        """)

    def test_the_loop_of_another_thread(self, in_child):
        """That loop is in the middle of an iteration when the main thread forks."""
        in_child("""
            warnings.simplefilter("ignore")
            written, forked = threading.Event(), threading.Event()
            peers = []

            def body():
                loop = new_loop()
                transport, peer = connect(loop)
                peers.append(peer)

                def act():
                    transport.write(b"once")
                    written.set()
                    forked.wait()

                run_in_a_crowd(loop, act)
                transport.close()
                turn(loop, 3)
                loop.close()

            thread = threading.Thread(target=body)
            thread.start()
            written.wait()
            pid = os.fork()
            if pid == 0:
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            forked.set()
            thread.join()
            (peer,) = peers
            assert peer.recv(100) == b"once"
            assert peer.recv(100) == b""
            peer.close()
        """)

    def test_many_forks_and_loops(self, in_child):
        """A loop's fork handlers neither keep it alive nor accumulate."""
        in_child("""
            import forking, gc, weakref
            warnings.simplefilter("ignore")
            known = []
            for _ in range(50):
                loop = new_loop()
                loop.run_until_complete(asyncio.sleep(0))
                loop.close()
                known.append(weakref.ref(loop))
                del loop
            gc.collect()
            for _ in range(3):
                forking.in_child(int)
            gc.collect()
            assert not any(reference() for reference in known)
        """)

    def test_a_forked_child_of_a_subprocess(self, in_child):
        """subprocess forks and execs: only the parent sends the deferred write."""
        out, _ = in_child("""
            import subprocess
            loop = new_loop()
            transport, peer = connect(loop)

            def act():
                transport.write(b"once")
                # With a function to run in between, the child is forked by Python.
                subprocess.run(["true"], preexec_fn=int, check=True)

            run_in_a_crowd(loop, act)
            transport.close()
            turn(loop, 3)
            print(peer.recv(100), peer.recv(100))
            peer.close()
            loop.close()
        """)
        assert out.strip() == "b'once' b''"


# --- long writes ---------------------------------------------------------------------------------


def write_three(transport):
    for _ in range(3):
        transport.write(bytes(5000))


class TestLongWrites:
    """Several long writes in one callback may be deferred together."""

    @families
    def test_they_stay_in_order(self, loop, family):
        parts = [b"a" * 5000, b"b" * 5000, bytearray(b"c" * 5000), b"d", memoryview(b"e" * 9000)]
        parts += [b"f" * 5000, [b"g" * 5000, b"h", b"i" * 5000], b"j" * 100_000, b"k" * 5000]
        expected = b"".join(b"".join(part) if type(part) is list else part for part in parts)

        with connected(loop, family) as (transport, peer):

            def act():
                for part in parts:
                    if type(part) is list:
                        transport.writelines(part)
                    else:
                        transport.write(part)
                    if type(part) is bytearray:
                        part[:] = bytes(len(part))
                transport.close()

            lost = transport.get_protocol().lost
            loop.call_soon(act)
            received = bytearray()
            with support.in_thread(lambda: received.extend(recv_all(peer))):
                loop.run_until_complete(asyncio.wait({lost}, timeout=support.PATIENCE))
            assert received == expected

    @families
    def test_the_protocol_is_paused_in_time(self, loop, family):
        """A program that writes until pause_writing() buffers no more than with asyncio."""
        pauses = []

        with connected(loop, family) as (transport, peer):
            protocol = transport.get_protocol()
            protocol.pause_writing = lambda: pauses.append(1)
            protocol.resume_writing = pauses.clear
            low, high = transport.get_write_buffer_limits()
            chunk = bytes(10_000)

            async def call():
                while not pauses:
                    transport.write(chunk)
                return transport.get_write_buffer_size()

            waiting = loop.run_until_complete(call())
            assert high < waiting <= high + len(chunk)
            while pauses:
                support.drain(peer)
                support.turn(loop)
            assert transport.get_write_buffer_size() <= low

    @families
    @pytest.mark.parametrize(
        "ask",
        [
            lambda transport: transport.get_write_buffer_size(),
            lambda transport: transport.get_extra_info("socket"),
            lambda transport: transport.set_write_buffer_limits(high=1),
            lambda transport: transport.write_eof(),
            lambda transport: transport.close(),
            lambda transport: transport.abort(),
        ],
        ids=["size", "socket", "limits", "write_eof", "close", "abort"],
    )
    def test_observing_them_sends_them(self, loop, family, ask):
        with connected(loop, family) as (transport, peer):

            async def call():
                write_three(transport)
                ask(transport)
                return len(support.drain(peer))

            assert loop.run_until_complete(call()) == 15_000

    @families
    @pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
    def test_left_by_an_exception(self, loop, family, exception):
        with connected(loop, family) as (transport, peer):

            def act():
                write_three(transport)
                raise exception

            loop.call_soon(act)
            with pytest.raises(exception):
                loop.run_forever()
            assert len(support.drain(peer)) == 15_000

    @families
    def test_forked_in_the_middle(self, loop, family):
        with connected(loop, family) as (transport, peer):

            async def call():
                write_three(transport)
                pid = support.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
                return len(support.drain(peer))

            assert loop.run_until_complete(call()) == 15_000
            support.turn(loop, 3)
            assert support.drain(peer) == b""

    @families
    def test_the_peer_is_gone(self, loop, family):
        with connected(loop, family) as (transport, peer):
            peer.close()

            async def call():
                write_three(transport)

            lost = transport.get_protocol().lost
            loop.run_until_complete(call())
            loop.run_until_complete(asyncio.wait({lost}, timeout=support.PATIENCE))
            assert lost.done()


# --- leaving the loop ----------------------------------------------------------------------------


class TestLeaving:
    """Data written before an exception leaves the loop is sent after that."""

    @families
    @pytest.mark.parametrize("exception", [None, KeyboardInterrupt, SystemExit])
    def test_by_an_exception_or_by_stop(self, loop, family, exception):
        def leave():
            transport.write(b"deferred")
            if exception is not None:
                raise exception
            loop.stop()

        with connected(loop, family) as (transport, peer):
            support.call_in_a_crowd(loop, leave)
            with pytest.raises(exception) if exception else contextlib.nullcontext():
                loop.run_forever()
            assert support.drain(peer) == b"deferred"

    def test_by_an_exception_of_another_transports_protocol(self, loop):
        """If one transport cannot send, the others' writes are sent nevertheless."""

        class Interrupting(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport

            def pause_writing(self):
                raise KeyboardInterrupt

        pairs = [socket.socketpair() for _ in range(4)]
        transports = []
        for number, (ours, peer) in enumerate(pairs):
            ours.setblocking(False)
            peer.setblocking(False)
            kind = Interrupting if number == 0 else asyncio.Protocol
            transports.append(loop.run_until_complete(loop.create_connection(kind, sock=ours))[0])
        support.fill(pairs[0][0])
        transports[0].set_write_buffer_limits(high=3, low=1)

        writes = [functools.partial(transport.write, b"word") for transport in transports]
        support.call_in_a_crowd(loop, *writes, lambda: loop.call_soon(loop.stop))
        interrupted = 0
        for _ in range(3):
            try:
                loop.run_forever()
                break
            except KeyboardInterrupt:
                interrupted += 1
        assert interrupted == 1
        for _, peer in pairs[1:]:
            assert support.drain(peer) == b"word"
        for transport in transports:
            transport.abort()
        support.turn(loop, 3)
        for _, peer in pairs:
            peer.close()
