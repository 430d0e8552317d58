# SPDX-License-Identifier: GPL-2.0-only
"""Reference counts balance: no operation of the loop gains or loses a reference.

Native code counts by hand the references that Python counts automatically. Each operation is
repeated so often that one lost reference per call would stand out, first to warm up caches and
free lists, then to measure: the reference counts of the objects involved, and the number of
memory blocks that Python has allocated.
"""

import asyncio
import contextvars
import gc
import socket
import sys

import peers
import pytest
import support

import mgloop

REPEAT = 300

#: The number in debug mode, in which each call walks the stack.
REPEAT_DEBUG = 150


class Subject:
    """The objects involved in the operations, whose reference counts are watched."""

    def __init__(self, loop, pair):
        self.loop = loop
        self.left, self.right = pair
        self.argument = object()
        self.context = contextvars.copy_context()
        self.buffer = bytearray(16)
        self.called = 0

    def callback(self, *args):
        self.called += 1

    def fail(self, *args):
        raise LookupError

    def counts(self):
        gc.collect()
        watched = (self, self.loop, self.argument, self.context, self.buffer, self.left)
        return [sys.getrefcount(thing) for thing in watched], sys.getallocatedblocks()

    def turn(self, times=1):
        support.turn(self.loop, times)


OPERATIONS = {}


def operation(function):
    """Make `function`, which may be a coroutine function, one of OPERATIONS."""

    def operate(s):
        result = function(s)
        if asyncio.iscoroutine(result):
            s.loop.run_until_complete(result)

    OPERATIONS[function.__name__] = operate
    return operate


@operation
def call_soon(s):
    for count in range(7):
        s.loop.call_soon(s.callback, *[s.argument] * count)
    s.turn()


@operation
def call_soon_with_context(s):
    s.loop.call_soon(s.callback, s.argument, context=s.context)
    s.turn()


@operation
def call_soon_cancelled(s):
    for count in (0, 3, 6):
        s.loop.call_soon(s.callback, *[s.argument] * count, context=s.context).cancel()
    s.turn()


@operation
def call_soon_failing(s):
    for count in (0, 3, 6):
        s.loop.call_soon(s.fail, *[s.argument] * count, context=s.context)
    s.turn()


@operation
def call_soon_refused(s):
    for bad in ({"flavour": s.argument}, {"context": s.context, "flavour": s.argument}):
        with pytest.raises(TypeError):
            s.loop.call_soon(s.callback, s.argument, **bad)
    with pytest.raises(TypeError):
        s.loop.call_later(None, s.callback, s.argument)
    with pytest.raises(TypeError):
        s.loop.call_later("1", s.callback, s.argument)


@operation
def call_soon_threadsafe(s):
    s.loop.call_soon_threadsafe(s.callback, s.argument)
    s.turn()


@operation
def call_later(s):
    for count in range(7):
        s.loop.call_later(0, s.callback, *[s.argument] * count)
    s.turn(2)


@operation
def call_later_cancelled(s):
    s.loop.call_later(0, s.callback, s.argument, context=s.context).cancel()
    s.loop.call_later(0.0001, s.callback, s.argument, context=s.context).cancel()
    s.turn(2)


@operation
def call_later_failing(s):
    s.loop.call_later(0, s.fail, s.argument)
    s.turn(2)


@operation
def looking_at_handles(s):
    soon = s.loop.call_soon(s.callback, s.argument)
    later = s.loop.call_later(1000, s.callback, s.argument)
    for handle in (soon, later):
        repr(handle)
        assert isinstance(handle, asyncio.Handle)
        handle.cancelled()
    assert not later < later
    assert later == later
    later.when()
    hash(later)
    later.cancel()
    soon.cancel()
    repr(later)
    s.turn()


@operation
def readers_and_writers(s):
    s.loop.add_reader(s.left, s.callback, s.argument)
    s.loop.add_writer(s.left, s.callback, s.argument)
    s.loop.add_writer(s.left, s.callback, s.argument)
    s.turn()
    s.loop.remove_reader(s.left)
    s.loop.remove_writer(s.left)
    s.loop.remove_writer(s.left)


@operation
def readers_refused(s):
    with pytest.raises(OSError):
        s.loop.add_reader(123456, s.callback, s.argument)
    with pytest.raises(ValueError):
        s.loop.add_reader(-1, s.callback, s.argument)


@operation
async def sock_at_once(s):
    await s.loop.sock_sendall(s.left, s.buffer)
    await s.loop.sock_recv(s.right, 10)
    await s.loop.sock_recv_into(s.right, s.buffer)


@operation
async def sock_after_a_wait(s):
    receiving = s.loop.create_task(s.loop.sock_recv(s.left, 10))
    await support.turns(2)
    s.right.send(b"x")
    await receiving
    receiving = s.loop.create_task(s.loop.sock_recv_into(s.left, s.buffer))
    await support.turns(2)
    s.right.send(b"x")
    await receiving


