# SPDX-License-Identifier: GPL-2.0-only
"""The engine of a TLS connection: OpenSSL directly, or the ssl module.

All other TLS tests, step by step in protocol/, cover the behaviour of either engine. These tests
cover the choice of the engine, and events that only OpenSSL itself can start.
"""

import asyncio
import os
import shutil
import ssl
import subprocess
import textwrap

import pytest
import support
from peers import Recorder, connected_pair, open_server, port_of

#: The engine in use, which the environment may have selected.
USUAL = os.environ.get("MGLOOP_TLS_ENGINE", "openssl")

#: OpenSSL's options that the ssl module does not name (the latter since 3.12).
ALLOW_CLIENT_RENEGOTIATION = 1 << 8
ENABLE_KTLS = 1 << 3

HELLO = """
    import ssl
    from mgloop.tls import _openssl
    from mgloop.tls._protocol import SSLProtocol

    async def main():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        loop = asyncio.get_running_loop()
        SSLProtocol(loop, asyncio.Protocol(), context, None, server_hostname="localhost")
        print(*_openssl.engine())

    run(main())
"""


async def engines(loop, contexts):
    """Exchange data both ways; return the engines of the client's and the server's transport."""
    client, server = Recorder(loop), Recorder(loop)
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        ours.write(b"question")
        assert await server.got(8) == b"question"
        theirs.write(b"answer")
        assert await client.got(6) == b"answer"
        return tuple(side.get_extra_info("tls_engine") for side in (ours, theirs))


def only_mgloop(loop):
    if type(loop).__module__.startswith("asyncio"):
        pytest.skip("asyncio has one engine, and does not say so")


async def test_openssl_is_called_directly(loop, contexts):
    only_mgloop(loop)
    assert await engines(loop, contexts) == (USUAL, USUAL)


async def test_a_traced_context_goes_through_the_ssl_module(loop, contexts):
    only_mgloop(loop)
    seen = []
    contexts["server_ssl"]._msg_callback = lambda *message: seen.append(message[1])
    assert await engines(loop, contexts) == (USUAL, "ssl")
    assert {"read", "write"} <= set(seen)


async def test_a_traced_context_that_is_chosen_by_the_name_goes_through_the_ssl_module(
    loop, contexts, certificate_authority, client, server
):
    only_mgloop(loop)
    seen = []
    traced = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate_authority.issue_cert("localhost").configure_cert(traced)
    traced._msg_callback = lambda *message: seen.append(message[1])

    def choose(sslobj, name, context):
        sslobj.context = traced

    contexts["server_ssl"].sni_callback = choose
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        assert theirs.get_extra_info("tls_engine") == "ssl"
        seen.clear()
        ours.write(b"question")
        assert await server.got(8) == b"question"
        assert "read" in seen
        theirs.write(b"answer")
        assert await client.got(6) == b"answer"
        assert "write" in seen


async def test_an_ssl_object_of_ones_own_goes_through_the_ssl_module(loop, contexts):
    only_mgloop(loop)

    class Counting(ssl.SSLObject):
        reads = 0

        def read(self, *args):
            Counting.reads += 1
            return super().read(*args)

    contexts["server_ssl"].sslobject_class = Counting
    assert await engines(loop, contexts) == (USUAL, "ssl")
    assert Counting.reads


async def test_methods_of_ssl_object_that_are_replaced_for_all_are_called(
    loop, contexts, monkeypatch
):
    """Mocks and tracers do this after mgloop was imported."""
    called = set()

    def replace(name):
        original = getattr(ssl.SSLObject, name)

        def method(self, *args):
            called.add(name)
            return original(self, *args)

        monkeypatch.setattr(ssl.SSLObject, name, method)

    replace("read")
    replace("write")
    assert await engines(loop, contexts) in [("ssl", "ssl"), (None, None)]
    assert called == {"read", "write"}


async def test_a_context_of_ones_own(loop, client_ssl_context, server_certificate):
    """The objects that the context makes decide, not its name."""
    only_mgloop(loop)

    class Context(ssl.SSLContext):
        pass

    server = Context(ssl.PROTOCOL_TLS_SERVER)
    server_certificate.configure_cert(server)
    contexts = {"client_ssl": client_ssl_context, "server_ssl": server}
    assert await engines(loop, contexts) == (USUAL, USUAL)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_a_context_that_wants_the_kernel_to_encrypt(loop, contexts, version, client, server):
    """The kernel does not encrypt, but nothing else changes."""
    for context in contexts.values():
        context.options |= ENABLE_KTLS
        context.maximum_version = ssl.TLSVersion[version]
    payload = support.pattern(1_000_000)
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        for sender, receiver in ((ours, server), (theirs, client)):
            sender.write(payload)
            assert await receiver.got(len(payload)) == payload
        assert ours.get_extra_info("ssl_object").version() == version.replace("_", ".")


