# SPDX-License-Identifier: GPL-2.0-only
"""The ways in which programs get the compiled streams, and their relation to asyncio's classes."""

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest
import support

import mgloop
from mgloop import _stdlib, streams

pytestmark = pytest.mark.mgloop_only

CLASSES = ("StreamReader", "StreamWriter", "StreamReaderProtocol")


@pytest.fixture
def switched():
    """Let asyncio's names refer to the compiled classes during the test."""
    streams.use()
    yield
    streams.restore()


def printed(code, *, arguments=(), **env):
    """Run code in a new interpreter and return its output."""
    done = subprocess.run(
        [sys.executable, *arguments, "-c", textwrap.dedent(code)],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=support.PATIENCE,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


WHERE = """
import asyncio
print(asyncio.StreamReader.__module__, asyncio.streams.StreamWriter.__module__)
"""
OURS = "mgloop.streams mgloop.streams\n"
ASYNCIOS = "asyncio.streams asyncio.streams\n"


def test_the_environment_switches_when_mgloop_is_imported():
    assert printed("import mgloop" + WHERE, MGLOOP_STREAMS="1") == OURS
    assert printed("import mgloop" + WHERE, MGLOOP_STREAMS="0") == ASYNCIOS


def test_mgloop_run_switches_on_request():
    run = ("-m", "mgloop", "run")
    assert printed(WHERE, arguments=run) == ASYNCIOS
    assert printed(WHERE, arguments=(*run, "--streams")) == OURS


def test_install_switches_and_uninstall_undoes_it():
    out = printed("""
        import asyncio, mgloop
        before = asyncio.StreamReader
        mgloop.install()
        assert asyncio.StreamReader is before
        mgloop.install(streams=True)
        assert asyncio.StreamReader is asyncio.streams.StreamReader is mgloop.streams.StreamReader
        mgloop.uninstall()
        assert asyncio.StreamReader is asyncio.streams.StreamReader is before
        print("ok")
    """)
    assert out == "ok\n"


def test_the_classes_are_subclasses_of_asyncios():
    for name in CLASSES:
        assert issubclass(getattr(streams, name), getattr(_stdlib, name))


async def test_objects_of_asyncios_classes_are_instances_after_the_switch(loop):
    reader = asyncio.StreamReader(loop=loop)
    mine = type("Mine", (asyncio.StreamReader,), {})(loop=loop)
    streams.use()
    try:
        assert isinstance(reader, asyncio.StreamReader)
        assert isinstance(mine, asyncio.StreamReader)
        assert not isinstance(loop, asyncio.StreamReader)
        # A class of the program's own is stricter.
        own = type("Own", (asyncio.StreamReader,), {})
        assert not isinstance(reader, own)
        assert isinstance(own(loop=loop), own)
        # asyncio's own writer checks the class of its reader.
        _stdlib.StreamWriter(None.__class__, None, reader, loop)._transport = ClosedTransport()
    finally:
        streams.restore()


class ClosedTransport:
    def is_closing(self):
        return True


async def echoed(open_connection, start_server, *address):
    classes = []

    async def echo(reader, writer):
        classes.extend([type(reader), type(writer), type(writer.transport.get_protocol())])
        async for line in reader:
            writer.write(line)
            await writer.drain()
        await support.close(writer)

    server = await start_server(echo, *address)
    if len(address) == 2:
        address = server.sockets[0].getsockname()
    reader, writer = await open_connection(*address)
    classes.extend([type(reader), type(writer), type(writer.transport.get_protocol())])
    writer.writelines([b"one\n", b"two\nthr", b"ee"])
    writer.write_eof()
    await writer.drain()
    assert await reader.read() == b"one\ntwo\nthree"
    assert reader.at_eof()
    await support.close(writer)
    await support.close(server)
    return classes


async def test_connections_of_the_module_have_its_classes(loop):
    classes = await echoed(streams.open_connection, streams.start_server, "127.0.0.1", 0)
    assert classes == [getattr(streams, name) for name in CLASSES] * 2


async def test_unix_connections_of_the_module_have_its_classes(loop, tmp_path):
    path = str(tmp_path / "sock")
    classes = await echoed(streams.open_unix_connection, streams.start_unix_server, path)
    assert classes == [getattr(streams, name) for name in CLASSES] * 2


async def test_asyncios_functions_use_the_classes_after_the_switch(loop, switched):
    classes = await echoed(asyncio.open_connection, asyncio.start_server, "127.0.0.1", 0)
    assert classes == [getattr(streams, name) for name in CLASSES] * 2


async def test_subprocesses_use_the_classes_after_the_switch(loop, switched):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read() * 100_000)",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert type(process.stdout) is streams.StreamReader
    assert type(process.stdin) is streams.StreamWriter
    process.stdin.write(b"abc")
    await process.stdin.drain()
    process.stdin.close()
    assert await process.stdout.read() == b"abc" * 100_000
    assert await process.wait() == 0


def test_on_asyncios_own_loop():
    loop = asyncio.SelectorEventLoop()
    try:
        classes = loop.run_until_complete(
            echoed(streams.open_connection, streams.start_server, "127.0.0.1", 0)
        )
    finally:
        support.finish(loop)
    assert classes == [getattr(streams, name) for name in CLASSES] * 2


def test_mgloop_has_the_module_as_an_attribute():
    assert mgloop.streams is streams
