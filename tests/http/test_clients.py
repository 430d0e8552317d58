# SPDX-License-Identifier: GPL-2.0-only
"""Common clients against `mgloop serve` in a separate process: curl, the standard library's,
aiohttp, httpx and websockets, over TCP, a UNIX socket, TLS and the PROXY protocol.

The server runs clients_app.py. The clients that need a loop run on both loops.
"""

import asyncio
import gzip
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import types
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import certificates
import pytest
import support
import websockets.sync.client
from commands import PATIENCE, Command, connect, get
from support import open_fds, wait_until
from websockets.asyncio.client import connect as ws_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

MIB = 1024 * 1024

#: Incompressible bytes, so that a misplaced byte is detected.
BODY = os.urandom(10 * MIB)


def served(*arguments, folder):
    return Command(
        "serve", "clients_app:app", "--app-dir", Path(__file__).parent, "--no-access-log",
        "--timeout-keep-alive", 60, *arguments, cwd=folder,
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield an object with the server's `url` and the path of its UNIX socket."""
    folder = tmp_path_factory.mktemp("served")
    uds = folder / "sock"
    with served("--bind", "127.0.0.1:0", "--bind", f"unix:{uds}", folder=folder) as command:
        url = command.wait_for(r"Serving on (http://[^\s,]+)")[1]
        yield types.SimpleNamespace(url=url, uds=uds)
        assert command.stop() == 0, command.output
        assert "Traceback" not in command.output


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory):
    """Yield `url`, the `folder` with cert.pem and ca.pem, and a `context` that trusts them."""
    if not certificates.available:
        pytest.skip(certificates.SKIPPED)
    folder = tmp_path_factory.mktemp("tls")
    issuer = certificates.authority()
    certificates.write(folder, issuer)
    (folder / "ca.pem").write_bytes(issuer.cert_pem.bytes())
    files = ("--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem")
    with served("--port", 0, *files, folder=folder) as command:
        url = command.url().replace("127.0.0.1", "localhost")
        context = certificates.trusting(issuer)
        yield types.SimpleNamespace(url=url, folder=folder, context=context)
        assert command.stop() == 0, command.output


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """Remove the environment's proxies and settings, which the clients would use."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            monkeypatch.delenv(name)


# --- curl ----------------------------------------------------------------------------------------

#: -q: without a configuration file.
CURL = ("curl", "-q", "--silent", "--show-error", "--http1.1", "--max-time", str(PATIENCE))


def curl_command(*arguments):
    """Return a command of curl; skip the test without curl."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return [*CURL, *map(str, arguments)]


def run_curl(*arguments, stdin=b"", status=0):
    """Run curl, which must end with `status`; return (stdout, stderr)."""
    command = curl_command(*arguments)
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE)
    assert done.returncode == status, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout, done.stderr


def curl(*arguments, **options):
    """Return curl's output."""
    return run_curl(*arguments, **options)[0]


def verbose(*arguments, **options):
    """Return curl's output, and the lines of the heads that it received and sent."""
    out, errors = run_curl("--verbose", *arguments, **options)
    return out, re.findall("^([<>] .*?)\r?$", errors.decode(), re.MULTILINE)


def test_curl_get(server):
    told = json.loads(curl(f"{server.url}/scope?a=1&b=%20", "-H", "X-One: 1", "-H", "x-one: 2"))
    assert (told["method"], told["http_version"]) == ("GET", "1.1")
    assert told["query_string"] == "a=1&b=%20"
    assert [value for name, value in told["headers"] if name == "x-one"] == ["1", "2"]


def test_curl_head(server):
    head = curl("--head", f"{server.url}/zeros?1234").decode().lower()
    assert head.startswith("http/1.1 200 ok\r\n")
    assert "\r\ncontent-length: 1234\r\n" in head


@pytest.mark.parametrize("size", [0, 1, MIB, 10 * MIB])
def test_curl_post(server, size, tmp_path):
    sent = tmp_path / "sent"
    sent.write_bytes(BODY[:size])
    assert curl("--data-binary", f"@{sent}", f"{server.url}/echo") == BODY[:size]


@pytest.mark.parametrize("size", [MIB, 10 * MIB])
@pytest.mark.parametrize("path", ["echo", "duplex"])
def test_curl_upload_of_unknown_length(server, size, path):
    got, lines = verbose("-T", "-", f"{server.url}/{path}", stdin=BODY[:size])
    assert got == BODY[:size]
    assert "> Transfer-Encoding: chunked" in lines


