# SPDX-License-Identifier: GPL-2.0-only
"""The servers of the seeds that are started from Python, one function each.

This module runs in a child process, which forks its workers before it has any loop or thread. Each
worker has its own listening socket on the common port (SO_REUSEPORT). Systems with their own worker
processes start them themselves. The child ends by being killed together with its session.
"""

import asyncio
import json
import logging
import os
import socket
import sys

from bench.seeds import payload

BODY = json.dumps(payload.HELLO, separators=(",", ":")).encode()
CLOSING = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%s" % (len(BODY), BODY)
)


def bound(port):
    """Return a TCP socket that shares *port* (0: any) with other SO_REUSEPORT sockets."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock


# Each of these serves on a socket until it is killed; it calls `ready()` once it listens.


async def aiohttp_server(sock, ready):
    from aiohttp import web

    async def hello(request):
        return web.json_response(payload.HELLO)

    async def nested(request):
        return web.json_response(payload.NESTED)

    async def echo(request):
        return web.json_response(await request.json())

    app = web.Application()
    app.router.add_get("/", hello)
    app.router.add_get("/json", nested)
    app.router.add_post("/echo", echo)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, sock, backlog=4096).start()
    ready()
    await asyncio.get_running_loop().create_future()


async def fastapi_server(sock, ready):
    import uvicorn

    from bench.seeds.asgi_fastapi import app

    config = uvicorn.Config(
        app,
        http="httptools",
        loop="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        backlog=4096,
    )
    sock.listen(4096)
    ready()
    await uvicorn.Server(config).serve(sockets=[sock])


async def classify_server(sock, ready):
    import httptools

    class Classifier(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
            self.parser = httptools.HttpRequestParser(self)

        def data_received(self, data):
            self.parser.feed_data(data)

        def on_url(self, url):
            self.url = url

        def on_message_complete(self):
            body = payload.classify(self.url.decode("ascii")).encode()
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )

    await _protocol_server(Classifier, sock, ready)


async def multiplexed_server(sock, ready):
    class Closing(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            if data.endswith(b"\r\n\r\n"):
                self.transport.write(CLOSING)
                self.transport.close()

    await _protocol_server(Closing, sock, ready)


async def _protocol_server(protocol, sock, ready):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol, sock=sock, backlog=4096)
    ready()
    await loop.create_future()
    del server


async def single_server(sock, ready):
    """Serve one connection at a time: accept, read, answer and close before the next accept."""
    loop = asyncio.get_running_loop()
    sock.listen(4096)
    sock.setblocking(False)
    ready()
    while True:
        client, _ = await loop.sock_accept(sock)
        client.setblocking(False)
        try:
            if await loop.sock_recv(client, 65536):
                await loop.sock_sendall(client, CLOSING)
        except ConnectionError:
            pass
        finally:
            client.close()


def blocking_server(sock, ready):
    """Serve one connection at a time with blocking calls, without a loop."""
    sock.listen(4096)
    ready()
    while True:
        client, _ = sock.accept()
        with client:
            try:
                if client.recv(65536):
                    client.sendall(CLOSING)
            except ConnectionError:
                pass


def flask_server(port, tell):
    """Run Flask's own server with a thread per connection, as in the publication."""
    import werkzeug.serving

    from bench.seeds.wsgi_flask import app

    logging.getLogger("werkzeug").disabled = True
    werkzeug.serving.WSGIRequestHandler.protocol_version = "HTTP/1.1"
    server = werkzeug.serving.make_server("127.0.0.1", port, app, threaded=True)
    tell(port=server.port, pid=os.getpid())
    server.serve_forever()


def cymongoose_server(port, tell):
    """Run Mongoose's own HTTP server with a handler in Python."""
    from cymongoose import MG_EV_HTTP_MSG, Manager

    def handler(connection, event, data):
        if event == MG_EV_HTTP_MSG:
            connection.reply_json(payload.HELLO)

    with Manager(handler) as manager:
        listener = manager.listen(f"http://127.0.0.1:{port}")
        tell(port=listener.local_addr[1], pid=os.getpid())
        manager.run(poll_ms=100)


def robyn_server(port, workers):
    """Run Robyn, which starts its own processes."""
    sys.argv = [
        "bench",
        "--processes",
        str(workers),
        "--workers",
        "1",
        "--log-level",
        "ERROR",
        "--disable-openapi",
    ]
    from robyn import Robyn

    app = Robyn(__file__)

    @app.get("/")
    async def hello(request):
        return payload.HELLO

    @app.get("/json")
    async def nested(request):
        return payload.NESTED

    @app.post("/echo")
    async def echo(request):
        return json.loads(request.body)

    app.start(host="127.0.0.1", port=port)


def cello_server(port, workers):
    """Run Cello, which starts its own processes."""
    sys.argv = ["bench"]
    from cello import App

    app = App()

    @app.get("/")
    def hello(request):
        return payload.HELLO

    @app.get("/json")
    def nested(request):
        return payload.NESTED

    @app.post("/echo")
    def echo(request):
        return request.json()

    app.run(host="127.0.0.1", port=port, workers=workers, env="production", debug=False, logs=False)


ON_LOOP = {
    "aiohttp": aiohttp_server,
    "fastapi": fastapi_server,
    "classify": classify_server,
    "multiplexed": multiplexed_server,
    "single": single_server,
}


def work(app, factory, port, ready):
    """Run one worker process."""
    sock = bound(port)
    if app == "blocking":
        blocking_server(sock, ready)
        return
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(ON_LOOP[app](sock, ready))


def fork_workers(config, factory, tell):
    """Fork the workers, wait until all listen, announce the port, wait forever."""
    placeholder = bound(config["port"])  # bound but not listening: it only reserves the port
    port = placeholder.getsockname()[1]
    heard, say = os.pipe()
    for _ in range(config["workers"]):
        if os.fork() == 0:
            try:
                work(config["app"], factory, port, lambda: os.write(say, b"."))
            finally:
                os._exit(1)
    os.close(say)
    for _ in range(config["workers"]):
        if not os.read(heard, 1):
            raise OSError("a worker died before it listened")
    tell(port=port, pid=os.getpid())
    os.waitpid(-1, 0)
    raise OSError("a worker died")


def main(config, factory, tell):
    """Run the child process."""
    app, port = config["app"], config["port"]
    if app == "flask":
        flask_server(port, tell)
    elif app == "cymongoose":
        cymongoose_server(port, tell)
    elif app == "robyn":
        robyn_server(port, config["workers"])
    elif app == "cello":
        cello_server(port, config["workers"])
    else:
        fork_workers(config, factory, tell)
