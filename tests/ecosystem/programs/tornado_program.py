# SPDX-License-Identifier: GPL-2.0-only
"""Tornado on the running loop: HTTP server and client, WebSocket, IOStream, periodic callbacks."""

import asyncio
import os

import tornado
import tornado.httpclient
import tornado.httpserver
import tornado.ioloop
import tornado.netutil
import tornado.tcpclient
import tornado.tcpserver
import tornado.web
import tornado.websocket
from common import expect, run, say


class Hello(tornado.web.RequestHandler):
    """GET greets after a turn of the loop, POST returns the body."""

    async def get(self) -> None:
        """A greeting."""
        await asyncio.sleep(0)
        self.write("Hello, " + self.get_argument("name"))

    def post(self) -> None:
        """The body, as it came."""
        self.write(self.request.body)


class Echo(tornado.websocket.WebSocketHandler):
    """A WebSocket that sends back each message."""

    async def on_message(self, message: str | bytes) -> None:
        """Send it back."""
        await self.write_message(message, binary=isinstance(message, bytes))


class Lines(tornado.tcpserver.TCPServer):
    """An IOStream server that returns each line in capitals."""

    async def handle_stream(self, stream, address) -> None:
        """One connection."""
        try:
            while True:
                await stream.write((await stream.read_until(b"\n")).upper())
        except tornado.iostream.StreamClosedError:
            pass


async def main() -> None:
    """Everything above, on the loop that this runs on."""
    say(f"tornado {tornado.version}")
    expect(
        tornado.ioloop.IOLoop.current().asyncio_loop is asyncio.get_running_loop(),
        "Tornado uses the running loop",
    )
    sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
    port = sockets[0].getsockname()[1]
    server = tornado.httpserver.HTTPServer(tornado.web.Application([("/", Hello), ("/ws", Echo)]))
    server.add_sockets(sockets)

    client = tornado.httpclient.AsyncHTTPClient(max_clients=50)
    answers = await asyncio.gather(
        *(client.fetch(f"http://127.0.0.1:{port}/?name={number}") for number in range(500))
    )
    expect(
        [answer.body for answer in answers] == [f"Hello, {n}".encode() for n in range(500)],
        "greetings",
    )
    body = os.urandom(4 << 20)
    answer = await client.fetch(
        f"http://127.0.0.1:{port}/",
        method="POST",
        body=body,
        headers={"Content-Type": "application/octet-stream"},
    )
    expect(answer.body == body, "4 MiB came back")
    say("500 requests over 50 connections, 4 MiB there and back")

    connection = await tornado.websocket.websocket_connect(f"ws://127.0.0.1:{port}/ws")
    for number in range(500):
        await connection.write_message(str(number))
        expect(await connection.read_message() == str(number), "the echo is what was sent")
    connection.close()
    say("500 messages over a WebSocket")

    lines = Lines()
    line_sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
    lines.add_sockets(line_sockets)
    stream = await tornado.tcpclient.TCPClient().connect(
        "127.0.0.1", line_sockets[0].getsockname()[1]
    )
    for number in range(500):
        await stream.write(f"line {number}\n".encode())
        expect(
            await stream.read_until(b"\n") == f"LINE {number}\n".encode(), "the line in capitals"
        )
    stream.close()
    lines.stop()
    say("500 lines over an IOStream (add_handler)")

    ticks = 0
    done = asyncio.Event()

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 10:
            done.set()

    periodic = tornado.ioloop.PeriodicCallback(tick, 5)
    periodic.start()
    await asyncio.wait_for(done.wait(), 30)
    periodic.stop()
    say("a periodic callback ran 10 times")
    server.stop()
    await server.close_all_connections()


run(main())