def test_curl_a_large_upload_waits_for_100(server, tmp_path):
    sent = tmp_path / "sent"
    sent.write_bytes(BODY[: 2 * MIB])
    got, lines = verbose("-T", sent, f"{server.url}/echo")
    assert got == BODY[: 2 * MIB]
    assert lines.index("> Expect: 100-continue") < lines.index("< HTTP/1.1 100 Continue")
    assert lines.index("< HTTP/1.1 100 Continue") < lines.index("< HTTP/1.1 200 OK")


def test_curl_a_large_upload_that_is_refused_is_not_sent(server, tmp_path):
    sent = tmp_path / "sent"
    sent.write_bytes(BODY)
    told = curl(
        "-T", sent, "-H", "Expect: 100-continue", "--expect100-timeout", PATIENCE,
        "-w", "%{http_code} %{size_upload}", f"{server.url}/refuse",
    )  # fmt: skip
    assert told == b"no413 0"


def test_curl_compressed_upload(server):
    packed = gzip.compress(b"a" * 100_000)
    gzipped = ("-H", "Content-Encoding: gzip", "--data-binary", "@-")
    assert curl(*gzipped, f"{server.url}/unpack", stdin=packed) == b"a" * 100_000


def test_curl_compressed_download(server):
    plain = curl(f"{server.url}/pack")
    assert plain == b"compressible " * 10_000
    assert curl("--compressed", f"{server.url}/pack") == plain


def test_curl_download(server):
    assert curl(f"{server.url}/zeros?{10 * MIB}") == bytes(10 * MIB)


@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
def test_curl_stream(server, version):
    got, lines = verbose(version, f"{server.url}/stream")
    assert got == b"0;1;2;3;4;5;6;7;8;9;"
    chunked = "< transfer-encoding: chunked" in map(str.lower, lines)
    assert chunked == (version == "--http1.1")


def test_curl_unix_socket(server):
    told = json.loads(curl("--unix-socket", server.uds, "http://a/scope"))
    assert (told["client"], told["headers"][0]) == (None, ["host", "a"])


def test_curl_paths(server):
    url = f"{server.url}/up/../a%20b/./%2F?x#y"
    told = json.loads(curl("--path-as-is", f"{server.url}/up/../a%20b/./%2F?x#y"))
    assert (told["path"], told["raw_path"]) == ("/up/../a b/.//", "/up/../a%20b/./%2F")
    assert json.loads(curl(url))["raw_path"] == "/a%20b/%2F"


def test_curl_redirects(server):
    assert json.loads(curl("-L", f"{server.url}/redirect"))["path"] == "/scope"
    assert curl("-L", "--data", "moved", f"{server.url}/redirect/same") == b"moved"


def test_curl_one_connection_for_many_requests(server):
    urls = [f"{server.url}/{path}" for path in ("stream", "echo", "hints", "trailers", "none")]
    told = curl(*urls, "-w", " %{http_code} %{num_connects};").decode()
    assert told == "0;1;2;3;4;5;6;7;8;9; 200 1; 200 0;page 200 0;summed 200 0;nothing here 404 0;"


def test_curl_early_hints(server):
    got, lines = verbose(f"{server.url}/hints")
    first, second = lines.index("< HTTP/1.1 103 Early Hints"), lines.index("< HTTP/1.1 200 OK")
    assert got == b"page"
    assert [line for line in lines[first + 1 : second] if line != "< "] == [
        "< link: </style.css>; rel=preload; as=style",
        "< link: </script.js>; rel=preload; as=script",
    ]


def test_curl_trailers(server, tmp_path):
    heads = tmp_path / "heads"
    assert curl("-D", heads, f"{server.url}/trailers") == b"summed"
    head, _, trailer = heads.read_text().partition("\n\n")
    assert "trailer: x-sum" in head
    assert trailer == "x-sum: 42\n"


def test_curl_who_goes_in_mid_download(server):
    with subprocess.Popen(
        curl_command(f"{server.url}/for-ever?curl-download"), stdout=subprocess.PIPE
    ) as process:
        assert len(process.stdout.read(MIB)) == MIB
        process.send_signal(signal.SIGTERM)
    assert get(server.url, "/notes/curl-download") == "http.disconnect"


