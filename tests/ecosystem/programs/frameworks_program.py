# SPDX-License-Identifier: GPL-2.0-only
"""Applications of seven web frameworks (frameworks/), served by `mgloop serve` and by uvicorn as
processes of their own, used through httpx and websockets, and compared observation by observation.

Every application has the same paths. The program asserts the answers that all applications must
give; the rest (headers, statuses of errors, close codes, the application's observations) must be
the same from both servers, except for the lines of DIFFERENCES. On asyncio's loop the program runs
uvicorn alone, because mgloop is not installed there.

    frameworks_program.py [FRAMEWORK ...]
"""

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import ssl
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import trustme
import websockets
from common import expect, loop_class, run, say

HERE = Path(__file__).resolve().parent / "frameworks"
ORIGIN = "https://front.example"
DATA = b"".join(struct.pack(">I", number) for number in range(2 << 20))  # 8 MiB
UPLOAD = bytes(reversed(DATA[: 3 << 20]))

#: Seconds for anything that takes a moment.
PATIENCE = 60


class Framework(NamedTuple):
    """The features that an application lacks, and its options for the servers."""

    lacks: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    #: How it notes that the client has closed its WebSocket with a code.
    gone: str = "websocket {}"
    #: Features that it has with mgloop serve only.
    control_lacks: frozenset[str] = frozenset()


def _lacks(*names: str) -> frozenset[str]:
    return frozenset(names)


FRAMEWORKS = {
    "starlette": Framework(_lacks("depends")),
    "fastapi": Framework(_lacks("page", "zipped", "waiting")),
    "django": Framework(
        _lacks("depends", "zipped", "denied", "state", "background", "lifespan", "order")
    ),
    # Quart takes an empty binary message for a text, and cancels the handler of a client that left.
    "quart": Framework(_lacks("depends", "zipped", "empty bytes", "order"), gone="websocket gone"),
    "litestar": Framework(_lacks("page", "zipped", "denied", "waiting")),
    # BlackSheep answers HEAD for a file with two lengths, which httpx refuses; and it learns that
    # its client has gone from send() alone, which uvicorn does not let fail.
    "blacksheep": Framework(
        _lacks("page", "zipped", "denied", "background", "HEAD of files", "order", "quiet"),
        control_lacks=_lacks("endless"),
    ),
    # uvicorn goes on taking pieces from a WSGI application whose client has gone.
    "flask": Framework(
        _lacks("depends", "zipped", "websocket", "state", "background", "waiting", "digest",
               "events", "late-error", "scope", "lifespan", "order", "quiet"),
        ("--interface", "wsgi"),
        control_lacks=_lacks("endless"),
    ),
}  # fmt: skip


class Server(NamedTuple):
    """A command, its output when it serves, and its exit status after SIGTERM."""

    command: tuple[str, ...]
    address: str
    status: int


#: Without an access log, and without timeouts, because the clients are as slow as the machine.
OURS = Server(
    ("mgloop", "serve", "--timeout-body", "0", "--timeout-write", "0"),
    r"Serving on (https?://[^ ,]+|unix:[^ ,]+)",
    0,
)
# uvicorn raises the signal again at its end; its supervisor of workers does not.
CONTROL = Server(
    ("uvicorn", "--loop", "asyncio", "--http", "httptools"),
    r"Uvicorn running on (?:unix socket )?(\S+)",
    -signal.SIGTERM,
)

VARIANTS = ("plain", "tls", "uds", "root-path", "workers")

#: (framework or *, variant or *, observation) -> why the servers differ, or a mistake of uvicorn's.
DIFFERENCES: dict[tuple[str, str, str], str] = {
    ("*", "*", "websocket, aborted by the client"): (
        "1006 is what RFC 6455 has for a connection that ended without a close frame; uvicorn says "
        "1005, of a close frame without a code"
    ),
    ("*", "*", "/ws/failing"): (
        "an accepted WebSocket whose application raises is closed with 1011; uvicorn just cuts it"
    ),
}


