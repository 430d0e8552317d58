# SPDX-License-Identifier: GPL-2.0-only
"""getaddrinfo and getnameinfo: whichever way the loop uses, the result is the C library's.

A loop may resolve a literal address without a thread. It must then agree with socket.getaddrinfo
in every detail, including the strange ones, so most tests compare the two. The tests need no name
server.
"""

import asyncio
import itertools
import socket
import threading

import pytest
import support

LITERALS = [
    "127.0.0.1",
    "0.0.0.0",
    "255.255.255.255",
    "1.2.3.4",
    "::1",
    "::",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "fe80::1",
    "2001:DB8:0:0:0:0:0:1",
]
PORTS = [80, 0, 65535, "80", "0", "65535", b"80", None, "", b"", "http", b"https"]
KINDS = [
    (0, 0),
    (socket.SOCK_STREAM, 0),
    (socket.SOCK_DGRAM, 0),
    (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
    (0, socket.IPPROTO_TCP),
    (socket.SOCK_RAW, 0),
]


def outcome(function, *args, **kwargs):
    """Return the result of a call, or the type and number of its exception."""
    try:
        return function(*args, **kwargs)
    except OSError as exc:
        return type(exc), exc.errno
    except Exception as exc:
        return type(exc)


@pytest.fixture
def same(loop, run):
    """Return a function that checks that the loop's getaddrinfo acts like socket.getaddrinfo."""

    def compare(host, port, **kwargs):
        async def ask():
            return await loop.getaddrinfo(host, port, **kwargs)

        expected = outcome(socket.getaddrinfo, host, port, **kwargs)
        got = outcome(run, ask())
        assert got == expected, f"getaddrinfo({host!r}, {port!r}, {kwargs})"
        return got

    return compare


class TestLiterals:
    @pytest.mark.parametrize("host", LITERALS)
    def test_every_kind_of_socket(self, same, host):
        for (kind, proto), family in itertools.product(
            KINDS, (socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6)
        ):
            same(host, 80, family=family, type=kind, proto=proto)

    @pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
    @pytest.mark.parametrize("port", PORTS)
    def test_every_form_of_port(self, same, host, port):
        for kind in (0, socket.SOCK_STREAM, socket.SOCK_DGRAM):
            same(host, port, type=kind)

    @pytest.mark.parametrize("host", [b"127.0.0.1", b"::1"])
    def test_bytes(self, same, host):
        got = same(host, 80, type=socket.SOCK_STREAM)
        assert got[0][4][0] == host.decode()

    @pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "", None])
    @pytest.mark.parametrize(
        "flags",
        [
            socket.AI_PASSIVE,
            socket.AI_CANONNAME,
            socket.AI_NUMERICHOST,
            socket.AI_NUMERICSERV,
            socket.AI_V4MAPPED,
            socket.AI_ALL | socket.AI_V4MAPPED,
            socket.AI_PASSIVE | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        ],
    )
    def test_flags(self, same, host, flags):
        for family in (socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6):
            same(host, 80, family=family, type=socket.SOCK_STREAM, flags=flags)

    @pytest.mark.parametrize("zone", ["lo", str(socket.if_nametoindex("lo"))])
    def test_ipv6_zones_are_kept(self, same, zone):
        got = same(f"fe80::1%{zone}", 80, type=socket.SOCK_STREAM)
        assert got[0][4][3] == socket.if_nametoindex("lo")

    def test_an_unknown_zone(self, same):
        same("fe80::1%no-such-interface", 80, type=socket.SOCK_STREAM)

    @pytest.mark.parametrize(
        "host",
        ["127.1", "0x7f.1", "2130706433", "127.0.0.01", "1.2.3.4.5", "256.1.1.1", ":::1", "::1 ",
         " 127.0.0.1", "[::1]", "127.0.0.1\0", "::1%", "1.2.3.4%lo"],
    )  # fmt: skip
    def test_almost_literals(self, same, host):
        same(host, 80, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)


