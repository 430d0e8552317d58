# SPDX-License-Identifier: GPL-2.0-only
"""The PROXY protocol: the contents of a header, the trusted peers, and the data after it."""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import struct

import certificates
import pytest
import support
from hypothesis import given
from hypothesis import strategies as st

from mgloop.http import Config, Server
from mgloop.http.wire.proxy_protocol import MalformedError, parse

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def binary(command=0x21, kind=0x11, addresses=None, more=b""):
    if addresses is None:
        addresses = bytes([1, 2, 3, 4, 5, 6, 7, 8]) + struct.pack("!HH", 1111, 443)
    body = addresses + more
    return SIGNATURE + struct.pack("!BBH", command, kind, len(body)) + body


IPV6 = socket.inet_pton(socket.AF_INET6, "2001:db8::1") + socket.inet_pton(socket.AF_INET6, "::2")
ENDS = (("1.2.3.4", 1111), ("5.6.7.8", 443))
UNDERSTOOD = {
    "TCP4": (b"PROXY TCP4 1.2.3.4 5.6.7.8 1111 443\r\n", ENDS),
    "TCP6": (
        b"PROXY TCP6 2001:DB8::1 ::2 1 65535\r\n",
        (("2001:db8::1", 1), ("::2", 65535)),
    ),
    "UNKNOWN": (b"PROXY UNKNOWN\r\n", None),
    "UNKNOWN and more": (b"PROXY UNKNOWN ffff:f...f ffff:f...f 65535 65535\r\n", None),
    "binary": (binary(), ENDS),
    "binary, with what else there is": (binary(more=b"\x04\x00\x03abc"), ENDS),
    "binary TCP6": (
        binary(kind=0x21, addresses=IPV6 + struct.pack("!HH", 1, 2)),
        (("2001:db8::1", 1), ("::2", 2)),
    ),
    "binary UNIX": (
        binary(kind=0x31, addresses=bytes(108) + b"/run/x".ljust(108, b"\0")),
        (None, ("/run/x", None)),
    ),
    "LOCAL": (binary(command=0x20), None),
    "LOCAL of no family": (binary(command=0x20, kind=0, addresses=b""), None),
    "of no family": (binary(kind=0, addresses=b""), None),
}
MALFORMED = {
    "a request": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01",
    "small letters": b"proxy TCP4 1.2.3.4 5.6.7.8 1111 443\r\n",
    "another family": b"PROXY UDP4 1.2.3.4 5.6.7.8 1111 443\r\n",
    "two spaces": b"PROXY TCP4  1.2.3.4 5.6.7.8 1111 443\r\n",
    "no port": b"PROXY TCP4 1.2.3.4 5.6.7.8 1111\r\n",
    "a large port": b"PROXY TCP4 1.2.3.4 5.6.7.8 1111 65536\r\n",
    "a port with a zero": b"PROXY TCP4 1.2.3.4 5.6.7.8 01111 443\r\n",
    "not an address": b"PROXY TCP4 1.2.3.456 5.6.7.8 1111 443\r\n",
    "an address of the other family": b"PROXY TCP4 ::1 ::2 1111 443\r\n",
    "LF alone": b"PROXY TCP4 1.2.3.4 5.6.7.8 1111 443\n".ljust(200),
    "no end": b"PROXY UNKNOWN " + b"x" * 200,
    "another signature": b"\r\n\r\n\x00\r\nQUIX\n" + bytes(20),
    "another version": binary(command=0x11),
    "another command": binary(command=0x22),
    "datagrams": binary(kind=0x12),
    "too short for its family": binary(addresses=bytes(11)),
}


@pytest.mark.parametrize("case", UNDERSTOOD)
def test_understood(case):
    header, ends = UNDERSTOOD[case]
    assert parse(header) == (ends, len(header))
    assert parse(header + b"GET / HTTP/1.1\r\n") == (ends, len(header))
    for n in range(1, len(header)):
        assert parse(header[:n]) is None


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case):
    with pytest.raises(MalformedError):
        parse(MALFORMED[case])


