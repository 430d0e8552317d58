# SPDX-License-Identifier: GPL-2.0-only
"""Closed connections and forgotten loops do not leak.

Every callback that a transport runs in a context keeps that context, and programs set variables in
it to objects that refer to the transport: the current request, the connection itself. asyncio's
handles expose their contexts to the garbage collector, and a transport drops its reference to the
protocol when it ends. A descriptor is closed even if the warning about it is turned into an error.
"""

import asyncio
import contextvars
import functools
import gc
import socket
import weakref

import pytest
import support
from support import turns

CONNECTIONS = 200

current = contextvars.ContextVar("current", default=None)


alive = weakref.WeakSet()


class Knot(asyncio.Protocol, asyncio.DatagramProtocol):
    """A protocol that puts itself, and thus its transport, into the context of its callbacks."""

    def __init__(self, where, ends):
        self.where = where
        self.ends = ends
        alive.add(self)

    def reached(self, where):
        if where == self.where:
            current.set(self)

    def connection_made(self, transport):
        self.transport = transport
        self.reached("connection_made")

    def data_received(self, data):
        self.reached("data_received")

    def datagram_received(self, data, address):
        self.reached("data_received")

    def eof_received(self):
        self.reached("eof_received")

    def connection_lost(self, exc):
        self.reached("connection_lost")
        self.ends.append(exc)


@pytest.fixture(autouse=True)
def nobody_is_alive():
    alive.clear()
    yield
    alive.clear()


def count_alive():
    gc.collect()
    gc.collect()
    return len(alive)


