# SPDX-License-Identifier: GPL-2.0-only
"""A stream transport under random orders from both ends.

Hypothesis generates a history: the actions of the transport's owner, of the peer, and of the
protocol inside its callbacks. In every case the bytes that arrive are a prefix of the bytes that
were sent, and all of them unless the connection was broken. The callbacks keep their order (the
recorders check that), connection_lost is called once, and the exception handler is never called.
"""

import asyncio
import os
import socket

import pytest
import support
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peers import BufferedRecorder, Recorder, reset

EXAMPLES = int(os.environ.get("MGLOOP_FUZZ_EXAMPLES", "60"))

sizes = st.sampled_from([0, 1, 50, 4096, 4097, 30_000, 65_536, 200_000, 700_000])

transport_steps = st.one_of(
    st.tuples(st.just("write"), sizes),
    st.tuples(st.just("writelines"), st.lists(sizes, min_size=1, max_size=5)),
    st.tuples(st.sampled_from(["pause", "resume"])),
    st.tuples(st.just("limit"), st.sampled_from([0, 1000, 10_000_000])),
    st.tuples(st.sampled_from(["write_eof", "close", "abort", "switch"])),
)
peer_steps = st.one_of(
    st.tuples(st.just("peer_send"), sizes),
    st.tuples(st.just("peer_recv"), sizes),
    st.tuples(st.sampled_from(["peer_eof", "peer_reset"])),
)
turns = st.tuples(st.just("turns"), st.integers(1, 3))

histories = st.lists(st.one_of(transport_steps, peer_steps, turns, turns), max_size=25)
reactions = st.fixed_dictionaries(
    {
        "data": st.lists(transport_steps, max_size=3),
        "eof": st.lists(transport_steps, max_size=2),
        "pause_writing": st.lists(transport_steps, max_size=2),
        "resume_writing": st.lists(transport_steps, max_size=2),
        "made": st.lists(transport_steps, max_size=2),
    }
)


class Reacting:
    """A recorder that runs one step per callback while it has steps for it."""

    def __init__(self, world, **kwargs):
        super().__init__(world.loop, **kwargs)
        self.world = world

    def connection_made(self, transport):
        super().connection_made(transport)
        self.world.transport = transport
        self.world.react("made")

    def _took(self, data):
        super()._took(data)
        self.world.arrived += data
        self.world.react("data")

    def eof_received(self):
        result = super().eof_received()
        self.world.ended = True
        self.world.react("eof")
        return result

    def pause_writing(self):
        super().pause_writing()
        self.world.react("pause_writing")

    def resume_writing(self):
        super().resume_writing()
        self.world.react("resume_writing")


class ReactingProtocol(Reacting, Recorder):
    pass


class ReactingBuffered(Reacting, BufferedRecorder):
    pass


