# SPDX-License-Identifier: GPL-2.0-only
"""aiodns (c-ares) against a DNS server of our own on loopback."""

import asyncio
import socket
import struct

import aiodns
from common import expect, run, say


class Server(asyncio.DatagramProtocol):
    """Answers A questions: ``hostN.test`` is 10.0.0.N, every other name does not exist."""

    def __init__(self) -> None:
        self.asked = 0

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        """Keep the transport to answer on."""
        self.transport = transport

    def datagram_received(self, data: bytes, address: tuple) -> None:
        """One question, one answer."""
        self.asked += 1
        end = data.index(0, 12) + 5
        question = data[12:end]
        label = question[1 : 1 + question[0]].decode().lower()
        kind = struct.unpack(">H", question[-4:-2])[0]
        known = label.startswith("host") and label[4:].isdigit() and kind == 1
        answers = b""
        if known:
            host_address = bytes((10, 0, 0, int(label[4:])))
            answers = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + host_address
        flags = 0x8180 if known else 0x8183
        header = data[:2] + struct.pack(">HHHHH", flags, 1, 1 if known else 0, 0, 0)
        self.transport.sendto(header + question + answers, address)


async def main() -> None:
    """200 names at a time, a name that does not exist, and a server that does not answer."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(Server, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    say(f"aiodns {aiodns.__version__}")

    async with aiodns.DNSResolver(
        nameservers=["127.0.0.1"], udp_port=port, tcp_port=port, tries=2, timeout=5
    ) as resolver:

        async def address(name: str) -> str:
            result = await resolver.getaddrinfo(
                name, family=socket.AF_INET, type=socket.SOCK_STREAM
            )
            return result.nodes[0].addr[0].decode()

        found = await asyncio.gather(*(address(f"host{number}.test") for number in range(200)))
        expect(found == [f"10.0.0.{number}" for number in range(200)], "200 names resolved")
        expect(server.asked >= 200, "the server was really asked")
        say(f"200 names at a time, {server.asked} questions to the server")
        try:
            await address("missing.test")
        except aiodns.error.DNSError as exc:
            say(f"a name that does not exist: {exc.args[1]}")
        else:
            expect(False, "a missing name is an error")
    transport.close()

    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("127.0.0.1", 0))
    async with aiodns.DNSResolver(
        nameservers=["127.0.0.1"], udp_port=silent.getsockname()[1], tries=1, timeout=0.2
    ) as resolver:
        try:
            await resolver.getaddrinfo("host1.test", family=socket.AF_INET)
        except aiodns.error.DNSError as exc:
            say(f"a server that does not answer: {exc.args[1]}")
        else:
            expect(False, "no answer is an error")
    silent.close()


run(main())