class TestBadInput:
    @pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
    @pytest.mark.parametrize(
        "port",
        ["no-such-service", 65536, 70000, -1, "65536", "-1", "70000", "+80", " 80", "80 ", "1_0",
         "\u0668\u0660", "0x50", "080", 2**40, 80.0, True, [], object()],
    )  # fmt: skip
    def test_ports(self, same, host, port):
        same(host, port, type=socket.SOCK_STREAM)

    @pytest.mark.parametrize(
        ("kind", "proto"),
        [
            (socket.SOCK_STREAM, socket.IPPROTO_UDP),
            (socket.SOCK_DGRAM, socket.IPPROTO_TCP),
            (socket.SOCK_STREAM, 12345),
            (12345, 0),
            (-1, 0),
        ],
    )
    def test_kinds_that_do_not_exist(self, same, kind, proto):
        same("127.0.0.1", 80, type=kind, proto=proto)

    @pytest.mark.parametrize("family", [12345, -1, socket.AF_UNIX])
    def test_families_that_do_not_exist(self, same, family):
        same("127.0.0.1", 80, family=family, type=socket.SOCK_STREAM)

    @pytest.mark.parametrize(
        ("host", "family"), [("127.0.0.1", socket.AF_INET6), ("::1", socket.AF_INET)]
    )
    def test_a_literal_of_the_other_family(self, same, host, family):
        same(host, 80, family=family, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)

    @pytest.mark.parametrize("flags", [1 << 20, -1])
    def test_flags_that_do_not_exist(self, same, flags):
        same("127.0.0.1", 80, type=socket.SOCK_STREAM, flags=flags)

    @pytest.mark.parametrize("host", [42, 1.5, [], object()])
    def test_hosts_of_the_wrong_type(self, same, host):
        assert same(host, 80, type=socket.SOCK_STREAM) is TypeError

    def test_neither_host_nor_port(self, same):
        same(None, None, type=socket.SOCK_STREAM)
        same("", "", type=socket.SOCK_STREAM)

    def test_a_name_that_cannot_exist(self, same):
        got = same("no name has spaces", 80, flags=socket.AI_NUMERICHOST)
        assert got[0] is socket.gaierror
        same("a" * 70 + ".invalid", 80, flags=socket.AI_NUMERICHOST)

    def test_arguments_are_keywords(self, loop):
        with pytest.raises(TypeError):
            loop.getaddrinfo("127.0.0.1", 80, socket.AF_INET)
        with pytest.raises(TypeError):
            loop.getaddrinfo("127.0.0.1")


class TestNames:
    def test_localhost(self, same):
        for kind in (0, socket.SOCK_STREAM):
            assert same("localhost", 80, family=socket.AF_INET, type=kind)

    def test_no_host(self, same):
        same(None, 80, type=socket.SOCK_STREAM)
        same(None, 80, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)

    async def test_many_at_once(self, loop):
        ask = [
            loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for host in ("127.0.0.1", "localhost", "::1")
            for port in range(1, 30)
        ]
        got = await asyncio.gather(*ask)
        assert all(got)

    async def test_cancelled(self, loop, monkeypatch):
        over = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: over.wait(10))
        task = loop.create_task(loop.getaddrinfo("localhost", 80))
        await asyncio.sleep(0)
        task.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            over.set()

    def test_in_debug_mode(self, debug_loop, run):
        got = run(debug_loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM))
        assert got == socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)


class TestGetnameinfo:
    @pytest.mark.parametrize("address", [("127.0.0.1", 80), ("::1", 443), ("::1", 443, 0, 0)])
    @pytest.mark.parametrize("flags", [0, socket.NI_NUMERICSERV, socket.NI_DGRAM])
    def test_agrees_with_the_c_library(self, loop, run, address, flags):
        flags |= socket.NI_NUMERICHOST
        assert run(loop.getnameinfo(address, flags)) == socket.getnameinfo(address, flags)

    @pytest.mark.parametrize("address", [("no literal", 80), ("127.0.0.1",), "text", None, ()])
    def test_errors(self, loop, run, address):
        expected = outcome(socket.getnameinfo, address, socket.NI_NUMERICHOST)

        async def ask():
            return await loop.getnameinfo(address, socket.NI_NUMERICHOST)

        assert outcome(run, ask()) == expected


# asyncio uses a thread even for a literal.
@pytest.mark.mgloop_only
def test_a_literal_needs_no_thread(loop_factory):
    loop = loop_factory()

    def refuse(*args):
        raise AssertionError("asked the executor")

    loop.run_in_executor = refuse
    for host in ("127.0.0.1", "::1"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            got = loop.run_until_complete(loop.getaddrinfo(host, 80, type=kind))
            assert got == socket.getaddrinfo(host, 80, type=kind)
    loop.close()


@support.needs_ipv6
async def test_a_connection_to_a_zoned_address(loop):
    """::1 with the index of the loopback interface as its zone is the same listener."""
    with support.listening_socket("::1") as listener:
        port = listener.getsockname()[1]
        host = f"::1%{socket.if_nametoindex('lo')}"
        transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
        assert transport.get_extra_info("peername")[1] == port
        transport.close()
        await support.turns(5)