def test_curl_who_goes_in_mid_upload(server):
    with subprocess.Popen(
        curl_command("-T", "-", f"{server.url}/swallow?curl-upload"), stdin=subprocess.PIPE
    ) as process:
        process.stdin.write(BODY[:MIB])
        process.stdin.flush()
        assert get(server.url, "/notes/curl-upload-begun") == "begun"
        process.send_signal(signal.SIGTERM)
    assert get(server.url, "/notes/curl-upload") == "cut short: True"


def test_curl_tls(tls_server, tmp_path):
    url, ca = tls_server.url, tls_server.folder / "ca.pem"
    assert json.loads(curl("--cacert", ca, f"{url}/scope"))["scheme"] == "https"
    assert curl("-k", f"{url}/zeros?{10 * MIB}") == bytes(10 * MIB)
    assert curl("-k", "-T", "-", f"{url}/duplex", stdin=BODY) == BODY
    untrusted = 60
    curl(f"{url}/scope", status=untrusted)


def test_curl_proxy_protocol(tmp_path):
    with served("--port", 0, "--proxy-protocol", folder=tmp_path) as command:
        url = command.url()
        told = json.loads(curl("--haproxy-protocol", f"{url}/scope"))
        assert told["client"][0] == "127.0.0.1"
        empty_reply = 52
        curl(f"{url}/scope", status=empty_reply)


def test_curl_that_would_rather_have_http_2(server):
    """curl offers an upgrade to h2c, which the server ignores."""
    if "HTTP2" not in curl("--version").decode():
        pytest.skip("this curl knows no HTTP/2")
    assert json.loads(curl("--http2", f"{server.url}/scope"))["http_version"] == "1.1"


# --- the standard library's ----------------------------------------------------------------------


def test_http_client_bodies_on_one_connection(server):
    with closing(connect(server.url)) as connection:
        ends = set()
        for body in (None, b"", BODY[:MIB], BODY, iter([BODY[:MIB], b"x" * 10])):
            connection.request("POST", "/echo", body)
            ends.add(connection.sock.getsockname())
            response = connection.getresponse()
            got = response.read()
            assert response.status == 200
            assert got == (body or b"" if not hasattr(body, "__next__") else BODY[:MIB] + b"x" * 10)
        assert len(ends) == 1


def test_http_client_head_and_errors_keep_the_connection(server):
    with closing(connect(server.url)) as connection:
        for method, path, status in (
            ("HEAD", "/zeros?1000000", 200), ("GET", "/none", 404), ("HEAD", "/stream", 200),
            ("POST", "/refuse", 413), ("GET", "/trailers", 200),
        ):  # fmt: skip
            sock = connection.sock
            connection.request(method, path)
            response = connection.getresponse()
            response.read()
            assert response.status == status
            assert sock is None or connection.sock is sock


def test_http_client_1_0(server):
    with closing(connect(server.url)) as connection:
        connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"
        connection.request("GET", "/stream")
        response = connection.getresponse()
        assert response.getheader("transfer-encoding") is None
        assert response.read() == b"0;1;2;3;4;5;6;7;8;9;"
        assert connection.sock is None


def test_http_client_an_upload_that_is_cut_short(server):
    with closing(connect(server.url)) as connection:
        connection.putrequest("POST", "/swallow?short")
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b"not as many")
        assert get(server.url, "/notes/short-begun") == "begun"
    assert get(server.url, "/notes/short") == "cut short: True"


