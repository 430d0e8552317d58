# SPDX-License-Identifier: GPL-2.0-only
"""Clients with different behaviour, repeatedly, over TCP and TLS; then a check for leaks."""

import asyncio
import contextlib
import hashlib
import pathlib
import ssl
import tempfile

import certificates
import support
from clients import connect, request
from serving import Server, check, mib
from soaking import GROWTH, Mix
from websockets.asyncio.client import connect as connect_websocket

ROUGH = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError)

BODY = support.pattern(1 << 20)
BIG = bytes(range(256)) * 4096

#: The timeouts are short, so that a soak sees many of them.
TIMEOUTS = (
    *("--timeout-head", 4, "--timeout-body", 5, "--timeout-keep-alive", 4, "--timeout-write", 4),
    *("--ws-ping-interval", 2, "--ws-ping-timeout", 10, "--ws-max-size", "2M"),
)

HANDSHAKE = (
    b"GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)

#: Invalid requests, all of which the server refuses with 400 or more.
MALFORMED = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n folded: yes\r\n\r\n",
    b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
)

#: Frames that end a WebSocket, and the close code that the client receives.
WRONG_FRAMES = (
    (b"\x81\x01a", 1002),  # without a mask
    (b"\x83\x80\0\0\0\0", 1002),  # of an unknown kind
    (b"\x09\x80\0\0\0\0", 1002),  # a fragmented ping
    (b"\x81\x82\0\0\0\0\xff\xff", 1007),  # text that is not UTF-8
    (b"\x82\xff\x00\x00\x00\x00\x40\x00\x00\x00\0\0\0\0", 1009),  # 1 GiB
)