def test_the_ssl_module_can_be_chosen():
    out, _ = support.run_python("mgloop", HELLO, env={"MGLOOP_TLS_ENGINE": "ssl"})
    assert out == "ssl MGLOOP_TLS_ENGINE=ssl\n"


def test_no_descriptor_is_left_for_the_first_connection():
    """The connection uses the ssl module; the next one checks again."""
    out, _ = support.run_python(
        "mgloop",
        """
        import resource, ssl
        from mgloop.tls import _openssl
        from mgloop.tls._protocol import SSLProtocol

        async def main():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            loop = asyncio.get_running_loop()

            def connection():
                return SSLProtocol(loop, asyncio.Protocol(), context, None, server_side=True)

            next_one = os.dup(0)
            os.close(next_one)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))
            connection()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            connection()
            print(*_openssl.engine())

        run(main())
        """,
        env={"MGLOOP_TLS_ENGINE": "openssl"},
    )
    assert out == "openssl None\n"


IMPOSTORS = {
    # A tracer's function that calls the library's.
    "SSL_read": """
        #define _GNU_SOURCE
        #include <dlfcn.h>
        int SSL_read(void *ssl, void *room, int size) {
            return ((int (*)(void *, void *, int)) dlsym(RTLD_NEXT, "SSL_read"))(ssl, room, size);
        }
    """,
    # A library that reports a wrong version.
    "OpenSSL_version_num": """
        unsigned long OpenSSL_version_num(void) { return 0x90000000; }
    """,
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("name", IMPOSTORS)
def test_an_interposed_function_is_not_bypassed(name, tmp_path):
    source, library = tmp_path / "impostor.c", tmp_path / "impostor.so"
    source.write_text(textwrap.dedent(IMPOSTORS[name]))
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"],
        check=True, timeout=support.PATIENCE,
    )  # fmt: skip
    out, _ = support.run_python(
        "mgloop", HELLO, env={"LD_PRELOAD": str(library), "MGLOOP_TLS_ENGINE": "openssl"}
    )
    assert out == f"ssl {name} was not found, or belongs to another library\n"


class Shouting(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data.upper() * 1000)


async def heard(process, what):
    text = b""
    async with asyncio.timeout(support.PATIENCE):
        while what not in text:
            got = await process.stdout.read(1 << 16)
            assert got, text
            text += got


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize(
    ("command", "version"), [("K", "-tls1_3"), ("k", "-tls1_3"), ("R", "-tls1_2")]
)
async def test_new_keys_in_the_middle(loop, server_ssl_context, command, version):
    """KeyUpdate, with and without a request for the peer's, and a renegotiation."""

    if command == "R" and ssl.OPENSSL_VERSION_INFO >= (3,):
        server_ssl_context.options |= ALLOW_CLIENT_RENEGOTIATION
    async with open_server(loop, Shouting, ssl=server_ssl_context) as server:
        process = await asyncio.create_subprocess_exec(
            "openssl", "s_client", version, "-legacy_renegotiation", "-connect",
            f"127.0.0.1:{port_of(server)}",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            for turn in range(3):
                process.stdin.write(b"some-words-%d-\n" % turn)
                await heard(process, b"SOME-WORDS-%d-\n" % turn * 999)
                process.stdin.write(command.encode() + b"\n")
                await heard(process, b"RENEGOTIATING" if command == "R" else b"KEYUPDATE")
            process.stdin.write(b"the-last\n")
            await heard(process, b"THE-LAST\n" * 999)
        finally:
            process.stdin.write(b"Q\n")
            process.stdin.close()
            await asyncio.wait_for(process.wait(), support.PATIENCE)


async def test_authentication_after_the_handshake(
    loop, contexts, certificate_authority, client, server
):
    certificate_authority.issue_cert("client").configure_cert(contexts["client_ssl"])
    contexts["client_ssl"].post_handshake_auth = True
    server_ssl = contexts["server_ssl"]
    server_ssl.post_handshake_auth = True
    server_ssl.verify_mode = ssl.CERT_REQUIRED
    certificate_authority.configure_trust(server_ssl)
    async with connected_pair(loop, client, server, **contexts) as (ours, theirs):
        session = theirs.get_extra_info("ssl_object")
        assert not session.getpeercert()
        session.verify_client_post_handshake()
        theirs.write(b"who are you?")
        assert await client.got(12) == b"who are you?"
        ours.write(b"myself")
        assert await server.got(6) == b"myself"
        assert session.getpeercert()["subjectAltName"] == (("DNS", "client"),)
