# SPDX-License-Identifier: GPL-2.0-only
"""Stream transports and servers of rare families and protocols.

The sockets are stream sockets of families other than IP and UNIX, or of protocols other than TCP.
"""

import asyncio
import contextlib
import socket

import pytest
import support


def rare_families():
    """Yield families of stream sockets other than IP and UNIX that can be created here."""
    for name in ("AF_VSOCK", "AF_TIPC", "AF_BLUETOOTH"):
        family = getattr(socket, name, None)
        if family is None:
            continue
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM):
            yield name, family


RARE = dict(rare_families())
needs_rare_family = pytest.mark.skipif(
    not RARE, reason="this kernel has no stream sockets but IP and UNIX ones"
)


class Options(socket.socket):
    """A socket that records which options are set."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.options = []

    def setsockopt(self, level, option, *value):
        self.options.append((level, option))
        super().setsockopt(level, option, *value)


@needs_rare_family
@pytest.mark.parametrize("name", RARE)
def test_a_transport_of_a_rare_family(loop, name):
    """It is not connected, so it ends immediately; no unsupported socket option is set."""

    def connect(loop):
        sock = Options(RARE[name], socket.SOCK_STREAM)
        sock.setblocking(False)
        protocol = support.RecordingProtocol(loop)

        async def main():
            transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
            await asyncio.sleep(0.01)
            transport.abort()
            await protocol.lost
            return sock.options, protocol.events

        return loop.run_until_complete(main())

    reference = support.new_loop("asyncio")
    try:
        there = connect(reference)
    finally:
        support.finish(reference)
    here = connect(loop)
    assert here == there
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY) not in here[0]


def vsock_listener():
    """Return a listening AF_VSOCK socket; skip the test if the kernel does not support it."""
    if "AF_VSOCK" not in RARE:
        pytest.skip("this kernel has no AF_VSOCK")
    sock = Options(socket.AF_VSOCK, socket.SOCK_STREAM)
    try:
        sock.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
        sock.listen()
    except OSError as exc:
        sock.close()
        pytest.skip(f"AF_VSOCK cannot be listened on: {exc}")
    sock.setblocking(False)
    return sock


def test_a_server_of_a_rare_family(loop, run):
    with vsock_listener() as sock:
        server = run(loop.create_server(asyncio.Protocol, sock=sock))
        assert server.is_serving()
        support.turn(loop, 2)
        server.close()
        run(server.wait_closed())
        assert (socket.IPPROTO_TCP, socket.TCP_NODELAY) not in sock.options


def test_a_connection_of_a_rare_family(loop, run):
    """Data is sent both ways, if the kernel can connect a machine to itself."""
    local = 1  # VMADDR_CID_LOCAL
    with vsock_listener() as listener:
        address = local, listener.getsockname()[1]
        client = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        client.settimeout(0.5)
        try:
            client.connect(address)
        except OSError as exc:
            client.close()
            pytest.skip(f"AF_VSOCK has no loopback here: {exc}")
        client.setblocking(False)
        served = support.RecordingProtocol(loop)

        async def main():
            server = await loop.create_server(lambda: served, sock=listener)
            protocol = support.RecordingProtocol(loop)
            transport, _ = await loop.create_connection(lambda: protocol, sock=client)
            transport.write(b"there")
            assert await served.received(5) == b"there"
            served.transport.write(b"back")
            assert await protocol.received(4) == b"back"
            assert transport.get_extra_info("peername") == address
            assert served.transport.get_extra_info("peername")[0] == local
            transport.close()
            await served.lost
            server.close()
            await server.wait_closed()

        run(main())


@pytest.mark.parametrize("protocol", ["IPPROTO_SCTP", "IPPROTO_MPTCP"])
def test_a_stream_of_another_protocol(loop, run, protocol):
    """TCP_NODELAY is an option of TCP only."""
    number = getattr(socket, protocol, {"IPPROTO_MPTCP": 262}.get(protocol))
    try:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, number)
    except OSError as exc:
        pytest.skip(f"this kernel has no {protocol}: {exc}")
    with listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        served = support.RecordingProtocol(loop)

        async def main():
            server = await loop.create_server(lambda: served, sock=listener)
            client = Options(socket.AF_INET, socket.SOCK_STREAM, number)
            client.connect(listener.getsockname())
            client.setblocking(False)
            protocol = support.RecordingProtocol(loop)
            transport, _ = await loop.create_connection(lambda: protocol, sock=client)
            transport.write(b"there")
            assert await served.received(5) == b"there"
            transport.close()
            await served.lost
            server.close()
            await server.wait_closed()
            return client.options

        assert (socket.IPPROTO_TCP, socket.TCP_NODELAY) not in run(main())