class World:
    """One connection, with a record of the bytes sent and received."""

    def __init__(self, loop, loop_kind, reactions, protocols, keep_open):
        self.loop = loop
        self.loop_kind = loop_kind
        self.reactions = {name: list(steps) for name, steps in reactions.items()}
        self.protocols = [make(self, keep_open=keep_open) for make in protocols]
        self.transport = None
        self.written = bytearray()  # accepted by the transport
        self.read = bytearray()  # received by the peer
        self.sent = bytearray()  # sent by the peer
        self.arrived = bytearray()  # received by the protocol
        self.ended = False  # eof_received was called
        self.half_closed = False
        self.broken = False  # by abort or reset: bytes may be lost

    @property
    def protocol(self):
        return self.protocols[0]

    @property
    def alive(self):
        return not (self.transport.is_closing() or self.protocol.lost.done())

    def react(self, name):
        if self.reactions[name]:
            step, *args = self.reactions[name].pop(0)
            # asyncio calls connection_lost twice if resume_writing ends the connection.
            ends = step in ("close", "abort")
            if ends and name == "resume_writing" and self.loop_kind == "asyncio":
                return
            getattr(self, step)(*args)

    def block(self, size):
        start = len(self.written) % 251
        return MATERIAL[start : start + size]

    # --- the owner's steps ---

    def write(self, size):
        if self.alive and not self.half_closed:
            data = self.block(size)
            # Before the call, because the call may cause further writes.
            self.written += data
            self.transport.write(data)

    def writelines(self, sizes):
        if self.alive and not self.half_closed and any(sizes):
            lines = []
            for size in sizes:
                # No empty buffers: since 3.12 asyncio waits forever until one is sent.
                if size:
                    lines.append(self.block(size))
                    self.written += lines[-1]
            self.transport.writelines(lines)

    def pause(self):
        self.transport.pause_reading()

    def resume(self):
        # asyncio would report the end of the stream a second time.
        if not (self.ended and self.loop_kind == "asyncio"):
            self.transport.resume_reading()

    def limit(self, high):
        if self.alive:
            self.transport.set_write_buffer_limits(high=high)

    def write_eof(self):
        if self.alive:
            self.half_closed = True
            try:
                self.transport.write_eof()
            except OSError:
                # As in asyncio, if a reset has arrived but has not been read yet.
                assert self.broken

    def close(self):
        if self.alive:
            self.transport.close()

    def abort(self):
        if not self.protocol.lost.done():
            self.broken = True
            self.transport.abort()

    def switch(self):
        """Call set_protocol() with the spare protocol of either kind, which continues the log."""
        if not self.alive or len(self.protocols) < 2 or self.ended:
            return
        old, new = self.protocols
        new.events = list(old.events)
        new.transport, new.paused = old.transport, old.paused
        self.protocols = [new]
        self.transport.set_protocol(new)

    # --- the peer's steps ---

    def peer_send(self, size):
        if self.peer.fileno() >= 0 and not self.peer_ended:
            try:
                count = self.peer.send(MATERIAL[len(self.sent) % 251 :][:size])
            except BlockingIOError:
                return
            except ConnectionError:
                self.broken = True
                return
            start = len(self.sent) % 251
            self.sent += MATERIAL[start : start + count]

    def peer_recv(self, size):
        if size and self.peer.fileno() >= 0:
            try:
                self.read += self.peer.recv(size)
            except BlockingIOError:
                pass
            except ConnectionError:
                self.broken = True

    def peer_eof(self):
        if self.peer.fileno() >= 0 and not self.peer_ended:
            self.peer_ended = True
            try:
                self.peer.shutdown(socket.SHUT_WR)
            except OSError:
                self.broken = True

    def peer_reset(self):
        if self.peer.fileno() >= 0:
            self.broken = True
            reset(self.peer)

    # --- the history ---

    async def live(self, history):
        with support.nonblocking_tcp_pair() as (ours, self.peer):
            self.peer_ended = False
            for sock in (ours, self.peer):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            await self.loop.create_connection(lambda: self.protocol, sock=ours)
            for step, *args in history:
                if step == "turns":
                    await support.turns(*args)
                else:
                    getattr(self, step)(*args)
            await self.finish()

        assert self.written.startswith(self.read)
        assert self.sent.startswith(self.arrived)
        if not self.broken:
            assert self.read == self.written
        assert self.protocol.events.count("lost") == 1
        await support.turns(3)

    async def finish(self):
        """Close from this end, in order if possible, while the peer reads all data."""
        self.reactions = dict.fromkeys(self.reactions, ())
        self.resume()
        self.peer_eof()
        deadline = self.loop.time() + support.PATIENCE
        while not self.protocol.lost.done():
            assert self.loop.time() < deadline, f"not over: {self.transport} {self.protocol.events}"
            # Closing with unread data in the socket would make the kernel reset the connection.
            if (self.ended or self.broken) and not self.transport.is_closing():
                self.transport.close()
            self.peer_recv(2**18)
            await asyncio.sleep(0)
        # Read to the end of the stream, not to the first pause, because data that the transport
        # has passed to the kernel may still be in transit.
        while self.peer.fileno() >= 0 and not self.broken:
            assert self.loop.time() < deadline, f"no end of the stream: {len(self.read)} bytes"
            try:
                data = self.peer.recv(2**18)
            except BlockingIOError:
                await asyncio.sleep(0.001)
                continue
            except ConnectionError:
                self.broken = True
                continue
            if not data:
                break
            self.read += data


MATERIAL = support.pattern(1_000_000)


lives = st.tuples(histories, reactions, st.tuples(st.booleans(), st.booleans()), st.booleans())

random_test = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))


def live(loop, loop_kind, reported, lives):
    """Run these histories concurrently on `loop`."""
    worlds = []
    for history, reacting, kinds, keep_open in lives:
        protocols = [ReactingBuffered if buffered else ReactingProtocol for buffered in kinds]
        worlds.append(World(loop, loop_kind, reacting, protocols, keep_open).live(history))

    async def main():
        await asyncio.wait_for(asyncio.gather(*worlds), 2 * support.PATIENCE)

    loop.run_until_complete(main())
    reported.check()


@pytest.mark.timeout(300 if EXAMPLES <= 100 else 0)
@settings(random_test, max_examples=EXAMPLES)
@given(life=lives)
def test_any_history(loop, loop_kind, reported, life):
    live(loop, loop_kind, reported, [life])


@pytest.mark.timeout(300 if EXAMPLES <= 100 else 0)
@settings(random_test, max_examples=EXAMPLES // 4)
@given(many=st.lists(lives, min_size=5, max_size=8))
def test_many_histories_at_once(loop, loop_kind, reported, many):
    """With several transports ready in one iteration, small writes are deferred to its end."""
    live(loop, loop_kind, reported, many)