def test_http_client_requests_sent_ahead(server):
    """No client library pipelines, so the test does it itself."""
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as sock:
        body = BODY[:39_999] + b"\n"
        sock.sendall(
            b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"
            b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n" + body +
            b"HEAD /zeros?9 HTTP/1.1\r\nHost: a\r\n\r\n"
            b"GET /hints HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )  # fmt: skip
        got = b""
        with sock.makefile("rb") as answers:
            got = answers.read()
    assert re.findall(rb"^HTTP/1.1 (\d+)", got, re.MULTILINE) == [
        b"200", b"200", b"200", b"103", b"200",
    ]  # fmt: skip
    assert body in got
    assert got.endswith(b"\r\n\r\npage")


def test_urllib(server):
    with urllib.request.urlopen(f"{server.url}/redirect", timeout=PATIENCE) as response:
        assert json.load(response)["path"] == "/scope"
    with urllib.request.urlopen(f"{server.url}/echo", BODY, PATIENCE) as response:
        assert response.read() == BODY
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        urllib.request.urlopen(f"{server.url}/none", timeout=PATIENCE)
    caught.value.close()


def test_urllib_over_tls(tls_server):
    with urllib.request.urlopen(
        f"{tls_server.url}/echo", BODY, PATIENCE, context=tls_server.context
    ) as response:
        assert response.read() == BODY


# --- aiohttp -------------------------------------------------------------------------------------


async def in_pieces(body, size=100_000):
    for start in range(0, len(body), size):
        yield body[start : start + size]
        await asyncio.sleep(0)


def aiohttp_session(**options):
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    return aiohttp.ClientSession(timeout=timeout, **options)


async def test_aiohttp_one_connection_for_many_requests(loop, server):
    ends = set()
    async with aiohttp_session(base_url=server.url) as session:
        for _ in range(5):
            async with session.get("/scope") as response:
                ends.add(tuple((await response.json())["client"]))
            async with session.head("/zeros?1000") as response:
                assert response.content_length == 1000
            for path in ("/stream", "/trailers", "/hints", "/none", "/pack"):
                async with session.get(path) as response:
                    assert await response.read()
    assert len(ends) == 1


@pytest.mark.parametrize("path", ["/echo", "/duplex"])
@pytest.mark.parametrize("size", [1, MIB, 10 * MIB])
async def test_aiohttp_bodies(loop, server, path, size):
    async with aiohttp_session(base_url=server.url) as session:
        for body in (io.BytesIO(BODY[:size]), in_pieces(BODY[:size])):
            async with session.post(path, data=body) as response:
                assert await response.read() == BODY[:size]


async def test_aiohttp_continue(loop, server):
    async with aiohttp_session(base_url=server.url) as session:
        async with session.post("/echo", data=io.BytesIO(BODY), expect100=True) as response:
            assert await response.read() == BODY
        async with session.post("/refuse", data=io.BytesIO(BODY), expect100=True) as response:
            assert (response.status, await response.read()) == (413, b"no")


async def test_aiohttp_compression(loop, server):
    async with aiohttp_session(base_url=server.url) as session:
        async with session.post("/unpack", data=b"a" * MIB, compress="gzip") as response:
            assert await response.read() == b"a" * MIB
        async with session.get("/pack") as response:
            assert response.headers["content-encoding"] == "gzip"
            assert await response.read() == b"compressible " * 10_000


async def test_aiohttp_redirects(loop, server):
    async with aiohttp_session(base_url=server.url) as session:
        async with session.get("/redirect") as response:
            assert (await response.json())["path"] == "/scope"
        async with session.post("/redirect/same", data=b"moved") as response:
            assert await response.read() == b"moved"


async def test_aiohttp_who_goes_in_mid_download(loop, server):
    name = f"aiohttp-{type(loop).__module__}"
    async with aiohttp_session(base_url=server.url) as session:
        async with session.get(f"/for-ever?{name}") as response:
            await response.content.readexactly(MIB)
        async with session.get(f"/notes/{name}") as response:
            assert await response.text() == "http.disconnect"


async def test_aiohttp_who_goes_in_mid_upload(loop, server):
    name = f"aiohttp-upload-{type(loop).__module__}"

    async def stuck():
        yield BODY[:MIB]
        await asyncio.Event().wait()

    async with aiohttp_session(base_url=server.url) as session:
        upload = asyncio.ensure_future(session.post(f"/swallow?{name}", data=stuck()))
        async with session.get(f"/notes/{name}-begun") as response:
            assert await response.text() == "begun"
        await support.cancel(upload)
        async with session.get(f"/notes/{name}") as response:
            assert await response.text() == "cut short: True"


async def test_aiohttp_unix_socket(loop, server):
    connector = aiohttp.UnixConnector(str(server.uds))
    async with aiohttp_session(connector=connector) as session:
        async with session.post("http://a/echo", data=io.BytesIO(BODY)) as response:
            assert await response.read() == BODY


async def test_aiohttp_tls(loop, tls_server):
    before = open_fds()
    connector = aiohttp.TCPConnector(ssl=tls_server.context)
    async with aiohttp_session(base_url=tls_server.url, connector=connector) as session:
        async with session.post("/duplex", data=in_pieces(BODY)) as response:
            assert await response.read() == BODY
        async with session.ws_connect("/echo") as ws:
            await ws.send_str("over TLS")
            assert await ws.receive_str() == "over TLS"
    # The session does not wait for the end of TLS.
    await wait_until(lambda: open_fds().keys() <= before.keys())


@pytest.mark.parametrize("compress", [0, 15, 9])
async def test_aiohttp_websocket(loop, server, compress):
    name = f"aiohttp-ws-{compress}-{type(loop).__module__}"
    async with aiohttp_session(base_url=server.url) as session:
        async with session.ws_connect(f"/echo?{name}", compress=compress) as ws:
            assert bool(ws.compress) == bool(compress)
            for body in (b"", BODY[:MIB], b"again " * 1000, b"again " * 1000):
                await ws.send_bytes(body)
                assert await ws.receive_bytes() == body
            await ws.send_str("Grüße")
            assert await ws.receive_str() == "Grüße"
            await ws.close(code=4000, message="enough")
        async with session.get(f"/notes/{name}") as response:
            assert await response.text() == "4000 enough"


async def test_aiohttp_a_websocket_that_the_server_closes(loop, server):
    async with aiohttp_session(base_url=server.url) as session:
        async with session.ws_connect("/close?4001,bye") as ws:
            message = await ws.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 4001)
            assert (message.extra, ws.close_code) == ("bye", 4001)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect("/refuse")
        assert refused.value.status == 401