@given(
    st.sampled_from([*(header for header, _ in UNDERSTOOD.values()), *MALFORMED.values()]),
    st.integers(0, 250),
    st.binary(max_size=3),
)
def test_anything_is_understood_refused_or_awaited(header, at, change):
    data = header[:at] + change + header[at + 1 :]
    if not data:
        return
    try:
        found = parse(data)
    except MalformedError:
        return
    assert found is None or 0 < found[1] <= len(data)


async def tell_ends(scope, receive, send):
    """Answer with the client's address, the server's address and the scheme."""
    if scope["type"] != "http":
        return
    told = json.dumps([scope["client"], scope["server"], scope["scheme"]]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": told})


REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def serving(**options):
    config = {"app": tell_ends, "port": 0, "proxy_protocol": True, "access_log": False}
    return Server(Config(**config | options))


async def exchange(server, data, *, tls=None, bytewise=False):
    """Return the server's data; with tls the header is `data`, and the request is sent over TLS."""
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        for i in range(0, len(data), 1 if bytewise else len(data)):
            writer.write(data[i : i + 1] if bytewise else data)
            await asyncio.sleep(0.001 if bytewise else 0)
        if tls is not None:
            await writer.start_tls(tls, server_hostname="localhost")
            writer.write(REQUEST)
        return await asyncio.wait_for(reader.read(), 15)
    finally:
        writer.close()


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
@pytest.mark.parametrize("case", ["TCP4", "binary", "binary UNIX"])
async def test_the_application_sees_the_client(loop, case, bytewise):
    header, (client, at) = UNDERSTOOD[case]
    async with serving() as server:
        answer = await exchange(server, header + REQUEST, bytewise=bytewise)
    assert answer.startswith(b"HTTP/1.1 200 ")
    ends = [list(end) if end else None for end in (client, at)]
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == [*ends, "http"]


async def test_a_request_on_its_way_is_served_before_the_end(loop):
    header, request = UNDERSTOOD["TCP4"][0], REQUEST.replace(b"Connection: close\r\n", b"")
    go_on = asyncio.Event()

    async def app(scope, receive, send):
        await go_on.wait()
        await tell_ends(scope, receive, send)

    server = serving(app=app, lifespan="off")
    await server.start()
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    await support.wait_until(lambda: server.site.connections)
    server.retire()  # open connections have some seconds for their next request
    closing = asyncio.create_task(server.close())
    await support.wait_until(lambda: server.site.draining)
    writer.write(header + request)
    await support.wait_until(lambda: server.site.in_flight)
    await asyncio.sleep(0.05)
    assert not closing.done()
    go_on.set()
    answer = await reader.read()
    writer.close()
    await closing
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


async def test_the_balancer_itself(loop):
    async with serving() as server:
        port = server.sockets[0].getsockname()[1]
        answer = await exchange(server, UNDERSTOOD["LOCAL"][0] + REQUEST)
    client, at, _ = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert client[0] == "127.0.0.1"
    assert at == ["127.0.0.1", port]


async def test_a_client_is_no_trusted_proxy(loop):
    """Its X-Forwarded-For passed through the balancer unchecked, so it is not trusted."""
    request = REQUEST.replace(b"Host: a", b"Host: a\r\nX-Forwarded-For: 6.6.6.6")
    async with serving() as server:
        answer = await exchange(server, UNDERSTOOD["TCP4"][0] + request)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])[0] == ["1.2.3.4", 1111]


@pytest.mark.parametrize("trusted", ["127.0.0.1", "*"])
@pytest.mark.parametrize("case", ["LOCAL", "UNKNOWN", "of no family"])
async def test_a_client_without_a_name_is_no_trusted_proxy(loop, case, trusted):
    """The connection comes from a trusted proxy, whose address the scope has as the client's."""
    more = b"Host: a\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https"
    async with serving(forwarded_allow_ips=trusted) as server:
        answer = await exchange(server, UNDERSTOOD[case][0] + REQUEST.replace(b"Host: a", more))
    client, _, scheme = json.loads(answer.partition(b"\r\n\r\n")[2])
    believed = trusted == "*"
    assert client[0] == ("6.6.6.6" if believed else "127.0.0.1")
    assert scheme == ("https" if believed else "http")


