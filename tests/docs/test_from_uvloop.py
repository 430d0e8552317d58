# SPDX-License-Identifier: GPL-2.0-only
"""The tables of docs/howto/from-uvloop.md: the features that mgloop has and uvloop lacks.

uvloop's column is tested if uvloop is installed in the version that the page names.
"""

import asyncio
import contextlib
import importlib.metadata
import os
import socket
import sys
import tempfile
import time

import pytest
from markdown_pages import ROOT
from support import nonblocking_socketpair, turns

PAGE = ROOT / "docs" / "howto" / "from-uvloop.md"


def uvloop_of_the_page():
    try:
        found = importlib.metadata.version("uvloop")
    except importlib.metadata.PackageNotFoundError:
        return False
    return found in PAGE.read_text()


def factory(name):
    if name == "asyncio":
        return asyncio.SelectorEventLoop
    return __import__(name).new_event_loop


@contextlib.asynccontextmanager
async def connected(loop):
    """Yield a transport and a socket for its other end. uvloop waits forever for open ones."""
    with nonblocking_socketpair() as (left, right):
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=left)
        try:
            yield transport, right
        finally:
            transport.abort()
            await turns()


async def happy_eyeballs(loop):
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    try:
        address = server.sockets[0].getsockname()
        transport, _ = await loop.create_connection(
            asyncio.Protocol, *address, happy_eyeballs_delay=0.2
        )
        transport.close()
    finally:
        server.close()
        await turns()


async def send_file(loop):
    async with connected(loop) as (transport, peer):
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 100)
            file.flush()
            assert await loop.sendfile(transport, file) == 100
        assert peer.recv(200) == b"x" * 100


async def sock_send_file(loop):
    with nonblocking_socketpair() as (left, _), tempfile.TemporaryFile() as file:
        file.write(b"x" * 100)
        file.flush()
        assert await loop.sock_sendfile(left, file) == 100


def udp_socket():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


async def sock_recvfrom(loop):
    with udp_socket() as sock:
        sock.sendto(b"x", sock.getsockname())
        assert (await loop.sock_recvfrom(sock, 10))[0] == b"x"


async def sock_recvfrom_into(loop):
    with udp_socket() as sock:
        sock.sendto(b"x", sock.getsockname())
        assert (await loop.sock_recvfrom_into(sock, bytearray(10)))[0] == 1


async def sock_sendto(loop):
    with udp_socket() as sock:
        assert await loop.sock_sendto(sock, b"x", sock.getsockname()) == 1


async def unix_datagrams(loop):
    with tempfile.TemporaryDirectory() as folder:
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, local_addr=f"{folder}/s", family=socket.AF_UNIX
        )
        transport.close()
        await asyncio.sleep(0)


async def subprocess_options(loop):
    options = {"user": os.getuid(), "group": os.getgid(), "process_group": 0, "pipesize": 8192}
    process = await asyncio.create_subprocess_exec(sys.executable, "-Sc", "", **options)
    assert await process.wait() == 0


async def base_event_loop(loop):
    assert isinstance(loop, asyncio.BaseEventLoop)


async def handles(loop):
    handle = loop.call_soon(print)
    handle.cancel()
    assert isinstance(handle, asyncio.Handle)


async def transports(loop):
    async with connected(loop) as (transport, _):
        assert isinstance(transport, asyncio.Transport)


async def timer_never_early(loop):
    for _ in range(5):
        began = time.perf_counter()
        future = loop.create_future()
        loop.call_later(0.0002, future.set_result, None)
        await future
        assert time.perf_counter() - began >= 0.0002


async def write_buffer_limits(loop):
    async with connected(loop) as (transport, _):
        assert transport.get_write_buffer_limits() == (16384, 65536)


#: The features under test -> uvloop's exception.
FEATURES = {
    happy_eyeballs: TypeError,
    send_file: NotImplementedError,
    sock_send_file: NotImplementedError,
    sock_recvfrom: NotImplementedError,
    sock_recvfrom_into: NotImplementedError,
    sock_sendto: NotImplementedError,
    unix_datagrams: TypeError,
    subprocess_options: ValueError,
    base_event_loop: AssertionError,
    handles: AssertionError,
    transports: AssertionError,
    timer_never_early: AssertionError,
    write_buffer_limits: AssertionError,
}


@pytest.mark.parametrize("name", ["asyncio", "mgloop", "uvloop"])
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.__name__)
def test_the_tables(feature, name):
    if name == "uvloop" and not uvloop_of_the_page():
        pytest.skip("the page's version of uvloop is not installed")
    with asyncio.Runner(loop_factory=factory(name)) as runner:

        async def tried():
            await asyncio.wait_for(feature(asyncio.get_running_loop()), 30)

        if name == "uvloop":
            with pytest.raises(FEATURES[feature]):
                runner.run(tried())
        else:
            runner.run(tried())


def test_the_page_names_what_is_its_own():
    """print_debug_info() and _monitor_fs() exist only in uvloop; stats() only in mgloop."""
    import mgloop

    assert hasattr(mgloop.Loop, "stats")
    assert not hasattr(mgloop.Loop, "print_debug_info")
    assert not hasattr(mgloop.Loop, "_monitor_fs")
    if uvloop_of_the_page():
        import uvloop

        assert hasattr(uvloop.Loop, "print_debug_info")
        assert hasattr(uvloop.Loop, "_monitor_fs")
        assert not hasattr(uvloop.Loop, "stats")
