# SPDX-License-Identifier: GPL-2.0-only
"""httpx against a small asyncio server: keep-alive, TLS, streaming, timeouts."""

import asyncio
import ssl
from functools import partial

import httpx
import trustme
from common import expect, run, say


async def serve(
    over: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """HTTP/1.1 as far as the client here needs it: /echo, /stream, /slow, keep-alive.

    Nothing is sent for /slow before *over* is set.
    """
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            method, path, _ = head.split(b" ", 2)
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            body = await reader.readexactly(length)
            if path == b"/stream":
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                for number in range(64):
                    chunk = bytes([number]) * 65536
                    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
            elif path == b"/slow":
                await over.wait()
            else:
                body = body or method
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def use(client: httpx.AsyncClient, base: str) -> None:
    """500 requests over the pool, an upload, a stream, a timeout and a cancelled request."""
    answers = await asyncio.gather(*(client.get(f"{base}/{number}") for number in range(500)))
    expect(all(answer.text == "GET" for answer in answers), "500 requests were answered")
    upload = b"u" * (4 << 20)
    expect(
        (await client.post(f"{base}/echo", content=upload)).content == upload,
        "4 MiB uploaded and back",
    )
    total = 0
    async with client.stream("GET", f"{base}/stream") as response:
        async for chunk in response.aiter_raw():
            total += len(chunk)
    expect(total == 64 * 65536, "4 MiB streamed")
    try:
        await client.get(f"{base}/slow", timeout=0.1)
    except httpx.ReadTimeout:
        pass
    else:
        expect(False, "a slow answer times out")
    task = asyncio.ensure_future(client.get(f"{base}/slow"))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task], timeout=30)
    expect(task.cancelled(), "a request can be cancelled")
    expect((await client.get(f"{base}/")).status_code == 200, "the client is usable afterwards")


async def main() -> None:
    """The same over plain TCP and TLS."""
    say(f"httpx {httpx.__version__}")
    authority = trustme.CA()
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_tls)
    client_tls = ssl.create_default_context()
    authority.configure_trust(client_tls)
    for scheme, tls in (("http", None), ("https", server_tls)):
        over = asyncio.Event()
        server = await asyncio.start_server(partial(serve, over), "127.0.0.1", 0, ssl=tls)
        base = f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(verify=client_tls, timeout=60, trust_env=False) as client:
            await use(client, base)
        over.set()
        server.close()
        # Those that asyncio.run() cancels at the end are reported as errors by CPython 3.11.7.
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        if handlers:
            await asyncio.wait(handlers)
        say(f"{scheme}: 500 requests, 4 MiB up, 4 MiB streamed, a timeout, a cancelled request")


run(main())