# --- httpx ---------------------------------------------------------------------------------------


@pytest.fixture
def httpx():
    return pytest.importorskip("httpx")


def test_httpx_one_connection_for_many_requests(server, httpx):
    ends = set()
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        for _ in range(5):
            ends.add(tuple(client.get("/scope").json()["client"]))
            assert client.head("/zeros?1000").headers["content-length"] == "1000"
            for path in ("/stream", "/trailers", "/hints", "/none", "/pack"):
                assert client.get(path).read()
    assert len(ends) == 1


def test_httpx_bodies_and_redirects(server, httpx):
    with httpx.Client(base_url=server.url, timeout=PATIENCE, follow_redirects=True) as client:
        assert client.post("/echo", content=BODY).content == BODY
        assert client.post("/echo", content=iter([BODY[:MIB], b"x"])).content == BODY[:MIB] + b"x"
        assert client.get("/redirect").json()["path"] == "/scope"
        assert client.post("/redirect/same", content=b"moved").content == b"moved"
        packed = {"content-encoding": "gzip"}
        body = gzip.compress(b"a" * MIB)
        assert client.post("/unpack", content=body, headers=packed).content == b"a" * MIB
        # The client reads a response that arrives before it has sent all.
        assert client.post("/refuse", content=BODY[:MIB]).status_code == 413


def test_httpx_who_goes_in_mid_download(server, httpx):
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        with client.stream("GET", "/for-ever?httpx") as response:
            assert next(response.iter_bytes(MIB))
        assert client.get("/notes/httpx").text == "http.disconnect"


def test_httpx_unix_socket_and_tls(server, tls_server, httpx):
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(server.uds))) as client:
        assert client.get("http://a/scope").json()["client"] is None
    with httpx.Client(verify=tls_server.context, timeout=PATIENCE) as client:
        assert client.post(f"{tls_server.url}/echo", content=BODY).content == BODY


async def test_httpx_at_once(loop, server, httpx):
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        answers = await asyncio.gather(
            *(client.post("/echo", content=in_pieces(BODY[:MIB])) for _ in range(10))
        )
    assert [answer.content == BODY[:MIB] for answer in answers] == [True] * 10


# --- websockets ----------------------------------------------------------------------------------


def address(url, path):
    return f"ws{url.removeprefix('http')}/{path}"


@asynccontextmanager
async def session(server, path="echo", **options):
    """Open a connection with websockets, on the running loop."""
    async with asyncio.timeout(PATIENCE):
        async with ws_connect(address(server.url, path), **options) as connection:
            yield connection


#: A client's offer -> the agreed parameters, besides the size of the server's window.
OFFERS = {
    "nothing": ({}, ""),
    "client_no_context_takeover": (
        {"client_no_context_takeover": True}, "client_no_context_takeover",
    ),
    "server_no_context_takeover": (
        {"server_no_context_takeover": True}, "server_no_context_takeover",
    ),
    "server_max_window_bits": ({"server_max_window_bits": 9}, "server_max_window_bits=9"),
    "client_max_window_bits": ({"client_max_window_bits": 9}, "client_max_window_bits=9"),
    "client_max_window_bits without a value": ({"client_max_window_bits": True}, ""),
    "all": (
        {
            "client_no_context_takeover": True,
            "server_no_context_takeover": True,
            "server_max_window_bits": 10,
            "client_max_window_bits": 11,
        },
        "server_no_context_takeover client_no_context_takeover server_max_window_bits=10 "
        "client_max_window_bits=11",
    ),
}  # fmt: skip

