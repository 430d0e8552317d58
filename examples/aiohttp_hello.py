# SPDX-License-Identifier: GPL-2.0-only
"""An ordinary aiohttp application, served on mgloop.

The application does not depend on the event loop: only the line that starts it, at the end of
main(), names one. ``--loop`` selects another loop for comparison.

    python examples/aiohttp_hello.py
    curl http://127.0.0.1:8080/

Routes:

    GET  /                  {"message": "Hello, World!"}
    POST /upload            counts and hashes the body: {"size": ..., "sha256": ...}
    GET  /download?size=N   N bytes, the values 0 to 255 repeated (default: 1 MiB)
    GET  /ws                a WebSocket that echoes text and binary messages

Ctrl-C or SIGTERM stops it: it stops accepting connections, finishes the current requests, closes
WebSockets with the code for "going away", and exits with status 0.
"""

import argparse
import asyncio
import contextlib
import hashlib
import importlib
import signal
import ssl
import weakref
from collections.abc import Iterator

from aiohttp import WSCloseCode, WSMsgType, web
from yarl import URL

CHUNK = bytes(range(256)) * 256
GRACE = 60.0  # seconds for current requests to finish when the server stops

WEBSOCKETS: web.AppKey[weakref.WeakSet[web.WebSocketResponse]] = web.AppKey("websockets")
RECEIVING: web.AppKey[set[asyncio.Future[None]]] = web.AppKey("receiving")

routes = web.RouteTableDef()


@routes.get("/")
async def hello(request: web.Request) -> web.Response:
    return web.json_response({"message": "Hello, World!"})


@routes.post("/upload")
async def upload(request: web.Request) -> web.Response:
    size, digest = 0, hashlib.sha256()
    with receiving(request.app):
        async for chunk in request.content.iter_any():
            size += len(chunk)
            digest.update(chunk)
    return web.json_response({"size": size, "sha256": digest.hexdigest()})


@routes.get("/download")
async def download(request: web.Request) -> web.StreamResponse:
    try:
        size = int(request.query.get("size", 2**20))
    except ValueError:
        raise web.HTTPBadRequest(text="size must be a whole number of bytes") from None
    if size < 0:
        raise web.HTTPBadRequest(text="size must not be negative")

    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    response.content_length = size
    await response.prepare(request)
    left = size
    while left > len(CHUNK):
        await response.write(CHUNK)
        left -= len(CHUNK)
    # A server that stops does not wait for a transport's unsent data. A request is therefore
    # complete only when the kernel has all of the response. With a high-water mark of 0,
    # write_eof() waits for that, provided that it has data to write.
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=0)
    await response.write_eof(CHUNK[:left])
    if request.transport is not None:
        request.transport.set_write_buffer_limits()
    return response


@routes.get("/ws")
async def websocket(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse()
    with receiving(request.app):
        await ws.prepare(request)
        request.app[WEBSOCKETS].add(ws)
        async for message in ws:
            if message.type is WSMsgType.TEXT:
                await ws.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await ws.send_bytes(message.data)
    return ws


def create_app() -> web.Application:
    app = web.Application()
    app[WEBSOCKETS] = weakref.WeakSet()
    app[RECEIVING] = set()
    app.add_routes(routes)
    return app


@contextlib.contextmanager
def receiving(app: web.Application) -> Iterator[None]:
    """Mark a handler, for the duration of the block, as one that waits for its client's data."""
    done = asyncio.get_running_loop().create_future()
    app[RECEIVING].add(done)
    try:
        yield
    finally:
        app[RECEIVING].discard(done)
        done.set_result(None)


async def finish_receiving(app: web.Application) -> None:
    """Wait for the handlers that still have data to receive.

    aiohttp's own shutdown, which follows this one, lets responses finish, but drops all data that
    clients send after its start.
    """
    websockets = app[WEBSOCKETS]
    for ws in list(websockets):
        await ws.close(code=WSCloseCode.GOING_AWAY, message=b"server shutdown")
    unfinished = app[RECEIVING]
    if unfinished:
        await asyncio.wait(unfinished, timeout=GRACE)


async def serve(host: str, port: int, tls: ssl.SSLContext | None) -> None:
    """Serve until SIGINT or SIGTERM, then shut down gracefully."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)

    app = create_app()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=GRACE)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls)
        try:
            await site.start()
        except OSError as exc:
            raise SystemExit(f"Cannot listen on {host} port {port}: {exc.strerror}") from None
        scheme = "https" if tls else "http"
        for address in runner.addresses:
            url = URL.build(scheme=scheme, host=address[0], port=address[1], path="/")
            print(f"Listening on {url}", flush=True)
        print(f"Event loop: {type(loop).__module__}.{type(loop).__qualname__}", flush=True)
        await stop.wait()
        await site.stop()
        await finish_receiving(app)
    finally:
        await runner.cleanup()
    print("Stopped.", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hello, World! from aiohttp on mgloop.")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (%(default)s)")
    parser.add_argument("--port", default=8080, type=int, help="port; 0: any (%(default)s)")
    parser.add_argument("--certfile", help="certificate chain (PEM): serve HTTPS")
    parser.add_argument("--keyfile", help="private key (PEM), unless it is in CERTFILE")
    parser.add_argument(
        "--loop",
        default="mgloop",
        choices=("mgloop", "asyncio", "uvloop"),
        help="event loop to run on (%(default)s)",
    )
    args = parser.parse_args()
    if args.keyfile and not args.certfile:
        parser.error("--keyfile needs --certfile")

    tls = None
    if args.certfile:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(args.certfile, args.keyfile)
        except OSError as exc:
            parser.error(f"cannot load the certificate: {exc}")

    new_event_loop = importlib.import_module(args.loop).new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(args.host, args.port, tls))


if __name__ == "__main__":
    main()