async def over_streams(loop, knot, listening):
    """Make connections of accepted and connecting protocols to plain sockets; end them all."""
    if listening.family == socket.AF_UNIX:
        server = await loop.create_unix_server(knot, sock=listening)
    else:
        server = await loop.create_server(knot, sock=listening)
    for _ in range(CONNECTIONS // 2):
        with socket.socket(listening.family) as peer:
            peer.connect(listening.getsockname())
            peer.send(b"data")
            peer.shutdown(socket.SHUT_WR)
            await turns(5)
    await support.close(server)


async def over_sockets(loop, knot, pair):
    for _ in range(CONNECTIONS // 2):
        ours, peer = pair()
        with ours, peer:
            transport, _ = await loop.create_connection(knot, sock=ours)
            peer.send(b"data")
            peer.shutdown(socket.SHUT_WR)
            del transport
            await turns(5)


async def over_tcp(loop, knot, tmp_path):
    def pair():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            return ours, listener.accept()[0]

    await over_streams(loop, knot, socket.create_server(("127.0.0.1", 0)))
    await over_sockets(loop, knot, pair)


async def over_unix(loop, knot, tmp_path):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    listening.listen(CONNECTIONS)
    await over_streams(loop, knot, listening)
    await over_sockets(loop, knot, socket.socketpair)


async def over_udp(loop, knot, tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(CONNECTIONS):
            transport, _ = await loop.create_datagram_endpoint(knot, local_addr=("127.0.0.1", 0))
            sender.sendto(b"data", transport.get_extra_info("sockname"))
            await turns(5)
            transport.close()
            del transport
            await turns(2)


async def over_pipes(loop, knot, tmp_path):
    for _ in range(CONNECTIONS // 2):
        left, right = socket.socketpair()
        reading, _ = await loop.connect_read_pipe(knot, left)
        writing, _ = await loop.connect_write_pipe(knot, right)
        writing.write(b"data")
        await turns(5)
        writing.close()
        await turns(5)
        reading.close()
        del reading, writing
        await turns(2)


WAYS = {"TCP": over_tcp, "UNIX": over_unix, "UDP": over_udp, "pipes": over_pipes}


@pytest.mark.parametrize("where", ["connection_made", "data_received", "connection_lost"])
@pytest.mark.parametrize("over", WAYS.values(), ids=WAYS)
async def test_a_variable_that_reaches_the_transport(loop, tmp_path, over, where):
    """A variable is set in a callback: all 200 protocols are collected after connection_lost()."""
    ends = []
    knot = functools.partial(Knot, where, ends)
    await over(loop, knot, tmp_path)
    await support.wait_until(lambda: len(ends) == CONNECTIONS)
    await turns(3)
    assert count_alive() == 0


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("where", ["connection_made", "data_received"])
@pytest.mark.parametrize("over", WAYS.values(), ids=WAYS)
def test_transports_that_outlive_their_loop(loop_factory, tmp_path, over, where):
    """Transports that were not closed, and got no connection_lost(), are collected."""
    ends = []

    class Open(Knot):
        def eof_received(self):
            return True

    knot = functools.partial(Open, where, ends)

    def begin():
        loop = loop_factory()
        loop.set_exception_handler(lambda loop, context: None)

        async def main():
            for _ in range(20):
                left, right = socket.socketpair()
                if over is over_udp:
                    await loop.create_datagram_endpoint(knot, local_addr=("127.0.0.1", 0))
                    left.close()
                elif over is over_pipes:
                    await loop.connect_read_pipe(knot, left)
                else:
                    await loop.create_connection(knot, sock=left)
                right.send(b"data") if over is not over_udp else None
                await turns(3)
                right.close()

        loop.run_until_complete(main())
        loop.close()

    begin()
    assert count_alive() == 0


FORGOTTEN = {
    "a task in asyncio.sleep()": """
        loop.create_task(asyncio.sleep(1000))
        """,
    "a task that keeps itself": """
        async def sleep():
            task = asyncio.current_task()
            await asyncio.sleep(1000)
        for _ in range(3):
            loop.create_task(sleep())
        """,
    "a task with a timeout": """
        async def wait():
            await asyncio.wait_for(loop.create_future(), 1000)
        loop.create_task(wait())
        """,
    "a call_later() handle kept by its own object": """
        class Request:
            def __init__(self):
                self.handle = loop.call_later(1000, self.work, self)
            def work(self, *args): pass
        Request()
        """,
    "a call_later() handle kept by an object that the loop keeps": """
        loop.kept = [loop.call_later(1000, print), loop.call_at(1e9, print, loop)]
        """,
    "call_soon() handles kept by their own objects": """
        class Request:
            def __init__(self):
                self.handles = [loop.call_soon(self.work) for _ in range(3)]
                self.handles.append(loop.call_soon_threadsafe(self.work, 1, 2, 3, 4, 5, 6))
            def work(self, *args): pass
        TURNS = 0
        Request()
        """,
    "a handle in the context of another": """
        variable.set(loop.call_later(1000, print, loop))
        variable.set(loop.call_later(1000, print, loop))
        """,
    "a variable that is set to the loop": """
        variable.set(loop)
        loop.call_later(1000, print)
        loop.create_task(asyncio.sleep(1000))
        """,
    "a reader in such a context": """
        variable.set(loop)
        pair = socket.socketpair()
        loop.pair = pair
        loop.add_reader(pair[0], print, pair)
        loop.add_writer(pair[1], print, pair)
        """,
    "a server in such a context": """
        variable.set(loop)
        loop.run_until_complete(loop.create_server(asyncio.Protocol, "127.0.0.1", 0))
        """,
    "a server whose factory reaches it": """
        class Application:
            def __init__(self):
                variable.set(self)
                self.loop = loop
            def __call__(self):
                return asyncio.Protocol()
        application = Application()
        application.server = loop.run_until_complete(
            loop.create_server(application, "127.0.0.1", 0))
        """,
    "transports in such a context": """
        variable.set(loop)
        pair = socket.socketpair()
        class Kept(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport
                variable.set(self)
        loop.run_until_complete(loop.create_connection(Kept, sock=pair[0]))
        loop.run_until_complete(loop.connect_read_pipe(Kept, pair[1]))
        loop.run_until_complete(
            loop.create_datagram_endpoint(Kept, local_addr=("127.0.0.1", 0)))
        """,
    "a coroutine that waits for a socket": """
        variable.set(loop)
        pair = socket.socketpair()
        pair[0].setblocking(False)
        async def wait(task):
            task.append(asyncio.current_task())
            await loop.sock_recv(pair[0], 10)
        loop.create_task(wait([]))
        """,
}


@pytest.mark.parametrize("what", FORGOTTEN.values(), ids=FORGOTTEN)
def test_a_forgotten_loop(in_child, what):
    """A loop that was not closed and is not referred to from outside is collected."""
    code = f"""
import contextvars, gc, textwrap, weakref
warnings.simplefilter("ignore")
variable = contextvars.ContextVar("variable")
WHAT = textwrap.dedent({what!r})

def make():
    loop = new_loop()
    loop.set_exception_handler(lambda loop, context: None)
    # In a context of its own, which only the loop's callbacks keep.
    scope = {{**globals(), "loop": loop, "TURNS": 3}}
    contextvars.copy_context().run(exec, WHAT, scope)
    turn(loop, scope["TURNS"])
    reference = weakref.ref(loop)
    scope.clear()
    return reference

reference = make()
for _ in range(3):
    gc.collect()
assert reference() is None, "kept alive"
"""
    in_child(code)


def test_a_forgotten_loop_whose_handles_somebody_keeps(in_child):
    """The handles keep the loop; once they are released, it is collected without a crash."""
    code = """
        import gc, weakref
        warnings.simplefilter("ignore")

        def make():
            loop = new_loop()
            loop.set_exception_handler(lambda loop, context: None)
            loop.create_task(asyncio.sleep(1000))
            handles = [loop.call_later(1000, print, number) for number in range(10)]
            handles += [loop.call_soon(print, "") for number in range(10)]
            handles[3].cancel()
            return weakref.ref(loop), handles

        reference, handles = make()
        gc.collect()
        for handle in handles:
            repr(handle)
        for handle in handles[::2]:
            handle.cancel()
        gc.collect()
        del handle, handles
        for _ in range(3):
            gc.collect()
        assert reference() is None
        """
    in_child(code)


UNCLOSED = {
    "an accepted TCP transport": """
        server = loop.run_until_complete(loop.create_server(Protocol, "127.0.0.1", 0))
        peer = socket.create_connection(server.sockets[0].getsockname())
        """,
    "an accepted UNIX transport": """
        path = f"\\0mgloop {os.getpid()}"
        server = loop.run_until_complete(loop.create_unix_server(Protocol, path))
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(path)
        """,
    "a connecting transport": """
        ours, peer = socket.socketpair()
        loop.run_until_complete(loop.create_connection(Protocol, sock=ours))
        del ours
        """,
    "a datagram transport": """
        loop.run_until_complete(
            loop.create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0)))
        """,
    "a read pipe": """
        ends = os.pipe()
        peer = open(ends[1], "wb", 0)
        loop.run_until_complete(loop.connect_read_pipe(Protocol, open(ends[0], "rb", 0)))
        """,
    "a write pipe": """
        ends = os.pipe()
        peer = open(ends[0], "rb", 0)
        loop.run_until_complete(loop.connect_write_pipe(Protocol, open(ends[1], "wb", 0)))
        """,
}


@pytest.mark.parametrize("action", ["error", "default", "ignore"])
@pytest.mark.parametrize("what", UNCLOSED.values(), ids=UNCLOSED)
def test_an_unclosed_transport_closes_its_descriptor(in_child, what, action):
    """It warns; if the warning raises, the descriptor is closed nevertheless."""
    code = f"""
import gc, textwrap
WHAT = textwrap.dedent({what!r})
transports = []

class Protocol(asyncio.Protocol, asyncio.DatagramProtocol):
    def connection_made(self, transport):
        transports.append(transport)

loop = new_loop()
exec(WHAT)
while not transports:
    turn(loop)
turn(loop, 3)
transport, = transports
if transport.get_extra_info("pipe") is None:
    # Not by get_extra_info(), which makes the socket object that would close the descriptor.
    fd = transport._sock_fd
else:
    fd = transport._fileno
os.fstat(fd)
if "server" in vars():
    server.close()
    del server
loop.close()
del transport
transports.clear()
gc.collect()
gc.collect()
try:
    os.fstat(fd)
except OSError:
    print("closed")
else:
    print("open")
del loop
if "peer" in vars():
    peer.close()
gc.collect()
"""
    out, err = in_child(code, f"-W{action}::ResourceWarning")
    assert out == "closed\n"
    assert ("unclosed transport" in err) == (action != "ignore")
