# SPDX-License-Identifier: GPL-2.0-only
"""TLS over the loop's transports, client and server.

The handshake and its failures, data and flow control, the four ways a TLS connection ends, and the
transport's information about its encryption. Upgrading a plain connection is in
test_start_tls.py.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading

import pytest
import support
from peers import (
    BufferedRecorder,
    Echo,
    Recorder,
    connected_pair,
    open_server,
    port_of,
    read_all,
    reset,
    skip_on_asyncio,
)


class LendingRecorder(BufferedRecorder):
    """Returns its buffer as a memoryview: see test_a_bytearray_is_filled_beyond_one_record."""

    def get_buffer(self, sizehint):
        return memoryview(super().get_buffer(sizehint))


either_protocol = pytest.mark.parametrize(
    "recorder", [Recorder, LendingRecorder], ids=["Protocol", "BufferedProtocol"]
)


@contextlib.asynccontextmanager
async def blocking_client(loop, contexts, server, *steps, **kwargs):
    """Serve `server` to a client that runs TLS in a thread over a blocking ssl.SSLSocket.

    The steps are functions that take the socket. Yield an event, after which the client may close.
    """
    may_end = threading.Event()

    def run():
        sock = socket.create_connection(("127.0.0.1", port_of(listener)), support.PATIENCE)
        with contexts["client_ssl"].wrap_socket(sock, server_hostname="localhost") as tls:
            for step in steps:
                step(tls)
            assert may_end.wait(support.PATIENCE)

    async with open_server(loop, lambda: server, ssl=contexts["server_ssl"], **kwargs) as listener:
        with support.in_thread(run):
            yield may_end


# --- data ----------------------------------------------------------------------------------------


@either_protocol
async def test_there_and_back(loop, contexts, recorder):
    client, server = Recorder(loop), recorder(loop)
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        ours.write(b"question")
        assert await server.got(8) == b"question"
        theirs.writelines([b"an", b"swer", bytearray(b"!")])
        assert await client.got(7) == b"answer!"
        ours.close()
        assert await client.lost is None
        assert await server.lost is None
    assert client.events == ["made", "data", "eof", "lost"]
    assert server.events == ["made", "data", "eof", "lost"]


@either_protocol
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_large_messages_both_ways(loop, contexts, recorder, version):
    contexts["client_ssl"].maximum_version = version
    message = support.pattern(4_000_000)
    client, server = recorder(loop), recorder(loop)
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        assert ours.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
        ours.write(message)
        theirs.write(message)
        assert await server.got(len(message)) == message
        assert await client.got(len(message)) == message
        theirs.close()
        assert await client.lost is None


async def test_messages_of_every_size(loop, contexts):
    client, server = Recorder(loop), LendingRecorder(loop, size=5000)
    sizes = [1, 2, 100, 16_383, 16_384, 16_385, 70_000, 300_000, 3]
    message = b""
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        for size in sizes * 3:
            piece = support.pattern(size)
            ours.write(piece)
            theirs.write(piece)
            message += piece
            await support.turns(size % 3)
        assert await server.got(len(message)) == message
        assert await client.got(len(message)) == message


async def test_a_bytearray_is_filled_beyond_one_record(loop, loop_kind, contexts):
    skip_on_asyncio(loop_kind, "slices the lent bytearray, and so decrypts into a copy of it")
    client, server = Recorder(loop), BufferedRecorder(loop, size=1000)
    async with connected_pair(loop, client, server, **contexts) as (ours, _):
        for number in range(100):
            ours.write(b"%03d" % number)
        assert await server.got(300) == b"".join(b"%03d" % number for number in range(100))


async def test_many_connections(loop, contexts):
    async with open_server(loop, Echo, ssl=contexts["server_ssl"]) as server:

        async def talk(number):
            reader, writer = await asyncio.open_connection(
                "localhost", port_of(server), ssl=contexts["client_ssl"]
            )
            message = b"%d" % number * 1000
            writer.write(message)
            assert await reader.readexactly(len(message)) == message
            await support.close(writer)

        await asyncio.gather(*(talk(number) for number in range(30)))


async def test_connect_accepted_socket(loop, ours, peer, contexts, client, server):
    await asyncio.gather(
        loop.connect_accepted_socket(lambda: server, peer, ssl=contexts["server_ssl"]),
        loop.create_connection(
            lambda: client, sock=ours, ssl=contexts["client_ssl"], server_hostname="localhost"
        ),
    )
    client.transport.write(b"hello")
    assert await server.got(5) == b"hello"
    client.transport.close()
    assert await client.lost is None
    assert await server.lost is None


@pytest.mark.parametrize("data", ["text", None, 1, [b"x"]])
async def test_write_refuses_what_is_not_bytes(loop, contexts, data, client, server):
    async with connected_pair(loop, client, server, **contexts) as (ours, _):
        with pytest.raises(TypeError):
            ours.write(data)
        ours.write(b"")
        ours.write(b"unharmed")
        assert await server.got(8) == b"unharmed"


async def test_there_is_no_half_close(loop, contexts, caplog):
    client, server = Recorder(loop), Recorder(loop, keep_open=True)
    async with connected_pair(loop, client, server, **contexts) as (ours, _):
        assert not ours.can_write_eof()
        with pytest.raises(NotImplementedError):
            ours.write_eof()
        with caplog.at_level(logging.WARNING, logger="asyncio"):
            ours.close()
            assert await server.lost is None
        assert any("no effect when using ssl" in message for message in caplog.messages)


# --- flow control --------------------------------------------------------------------------------


@either_protocol
async def test_pause_reading(loop, contexts, recorder):
    message = support.pattern(1_000_000)
    client, server = Recorder(loop), recorder(loop)
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        assert theirs.is_reading()
        theirs.pause_reading()
        assert not theirs.is_reading()
        ours.write(message)
        await asyncio.sleep(0.05)
        assert server.received == b""
        theirs.resume_reading()
        assert await server.got(len(message)) == message


@either_protocol
async def test_pause_in_every_data_received(loop, contexts, recorder):
    class Sipping(recorder):
        def _took(self, data):
            super()._took(data)
            self.transport.pause_reading()
            self.loop.call_soon(self.transport.resume_reading)

    message = support.pattern(1_000_000)
    client, server = Recorder(loop), Sipping(loop)
    async with connected_pair(loop, client, server, **contexts) as (ours, _):
        ours.write(message)
        assert await server.got(len(message)) == message


async def test_pause_and_resume_writing(loop, contexts, client, server):
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        ours.set_write_buffer_limits(high=50_000)
        low, high = ours.get_write_buffer_limits()
        assert 0 <= low <= high == 50_000
        theirs.pause_reading()
        total = 0
        while not client.paused:
            ours.write(bytes(100_000))
            total += 100_000
            assert total < 100_000_000
            await support.turns(1)
        assert ours.get_write_buffer_size() > 50_000
        theirs.resume_reading()
        await support.wait_until(lambda: not client.paused)
        await server.got(total)


async def test_a_peer_that_does_not_read_does_not_keep_the_loop_busy(
    loop, contexts, client, server
):
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        theirs.pause_reading()
        ours.write(bytes(20_000_000))
        await asyncio.sleep(0.2)
        fired = []
        for delay in range(5):
            loop.call_later(delay / 100, fired.append, delay)
        await asyncio.sleep(0.1)
        assert fired == list(range(5))
        theirs.resume_reading()
        await server.got(20_000_000)


# --- the end -------------------------------------------------------------------------------------


async def test_close_flushes(loop, contexts, client, server):
    message = support.pattern(3_000_000)
    async with connected_pair(loop, client, server, **contexts) as (ours, _):
        ours.write(message)
        ours.close()
        assert ours.is_closing()
        assert "lost" not in client.events
        assert await server.got(len(message)) == message
        assert await client.lost is None
        assert await server.lost is None


async def test_write_after_close_is_dropped_with_a_warning(loop, contexts, caplog, client, server):
    async with connected_pair(loop, client, server, **contexts) as (ours, _):
        ours.close()
        with caplog.at_level(logging.WARNING, logger="asyncio"):
            for _ in range(10):
                ours.write(b"late")
        assert "SSL connection is closed" in caplog.messages
        assert await server.lost is None
        assert server.received == b""


async def test_abort(loop, contexts, client, server):
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        theirs.pause_reading()
        ours.write(bytes(20_000_000))
        ours.abort()
        assert ours.is_closing()
        assert "lost" not in client.events
        assert await client.lost is None
        theirs.resume_reading()
        await server.lost
        assert len(server.received) < 20_000_000


async def test_the_peer_says_goodbye(loop, contexts, server):
    steps = [lambda tls: tls.sendall(b"hello"), lambda tls: tls.unwrap()]
    async with blocking_client(loop, contexts, server, *steps) as may_end:
        assert await server.lost is None
        may_end.set()
    assert server.received == b"hello"
    assert server.events == ["made", "data", "eof", "lost"]


async def test_the_peer_leaves_without_goodbye(loop, contexts):
    """An end of stream without close_notify: earlier data is delivered, then the stream ends."""

    class Greeting(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.write(b"!")

    server = Greeting(loop)
    steps = [
        # With unread data in the socket, closing it would reset the connection.
        lambda tls: tls.recv(1),
        lambda tls: tls.sendall(b"hello"),
        lambda tls: socket.socket(fileno=tls.detach()).close(),
    ]
    async with blocking_client(loop, contexts, server, *steps) as may_end:
        may_end.set()
        assert await server.lost is None
    assert server.received == b"hello"
    assert server.events == ["made", "data", "eof", "lost"]


async def test_the_peer_resets(loop, contexts, server):
    steps = [lambda tls: reset(socket.socket(fileno=tls.detach()))]
    async with blocking_client(loop, contexts, server, *steps) as may_end:
        may_end.set()
        assert isinstance(await server.lost, ConnectionResetError)
    assert server.events == ["made", "lost"]


async def test_a_goodbye_that_is_not_answered(loop, contexts, server):
    """The peer never reads: the shutdown timeout ends a wait that would never end."""
    steps = [lambda tls: tls.sendall(b"hello")]
    timeout = {"ssl_shutdown_timeout": 0.1}
    async with blocking_client(loop, contexts, server, *steps, **timeout) as may_end:
        await server.got(5)
        server.transport.close()
        assert isinstance(await server.lost, TimeoutError)
        may_end.set()


@pytest.mark.parametrize("method", ["data_received", "eof_received"])
async def test_a_callback_that_raises_is_reported(loop, contexts, reported, method, client, server):
    class OopsError(Exception):
        pass

    def fail(*args):
        raise OopsError

    setattr(server, method, fail)
    async with connected_pair(loop, client, server, **contexts) as (ours, _):
        ours.write(b"x")
        ours.close()
        await server.lost
        reported.pop(OopsError)


# --- the handshake -------------------------------------------------------------------------------


async def expect_report_in_debug_mode(loop, reported):
    """Check that the server reports a failed handshake in debug mode, and only then."""
    if loop.get_debug():
        await support.wait_until(lambda: reported.contexts)
        reported.pop(OSError)
    else:
        await asyncio.sleep(0.05)


async def connect(loop, server, context, host="127.0.0.1", **kwargs):
    kwargs.setdefault("server_hostname", "localhost")
    return await loop.create_connection(
        asyncio.Protocol, host, port_of(server), ssl=context, **kwargs
    )


@pytest.mark.parametrize(
    ("trusted", "name", "message"),
    [
        (False, "localhost", "certificate verify failed"),
        (True, "elsewhere.example", "mismatch|doesn't match"),
    ],
    ids=["not trusted", "for another host"],
)
async def test_a_certificate_that_is_refused(
    loop, contexts, reported, server, trusted, name, message
):
    context = contexts["client_ssl"] if trusted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with open_server(loop, lambda: server, ssl=contexts["server_ssl"]) as listener:
        before = support.open_fds()
        with pytest.raises(ssl.SSLCertVerificationError, match=message):
            await connect(loop, listener, context, server_hostname=name)
        await expect_report_in_debug_mode(loop, reported)
        assert server.events == []
        assert not support.fds_opened_since(before)


async def test_a_failed_handshake_is_reported_by_the_server_in_debug_mode(loop, contexts, reported):
    loop.set_debug(True)
    async with open_server(loop, asyncio.Protocol, ssl=contexts["server_ssl"]) as listener:
        with pytest.raises(ssl.SSLError):
            await connect(loop, listener, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        await support.wait_until(lambda: reported.contexts)
    context = reported.pop(OSError)
    assert "incoming connection" in context["message"]
    reported.pop_all()


async def test_the_host_is_the_default_server_name(loop, contexts):
    async with open_server(loop, Echo, ssl=contexts["server_ssl"]) as server:
        for host in ("localhost", "127.0.0.1"):
            transport, _ = await connect(
                loop, server, contexts["client_ssl"], host, server_hostname=None
            )
            transport.close()


async def test_an_empty_server_name_switches_the_check_off(loop, contexts):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with open_server(loop, Echo, ssl=contexts["server_ssl"]) as server:
        transport, _ = await connect(loop, server, context, server_hostname="")
        assert transport.get_extra_info("ssl_object").server_hostname is None
        transport.close()


async def test_a_server_that_never_answers_the_handshake(loop, contexts):
    with support.listening_socket() as listener:
        before = support.open_fds()
        with pytest.raises(ConnectionAbortedError, match="SSL handshake is taking longer"):
            await loop.create_connection(
                asyncio.Protocol,
                *listener.getsockname(),
                ssl=contexts["client_ssl"],
                server_hostname="localhost",
                ssl_handshake_timeout=0.1,
            )
        await support.turns(5)
        assert not support.fds_opened_since(before)


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.0\r\n\r\n"], ids=["nothing", "HTTP"])
async def test_a_client_that_does_not_speak_tls(loop, contexts, reported, server, data):
    timeout = {} if data else {"ssl_handshake_timeout": 0.1}
    async with open_server(loop, lambda: server, ssl=contexts["server_ssl"], **timeout) as listener:
        with socket.create_connection(("127.0.0.1", port_of(listener))) as sock:
            sock.setblocking(False)
            sock.send(data)
            if data:
                # Possibly an alert, then the end.
                with contextlib.suppress(ConnectionResetError):
                    await read_all(loop, sock)
            else:
                assert await read_all(loop, sock) == b""
        await expect_report_in_debug_mode(loop, reported)
    assert server.events == []


@pytest.mark.parametrize(
    ("end", "exception"),
    [
        (lambda sock: sock.close(), ConnectionResetError),
        (reset, ConnectionResetError),
        (lambda sock: sock.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"), ssl.SSLError),
        (None, asyncio.CancelledError),
    ],
    ids=["close", "reset", "garbage", "cancelled"],
)
async def test_a_handshake_that_ends_early_leaves_nothing_behind(
    loop, ours, peer, contexts, end, exception
):
    task = loop.create_task(
        loop.create_connection(
            asyncio.Protocol, sock=ours, ssl=contexts["client_ssl"], server_hostname="localhost"
        )
    )
    assert await loop.sock_recv(peer, 65536)
    if end is None:
        task.cancel()
    else:
        end(peer)
    with pytest.raises(exception):
        await asyncio.wait_for(task, support.PATIENCE)
    await support.turns(5)
    assert ours.fileno() == -1


@pytest.mark.parametrize("name", ["ssl_handshake_timeout", "ssl_shutdown_timeout"])
@pytest.mark.parametrize("value", [0, -1])
async def test_timeouts_must_be_positive(loop, ours, contexts, name, value):
    with pytest.raises(ValueError, match=f"{name} should be a positive number"):
        await loop.connect_accepted_socket(
            asyncio.Protocol, ours, ssl=contexts["server_ssl"], **{name: value}
        )


# --- what a transport says about its encryption --------------------------------------------------


async def test_extra_info(loop, contexts, client, server):
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        for transport, name in ((ours, "client_ssl"), (theirs, "server_ssl")):
            assert isinstance(transport, asyncio.Transport)
            assert transport.get_extra_info("sslcontext") is contexts[name]
            ssl_object = transport.get_extra_info("ssl_object")
            assert isinstance(ssl_object, ssl.SSLObject)
            assert ssl_object.version() == "TLSv1.3"
            assert transport.get_extra_info("cipher") == ssl_object.cipher()
            assert transport.get_extra_info("compression", 5) is None
            assert isinstance(transport.get_extra_info("socket"), asyncio.trsock.TransportSocket)
            assert transport.get_extra_info("nothing", 5) == 5
        names = ours.get_extra_info("peercert")["subjectAltName"]
        assert ("DNS", "localhost") in names
        assert theirs.get_extra_info("peercert") in (None, {})
        assert ours.get_extra_info("peername") == theirs.get_extra_info("sockname")
        assert ours.get_protocol() is client


async def test_client_certificates(loop, contexts, certificate_authority, client, server):
    certificate_authority.configure_trust(contexts["server_ssl"])
    contexts["server_ssl"].verify_mode = ssl.CERT_REQUIRED
    certificate_authority.issue_cert("me@client.example").configure_cert(contexts["client_ssl"])
    async with connected_pair(loop, client, server, **contexts) as (_, theirs):
        names = theirs.get_extra_info("peercert")["subjectAltName"]
        assert ("email", "me@client.example") in names


async def test_alpn(loop, contexts, client, server):
    contexts["client_ssl"].set_alpn_protocols(["h2", "http/1.1"])
    contexts["server_ssl"].set_alpn_protocols(["http/1.1"])
    async with connected_pair(loop, client, server, **contexts) as transports:
        for transport in transports:
            ssl_object = transport.get_extra_info("ssl_object")
            assert ssl_object.selected_alpn_protocol() == "http/1.1"


async def test_sni(loop, contexts, certificate_authority):
    """The server chooses its certificate by the name that the client requests."""
    asked = []
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate_authority.issue_cert("other.example").configure_cert(other)

    def choose(ssl_object, name, context):
        asked.append(name)
        if name == "other.example":
            ssl_object.context = other

    contexts["server_ssl"].sni_callback = choose
    async with open_server(loop, Echo, ssl=contexts["server_ssl"]) as server:
        for name in ("localhost", "other.example"):
            transport, _ = await connect(loop, server, contexts["client_ssl"], server_hostname=name)
            names = transport.get_extra_info("peercert")["subjectAltName"]
            assert ("DNS", name) in names
            transport.close()
    assert asked == ["localhost", "other.example"]


#: Methods of SSLContext since 3.15, a value, and the result of a method of the ssl_object.
CHOSEN = [
    ("set_groups", "P-384", "group", "secp384r1"),
    ("set_ciphersuites", "TLS_CHACHA20_POLY1305_SHA256", "cipher", "TLS_CHACHA20_POLY1305_SHA256"),
    ("set_server_sigalgs", "ecdsa_secp256r1_sha256", "server_sigalg", "ecdsa_secp256r1_sha256"),
]


@pytest.mark.parametrize(("setting", "value", "method", "result"), CHOSEN)
async def test_algorithms_that_a_context_selects(
    loop, contexts, client, server, setting, value, method, result
):
    context = contexts["client_ssl"]
    if not hasattr(context, setting):
        pytest.skip(f"SSLContext.{setting}() came with CPython 3.15")
    getattr(context, setting)(value)
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        ours.write(b"question")
        assert await server.got(8) == b"question"
        for side in ours, theirs:
            chosen = getattr(side.get_extra_info("ssl_object"), method)()
            assert (chosen[0] if isinstance(chosen, tuple) else chosen) == result


async def test_peers_without_a_common_algorithm(loop, contexts):
    if not hasattr(ssl.SSLContext, "set_groups"):
        pytest.skip("SSLContext.set_groups() came with CPython 3.15")
    contexts["client_ssl"].set_groups("P-384")
    contexts["server_ssl"].set_groups("X25519")
    async with open_server(loop, asyncio.Protocol, ssl=contexts["server_ssl"]) as listener:
        # The server closes the connection at once, so the client may see a reset before the alert.
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect(loop, listener, contexts["client_ssl"])


# --- leaving the loop -----------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["connection_made", "data_received"])
def test_leaving_the_loop_in_a_callback_loses_nothing(loop, contexts, failure, where):
    message = support.pattern(600_000)

    class Leaving(Recorder):
        left = 0

        def connection_made(self, transport):
            super().connection_made(transport)
            self.leave("connection_made")

        def data_received(self, data):
            super().data_received(data)
            self.leave("data_received")

        def leave(self, name):
            if name == where and self.left < 3:
                self.left += 1
                raise failure

    server = Leaving(loop)

    async def main():
        async with open_server(loop, lambda: server, ssl=contexts["server_ssl"]) as listener:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1",
                port_of(listener),
                ssl=contexts["client_ssl"],
                server_hostname="localhost",
            )
            writer.write(message)
            assert await server.got(len(message)) == message
            server.transport.write(b"thanks")
            assert await reader.readexactly(6) == b"thanks"
            await support.close(writer)
            assert await server.lost is None

    task = loop.create_task(asyncio.wait_for(main(), support.PATIENCE))
    while not task.done():
        try:
            loop.run_until_complete(task)
        except failure:
            pass
    assert server.left
    task.result()