@pytest.mark.parametrize("silent", [b"", b"PROXY ", binary()[:-1]])
async def test_silent_clients_count_as_connections(loop, silent):
    async with serving(limit_connections=2) as server:
        clients = []
        for _ in range(10):
            clients.append(await asyncio.open_connection(*server.sockets[0].getsockname()[:2]))
            clients[-1][1].write(silent)
        reading = [asyncio.ensure_future(reader.read()) for reader, _ in clients]
        await support.wait_until(lambda: sum(map(asyncio.Future.done, reading)) == 7)
        assert server.site.connections == 3
        for _, writer in clients:
            writer.close()
        await asyncio.gather(*reading, return_exceptions=True)
        await support.wait_until(lambda: not server.site.connections)
        answer = await exchange(server, UNDERSTOOD["TCP4"][0] + REQUEST)
        assert answer.startswith(b"HTTP/1.1 200 ")


async def is_cut_off(server, data):
    """Check that the server closes the connection without an answer to `data`."""
    with contextlib.suppress(ConnectionError):
        assert await exchange(server, data) == b""


@pytest.mark.parametrize("case", ["a request", "small letters", "datagrams"])
async def test_no_header(loop, case, caplog):
    async with serving() as server:
        await is_cut_off(server, MALFORMED[case] + REQUEST)
        answer = await exchange(server, UNDERSTOOD["TCP4"][0] + REQUEST)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert caplog.text.count("Invalid PROXY protocol header") == 1


async def test_a_stranger(loop, caplog):
    async with serving(forwarded_allow_ips="10.0.0.1") as server:
        await is_cut_off(server, UNDERSTOOD["TCP4"][0] + REQUEST)
    assert "not a trusted proxy" in caplog.text


async def test_no_header_in_time(loop):
    async with serving(timeout_head=0.05) as server:
        await is_cut_off(server, b"PROXY TCP4 1.2")


async def test_the_server_ends_before_the_header(loop):
    async with serving() as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"PROXY TCP4 ")
        await support.wait_until(lambda: server.site.connections == 1)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()


@pytest.fixture
def issuer(tmp_path):
    """Return the authority that issued tmp_path's cert.pem and key.pem."""
    if not certificates.available:
        pytest.skip(certificates.SKIPPED)
    found = certificates.authority()
    certificates.write(tmp_path, found)
    return found


def serving_tls(folder):
    return serving(ssl_certfile=folder / "cert.pem", ssl_keyfile=folder / "key.pem")


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
async def test_tls_behind_the_header(loop, tmp_path, issuer, bytewise):
    async with serving_tls(tmp_path) as server:
        answer = await exchange(
            server, UNDERSTOOD["binary"][0], tls=certificates.trusting(issuer), bytewise=bytewise
        )
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == [*map(list, ENDS), "https"]


async def test_header_and_client_hello_in_one_piece(loop, tmp_path, issuer):
    """TLS receives the data that came with the header."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = certificates.trusting(issuer).wrap_bio(incoming, outgoing, server_hostname="localhost")
    answer = b""
    async with serving_tls(tmp_path) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        ahead = UNDERSTOOD["binary"][0]
        steps = [tls.do_handshake, lambda: tls.write(REQUEST), lambda: tls.read(65536)]
        while steps:
            try:
                answer = steps[0]()
                del steps[0]
            except ssl.SSLWantReadError:
                writer.write(ahead + outgoing.read())
                ahead = b""
                incoming.write(await asyncio.wait_for(reader.read(65536), 15))
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_no_tls_behind_the_header(loop, tmp_path, issuer, caplog):
    caplog.set_level(logging.DEBUG, "mgloop.http")
    async with serving_tls(tmp_path) as server:
        try:
            answer = await exchange(server, UNDERSTOOD["binary"][0] + REQUEST)
        except ConnectionError:
            answer = b""
        assert b"HTTP/1.1 " not in answer
        await support.wait_until(lambda: server.site.connections == 0)
    assert "SSL handshake failed" in caplog.text