class Site(NamedTuple):
    """A server that runs: how to reach it."""

    base: str
    uds: str | None
    tls: ssl.SSLContext
    framework: Framework
    name: str

    def client(self, **options: Any) -> httpx.AsyncClient:
        """A client of it, that waits long and goes past no proxy."""
        transport = httpx.AsyncHTTPTransport(
            uds=self.uds, verify=self.tls, limits=httpx.Limits(max_connections=20)
        )
        return httpx.AsyncClient(
            base_url=self.base, transport=transport, timeout=PATIENCE, trust_env=False, **options
        )

    def websocket(self, path: str, **options: Any) -> Any:
        """A WebSocket to it."""
        uri = "ws" + self.base.removeprefix("http") + path
        options = {"max_size": None, "open_timeout": PATIENCE, "proxy": None, **options}
        if self.uds:
            return websockets.unix_connect(self.uds, uri, **options)
        if uri.startswith("wss:"):
            options["ssl"] = self.tls
        return websockets.connect(uri, **options)

    def connection(self) -> Any:
        """A bare connection to it."""
        if self.uds:
            return asyncio.open_unix_connection(self.uds)
        url = httpx.URL(self.base)
        return asyncio.open_connection(
            url.host, url.port, ssl=self.tls if url.scheme == "https" else None
        )

    def has(self, feature: str) -> bool:
        """Return whether the application has the feature with this server."""
        return feature not in self.framework.lacks and not (
            feature in self.framework.control_lacks and "by uvicorn" in self.name
        )


def headers_of(response: httpx.Response, base: str) -> list[tuple[str, str]]:
    """Return the headers that do not vary, in the order of their names."""
    kept = []
    for name, value in response.headers.multi_items():
        if name in ("date", "server", "expires"):
            continue
        # The application states the default.
        if (name, value.lower()) == ("connection", "keep-alive"):
            continue
        # The server chooses the framing of a body.
        if name in ("content-length", "transfer-encoding") and response.request.method != "HEAD":
            continue
        if name == "set-cookie":
            # A signed session has the time in it.
            value = re.sub(r"^(session(?:-0|id)?)=[^;]+", r"\1=...", value)
            value = re.sub(r"expires=[^;]+", "expires=...", value, flags=re.IGNORECASE)
        kept.append((name, value.replace(base, "BASE")))
    return sorted(kept)