MESSAGES = ["", "a", "Grüße " * 10_000, "Grüße " * 10_000, b"", BODY[:MIB], b"\0" * MIB]


@pytest.mark.parametrize("offer", OFFERS)
async def test_websockets_compression(loop, server, offer):
    asked, agreed = OFFERS[offer]
    factory = ClientPerMessageDeflateFactory(**asked)
    async with session(server, compression=None, extensions=[factory]) as connection:
        said = connection.response.headers["sec-websocket-extensions"]
        assert said.startswith("permessage-deflate")
        assert set(agreed.split()) <= set(said.split("; "))
        for message in MESSAGES:
            await connection.send(message)
            assert await connection.recv() == message


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_websockets_fragments_and_pings(loop, server, compression):
    async with session(server, compression=compression) as connection:
        pieces = [BODY[:1000], b"", BODY[1000:MIB]]
        for number in range(3):
            sending = asyncio.ensure_future(connection.send(pieces))
            await (await connection.ping(b"%d" % number))
            await sending
            assert await connection.recv() == BODY[:MIB]
        await connection.send(["Gr", "üße", ""])
        assert await connection.recv() == "Grüße"
        assert (await (await connection.ping())) < PATIENCE


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1000, ""), (1001, "going"), (3000, "ä" * 61), (4999, "x" * 123)],
    ids=["1000", "1001", "3000", "4999"],
)
async def test_websockets_close_codes(loop, server, code, reason):
    async with session(server, f"close?{code},{'yes' if reason else ''}") as connection:
        with pytest.raises(ConnectionClosed) as closed:
            await connection.recv()
        assert (closed.value.rcvd.code, bool(closed.value.rcvd.reason)) == (code, bool(reason))
    name = f"websockets-{code}-{type(loop).__module__}"
    async with session(server, f"echo?{name}") as connection:
        await connection.close(code, reason)
        assert connection.close_code == code
    told = await asyncio.to_thread(get, server.url, f"/notes/{name}")
    assert told == f"{code} {reason}"


async def test_websockets_without_a_closing_handshake(loop, server):
    name = f"websockets-abort-{type(loop).__module__}"
    async with session(server, f"echo?{name}") as connection:
        connection.transport.abort()
    assert await asyncio.to_thread(get, server.url, f"/notes/{name}") == "1006 "


async def test_websockets_sizes(loop, server):
    """The client's limit, then the server's, of 16 MiB; compression does not hide the real size."""
    async with session(server, max_size=1000) as connection:
        await connection.send(bytes(1001))
        with pytest.raises(ConnectionClosed) as closed:
            await connection.recv()
        assert closed.value.sent.code == 1009
    async with session(server) as connection:
        await connection.send(bytes(16 * MIB + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await connection.recv()
        assert closed.value.rcvd.code == 1009


async def test_websockets_handshake(loop, server):
    async with session(server, "second", subprotocols=["one", "two"]) as connection:
        assert (connection.subprotocol, await connection.recv()) == ("two", "two")
    async with session(server) as connection:
        assert connection.response.headers["x-served"] == "yes"
    with pytest.raises(InvalidStatus) as refused:
        async with session(server, "refuse"):
            pass
    answer = refused.value.response
    assert (answer.status_code, bytes(answer.body)) == (401, b"not so")


async def test_websockets_many_at_once(loop, server):
    async def one(number):
        async with session(server) as connection:
            for turn in range(20):
                await connection.send(f"{number}/{turn}")
                assert await connection.recv() == f"{number}/{turn}"

    await asyncio.gather(*(one(number) for number in range(50)))


def test_websockets_blocking(server, tls_server):
    for url, options in ((server.url, {}), (tls_server.url, {"ssl": tls_server.context})):
        with websockets.sync.client.connect(address(url, "echo"), **options) as connection:
            for message in MESSAGES:
                connection.send(message)
                assert connection.recv(PATIENCE) == message
            connection.send(["in ", "pieces"])
            assert connection.recv(PATIENCE) == "in pieces"
            assert connection.ping().wait(PATIENCE)


def test_websockets_blocking_on_a_unix_socket(server):
    with websockets.sync.client.unix_connect(
        str(server.uds), "ws://a/close?4001,bye"
    ) as connection:
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(PATIENCE)
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "bye")
