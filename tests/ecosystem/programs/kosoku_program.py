# SPDX-License-Identifier: GPL-2.0-only
"""kosoku: Autobahn's WebSocket cases against `mgloop serve`, all of them plain, most over TLS.

Over another loop than mgloop's it is uvicorn with websockets that is examined: the control. The
server is a process of its own with an application that echoes. kosoku knows no TLS, so a relay
stands between the two there.
"""

import asyncio
import contextlib
import os
import ssl
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator

import trustme
from common import expect, say, server, serving
from kosoku import FailureError, run_fuzzingclient
from kosoku.cases import CASES

#: Results that are good: (of the messages, of the closing handshake). "UNIMPLEMENTED" is a failure,
#: because the server has compression.
GOOD = {("OK", "OK"), ("NON-STRICT", "OK"), ("INFORMATIONAL", "INFORMATIONAL")}


async def app(scope, receive, send) -> None:
    """Send back messages; answer HTTP with the statement that the server is up."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


def command() -> list[str]:
    """What serves `app`, without its address."""
    # A case that takes longer than the usual 20 s takes a ping for the end of it.
    return server("kosoku_program:app", "--ws-ping-interval", "3600", log_level="warning")


def wait_until_up(url: str, tls: ssl.SSLContext | None = None) -> None:
    """Connections that the server has not accepted yet wait in the kernel."""
    with urllib.request.urlopen(url, timeout=60, context=tls) as response:
        expect(response.status == 204, "the application answers")


@contextlib.asynccontextmanager
async def relay(port: int, tls: ssl.SSLContext) -> AsyncIterator[int]:
    """Forward plain connections to `port` by TLS; yield the port to connect to."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("localhost", port, ssl=tls)
        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def mend() -> None:
    """Let the cases of compression understand a message that is not compressed.

    RFC 7692 leaves it to the sender which messages it compresses. kosoku hands on bytes only of
    those that are, else a str, which Autobahn's cases, written for Python 2, then hash.
    """
    for name, case in CASES.items():
        if name.startswith(("12.", "13.")):
            case.onMessage = _with_bytes(case.onMessage)


def _with_bytes(on_message):
    def called(self, message, binary):
        if isinstance(message, str):
            message = message.encode("latin-1" if binary else "utf-8")
        on_message(self, message, binary)

    return called


async def examine(what: str, port: int, without: tuple[str, ...] = ()) -> bool:
    """Run every case but those of the groups `without`; whether none failed."""
    start = time.monotonic()
    try:
        results = await run_fuzzingclient(
            f"ws://127.0.0.1:{port}", None, [f"{group}.*" for group in without], concurrency=2
        )
    except FailureError as exc:
        results = exc.results
    outcomes = Counter()
    failed = 0
    for result in results:
        outcome = result.behavior.value, result.behavior_close.value
        outcomes[result.behavior.value if outcome in GOOD else "FAILED"] += 1
        failed += outcome not in GOOD
        if outcome != ("OK", "OK"):
            text = f"{what}: {result.case_id} {' / '.join(outcome)}: {result.result}"
            say(text if outcome in GOOD else f"{text} {result.result_close}")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    say(f"{what}: {len(results)} cases in {time.monotonic() - start:.0f} s: {counts}")
    wanted = [name for name in CASES if name.split(".")[0] not in without]
    expect(sorted(wanted) == sorted(result.case_id for result in results), "every case was run")
    return not failed


async def main() -> None:
    """Plain, then over TLS."""
    mend()
    with serving(*command()) as port:
        wait_until_up(f"http://127.0.0.1:{port}")
        good = await examine("ws", port)

    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    client = ssl.create_default_context()
    authority.configure_trust(client)
    with leaf.private_key_and_cert_chain_pem.tempfile() as pem:
        with serving(*command(), "--ssl-certfile", pem, "--ssl-keyfile", pem) as port:
            wait_until_up(f"https://localhost:{port}", client)
            async with relay(port, client) as entry:
                # Compression is done before TLS has anything to do, and takes long.
                good &= await examine("wss", entry, without=("12", "13"))
    expect(good, "no case failed")


if __name__ == "__main__":
    asyncio.run(main())
    # kosoku's timers of cases that are over may still run, and abort an interpreter that ends.
    sys.stdout.flush()
    os._exit(0)
