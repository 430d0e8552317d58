# SPDX-License-Identifier: GPL-2.0-only
"""TLS connections without outside references are collected, whatever their state.

Most objects that an application keeps for a connection are referred to by its transport and by
context variables set in callbacks. These are reference cycles that only the garbage collector can
break, and only if every reference in the cycle is visible to it.
"""

import asyncio
import contextvars
import gc
import pathlib
import weakref

import pytest
import support
from peers import Recorder, connected_pair, open_server, port_of

current = contextvars.ContextVar("current", default=None)


class Knotted(Recorder):
    """A recorder in the context of its own callbacks, which never releases its transport."""

    def connection_made(self, transport):
        current.set(self)
        super().connection_made(transport)

    def data_received(self, data):
        current.set((self, self.transport))
        super().data_received(data)
        if data == b"pause":
            self.transport.pause_reading()
            self.transport.resume_reading()

    def eof_received(self):
        current.set([self])
        return super().eof_received()

    def connection_lost(self, exc):
        current.set({self: exc})
        super().connection_lost(exc)


def assert_collected(references):
    gc.collect()
    alive = [reference() for reference in references if reference() is not None]
    assert not alive, f"{alive[0]} is kept alive by {gc.get_referrers(alive[0])}"


@pytest.mark.parametrize("way", ["close", "close twice", "abort", "peer aborts", "fail"])
async def test_connections_that_have_ended(loop, contexts, reported, way):
    references = []

    async def connect():
        client, server = Knotted(loop), Knotted(loop)
        async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
            ours.write(b"data")
            theirs.write(b"pause")
            await server.got(4)
            await client.got(5)
            if way == "fail":
                ours._ssl_protocol._fatal_error(ZeroDivisionError())
                reported.pop(ZeroDivisionError)
            elif way == "peer aborts":
                theirs.abort()
            elif way == "abort":
                ours.abort()
            else:
                ours.close()
                if way == "close twice":
                    ours.close()
            await client.lost
            await server.lost
        for thing in (client, server, ours, theirs, ours._ssl_protocol, theirs._ssl_protocol):
            if thing is not None:
                references.append(weakref.ref(thing))

    await asyncio.create_task(connect())
    await support.turns(3)
    assert_collected(references)


async def test_handshakes_that_fail(loop, contexts):
    references = []

    class Remembered(Knotted):
        def __init__(self, loop):
            super().__init__(loop)
            references.append(weakref.ref(self))

    async with open_server(loop, lambda: Remembered(loop), ssl=contexts["server_ssl"]) as server:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await support.close(writer)
        await support.wait_until(lambda: len(references) == 3)
        await support.turns(20)
    await support.turns(5)
    assert_collected(references)


PREAMBLE = f"""
import contextvars, gc, weakref
import certificates
sys.path.insert(0, {str(pathlib.Path(__file__).parent / "protocol")!r})
server_context, client_context = certificates.contexts()
current = contextvars.ContextVar("current")

class Knotted(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
        current.set(self)

def connect(loop, server_protocol, client_protocol):
    async def connect():
        server = await loop.create_server(
            lambda: server_protocol, "127.0.0.1", 0, ssl=server_context)
        await loop.create_connection(
            lambda: client_protocol, *server.sockets[0].getsockname()[:2], ssl=client_context,
            server_hostname="localhost")
        while not hasattr(server_protocol, "transport"):
            await asyncio.sleep(0)
        server.close()
    loop.run_until_complete(connect())

def descriptors():
    return len(os.listdir("/proc/self/fd"))
"""


@pytest.mark.parametrize("warnings", ["error", "ignore"])
@pytest.mark.parametrize("action", ["pass", "one.transport.close()", "one.transport.abort()"])
def test_descriptors_of_connections_that_were_forgotten(in_child, warnings, action):
    """This also holds if the warning about it raises an exception in __del__()."""
    in_child(
        PREAMBLE
        + f"""
sys.unraisablehook = lambda args: seen.append(args.exc_type)
seen = []
gc.disable()
loop = new_loop()
loop.run_until_complete(asyncio.sleep(0))
before = descriptors()
def forget():
    one, other = Knotted(), Knotted()
    connect(loop, one, other)
    {action}
    return [weakref.ref(thing) for thing in (one, other, one.transport, other.transport)]
references = forget()
loop.close()
del loop
gc.collect()
assert [reference() for reference in references] == [None] * 4, references
# The loop's own are closed too.
assert descriptors() < before, (descriptors(), before, seen)
assert set(seen) <= {{ResourceWarning}}, seen
""",
        "-W",
        f"{warnings}::ResourceWarning",
    )


@pytest.mark.parametrize("stage", ["handshake", "connected", "closing"])
def test_a_loop_that_was_forgotten_with_a_connection(in_child, stage):
    """The timeouts of handshake and shutdown connect the connection to the loop."""
    in_child(
        PREAMBLE
        + f"""
from harness import Below
if KIND == "mgloop":
    from mgloop.tls._protocol import SSLProtocol
else:
    from asyncio.sslproto import SSLProtocol
from harness import App, Connection
gc.disable()

def forget():
    loop = new_loop()
    stage = {stage!r}
    connection = Connection(loop, SSLProtocol, (client_context, server_context), App())
    if stage == "handshake":
        connection.proto.connection_made(connection.below)
    else:
        connection.shake_hands()
    transport = connection.proto._app_transport
    if stage == "closing":
        transport.close()
    turn(loop, 2)
    return [weakref.ref(thing) for thing in (loop, connection.proto, transport)]

references = forget()
gc.collect()
gc.collect()
assert [reference() for reference in references] == [None] * 3, references
""",
        "-W",
        "ignore::ResourceWarning",
    )
