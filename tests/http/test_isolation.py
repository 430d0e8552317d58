# SPDX-License-Identifier: GPL-2.0-only
"""Nothing that is sent to one client reaches another one, whatever code runs at whatever moment.

Code that runs unexpectedly (a finalizer, a property, an iterable of the application's) may send on
other connections. The first tests let it do so at the points of a response where it once mixed the
bytes of two clients; the last ones let it do so everywhere (program.py).
"""

import asyncio
import gc
import os
import subprocess
import sys
import sysconfig
import types
import weakref
from pathlib import Path

import certificates
import pytest
import support
from sites import DEFAULTS, Serving, get

from mgloop.http.wire import _site
from mgloop.http.wire._connection import Connection

PROGRAMS = Path(__file__).with_name("isolation")
BEGUN = b"HTTP/1.1 200 OK\r\nx: b\r\ntransfer-encoding: chunked\r\n\r\n2\r\nb1\r\n"


def drive(awaitable):
    """Await something that need not wait."""
    with pytest.raises(StopIteration):
        awaitable.__await__().send(None)


class TwoClients:
    """An application with a stream to client B, to which something is sent while A is answered."""

    def __init__(self, answer):
        self.answer = answer
        self.ended = asyncio.Event()

    async def __call__(self, scope, receive, send):
        if scope["path"] == "/A":
            await self.answer(self, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"b")]})
        await send({"type": "http.response.body", "body": b"b1", "more_body": True})
        self.send = send
        await self.ended.wait()
        await send({"type": "http.response.body", "body": b"b3"})

    def to_b(self):
        drive(self.send({"type": "http.response.body", "body": b"b2", "more_body": True}))


async def exchange(loop, answer, **config):
    """Return the bytes that A has received, and those of B after its first chunk."""
    app = TwoClients(answer)
    async with Serving(loop, app, **config) as serving:
        b = await serving.connect(get("/B", "Connection: close"))
        await b.reader.readuntil(b"b1\r\n")
        a = await serving.connect(get("/A", "Connection: close"))
        from_a = await a.reader.read()
        app.ended.set()
        return from_a, await b.reader.read()


def test_a_header_that_runs_code(loop):
    class Pair:
        def __iter__(self):
            app.to_b()
            return iter((b"set-cookie", b"secret"))

    async def answer(application, send):
        nonlocal app
        app = application
        headers = [(b"x", b"a"), Pair(), (b"y", b"a")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"private"})

    app = None
    from_a, from_b = loop.run_until_complete(exchange(loop, answer))
    assert from_b == b"2\r\nb2\r\n2\r\nb3\r\n0\r\n\r\n"
    assert from_a == (
        b"HTTP/1.1 200 OK\r\nx: a\r\nset-cookie: secret\r\ny: a\r\n"
        b"content-length: 7\r\nconnection: close\r\n\r\nprivate"
    )


def test_code_that_runs_while_the_common_headers_are_made(loop, monkeypatch):
    async def answer(app, send):
        def formatdate(*arguments, **options):
            monkeypatch.undo()
            app.to_b()
            return "today"

        await asyncio.sleep(1.1)  # they are made once a second
        monkeypatch.setattr(_site, "formatdate", formatdate)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a")]})
        await send({"type": "http.response.body", "body": b"private"})

    from_a, from_b = loop.run_until_complete(exchange(loop, answer, date_header=True))
    assert from_b == b"2\r\nb2\r\n2\r\nb3\r\n0\r\n\r\n"
    assert from_a == (
        b"HTTP/1.1 200 OK\r\nx: a\r\ncontent-length: 7\r\nconnection: close\r\n"
        b"date: today\r\n\r\nprivate"
    )


class Memory(asyncio.Transport):
    """Keep the written bytes; `before` runs in each write()."""

    def __init__(self, connection, before=lambda: None):
        super().__init__()
        self.before = before
        self.data = b""
        self.protocol = connection
        connection.connection_made(self)

    def write(self, data):
        self.before()
        self.data += data

    def get_write_buffer_size(self):
        return 0

    def can_write_eof(self):
        return False

    def is_closing(self):
        return False

    def close(self):
        self.protocol.connection_lost(None)


def site_of(loop, app, **config):
    return _site.Site(loop, app, types.SimpleNamespace(**DEFAULTS | config), connection=Connection)


