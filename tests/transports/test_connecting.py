# SPDX-License-Identifier: GPL-2.0-only
"""The iterations in which a new connection's events happen, and the events after a cancellation.

Programs cancel create_connection() after a number of iterations. If the transport does not exist by
then, the protocol is never called; else connection_made() and connection_lost() are called. A loop
that connects in fewer iterations than asyncio calls them where asyncio does not: asyncpg's protocol
then set an exception on a future that nothing awaited. Each test plays the same scene on asyncio's
own loop and on the loop under test.
"""

import asyncio
import contextlib
import itertools
import socket

import certificates
import pytest
import support

pytestmark = pytest.mark.without_debug

WAYS = ["address", "unix", "socket", "accepted"]

#: asyncio needs four iterations for a TCP connection on loopback.
ITERATIONS = range(9)

#: The kernel connects on loopback while connect() runs, but on a busy machine a moment later.
ATTEMPTS = 5


class Iterations:
    """Counts the iterations of a loop by a callback that schedules itself again."""

    def __init__(self, loop):
        self.loop = loop
        self.count = 0
        self.handle = loop.call_soon(self.tick)

    def tick(self):
        self.count += 1
        self.handle = self.loop.call_soon(self.tick)

    def stop(self):
        self.handle.cancel()


class Witness(asyncio.Protocol):
    """Notes each event, and calls `on_made` in connection_made()."""

    def __init__(self, note, on_made):
        self.note = note
        self.on_made = on_made
        note("factory")

    def connection_made(self, transport):
        self.note("made")
        self.on_made()

    def data_received(self, data):
        self.note("data")

    def connection_lost(self, exc):
        self.note(f"lost, {exc!r}")


class Scene:
    """A connection attempt, and a peer that sends data as soon as the connection is made.

    The attempt is cancelled after the iteration `after`, or when connection_made() has been called
    and `since_made` more iterations have begun.
    """

    def __init__(self, loop, way, path, stack, after=None, since_made=None):
        self.loop = loop
        self.stack = stack
        self.events = []
        self.iterations = Iterations(loop)
        self.begun_at = None
        self.after = after
        self.since_made = since_made
        self.connect = getattr(self, f"connect_by_{way}")
        self.listener = self.ours = None
        if way in ("address", "eyeballs"):
            self.listener = stack.enter_context(support.listening_socket())
        elif way == "unix":
            self.listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            self.listener.bind(path)
            self.listener.listen()
        else:
            self.ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            theirs.send(b"data")

    def note(self, what):
        self.events.append((self.iterations.count - self.begun_at, what))

    def protocol(self):
        return Witness(self.note, self.made)

    def made(self):
        if self.listener is not None:
            # The data is there before the loop polls again.
            accepted, _ = self.listener.accept()
            self.stack.enter_context(accepted)
            accepted.send(b"data")
        if self.since_made is not None:
            self.cancel_in(self.since_made)

    def cancel_in(self, iterations):
        if iterations == 0:
            self.task.cancel()
        else:
            self.loop.call_soon(self.cancel_in, iterations - 1)

    def connect_by_address(self):
        return self.loop.create_connection(self.protocol, *self.listener.getsockname())

    def connect_by_eyeballs(self):
        return self.loop.create_connection(
            self.protocol, *self.listener.getsockname(), happy_eyeballs_delay=support.PATIENCE
        )

    def connect_by_unix(self):
        return self.loop.create_unix_connection(self.protocol, self.listener.getsockname())

    def connect_by_socket(self):
        return self.loop.create_connection(self.protocol, sock=self.ours)

    def connect_by_accepted(self):
        return self.loop.connect_accepted_socket(self.protocol, self.ours)

    async def attempt(self):
        self.begun_at = self.iterations.count
        try:
            transport, _ = await self.connect()
        except asyncio.CancelledError:
            self.note("cancelled")
            return None
        self.note("returned")
        return transport

    async def play(self):
        self.task = self.loop.create_task(self.attempt())
        await support.turns(1)
        if self.after is not None:
            await support.turns(self.after)
            self.task.cancel()
        transport = await self.task
        await support.turns(5)
        if transport is not None:
            transport.abort()
            await support.turns(3)
        self.iterations.stop()