class Clients(Mix):
    def __init__(self, servers, trust):
        super().__init__()
        self.servers = servers
        self.trust = trust

    def memory(self):
        return sum(server.memory() for server in self.servers)

    def scenarios(self):
        ordinary = [
            self.keep_alive,
            self.upload,
            self.download,
            self.pieces,
            self.websocket,
            self.websocket_in_pieces,
        ]
        rough = [
            self.raises,
            self.malformed,
            self.bit_by_bit,
            self.reset,
            self.leaves,
            self.half_closes,
            self.cancelled,
            self.wrong_frame,
            self.websocket_reset,
            self.websocket_never_reads,
        ]
        for_seconds = [self.never_reads, self.too_slow, self.unfinished_body]
        return ordinary * 3 + rough * 2 + for_seconds

    @contextlib.asynccontextmanager
    async def connected(self):
        server = self.random.choice(self.servers)
        options = {}
        if server.address.startswith("https:"):
            options = {"ssl": self.trust, "server_hostname": "localhost"}
        client = await connect(server.port, **options)
        try:
            yield client
        finally:
            client.writer.close()
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()

    def body(self):
        size = self.random.choice([1, 100, 5000, 70_000, 300_000, len(BODY)])
        return BODY[:size]

    # --- ordinary clients ---

    async def keep_alive(self):
        async with self.connected() as client:
            for _ in range(self.random.randrange(1, 20)):
                ahead = self.random.choice([1, 1, 1, 8])
                await client.send(request() * ahead)
                for _ in range(ahead):
                    status, _, body = await client.response()
                    check((status, body) == (200, b"Hello, World!"), "other bytes", status, body)

    async def upload(self):
        async with self.connected() as client:
            for _ in range(2):
                body = self.body()
                path = self.random.choice(["/echo", "/digest"])
                # An echo larger than the buffers needs a client that reads while it sends.
                response, _ = await asyncio.gather(
                    client.response(), client.send(request("POST", path, body))
                )
                digest = hashlib.sha256(body).hexdigest().encode()
                check(response[2] == (body if path == "/echo" else digest), "other bytes")

    async def pieces(self):
        """Send a chunked body, which is echoed chunk by chunk."""
        async with self.connected() as client:
            await client.send(
                b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            for number in range(10):
                piece = BODY[: self.random.randrange(1, 5000)]
                await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                if number == 0:
                    status, _ = await client.head()
                    check(status == 200, "status", status)
                size = int(await client.reader.readline(), 16)
                check(await client.reader.readexactly(size + 2) == piece + b"\r\n", "other bytes")
            await client.send(b"0\r\n\r\n")
            check(await client.reader.readexactly(5) == b"0\r\n\r\n", "another end")

    async def download(self):
        path, expected = self.random.choice(
            [("/big", BIG), ("/stream", BIG[:65536] * 16), ("/file", BIG * 4)]
        )
        async with self.connected() as client:
            _, _, body = await client.request(request(path=path))
            check(body == expected, "other bytes")

    @contextlib.asynccontextmanager
    async def conversing(self):
        server = self.random.choice(self.servers)
        url = server.address.replace("http", "ws", 1).replace("127.0.0.1", "localhost")
        async with connect_websocket(
            url + "/socket",
            host="127.0.0.1",
            ssl=self.trust if url.startswith("wss") else None,
            compression=self.random.choice([None, "deflate"]),
        ) as websocket:
            yield websocket

    async def websocket(self):
        async with self.conversing() as websocket:
            for number in range(self.random.randrange(1, 30)):
                message = self.body() if self.random.random() < 0.2 else f"message {number}"
                await websocket.send(message)
                check(await websocket.recv() == message, "another message")

    async def websocket_in_pieces(self):
        async with self.conversing() as websocket:
            await websocket.send(["one", "two", "three"])
            await websocket.ping()
            check(await websocket.recv() == "onetwothree", "another message")

    # --- hostile and broken clients ---

    async def raises(self):
        async with self.connected() as client:
            status, _, _ = await client.request(request(path="/raise"))
            check(status == 500, "status", status)
        async with self.connected() as client:
            with contextlib.suppress(*ROUGH):
                await client.request(request(path="/raise-late"))
                raise AssertionError("half a response was taken for a whole one")

    async def malformed(self):
        async with self.connected() as client:
            with contextlib.suppress(*ROUGH):
                status, headers, _ = await client.request(self.random.choice(MALFORMED))
                check(status >= 400, "status", status)
                check(headers["connection"] == "close", headers)
                await client.reader.read()

    async def bit_by_bit(self):
        async with self.connected() as client:
            sent = request(path="/echo", method="POST", body=b"bit by bit")
            for first in range(0, len(sent), 7):
                await client.send(sent[first : first + 7])
                await asyncio.sleep(0)
            status, _, body = await client.response()
            check((status, body) == (200, b"bit by bit"), "status", status)

    async def sends_and(self, sent, pause):
        """Return a socket on which `sent` was sent."""
        sock = support.socket.socket()
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(sock, ("127.0.0.1", self.random.choice(self.servers).port))
            with contextlib.suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(loop.sock_sendall(sock, sent), 0.2)
            await asyncio.sleep(pause)
        except BaseException:
            sock.close()
            raise
        return sock

    def some_request(self):
        sent = self.random.choice(
            [
                request(),
                request() * 50,
                request("POST", "/echo", BODY),
                *map(request, ["GET"] * 3, ["/stream", "/wait", "/file"]),
                HANDSHAKE,
                *MALFORMED,
            ]
        )
        return sent[: self.random.choice([len(sent), self.random.randrange(len(sent))])]

    async def reset(self):
        sock = await self.sends_and(self.some_request(), self.random.choice([0, 0.001, 0.03]))
        support.reset(sock)

    async def leaves(self):
        sock = await self.sends_and(self.some_request(), self.random.choice([0, 0.001, 0.03]))
        sock.close()

    async def half_closes(self):
        """Half-close after a request; the server may cut the response, and must end it."""
        with await self.sends_and(self.some_request(), 0) as sock:
            with contextlib.suppress(OSError):
                sock.shutdown(support.socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while await asyncio.get_running_loop().sock_recv(sock, 65536):
                    pass

    async def never_reads(self):
        """Read nothing until the server cuts the connection, or leave before."""
        with await self.sends_and(request(path="/file") * 4, self.random.choice([0.05, 0.05, 5])):
            pass

    async def cancelled(self):
        task = asyncio.ensure_future(self.random.choice([self.upload, self.download])())
        await asyncio.sleep(self.random.random() / 100)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def too_slow(self):
        """Send nothing or half a head; the server must end the connection."""
        async with self.connected() as client:
            sent = self.random.choice([b"", request()[:-4]])
            await client.send(sent)
            answer = await client.reader.read()
            check(answer.startswith(b"HTTP/1.1 408 ") if sent else not answer, answer)

    async def unfinished_body(self):
        async with self.connected() as client:
            await client.send(request("POST", "/digest", BODY)[:-1])
            answer = await client.reader.read()
            check(answer.startswith(b"HTTP/1.1 408 "), answer)

    async def upgraded(self, client):
        await client.send(HANDSHAKE)
        status, _ = await client.head()
        check(status == 101, "status", status)

    async def wrong_frame(self):
        async with self.connected() as client:
            await self.upgraded(client)
            frame, code = self.random.choice(WRONG_FRAMES)
            await client.send(frame)
            kind = 0x89
            while kind == 0x89:  # a ping, sent by a server that has been waiting
                kind, length = await client.reader.readexactly(2)
                payload = await client.reader.readexactly(length)
            check((kind, int.from_bytes(payload[:2], "big")) == (0x88, code), kind, payload, code)

    async def websocket_reset(self):
        async with self.connected() as client:
            await self.upgraded(client)
            frame = b"\x82\xfe\x40\x00\0\0\0\0" + bytes(0x4000)
            await client.send(frame * 3 + frame[: self.random.randrange(len(frame))])
            client.writer.transport.abort()

    async def websocket_never_reads(self):
        frame = b"\x82\xfe\x40\x00\0\0\0\0" + bytes(0x4000)
        with await self.sends_and(HANDSHAKE + frame * 1000, 0.05):
            pass


class WsgiClients(Clients):
    """The clients of a WSGI application: no WebSockets, and no echo of an incomplete body."""

    LEFT_OUT = frozenset(
        {"pieces", "websocket", "websocket_in_pieces", "wrong_frame", "websocket_reset"}
        | {"websocket_never_reads"}
    )

    def scenarios(self):
        return [one for one in super().scenarios() if one.__name__ not in self.LEFT_OUT]


async def soak(seconds, mix=Clients, *options, **more):
    """Run the mix of scenarios for `seconds`; `options` and `more` are for the Server()."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(*TIMEOUTS, *options, **more))]
        trust = None
        if certificates.available:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            issuer = certificates.authority()
            certificates.write(folder, issuer)
            trust = certificates.trusting(issuer)
            tls = ["--ssl-certfile", folder / "cert.pem", "--ssl-keyfile", folder / "key.pem"]
            servers.append(stack.enter_context(Server(*TIMEOUTS, *tls, *options, **more)))
        clients = mix(servers, trust)
        before = await clients.soak(seconds)
        for server in servers:
            await asyncio.to_thread(server.let_go)
        after = clients.memory()
        for name, count in sorted(clients.counts.items()):
            print(f"  {count:8} {name}")
        print(f"  memory: {mib(before)} warm, {mib(after)} at the end")
        check(after - before <= GROWTH, "memory grew by", mib(after - before))
        check(not clients.never_run(), "never run:", clients.never_run())
        for server in servers:
            server.finish()
