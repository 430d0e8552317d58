# SPDX-License-Identifier: GPL-2.0-only
"""The memory that a server keeps: per idle connection, and after many requests and connections."""

import contextlib
import resource
import subprocess
import sys

import support
from serving import GET, Server, SoakError, check, mib
from soaking import resident
from websockets.sync.client import connect as connect_websocket

#: The headers of a browser's request.
BROWSER = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\n"
    b"User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n"
    b"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n"
    b"Accept-Language: en-GB,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n"
    b"Upgrade-Insecure-Requests: 1\r\nCookie: session=0123456789abcdef0123456789abcdef\r\n\r\n"
)

#: Bytes beyond the memory of a connection's transport.
PER_IDLE = 2048

#: Growth of resident memory after the warm-up: two bytes for each of a million requests.
GROWTH = 2 << 20

#: A minimal program with transports, for comparison with the server's connections.
ECHO = """
import asyncio, mgloop

class Echo(asyncio.Protocol):
    __slots__ = ("transport",)

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()

mgloop.run(main())
"""


def idle(connections):
    """Measure the bytes per idle connection of a server, and of a minimal program."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit < connections + 100:
        print(f"  {limit} descriptors are the limit here: so many connections, less 100")
        connections = limit - 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (connections + 100, limit))
    with echo_server() as (pid, connect):
        bare = per_connection(pid, connect, connections, BROWSER, len(BROWSER))
    with Server("--timeout-keep-alive", 600) as server:
        size = server.response_size()
        served = per_connection(server.pid, server.connect, connections, BROWSER, size)
        server.finish()
    print(
        f"  {connections} idle connections: {served:.0f} bytes each, "
        f"{bare:.0f} of these an echo server's too, {served - bare:.0f} HTTP's"
    )
    check(served - bare <= PER_IDLE, "that is more than", PER_IDLE)


@contextlib.contextmanager
def echo_server():
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as process:
        try:
            port = int(process.stdout.readline())
            yield process.pid, lambda number: Server.connect_to(port, number)
        finally:
            process.kill()


def per_connection(pid, connect, count, request, size):
    def connections(numbers):
        for number in numbers:
            sock = connect(number)
            sock.sendall(request)
            check(len(support.recv_exactly(sock, size)) == size, "no answer")
            yield sock

    # Warm up: the process allocates some memory only once, and its tables grow.
    for sock in list(connections(range(100))):
        sock.close()
    before = resident(pid)
    held = list(connections(range(count)))
    after = resident(pid)
    for sock in held:
        sock.close()
    return (after - before) / count


def growth(requests, connections, messages, *options, **more):
    """Make these numbers of each; compare the memory after a tenth of them and after all.

    `options` and `more` are for the Server(). A WSGI application has no WebSocket messages.
    """
    with Server(*options, **more) as server:
        size = server.response_size()
        grows(server, "requests", lambda part: ask(server, size, requests * part // 10))
        grows(server, "connections", lambda part: come_and_go(server, connections * part // 10))
        if messages:
            grows(server, "WebSocket messages", lambda part: talk(server, messages * part // 10))
        server.let_go()
        server.finish()


def grows(server, what, do):
    done = do(1)
    before = server.memory()
    done += do(9)
    after = server.memory()
    if after - before > GROWTH:
        # A heap stops growing; a leak does not.
        before = after
        done += do(9)
        after = server.memory()
    print(f"  {done:,} {what}: {mib(before)}, in the end {mib(after)}")
    check(after - before <= GROWTH, "memory grew by", mib(after - before))


def ask(server, size, count, ahead=16):
    """Send pipelined requests on a few connections; check that each response arrives."""
    done = 0
    while done < count:
        with server.connect() as sock:
            for _ in range(min(10_000, max(count - done, ahead)) // ahead):
                sock.sendall(GET * ahead)
                check(
                    len(support.recv_exactly(sock, size * ahead)) == size * ahead,
                    "the connection ended before all responses had come",
                )
                done += ahead
    return done


def come_and_go(server, count):
    """Open connections, of which the client ends some, the server others, and some are reset."""
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for number in range(count):
        with server.connect(number) as sock:
            match number % 4:
                case 0:
                    sock.sendall(GET)
                    check(sock.recv(65536), "no answer")
                case 1:
                    sock.sendall(last)
                    while sock.recv(65536):
                        pass
                case 2:
                    sock.sendall(GET[:20])
                    support.reset(sock)
                case 3:
                    sock.sendall(GET)
                    support.reset(sock)
    return count


def talk(server, count):
    """Send messages over WebSockets, half of them compressed; check their echoes."""
    message = support.pattern(1024)
    for compression in (None, "deflate"):
        url = server.address.replace("http", "ws") + "/"
        for first in range(0, count // 2, 1000):
            with connect_websocket(url, compression=compression) as websocket:
                for _ in range(first, min(first + 1000, count // 2)):
                    websocket.send(message)
                    if websocket.recv(60) != message:
                        raise SoakError("another message came back")
    return count // 2 * 2
