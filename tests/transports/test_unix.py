# SPDX-License-Identifier: GPL-2.0-only
"""UNIX stream sockets: connections and servers by path, by abstract name, by socket."""

import asyncio
import errno
import inspect
import os
import pathlib
import socket
import stat

import pytest
import support
from peers import Echo, Recorder, either_protocol, read_all

CLEANS_UP = (
    "cleanup_socket" in inspect.signature(asyncio.SelectorEventLoop.create_unix_server).parameters
)
needs_cleanup_socket = pytest.mark.skipif(
    not CLEANS_UP, reason="create_unix_server(cleanup_socket=) came with CPython 3.13"
)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return a relative path for a socket: absolute ones of test directories may be too long."""
    monkeypatch.chdir(tmp_path)
    return "socket"


async def close(server):
    server.close()
    await asyncio.wait_for(server.wait_closed(), support.PATIENCE)


async def echo_once(loop, **kwargs):
    client = Recorder(loop)
    transport, protocol = await loop.create_unix_connection(lambda: client, **kwargs)
    assert protocol is client
    transport.write(b"hello")
    assert await client.got(5) == b"hello"
    transport.close()
    assert await client.lost is None
    return transport


@pytest.mark.parametrize("convert", [str, pathlib.Path, os.fsencode])
async def test_a_path(loop, path, convert):
    server = await loop.create_unix_server(Echo, convert(path))
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    assert server.sockets[0].family == socket.AF_UNIX
    await echo_once(loop, path=convert(path))
    await close(server)


@pytest.mark.parametrize("as_bytes", [False, True])
async def test_an_abstract_name(loop, as_bytes):
    name = f"\0mgloop-test-{os.getpid()}"
    name = name.encode() if as_bytes else name
    server = await loop.create_unix_server(Echo, name)
    assert server.sockets[0].getsockname() == f"\0mgloop-test-{os.getpid()}".encode()
    await echo_once(loop, path=name)
    await close(server)


async def test_given_sockets(loop, path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    server = await loop.create_unix_server(Echo, sock=listener)
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    await echo_once(loop, sock=client)
    await support.turns(2)
    assert client.fileno() == -1
    await close(server)
    assert listener.fileno() == -1


@either_protocol
async def test_large_messages_and_half_close(loop, left, right, recorder):
    message = support.pattern(3_000_000)
    protocol = recorder(loop, keep_open=True)
    transport, _ = await loop.create_unix_connection(lambda: protocol, sock=left)
    transport.write(message)
    assert transport.get_write_buffer_size() > 0
    transport.write_eof()
    assert await read_all(loop, right) == message
    await loop.sock_sendall(right, message)
    assert await protocol.got(len(message)) == message
    right.shutdown(socket.SHUT_WR)
    await protocol.eof
    assert not transport.is_closing()
    transport.close()
    assert await protocol.lost is None


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("client", "client"),
        (f"./{'n' * 105}", f"./{'n' * 105}"),
        (b"\xff", "\udcff"),
        (b"\0mgloop\0%d" % os.getpid(), b"\0mgloop\0%d" % os.getpid()),
    ],
    ids=["path", "longest", "no text", "abstract"],
)
async def test_a_client_that_has_a_name_is_known_by_it(loop, path, name, shown, debug, protocol):
    loop.set_debug(debug)
    server = await loop.create_unix_server(lambda: protocol, path)
    with socket.socket(socket.AF_UNIX) as client:
        client.bind(name)
        client.connect(path)
        await protocol.made
        assert protocol.transport.get_extra_info("peername") == shown
        protocol.transport.close()
        await protocol.lost
    await close(server)


async def test_extra_info(loop, path, protocol):
    server = await loop.create_unix_server(lambda: protocol, path)
    client = Recorder(loop)
    transport, _ = await loop.create_unix_connection(lambda: client, path)
    await protocol.made
    assert isinstance(transport, asyncio.Transport)
    assert transport.get_extra_info("peername") == path
    assert transport.get_extra_info("sockname") == ""
    assert protocol.transport.get_extra_info("sockname") == path
    assert protocol.transport.get_extra_info("peername") == ""
    for end in (transport, protocol.transport):
        sock = end.get_extra_info("socket")
        assert isinstance(sock, asyncio.trsock.TransportSocket)
        assert sock.family == socket.AF_UNIX
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        assert int.from_bytes(credentials[:4], "little") == os.getpid()
    transport.close()
    await protocol.lost
    await close(server)


async def test_streams(loop, path):
    async def greet(reader, writer):
        writer.write(b"hello " + await reader.readline())
        writer.close()

    server = await asyncio.start_unix_server(greet, path)
    for _ in range(20):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"world\n")
        assert await reader.read() == b"hello world\n"
        await support.close(writer)
    await close(server)


async def test_tls(loop, path, server_ssl_context, client_ssl_context):
    server = await loop.create_unix_server(Echo, path, ssl=server_ssl_context)
    await echo_once(loop, path=path, ssl=client_ssl_context, server_hostname="localhost")
    await close(server)


async def test_many_connections_at_once(loop, path):
    server = await loop.create_unix_server(Echo, path, backlog=200)
    await asyncio.gather(*(echo_once(loop, path=path) for _ in range(200)))
    await close(server)


# --- the file of a socket ------------------------------------------------------------------------


async def test_a_stale_socket_file_is_replaced(loop, path):
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    with pytest.raises(ConnectionRefusedError):
        await loop.create_unix_connection(asyncio.Protocol, path)
    server = await loop.create_unix_server(Echo, path)
    await echo_once(loop, path=path)
    await close(server)


async def test_a_file_that_is_no_socket_is_left_alone(loop, path):
    pathlib.Path(path).write_text("precious")
    before = support.open_fds()
    with pytest.raises(OSError, match=r"Address '?.*socket'? is already in use") as info:
        await loop.create_unix_server(Echo, path)
    assert info.value.errno == errno.EADDRINUSE
    assert pathlib.Path(path).read_text() == "precious"
    assert not support.fds_opened_since(before)


async def test_the_file_goes_with_the_server(loop, path):
    server = await loop.create_unix_server(Echo, path)
    await close(server)
    assert os.path.exists(path) == (not CLEANS_UP)


@needs_cleanup_socket
async def test_cleanup_socket_false(loop, path):
    server = await loop.create_unix_server(Echo, path, cleanup_socket=False)
    await close(server)
    assert stat.S_ISSOCK(os.stat(path).st_mode)


@needs_cleanup_socket
async def test_cleanup_spares_a_file_that_is_not_ours_any_more(loop, path):
    """Another server has replaced the file at the path: it must remain."""
    first = await loop.create_unix_server(Echo, path)
    second = await loop.create_unix_server(Echo, path)
    await close(first)
    await echo_once(loop, path=path)
    await close(second)
    assert not os.path.exists(path)


@needs_cleanup_socket
async def test_cleanup_of_a_given_socket(loop, path):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    await close(await loop.create_unix_server(Echo, sock=sock))
    assert not os.path.exists(path)


@needs_cleanup_socket
async def test_cleanup_of_a_file_that_has_gone(loop, path):
    server = await loop.create_unix_server(Echo, path)
    os.unlink(path)
    await close(server)


# --- bad input -----------------------------------------------------------------------------------


async def test_nobody_there(loop, path):
    before = support.open_fds()
    with pytest.raises(FileNotFoundError):
        await loop.create_unix_connection(asyncio.Protocol, path)
    with pytest.raises(ConnectionRefusedError):
        await loop.create_unix_connection(asyncio.Protocol, "\0mgloop-test-nobody")
    assert not support.fds_opened_since(before)


async def test_a_path_too_long(loop, path):
    before = support.open_fds()
    with pytest.raises(OSError, match="path too long"):
        await loop.create_unix_server(Echo, "x" * 200)
    with pytest.raises(OSError, match="path too long"):
        await loop.create_unix_connection(asyncio.Protocol, "x" * 200)
    assert not support.fds_opened_since(before)


async def test_a_missing_directory(loop, path):
    with pytest.raises(FileNotFoundError):
        await loop.create_unix_server(Echo, "no/such/directory")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "no path and sock were specified"),
        ({"path": "x", "server_hostname": "y"}, "only meaningful with ssl"),
        ({"path": "x", "ssl": True}, "you have to pass server_hostname"),
        ({"path": "x", "ssl_handshake_timeout": 1}, "only meaningful with ssl"),
        ({"path": "x", "ssl_shutdown_timeout": 1}, "only meaningful with ssl"),
    ],
)
async def test_create_unix_connection_refuses_combinations(loop, kwargs, message):
    with pytest.raises(ValueError, match=message):
        await loop.create_unix_connection(asyncio.Protocol, **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "exception", "message"),
    [
        ({}, ValueError, "path was not specified, and no sock specified"),
        ({"path": "x", "ssl": True}, TypeError, "ssl argument must be an SSLContext"),
        ({"path": "x", "ssl_handshake_timeout": 1}, ValueError, "only meaningful with ssl"),
        ({"path": "x", "ssl_shutdown_timeout": 1}, ValueError, "only meaningful with ssl"),
    ],
)
async def test_create_unix_server_refuses_combinations(loop, kwargs, exception, message):
    with pytest.raises(exception, match=message):
        await loop.create_unix_server(asyncio.Protocol, **kwargs)


async def test_sockets_of_the_wrong_kind(loop, left):
    for create in (loop.create_unix_connection, loop.create_unix_server):
        with pytest.raises(ValueError, match="can not be specified at the same time"):
            await create(asyncio.Protocol, "x", sock=left)
        for family, kind in (
            (socket.AF_INET, socket.SOCK_STREAM),
            (socket.AF_UNIX, socket.SOCK_DGRAM),
        ):
            with socket.socket(family, kind) as wrong:
                with pytest.raises(ValueError, match="A UNIX Domain Stream Socket was expected"):
                    await create(asyncio.Protocol, sock=wrong)