@operation
async def sock_cancelled(s):
    receiving = s.loop.create_task(s.loop.sock_recv_into(s.left, s.buffer))
    await support.turns(2)
    receiving.cancel()
    await support.turns(2)
    s.loop.sock_recv(s.left, 10).close()


@operation
async def sock_failing(s):
    with pytest.raises(TypeError):
        await s.loop.sock_sendall(s.left, "text")
    with pytest.raises(TypeError):
        await s.loop.sock_recv_into(s.left, b"read-only")
    with pytest.raises(ValueError):
        await s.loop.sock_recv(s.left, -1)
    with pytest.raises(TypeError):
        await s.loop.sock_recv(s.left, s.argument)


@operation
async def sock_of_a_short_life(s):
    left, right = socket.socketpair()
    left.setblocking(False)
    receiving = s.loop.create_task(s.loop.sock_recv(left, 10))
    await support.turns(2)
    right.close()
    assert await receiving == b""
    left.close()


@operation
async def futures_and_tasks(s):
    future = s.loop.create_future()
    future.add_done_callback(s.callback, context=s.context)
    future.set_result(s.argument)
    await future
    await s.loop.create_task(asyncio.sleep(0), name="a name", context=s.context)


class Writable(asyncio.Transport):
    """A transport for streams without a connection."""

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def write(self, data):
        pass

    def is_closing(self):
        return True  # so that a writer that is dropped does not warn


def stream_pair(s):
    reader = mgloop.streams.StreamReader(loop=s.loop, limit=64)
    protocol = mgloop.streams.StreamReaderProtocol(reader, loop=s.loop)
    transport = Writable()
    protocol.connection_made(transport)
    return reader, protocol, mgloop.streams.StreamWriter(transport, protocol, reader, s.loop)


@operation
async def streams_at_once(s):
    reader, protocol, writer = stream_pair(s)
    protocol.data_received(b"one\ntw")
    protocol.data_received(s.buffer)
    protocol.data_received(b"o\nthree\r\nrest")
    await reader.readline()
    await reader.read(3)
    await reader.readuntil(b"\n")
    await reader.readuntil(b"\r\n")
    await reader.readexactly(2)
    writer.write(s.buffer)
    await writer.drain()
    protocol.connection_lost(None)
    await reader.read()


@operation
async def streams_after_a_wait(s):
    reader, protocol, writer = stream_pair(s)
    for read in (reader.readline, reader.read, lambda: reader.readexactly(3)):
        reader._buffer.clear()
        reading = s.loop.create_task(read())
        await support.turns(2)
        protocol.data_received(b"ab")
        protocol.data_received(b"c\n")
        await support.turns(2)
        reading.cancel()
    protocol.pause_writing()
    draining = s.loop.create_task(writer.drain())
    await support.turns(2)
    protocol.resume_writing()
    await draining


@operation
async def streams_failing(s):
    reader, protocol, writer = stream_pair(s)
    protocol.data_received(b"0123456789" * 10)
    for call in (reader.readline(), reader.readuntil(b""), reader.readexactly(-1)):
        with pytest.raises(ValueError):
            await call
    reading = s.loop.create_task(reader.readexactly(500))
    await support.turns(2)
    reader.set_exception(LookupError())
    with pytest.raises(LookupError):
        await reading
    reader.readline().close()
    with pytest.raises(LookupError):
        await writer.drain()


@operation
async def getaddrinfo(s):
    await s.loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM, family=socket.AF_INET)


@operation
def interrupted(s):
    def interrupt():
        raise KeyboardInterrupt

    s.loop.call_soon(interrupt)
    s.loop.call_soon(s.callback, s.argument)
    with pytest.raises(KeyboardInterrupt):
        s.loop.run_forever()
    s.turn()


@pytest.mark.parametrize("debug", [False, True], ids=["normal mode", "debug mode"])
@pytest.mark.parametrize("operate", OPERATIONS.values(), ids=OPERATIONS)
def test_references_balance(loop, loop_kind, socketpair, reported, operate, debug):
    if operate in (call_soon_failing, call_later_failing):
        peers.skip_if_failing_callbacks_leak(loop_kind)
    if debug and operate is getaddrinfo:
        pytest.skip("debug mode goes by way of a thread")
    loop.set_debug(debug)
    loop.set_exception_handler(lambda loop, context: None)
    subject = Subject(loop, socketpair)
    repeat = REPEAT_DEBUG if debug else REPEAT
    for _ in range(50):
        operate(subject)
    # Counts also vary for other reasons: idle threads, growing tables, cached lines of source, and
    # occasionally by a large number. A real leak shows every time.
    for last in (False, False, True):
        references, blocks = subject.counts()
        for _ in range(repeat):
            operate(subject)
        references_after, blocks_after = subject.counts()
        grown = [after - before for before, after in zip(references, references_after, strict=True)]
        if max(grown) < repeat // 4 and blocks_after - blocks < repeat * 6 // 10:
            return
        assert not last, f"per {repeat}: references {grown}, blocks {blocks_after - blocks}"