def play(loop, make_scene):
    """Return the events of a scene as [(iteration, event)], and the messages that are reported."""
    before = support.open_fds()
    reported = []
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    try:
        with contextlib.ExitStack() as stack:
            scene = make_scene(loop, stack)
            loop.run_until_complete(asyncio.wait_for(scene.play(), support.PATIENCE))
        assert not support.fds_opened_since(before)
    finally:
        loop.set_exception_handler(handler)
    return scene.events, reported


def play_on_both(loop, make_scene):
    """Play a scene on asyncio's loop and on `loop`, and return both results."""
    reference = support.new_loop("asyncio")
    try:
        there = play(reference, make_scene)
    finally:
        support.finish(reference)
    return there, play(loop, make_scene)


def compare(loop, way, path, **options):
    """Return what play() returns for asyncio's loop; fail if it does not for `loop`."""
    numbers = itertools.count()
    for _ in range(ATTEMPTS):
        there, here = play_on_both(
            loop,
            lambda loop, stack: Scene(loop, way, f"{path}.{next(numbers)}", stack, **options),
        )
        if there == here:
            break
    assert here == there
    return there


def calls_of(events):
    """The calls of the protocol, without the iterations."""
    return [event for _, event in events if event in ("made", "data", "lost, None")]


# asyncio leaks a socket if create_connection(happy_eyeballs_delay=) is cancelled.
@pytest.mark.parametrize("way", [*WAYS, "eyeballs"])
def test_the_iteration_of_each_event(loop, short_path, way):
    events, reported = compare(loop, way, short_path)
    assert not reported
    assert [event for _, event in events] == ["factory", "made", "returned", "data", "lost, None"]


@pytest.mark.parametrize("iteration", ITERATIONS)
@pytest.mark.parametrize("way", WAYS)
def test_cancelled_in_an_iteration(loop, short_path, way, iteration):
    events, reported = compare(loop, way, short_path, after=iteration)
    assert not reported
    calls = calls_of(events)
    assert not calls or (calls[0], calls[-1]) == ("made", "lost, None")


@pytest.mark.parametrize("iterations", range(3))
@pytest.mark.parametrize("way", WAYS)
def test_cancelled_since_connection_made(loop, short_path, way, iterations):
    events, reported = compare(loop, way, short_path, since_made=iterations)
    assert not reported
    assert calls_of(events)[0] == "made"
    assert calls_of(events)[-1] == "lost, None"


# --- TLS ------------------------------------------------------------------------------------------


class TlsScene(Scene):
    """The same with TLS, to a server on the same loop."""

    contexts = None

    def __init__(self, loop, stack, **options):
        super().__init__(loop, "tls", None, stack, **options)
        self.ours.close()

    @classmethod
    def ssl_contexts(cls):
        if cls.contexts is None:
            if not certificates.available:
                pytest.skip(certificates.SKIPPED)
            cls.contexts = certificates.contexts()
        return cls.contexts

    def connect_by_tls(self):
        return self.loop.create_connection(
            self.protocol, *self.server.sockets[0].getsockname(), ssl=self.ssl_contexts()[1],
            server_hostname="localhost",
        )  # fmt: skip

    async def play(self):
        self.server = await self.loop.create_server(
            asyncio.Protocol, "127.0.0.1", 0, ssl=self.ssl_contexts()[0]
        )
        await super().play()
        self.server.close()
        await self.server.wait_closed()
        # Until the server has noticed.
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("iterations", [None, 0, 1, 2])
def test_tls(loop, iterations):
    """The number of iterations that a handshake takes may differ, but not the order after it."""
    there, here = play_on_both(
        loop, lambda loop, stack: TlsScene(loop, stack, since_made=iterations)
    )

    def since_made(events):
        (made,) = [iteration for iteration, event in events if event == "made"]
        return [(iteration - made, event) for iteration, event in events if iteration >= made]

    assert here[1] == there[1] == []
    assert since_made(here[0])[:2] == since_made(there[0])[:2]
    assert calls_of(here[0]) == calls_of(there[0]) == ["made", "lost, None"]