def test_code_that_runs_while_a_large_piece_is_written(loop):
    async def answer(app, send):
        piece = {"type": "http.response.body", "body": b"A" * 70_000, "more_body": True}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(piece)
        await send({"type": "http.response.body", "body": b"private"})

    async def main():
        app = TwoClients(answer)
        site = site_of(loop, app)
        b = Memory(site.connection())
        b.protocol.data_received(get("/B"))
        await support.wait_until(lambda: b.data.endswith(b"b1\r\n"))
        a = Memory(site.connection(), app.to_b)
        a.protocol.data_received(get("/A"))
        await support.wait_until(lambda: a.data.endswith(b"\r\n0\r\n\r\n"))
        app.ended.set()
        await support.wait_until(lambda: b.data.endswith(b"\r\n0\r\n\r\n"))
        for transport in (a, b):
            transport.close()
        return a.data, b.data

    from_a, from_b = loop.run_until_complete(main())
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    assert from_a == head + b"11170\r\n%b\r\n7\r\nprivate\r\n0\r\n\r\n" % (b"A" * 70_000)
    assert from_b.startswith(BEGUN + b"2\r\nb2\r\n")
    assert from_b.endswith(b"2\r\nb3\r\n0\r\n\r\n")
    assert b"A" not in from_b


@pytest.mark.parametrize("kind", ["start", "body"])
async def test_no_message_gets_into_one_that_is_being_written(loop, kind):
    """A message of the same response is refused, and the response is not damaged."""
    refused = []

    async def app(scope, receive, send):
        def within():
            with pytest.raises(RuntimeError, match="another one is being written"):
                send({"type": "http.response." + kind, "status": 200, "body": b"within"})
            refused.append(kind)

        transport.before = within
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"A" * 70_000, "more_body": True})
        transport.before = lambda: None
        await send({"type": "http.response.body", "body": b"end"})

    transport = Memory(site_of(loop, app).connection())
    transport.protocol.data_received(get())
    await support.wait_until(lambda: transport.data.endswith(b"\r\n0\r\n\r\n"))
    transport.close()
    assert refused == [kind] * 2
    assert transport.data.endswith(b"A\r\n3\r\nend\r\n0\r\n\r\n")
    assert b"within" not in transport.data


class Idle(asyncio.Transport):
    """A transport that does nothing and refers to nothing but its protocol."""

    def can_write_eof(self):
        return False


@pytest.mark.mgloop_only
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_site_and_its_connections_that_become_garbage_together(count, loop_kind):
    """With timeouts set, on a loop that is garbage, too.

    The collector may free the site before a connection, which then wrote into the site's memory.
    AddressSanitizer sees it, and so does valgrind, for one connection that is older than its
    transport, as those of a server are.
    """

    def drop():
        loop = support.new_loop(loop_kind)
        site = site_of(loop, None, timeout_head=10, timeout_keep_alive=5)
        for _ in range(count):
            connection = site.connection()
            transport = Idle()
            transport.protocol = connection
            connection.connection_made(transport)
        loop.close()  # Its timer keeps the site.
        return weakref.ref(transport)

    gc.collect()
    gone = drop()
    gc.collect()
    assert gone() is None


@pytest.fixture(scope="module")
def hook(tmp_path_factory):
    """hostile_hook.c, compiled."""
    library = tmp_path_factory.mktemp("hook") / "hook.so"
    include = sysconfig.get_path("include")
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", library, PROGRAMS / "hostile_hook.c"]
    subprocess.run([*command, f"-I{include}"], check=True)
    return library


@pytest.mark.mgloop_only
@pytest.mark.skipif(not certificates.available, reason=certificates.SKIPPED)
@pytest.mark.parametrize("source", ["collector", "hook"])
def test_hostile_code_everywhere(source, hook, loop_kind):
    options = ["--hook", hook] if source == "hook" else []
    search = support.python_path(*PROGRAMS.parents[:2])
    done = support.finished(
        [sys.executable, PROGRAMS / "program.py", source, *options],
        env=os.environ | {"PYTHONPATH": search},
        timeout=200,
    )
    if done.returncode == 77:
        pytest.skip("only a build with AddressSanitizer has the hook")
    assert done.returncode == 0, done.stdout + done.stderr
