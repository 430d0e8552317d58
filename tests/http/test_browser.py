# SPDX-License-Identifier: GPL-2.0-only
"""A browser as the client: headless Chromium, over TCP and TLS.

A browser behaves unlike the other clients here: it opens connections ahead of its requests, shares
six connections among all requests of a page, aborts a response half-way, and reconnects to a stream
of events by itself. The page does all of that and posts its results; the application adds its own
observations.

The tests are skipped if Chromium is not installed.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess

import certificates
import pytest
import support
from commands import PATIENCE, serve, write_app

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here"),
    pytest.mark.timeout(3 * PATIENCE),
]

FILE = support.pattern(5 << 20)

APPLICATION = """
import asyncio, hashlib, json, os

saw = {"ports": set(), "last_event_ids": []}
gates = asyncio.Queue()
aborted = asyncio.Event()
closed = asyncio.Event()

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    saw["ports"].add(scope["client"][1])
    headers = dict(scope["headers"])
    if scope["type"] == "websocket":
        await (say_goodbye if scope["path"] == "/goodbye" else echo)(scope, receive, send)
        return
    await globals()["on_" + (scope["path"].strip("/") or "page")](headers, receive, send)

async def answer(send, body, kind=b"text/plain", status=200):
    await send({"type": "http.response.start", "status": status, "headers": [
        (b"content-type", kind), (b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})

async def body_of(receive):
    pieces = []
    while True:
        message = await receive()
        pieces.append(message["body"])
        if not message["more_body"]:
            return b"".join(pieces)

async def on_page(headers, receive, send):
    with open("page.html", "rb") as page:
        await answer(send, page.read(), b"text/html; charset=utf-8")

async def on_hello(headers, receive, send):
    await send({"type": "http.response.early_hint", "links": [b"</style.css>; rel=preload"]})
    await answer(send, b"hello")

async def on_digest(headers, receive, send):
    await answer(send, hashlib.sha256(await body_of(receive)).hexdigest().encode())

async def on_file(headers, receive, send):
    path = os.path.abspath("file.bin")
    await send({"type": "http.response.start", "status": 200, "headers": [
        (b"content-length", b"%d" % os.path.getsize(path))]})
    await send({"type": "http.response.pathsend", "path": path})

# The next piece is sent when the page says that it has the one before.
async def on_stream(headers, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(5):
        await send({"type": "http.response.body", "body": b"piece %d" % number, "more_body": True})
        await gates.get()
    await send({"type": "http.response.body", "body": b""})

async def on_next(headers, receive, send):
    gates.put_nowait(None)
    await answer(send, b"")

async def on_endless(headers, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    try:
        while True:
            await send({"type": "http.response.body", "body": bytes(10_000), "more_body": True})
            await asyncio.sleep(0.001)
    except OSError:
        while (await receive())["type"] != "http.disconnect":
            pass
        aborted.set()

async def on_aborted(headers, receive, send):
    await aborted.wait()
    await answer(send, b"")

# Two events for each connection, and then its end: the browser comes again.
async def on_events(headers, receive, send):
    last = int(headers.get(b"last-event-id", b"0"))
    saw["last_event_ids"].append(last)
    await send({"type": "http.response.start", "status": 200, "headers": [
        (b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]})
    for number in (last + 1, last + 2):
        event = f"retry: 10\\nid: {number}\\nevent: tick\\ndata: {number}\\ndata: \\u2713\\n\\n"
        await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})

async def echo(scope, receive, send):
    saw["subprotocols"] = scope["subprotocols"]
    saw["offer"] = dict(scope["headers"])[b"sec-websocket-extensions"].decode()
    await receive()
    await send({"type": "websocket.accept", "subprotocol": "second"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})
    saw["close"] = [message["code"], message["reason"]]
    closed.set()

async def say_goodbye(scope, receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": 4001, "reason": "enough"})

async def on_found(headers, receive, send):
    found = json.loads(await body_of(receive))
    await answer(send, b"", status=204)
    await asyncio.wait_for(closed.wait(), 20)
    print("found", json.dumps({**found, "saw": {**saw, "ports": len(saw["ports"])}}), flush=True)

async def on_gone(headers, receive, send):
    await answer(send, b"gone", status=404)

globals()["on_favicon.ico"] = on_gone
"""

PAGE = """<!doctype html>
<title>mgloop serve</title>
<script type="module">
const found = {};
const text = async (path, options) => (await fetch(path, options)).text();
const bytes = size => {
  const all = new Uint8Array(size);
  for (let i = 0; i < size; i += 65536) crypto.getRandomValues(all.subarray(i, i + 65536));
  return all;
};
const sha256 = async data => Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", data)),
  byte => byte.toString(16).padStart(2, "0")).join("");
const happens = (target, name) => new Promise(resolve =>
  target.addEventListener(name, resolve, {once: true}));

const checks = {
  async get() {
    const response = await fetch("/hello");
    return [response.status, response.headers.get("server"), await response.text()];
  },
  async many() {
    return new Set(await Promise.all(Array.from({length: 60}, () => text("/hello")))).size;
  },
  async head() {
    const response = await fetch("/hello", {method: "HEAD"});
    return [response.status, response.headers.get("content-length"), await response.text()];
  },
  async missing() {
    return (await fetch("/gone")).status;
  },
  async post() {
    const body = bytes(4 << 20);
    return await text("/digest", {method: "POST", body}) === await sha256(body);
  },
  async file() {
    return sha256(await (await fetch("/file")).arrayBuffer());
  },
  async stream() {
    const reader = (await fetch("/stream")).body.getReader(), pieces = [];
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return pieces;
      pieces.push(new TextDecoder().decode(value));
      await fetch("/next");
    }
  },
  async abort() {
    const control = new AbortController();
    const response = await fetch("/endless", {signal: control.signal});
    const reader = response.body.getReader();
    const size = (await reader.read()).value.length;
    control.abort();
    const error = await reader.read().catch(error => error.name);
    await fetch("/aborted");
    return [size > 0, error];
  },
  async events() {
    const source = new EventSource("/events"), events = [];
    while (events.length < 6) {
      await new Promise(resolve => source.addEventListener("tick", event => {
        events.push([event.lastEventId, event.data]);
        if (events.length === 6) source.close();
        resolve();
      }, {once: true}));
    }
    return events;
  },
  async websocket() {
    const socket = new WebSocket(location.origin.replace("http", "ws") + "/echo",
      ["first", "second"]);
    socket.binaryType = "arraybuffer";
    await happens(socket, "open");
    const result = {extensions: socket.extensions, protocol: socket.protocol, same: []};
    for (const message of ["", "h\\u00e9llo \\u{1F600}", "again ".repeat(300_000), bytes(70_000),
                           bytes(3 << 20), new Uint8Array(1 << 20)]) {
      socket.send(message);
      const {data} = await happens(socket, "message");
      result.same.push(typeof message === "string" ? data === message
        : await sha256(data) === await sha256(message));
    }
    for (let number = 0; number < 100; number++) socket.send(`${number}`);
    let next = 0;
    await new Promise(resolve => socket.addEventListener("message", ({data}) => {
      if (data === `${next}`) next++;
      if (next === 100) resolve();
    }));
    socket.close(3456, "the page has seen it");
    const {code, reason, wasClean} = await happens(socket, "close");
    return {...result, close: [code, reason, wasClean]};
  },
  async goodbye() {
    const socket = new WebSocket(location.origin.replace("http", "ws") + "/goodbye");
    const {code, reason, wasClean} = await happens(socket, "close");
    return [code, reason, wasClean];
  },
};

for (const [name, check] of Object.entries(checks)) {
  try {
    found[name] = await check();
  } catch (error) {
    found[name] = `${error}`;
  }
}
await fetch("/found", {method: "POST", body: JSON.stringify(found)});
</script>
"""


@contextlib.contextmanager
def browsing(url, folder, *options):
    """Run Chromium with `url` open and a separate profile; it connects to 127.0.0.1 only."""
    with open(folder / "browser.log", "wb") as log:
        process = subprocess.Popen(
            [
                BROWSER,
                "--headless=new",
                "--no-sandbox",  # root cannot use the sandbox; the page is ours
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-extensions",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--no-proxy-server",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                f"--user-data-dir={folder / 'profile'}",
                *options,
                url,
            ],
            cwd=folder,
            # A sanitizer that is preloaded for Python must not be loaded into the browser.
            env={
                **{name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
                "HOME": str(folder),
                "XDG_RUNTIME_DIR": str(folder),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # the browser is many processes
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_browser(tmp_path, scheme):
    write_app(tmp_path, APPLICATION)
    (tmp_path / "page.html").write_text(PAGE)
    (tmp_path / "file.bin").write_bytes(FILE)
    tls, trust = [], []
    if scheme == "https":
        if not certificates.available:
            pytest.skip(certificates.SKIPPED)
        certificates.write(tmp_path, certificates.authority())
        tls = ["--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem"]
        trust = ["--ignore-certificate-errors"]
    with serve(tmp_path, *tls) as command:
        url = command.url()
        assert url.startswith(f"{scheme}://127.0.0.1:")
        with browsing(url, tmp_path, *trust):
            found = json.loads(command.wait_for("^found (.*)")[1])
        assert command.stop() == 0
    assert "Traceback" not in command.output
    assert "Invalid HTTP request" not in command.output

    saw = found.pop("saw")
    offer, ports = saw.pop("offer"), saw.pop("ports")
    deflate = found["websocket"].pop("extensions")
    assert found == {
        "get": [200, "mgloop", "hello"],
        "many": 1,
        "head": [200, "5", ""],
        "missing": 404,
        "post": True,
        "file": hashlib.sha256(FILE).hexdigest(),
        "stream": [f"piece {number}" for number in range(5)],
        "abort": [True, "AbortError"],
        "events": [[str(number), f"{number}\n✓"] for number in range(1, 7)],
        "websocket": {
            "protocol": "second",
            "same": [True] * 6,
            "close": [3456, "the page has seen it", True],
        },
        "goodbye": [4001, "enough", True],
    }
    assert saw == {
        "last_event_ids": [0, 2, 4],
        "subprotocols": ["first", "second"],
        "close": [3456, "the page has seen it"],
    }
    assert offer.startswith("permessage-deflate")
    assert deflate.startswith("permessage-deflate")
    # 80 requests and more, over six concurrent connections and two WebSockets.
    assert ports < 40
