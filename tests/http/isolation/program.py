# SPDX-License-Identifier: GPL-2.0-only
"""Serve many clients while other code writes to their connections at every possible moment.

    program.py collector|hook [--hook LIBRARY] [--stride N] [--rounds N] [--seed N]

The loop serves HTTP/1 (plain and over TLS, with WebSockets), a TCP echo and a UDP echo. Each
client, in the process of clients.py, has a byte of its own, its mark. The data for a client
consists of its mark and of the protocol's bytes, which differ from all marks. At the same time a
hostile function runs: at each collection of the garbage collector (`collector`), which happens at
almost every allocation of a container, or at every point of the compiled code where Python code can
run (`hook`, in a build with that hook). It sends to, closes and aborts connections.

A client that receives the mark of another one has received its data: that ends the program with
status 1. A build without the hook ends it with status 77.
"""

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import json
import logging
import os
import random
import sys
import types
import warnings
from pathlib import Path

CLIENTS = str(Path(__file__).with_name("clients.py"))

parser = argparse.ArgumentParser()
parser.add_argument("source", choices=("collector", "hook"))
parser.add_argument("--hook", help="the compiled hostile_hook.c")
parser.add_argument("--stride", type=int, default=1, help="run it at every N-th point")
parser.add_argument("--rounds", type=int, default=6, help="requests of each client")
parser.add_argument("--seed", type=int, default=1)
arguments = parser.parse_args()
hook = ctypes.PyDLL(arguments.hook, ctypes.RTLD_GLOBAL) if arguments.hook else None

import certificates  # noqa: E402 - the hook comes before mgloop
from sites import DEFAULTS  # noqa: E402

import mgloop  # noqa: E402
from mgloop.http.wire._connection import Connection  # noqa: E402
from mgloop.http.wire._site import Site  # noqa: E402

faulthandler.dump_traceback_later(100, exit=True)
# The hostile function breaks connections, and the reports of that are irrelevant here.
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")


def drive(awaitable):
    """Await something that need not wait; give it up if it has to."""
    steps = awaitable.__await__()
    try:
        steps.send(None)
    except StopIteration:
        return
    steps.close()


class Hostile:
    """Act on an open connection, at an unexpected moment."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.actions = {}  # of each open connection
        self.calls = self.points = 0

    def __call__(self, *_):
        self.points += 1
        if self.points % arguments.stride or not self.actions:
            return
        self.calls += 1
        action = self.random.choice(list(self.actions.values()))
        with contextlib.suppress(Exception):
            action(self.random)

    @contextlib.contextmanager
    def acts_on(self, action):
        key = object()
        self.actions[key] = action
        try:
            yield
        finally:
            del self.actions[key]

    def at_collection(self, phase, info):
        if phase == "start":
            self()

    def start(self):
        if arguments.source == "collector":
            gc.callbacks.append(self.at_collection)
            gc.set_threshold(1, 1000, 1000)
        else:
            hook.hostile_set.argtypes = [ctypes.py_object]
            hook.hostile_set(self)

    def stop(self):
        if arguments.source == "collector":
            gc.callbacks.remove(self.at_collection)
            gc.set_threshold(700, 10, 10)
        else:
            hook.hostile_set(None)


class Name(bytes):
    """A header's name of a subclass of bytes."""


class Pair:
    """A header that is neither tuple nor list."""

    def __init__(self, name, value):
        self.pair = name, value

    def __iter__(self):
        return iter(self.pair)