class Exercise:
    """One pass over one application; `observed` is compared between the servers."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.observed: dict[str, Any] = {}

    async def see(
        self,
        name: str,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        status: int | tuple[int, ...],
        **options: Any,
    ) -> httpx.Response:
        """A request whose status is known; status, headers and body are observed."""
        response = await client.request(method, path, **options)
        allowed = status if isinstance(status, tuple) else (status,)
        expect(
            response.status_code in allowed,
            f"{self.site.name}: {name}: {response.status_code} {response.text[:300]!r}",
        )
        body: Any = response.content
        if len(body) > 2000:
            body = (len(body), hashlib.sha256(body).hexdigest())
        self.observed[name] = (
            response.status_code,
            headers_of(response, self.site.base),
            body,
        )
        return response

    def check(self, condition: bool, what: str) -> None:
        """Something that holds for each framework and server."""
        expect(condition, f"{self.site.name}: {what}")

    async def requests(self, client: httpx.AsyncClient) -> None:
        """Routing, queries, bodies."""
        got = await self.see("item", client, "GET", "/items/7?q=a%20b%2Bc&tag=x&tag=%C3%BC", 200)
        self.check(got.json() == {"id": 7, "q": "a b+c", "tags": ["x", "ü"]}, f"item {got.text}")
        self.check("x-served-by" in got.headers, "the middleware's header is there")
        await self.see("item that is none", client, "GET", "/items/abc", (404, 422, 400))
        await self.see("no such path", client, "GET", "/nowhere", 404)
        await self.see("wrong method", client, "DELETE", "/items/7", (405, 404, 200))
        await self.see("HEAD", client, "HEAD", "/items/7", (200, 405, 404))
        await self.see("OPTIONS", client, "OPTIONS", "/items/7", (200, 204, 404, 405))
        cors = {"origin": ORIGIN, "access-control-request-method": "GET"}
        got = await self.see("preflight", client, "OPTIONS", "/items/7", (200, 204), headers=cors)
        self.check(
            "GET" in got.headers["access-control-allow-methods"], "GET is allowed to the origin"
        )
        got = await self.see("CORS", client, "GET", "/items/7", 200, headers={"origin": ORIGIN})
        self.check(got.headers["access-control-allow-origin"] == ORIGIN, "the origin is allowed")

        goods = {"name": "Käse", "price": 2.5}
        got = await self.see("JSON", client, "POST", "/validated", 201, json=goods)
        self.check(got.json() == goods, "the JSON came back")
        await self.see(
            "JSON, wrong", client, "POST", "/validated", (400, 422), json={"name": "Käse"}
        )
        bad = {"content": b"{", "headers": {"content-type": "application/json"}}
        await self.see("JSON, broken", client, "POST", "/validated", (400, 422), **bad)
        form = {"name": "Ä & B", "city": "Köln"}
        got = await self.see("form", client, "POST", "/form", 200, data=form)
        self.check(got.json() == form, "the form came back")
        got = await self.see(
            "upload",
            client,
            "POST",
            "/upload",
            200,
            data={"note": "3 MiB"},
            files={"file": ("some.bin", UPLOAD)},
        )
        self.check(
            got.json() == digest_of(UPLOAD) | {"note": "3 MiB", "filename": "some.bin"},
            f"the file was taken whole: {got.text}",
        )
        await self.see("no content", client, "GET", "/empty", 204)

    async def big_bodies(self, client: httpx.AsyncClient) -> None:
        """32 MiB to an application that is slower than the client, in both framings."""

        async def body() -> AsyncIterator[bytes]:
            for _ in range(4):
                for start in range(0, len(DATA), 100_000):
                    yield DATA[start : start + 100_000]

        for name, headers in (
            ("chunked", {}),
            ("with its length", {"content-length": str(4 * len(DATA))}),
        ):
            got = await self.see(
                f"32 MiB {name}", client, "POST", "/digest", 200, content=body(), headers=headers
            )
            self.check(got.json() == digest_of(4 * DATA), f"32 MiB {name}: {got.text}")

    async def responses(self, client: httpx.AsyncClient) -> None:
        """Streams, files, errors, redirects, cookies."""
        got = await self.see("stream", client, "GET", "/stream", 200)
        piece = bytes(range(256)) * 256
        self.check(
            got.content == b"".join(bytes([number]) + piece[1:] for number in range(16)),
            "the stream is whole",
        )
        if self.site.has("events"):
            got = await self.see("events", client, "GET", "/events", 200)
            self.check(
                got.headers["content-type"].startswith("text/event-stream")
                and re.findall(r"^data: ?(\d)\s*$", got.text, re.MULTILINE) == list("01234"),
                f"five events: {got.text!r}",
            )
        for path in ("/file", "/static/data.bin"):
            got = await self.see(f"{path}", client, "GET", path, 200)
            self.check(got.content == DATA, f"{path} is whole")
            if self.site.has("HEAD of files"):
                await self.see(f"HEAD {path}", client, "HEAD", path, (200, 405, 404))
            for ranges in ("bytes=100-199", "bytes=-100", "bytes=4194304-", "bytes=99999999-"):
                got = await self.see(
                    f"{path}, {ranges}",
                    client,
                    "GET",
                    path,
                    # Quart asserts that a range has a beginning.
                    (200, 206, 416, 500),
                    headers={"range": ranges},
                )
                if got.status_code == 206:
                    first, last = re.fullmatch(
                        rf"bytes (\d+)-(\d+)/{len(DATA)}", got.headers["content-range"]
                    ).groups()
                    self.check(got.content == DATA[int(first) : int(last) + 1], f"{path}: {ranges}")
            if etag := got.headers.get("etag"):
                known = {"if-none-match": etag}
                await self.see(f"{path}, known", client, "GET", path, (200, 304), headers=known)
        got = await self.see("page", client, "GET", "/static/page.html", 200)
        self.check(got.headers["content-type"].startswith("text/html"), "a page is text/html")
        await self.see("no such file", client, "GET", "/static/nothing.html", 404)
        await self.see("out of the folder", client, "GET", "/static/%2e%2e/secret", (404, 400))
        if self.site.has("page"):
            got = await self.see("template", client, "GET", "/page", 200)
            self.check("Hello, &lt;mgloop&gt;!" in got.text, f"the template: {got.text}")
        if self.site.has("zipped"):
            got = await self.see("zipped", client, "GET", "/zipped", 200)
            self.check(got.headers["content-encoding"] == "gzip", "the page is compressed")
        got = await self.see("redirect", client, "GET", "/redirect", (302, 307))
        got = await client.get(got.headers["location"])
        self.check(got.json()["id"] == 1, "the redirect leads to the first item")
        await self.see("teapot", client, "GET", "/teapot", 418)
        got = await self.see("error", client, "GET", "/error", 500)
        self.check("on purpose" not in got.text, "the client is not told of the error")
        if self.site.has("late-error"):
            try:
                got = await client.get("/late-error")
            except (httpx.RemoteProtocolError, httpx.ReadError):
                self.observed["late error"] = "cut"
            else:
                self.check(False, f"a response that ends early was taken for whole: {got.text!r}")
        await self.see("set cookies", client, "GET", "/cookies/set", 204)
        got = await self.see("cookies", client, "GET", "/cookies", 200)
        self.check(got.json() == {"one": "1", "two": "zwei"}, f"cookies: {got.text}")
        for number in (1, 2, 3):
            got = await self.see(f"session {number}", client, "POST", "/count", (200, 201))
            self.check(got.json() == {"count": number}, f"session: {got.text}")
        if self.site.has("state"):
            got = await self.see("state", client, "GET", "/state", 200)
            self.check(got.json() == {"started": True}, "the lifespan's state is there")
        if self.site.has("depends"):
            got = await self.see("depends", client, "GET", "/depends", 200)
            self.check(got.json()["value"] == "resource", f"injected: {got.text}")
        if self.site.has("background"):
            await self.see("background", client, "POST", "/background", 202)
            await self.until(client, "background", 1)

    async def scope(self, client: httpx.AsyncClient) -> None:
        """Compare the scope that the application gets."""
        path = "/scope/a%2Fb/%C3%A4%25?x=%20y&z"
        if not self.site.has("scope"):
            path = path.replace("/scope", "/environ")
        headers = [("x-one", "1"), ("x-two", "2"), ("x-one", "3"), ("X-Latin", "\xe4")]
        await self.see(
            "scope",
            client,
            "GET",
            path,
            200,
            headers=[(name.encode(), value.encode("latin-1")) for name, value in headers],
        )
        await self.see(
            "scope, of a proxy",
            client,
            "GET",
            path,
            200,
            headers={"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"},
        )

    async def until(self, client: httpx.AsyncClient, what: str, number: int) -> None:
        """Wait until the application has noted it so often."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while (await client.get("/ledger")).json().get(what, 0) < number:
            self.check(asyncio.get_running_loop().time() < deadline, f"no {what!r} was noted")
            await asyncio.sleep(0.02)

    async def many(self, client: httpx.AsyncClient) -> None:
        """300 requests over 20 connections."""
        answers = await asyncio.gather(*(client.get(f"/items/{number}") for number in range(300)))
        self.check(
            [answer.json()["id"] for answer in answers] == list(range(300)),
            "300 requests got each its own answer",
        )

    async def going_away(self, client: httpx.AsyncClient) -> None:
        """A client that leaves in mid-response, in mid-request, and while it waits."""
        if self.site.has("endless"):
            async with self.site.client() as other:
                total = 0
                async with other.stream("GET", "/endless") as response:
                    async for piece in response.aiter_raw():
                        total += len(piece)
                        if total > 4 << 20:
                            break
            await self.until(client, "endless ended", 1)
        if self.site.has("digest"):
            _, writer = await self.site.connection()
            head = b"POST /digest HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n"
            writer.write(head + bytes(70_000))
            await writer.drain()
            writer.transport.abort()
        if self.site.has("quiet"):
            async with self.site.client() as other:
                async with other.stream("GET", "/quiet") as response:
                    async for _ in response.aiter_raw():
                        break
            await self.until(client, "quiet ended", 1)
        if self.site.has("order"):
            async with self.site.client() as other:
                waiting = asyncio.ensure_future(other.post("/order"))
                await self.until(client, "order begun", 1)
                waiting.cancel()
                await asyncio.wait([waiting])
            await self.until(client, "order done", 1)
        if self.site.has("waiting"):
            async with self.site.client() as other:
                waiting = asyncio.ensure_future(other.get("/waiting"))
                await self.until(client, "waiting begun", 1)
                waiting.cancel()
                await asyncio.wait([waiting])
            await self.until(client, "waiting ended", 1)

    async def websockets(self, client: httpx.AsyncClient) -> None:
        """Echoes, subprotocols, close codes both ways, refusals."""
        async with self.site.websocket("/ws", subprotocols=["a", "b"]) as ws:
            self.check(ws.subprotocol == "b", "a subprotocol is chosen")
            self.check(ws.response.headers["x-accepted"] == "yes", "accept() sends headers")
            big = DATA[: 1 << 20]
            for message in ("grüße 🙂", "", b"\x00\xff", b"", big, "x" * 200_000):
                if message == b"" and not self.site.has("empty bytes"):
                    continue
                await ws.send(message)
                self.check(await ws.recv() == message, f"an echo of {message[:20]!r}")
            await ws.send(["in ", "three ", "frames"])
            self.check(await ws.recv() == "in three frames", "an echo of fragments")
            for number in range(200):
                await ws.send(str(number))
            self.check(
                [await ws.recv() for _ in range(200)] == [str(number) for number in range(200)],
                "200 echoes, in order",
            )
            await (await ws.ping())
            await ws.close(4002, "enough")
            self.observed["websocket, closed by the client"] = (ws.close_code, ws.close_reason)
        await self.until(client, self.site.framework.gone.format(4002), 1)

        before = await self.websockets_noted(client)
        async with self.site.websocket("/ws") as ws:
            await ws.send("once")
            await ws.recv()
            ws.transport.abort()
        async with asyncio.timeout(PATIENCE):
            while (after := await self.websockets_noted(client)) == before:
                await asyncio.sleep(0.02)
        self.observed["websocket, aborted by the client"] = after - before

        async with self.site.websocket("/ws") as ws:
            self.check(ws.subprotocol is None, "no subprotocol unless one was offered")
            await ws.send("close 4001")
            with contextlib.suppress(websockets.ConnectionClosed):
                await ws.recv()
            self.check(ws.close_code == 4001, f"closed with {ws.close_code}")
            self.observed["websocket, closed by the application"] = ws.close_reason

        for path in ("/ws/refused", "/ws/denied", "/ws/nowhere", "/ws/failing"):
            if path == "/ws/denied" and not self.site.has("denied"):
                continue
            try:
                async with self.site.websocket(path) as ws:
                    await ws.recv()
            except websockets.InvalidStatus as exc:
                self.observed[path] = (exc.response.status_code, bytes(exc.response.body or b""))
            except websockets.ConnectionClosed as exc:
                self.observed[path] = ("closed", exc.rcvd and (exc.rcvd.code, exc.rcvd.reason))
            else:
                self.check(False, f"{path} was accepted")
        self.check(self.observed["/ws/refused"][0] == 403, "a WebSocket can be refused")
        if self.site.has("denied"):
            self.check(self.observed["/ws/denied"] == (418, b"not you"), "... in one's own words")

    async def websockets_noted(self, client: httpx.AsyncClient) -> Counter[str]:
        """Compare the close codes that the application got."""
        noted = (await client.get("/ledger")).json()
        return Counter({what: n for what, n in noted.items() if what.startswith("websocket")})

    async def all(self, variant: str) -> dict[str, Any]:
        """Run the checks that suit the variant; return the observations."""
        async with self.site.client() as client:
            await self.requests(client)
            await self.scope(client)
            await self.many(client)
            if variant in ("plain", "tls"):
                await self.responses(client)
                if self.site.has("digest"):
                    await self.big_bodies(client)
                await self.going_away(client)
            if self.site.has("websocket"):
                # The ledger is one process's.
                if variant != "workers":
                    await self.websockets(client)
                else:
                    async with self.site.websocket("/ws") as ws:
                        await ws.send("once")
                        self.check(await ws.recv() == "once", "an echo")
            await self.requests(client)
        return self.observed


