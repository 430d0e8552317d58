# SPDX-License-Identifier: GPL-2.0-only
"""The clients of program.py, on asyncio's loop.

    clients.py ROUNDS PORTS         PORTS: JSON, {"http": ..., "https": ..., "tcp": ..., "udp": ...}

Each has a mark, a byte of its own. Prints how many rounds the clients have completed, and a line
for each time that one of them has received the mark of another one; the exit status is 1 then.
"""

import asyncio
import base64
import contextlib
import json
import os
import socket
import ssl
import sys

FIRST_MARK, MARKS = 0xA0, 32  # no byte of the protocols' own is one of these


class Clients:
    """All clients, each with a mark, and a list of the data of others that they have received."""

    def __init__(self, rounds, ports, context):
        self.rounds = rounds
        self.ports = ports
        self.context = context
        self.leaks = []
        self.completed = 0
        self.marks = iter(range(FIRST_MARK, FIRST_MARK + MARKS))

    def check(self, mark, data, what):
        others = {byte for byte in data if FIRST_MARK <= byte < FIRST_MARK + MARKS} - {mark}
        if others:
            self.leaks.append(f"{what} of {mark:#x} received {[hex(other) for other in others]}")

    async def repeat(self, client, *how):
        mark = next(self.marks)
        for _ in range(self.rounds):
            # The hostile function resets connections, and makes the application's tasks fail.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await asyncio.wait_for(client(mark, *how), 20)
                self.completed += 1

    async def read(self, reader, mark, what):
        while data := await reader.read(1 << 16):
            self.check(mark, data, what)

    async def http(self, mark, kind, over_tls):
        options = {"ssl": self.context, "server_hostname": "localhost"} if over_tls else {}
        port = self.ports["https" if over_tls else "http"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
        try:
            get = f"GET /{mark}/{kind} HTTP/1.1\r\nHost: a\r\n"
            writer.write(f"{get}\r\n{get}Connection: close\r\n\r\n".encode())
            await self.read(reader, mark, kind)
        finally:
            writer.close()

    async def websocket(self, mark):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports["http"])
        try:
            key = base64.b64encode(os.urandom(16)).decode()
            writer.write(
                f"GET /{mark} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
            )
            self.check(mark, await reader.readuntil(b"\r\n\r\n"), "handshake")
            for _ in range(5):
                writer.write(b"\x82\x9e\0\0\0\0" + bytes([mark]) * 30)
                self.check(mark, await reader.read(1 << 16), "websocket")
            writer.write(b"\x88\x82\0\0\0\0\x03\xe8")
            await self.read(reader, mark, "websocket")
        finally:
            writer.close()

    async def tcp(self, mark):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports["tcp"])
        try:
            for size in (1, 100, 10_000):
                writer.write(bytes([mark]) * size)
                self.check(mark, await reader.read(1 << 16), "tcp")
            writer.write_eof()
            await self.read(reader, mark, "tcp")
        finally:
            writer.close()

    async def udp(self, mark):
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", self.ports["udp"]))
            for size in (1, 50, 500):
                await loop.sock_sendall(sock, bytes([mark]) * size)
                self.check(mark, await loop.sock_recv(sock, 2000), "udp")

    async def all(self):
        jobs = [self.repeat(self.tcp), self.repeat(self.tcp), self.repeat(self.udp)]
        jobs += [self.repeat(self.udp), self.repeat(self.websocket), self.repeat(self.websocket)]
        for kind in ("plain", "odd", "hinted", "stream", "large"):
            for over_tls in (False, True):
                jobs += [self.repeat(self.http, kind, over_tls) for _ in range(2)]
        await asyncio.gather(*jobs)


def main():
    rounds, ports = int(sys.argv[1]), json.loads(sys.argv[2])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    clients = Clients(rounds, ports, context)
    asyncio.run(clients.all())
    print(f"{clients.completed} rounds")
    print(*clients.leaks, sep="\n")
    sys.exit(1 if clients.leaks or clients.completed == 0 else 0)


if __name__ == "__main__":
    main()