class Application:
    """Answer with the mark that the path names, in the way that it names."""

    def __init__(self, hostile):
        self.hostile = hostile

    async def __call__(self, scope, receive, send):
        mark = bytes([int(scope["path"].split("/")[1])])
        if scope["type"] == "websocket":
            await self.websocket(mark, receive, send)
        else:
            await getattr(self, scope["path"].split("/")[2])(mark, send)

    async def websocket(self, mark, receive, send):
        message = {"type": "websocket.send", "bytes": mark * 40}

        def act(rng):
            drive(send(message))

        await receive()
        await send({"type": "websocket.accept", "headers": [(b"x-mark", mark * 9)]})
        with self.hostile.acts_on(act):
            while (received := await receive())["type"] == "websocket.receive":
                assert received["bytes"] == mark * 30
                await send(message)

    async def begin(self, mark, send, headers):
        headers = [(b"x-mark", mark * 20), *headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def plain(self, mark, send):
        await self.begin(mark, send, [(b"x-more", mark * 200)] * 3)
        await send({"type": "http.response.body", "body": mark * 300})

    async def odd(self, mark, send):
        headers = [Pair(b"x-odd", mark * 50), (Name(b"x-name"), bytearray(mark * 50))]
        await self.begin(mark, send, [*headers, (b"date", b"now")])
        await send({"type": "http.response.body", "body": memoryview(mark * 300)})

    async def hinted(self, mark, send):
        await send({"type": "http.response.early_hint", "links": [mark * 30]})
        await self.plain(mark, send)

    async def stream(self, mark, send, size=100):
        piece = {"type": "http.response.body", "body": mark * size, "more_body": True}

        def act(rng):
            drive(send(piece))

        await self.begin(mark, send, [])
        with self.hostile.acts_on(act):
            for _ in range(4):
                await send(piece)
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": mark * size})

    async def large(self, mark, send):
        await self.stream(mark, send, 70_000)


class Echo(asyncio.Protocol):
    """Send the data of a client back to it; the first byte is its mark."""

    def __init__(self, hostile):
        self.hostile = hostile
        self.stack = contextlib.ExitStack()
        self.mark = None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        if self.mark is None:
            self.mark = data[:1]
            self.stack.enter_context(self.hostile.acts_on(self.act))
        self.transport.write(data)
        self.transport.writelines([self.mark * 10, data])

    def act(self, rng):
        if rng.random() < 0.002:
            self.transport.abort()
        else:
            self.transport.write(self.mark * 20)

    def connection_lost(self, exc):
        self.stack.close()


class DatagramEcho(asyncio.DatagramProtocol):
    """Answer datagrams; each sender's first byte is its mark."""

    def __init__(self, hostile):
        self.hostile = hostile
        self.known = {}

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        if address not in self.known:
            self.known[address] = data[:1]
            if len(self.known) == 1:
                self.hostile.actions[self] = self.act
        self.transport.sendto(data, address)

    def act(self, rng):
        address, mark = rng.choice(list(self.known.items()))
        self.transport.sendto(mark * 25, address)


async def serve(hostile):
    loop = asyncio.get_running_loop()
    server_context, _ = certificates.contexts()
    config = types.SimpleNamespace(
        **DEFAULTS
        | {"server_header": True, "date_header": True, "timeout_head": 5, "timeout_write": 5}
        | {"ws_max_size": 1 << 20, "ws_max_queue": 32, "ws_ping_interval": 1, "ws_ping_timeout": 5}
        | {"ws_per_message_deflate": False, "timeout_keep_alive": 5}
    )
    site = Site(loop, Application(hostile), config, connection=Connection)
    servers = {
        "http": await loop.create_server(site.connection, "127.0.0.1", 0),
        "https": await loop.create_server(
            site.connection_over_tls, "127.0.0.1", 0, ssl=server_context
        ),
        "tcp": await loop.create_server(lambda: Echo(hostile), "127.0.0.1", 0),
    }
    ports = {name: server.sockets[0].getsockname()[1] for name, server in servers.items()}
    udp, _ = await loop.create_datagram_endpoint(lambda: DatagramEcho(hostile), ("127.0.0.1", 0))
    ports["udp"] = udp.get_extra_info("sockname")[1]
    hostile.start()
    clients = await asyncio.create_subprocess_exec(
        sys.executable, CLIENTS, str(arguments.rounds), json.dumps(ports)
    )
    status = await clients.wait()
    hostile.stop()
    return status


def main():
    hostile = Hostile(arguments.seed)
    gc.collect()
    gc.freeze()
    status = mgloop.run(serve(hostile))
    if hook is not None and not hook.hostile_points():
        print("this build of mgloop has no hook")
        os._exit(77)
    print(f"hostile code ran {hostile.calls} times")
    sys.stdout.flush()
    # No cleanup: the hostile code has left tasks and connections in any state.
    os._exit(status or (hostile.calls == 0))


if __name__ == "__main__":
    main()