def digest_of(content: bytes) -> dict[str, Any]:
    """Return the digest of a body, as the applications compute it."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


async def use(
    name: str, server: Server, variant: str, folder: Path, tls: ssl.SSLContext
) -> tuple[dict[str, Any], str]:
    """Start the server with the application, use it and stop it; return observations and log."""
    framework = FRAMEWORKS[name]
    who = f"{name} by {server.command[0]} ({variant})"
    uds = str(folder / "socket") if variant == "uds" else None
    options = {
        "plain": (),
        "tls": ("--ssl-certfile", folder / "chain.pem", "--ssl-keyfile", folder / "key.pem"),
        "uds": ("--uds", uds),
        "root-path": ("--root-path", "/api"),
        "workers": ("--workers", "2"),
    }[variant]
    arguments = [*server.command, f"{name}_app:app", "--app-dir", HERE, "--no-access-log",
                 *framework.options, *options]  # fmt: skip
    if not uds:
        arguments += ["--host", "127.0.0.1", "--port", "0"]
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("MGLOOP_SERVE_", "UVICORN_", "LISTEN_", "ECOSYSTEM_"))
        and key not in ("WEB_CONCURRENCY", "FORWARDED_ALLOW_IPS")
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *map(str, arguments),
        env=kept
        | {"FRAMEWORKS_FOLDER": str(folder), "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"},
        # Python started in the sources would import mgloop from there.
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    log: list[str] = []
    address = asyncio.get_running_loop().create_future()

    async def read() -> None:
        async for line in process.stdout:
            log.append(line.decode(errors="replace"))
            found = re.search(server.address, re.sub(r"\x1b\[\d*m", "", log[-1]))
            if found and not address.done():
                address.set_result(found[1])
        if not address.done():
            address.set_exception(SystemExit(f"{who} did not start:\n{''.join(log)}"))

    reading = asyncio.ensure_future(read())
    try:
        async with asyncio.timeout(PATIENCE):
            base = await address
        if uds:
            base = "http://localhost"
        site = Site(base, uds, tls, framework, who)
        # uvicorn's supervisor says so before a worker listens.
        async with asyncio.timeout(PATIENCE), site.client() as client:
            while True:
                with contextlib.suppress(httpx.ConnectError):
                    await client.get("/ledger")
                    break
                await asyncio.sleep(0.05)
        async with asyncio.timeout(300):
            observed = await Exercise(site).all(variant)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            status = await process.wait()
            await reading
        text = "".join(log)
        allowed = (server.status, 0) if variant == "workers" else (server.status,)
        expect(status in allowed, f"{who} ended with {status}")
        if "lifespan" not in framework.lacks:
            expect("the application has shut down" in text, f"{who}: no shutdown")
    except BaseException:
        print(f"--- the log of {who}\n{''.join(log)[-6000:]}", file=sys.stderr)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return observed, text


def compare(name: str, variant: str, ours: dict[str, Any], control: dict[str, Any]) -> list[str]:
    """Return the differences without a line in DIFFERENCES."""
    faults = []
    for what in {**control, **ours}:
        if ours.get(what) == control.get(what):
            continue
        reason = next(
            (
                reason
                for (framework, kind, observation), reason in DIFFERENCES.items()
                if framework in ("*", name) and kind in ("*", variant) and observation == what
            ),
            None,
        )
        if reason is None:
            faults.append(
                f"{name} ({variant}): {what}:\n"
                f"    mgloop serve {ours.get(what)}\n    uvicorn      {control.get(what)}"
            )
    return faults


async def main(names: list[str]) -> None:
    """Each application by each server in each variant."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    tls = ssl.create_default_context()
    authority.configure_trust(tls)
    faults = []
    with tempfile.TemporaryDirectory(prefix="eco-") as scratch:
        folder = Path(scratch)
        for inner in ("static", "templates"):
            (folder / inner).mkdir()
        (folder / "static" / "data.bin").write_bytes(DATA)
        (folder / "static" / "page.html").write_text("<!doctype html><p>Hello")
        (folder / "templates" / "page.html").write_text("<!doctype html><p>Hello, {{ name }}!")
        (folder / "secret").write_text("not to be served")
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        for index, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(folder / "chain.pem", append=index > 0)
        for name in names:
            for variant in VARIANTS:
                control, _ = await use(name, CONTROL, variant, folder, tls)
                line = f"{name} ({variant}): {len(control)} observations by uvicorn"
                if loop_class().__module__.startswith("mgloop"):
                    ours, _ = await use(name, OURS, variant, folder, tls)
                    found = compare(name, variant, ours, control)
                    for fault in found:
                        say(fault)
                    faults += found
                    line += f", {len(ours)} by mgloop serve, {len(found)} differ"
                say(line)
    expect(not faults, f"{len(faults)} observations are the same from both servers")


run(main(sys.argv[1:] or list(FRAMEWORKS)))
