# SPDX-License-Identifier: GPL-2.0-only
"""gunicorn's corpora of requests, valid and invalid ones, sent to `mgloop serve` over a socket.

The program sends each file in one piece and byte by byte. The server must refuse an invalid request
with a status of 400 or more and close the connection; a valid request must reach the application as
its description file states. Most files lack Host, without which the server refuses every request of
HTTP/1.1. The program adds it, so that it finds the file's own fault. On a loop other than mgloop's
it examines uvicorn, the control, which lacks such limits and fails.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from common import expect, run, say, server, serving

REQUESTS = Path(os.environ["ECOSYSTEM_SOURCES"], "tests", "requests")

#: gunicorn's settings -> the options of mgloop serve.
OPTIONS = {
    "limit_request_line": "--limit-request-line",
    "limit_request_field_size": "--limit-request-field",
    "limit_request_fields": "--limit-request-headers",
    "proxy_protocol": "--proxy-protocol",
}
#: What gunicorn does without a setting, where it is something else here.
DEFAULTS = {"limit_request_line": 4094}
#: Settings by which gunicorn accepts invalid requests: mgloop refuses these requests.
LENIENT = {
    "header_map",
    "permit_obsolete_folding",
    "permit_unconventional_http_method",
    "strip_header_spaces",
}
#: Valid for gunicorn, and refused here.
REFUSED = {
    "valid/040": "a Content_Length, which gunicorn leaves out",
    "valid/099": "a body that ends before its Content-Length does",
    "valid/pp_03": "no PROXY line where there has to be one",
    "valid/rfc9112_target_absolute_userinfo_01": "a user in the target (RFC 9110, 4.2.4)",
    "valid/rfc9112_target_authority_connect_01": "CONNECT",
    "valid/rfc9112_target_authority_ipv6_01": "CONNECT",
}
#: Invalid for gunicorn, and accepted here.
ACCEPTED = {"invalid/019": "gunicorn's own reading of X-Forwarded-Ssl beside X-Forwarded-Proto"}
#: Seconds for the rest of a request that does not come.
TIMEOUTS = ("--timeout-head", "3", "--timeout-body", "3")
ESCAPES = {b"r": b"\r", b"n": b"\n", b"t": b"\t", b"0": b"\0"}
#: Seconds for another answer.
PATIENCE = 0.5


async def app(scope, receive, send) -> None:
    """Answer with the request as the server parsed it."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    else:
        return
    understood = {
        "method": scope["method"],
        "target": (scope["raw_path"] + b"?" + scope["query_string"]).decode("latin-1"),
        "version": scope["http_version"],
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in scope["headers"]],
        "body": body.decode("latin-1"),
    }
    text = json.dumps(understood).encode()
    headers = [(b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


class Settings(dict):
    """What a file sets of gunicorn's configuration."""

    set = dict.__setitem__


class Anything(types.ModuleType):
    """A module of gunicorn's, for the files to take the names of its errors from."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def described(path: Path) -> tuple[list, Settings]:
    """What gunicorn makes of a file, and the settings that it is read with."""
    for name in ("gunicorn", "gunicorn.config", "gunicorn.http", "gunicorn.http.errors"):
        sys.modules[name] = Anything(name)
    settings = Settings()
    sys.modules["gunicorn.config"].Config = lambda: settings
    names = {"uri": str, "cfg": settings}
    exec(compile(path.with_suffix(".py").read_text(), path, "exec"), names)
    request = names["request"]
    return request if isinstance(request, list) else [request], settings


def bytes_of(path: Path) -> bytes:
    """The request: a line is a line of the file only where that says so."""
    text = path.read_bytes().replace(b"\n", b"")
    text = re.sub(rb"\\x([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text)
    return re.sub(rb"\\([rnt0])", lambda found: ESCAPES[found[1]], text)


def with_host(data: bytes, everywhere: bool) -> bytes:
    """Add a Host to each request of HTTP/1.1 that lacks one."""
    line = rb"HTTP/1\.1\r\n" if everywhere else rb"\A[^\r\n]+HTTP/1\.1\r\n"
    return re.sub(rb"(?i)(" + line + rb")(?!(?:[^\r\n]+\r\n)*host\s*:)", rb"\1Host: h\r\n", data)


class Answers:
    """The responses on a connection."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.understood: list[dict] = []
        self.closed = False

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Until the server closes, or says nothing more."""
        try:
            while True:
                async with asyncio.timeout(PATIENCE if self.statuses else 10):
                    head = await reader.readuntil(b"\r\n\r\n")
                    status = int(head.split(b" ")[1])
                    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                    body = await reader.readexactly(int(length[1]) if length else 0)
                self.statuses.append(status)
                if status == 200:
                    self.understood.append(json.loads(body))
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed = True
        except TimeoutError:
            pass


async def ask(port: int, data: bytes, *, bytewise: bool) -> Answers:
    """Send the data, and read the responses."""
    answers = Answers()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.create_task(answers.read(reader))
    with contextlib.suppress(ConnectionError):
        if bytewise:
            for number in range(len(data)):
                writer.write(data[number : number + 1])
                await writer.drain()
                await asyncio.sleep(0)
        else:
            writer.write(data)
    await reading
    writer.close()
    return answers


def differences(understood: dict, wanted: dict) -> Iterator[str]:
    """In what a request that has reached the application differs from gunicorn's."""
    version = ".".join(map(str, wanted["version"]))
    headers = [[name.lower(), value] for name, value in wanted["headers"]]
    theirs = understood["headers"]
    if not any(name == "host" for name, _ in headers):
        theirs = [header for header in theirs if header[0] != "host"]
    for what, ours, other in (
        ("method", understood["method"], wanted["method"]),
        ("version", understood["version"], version),
        ("headers", theirs, headers),
        ("body", understood["body"], str(wanted["body"] or b"", "latin-1")),
        ("target", understood["target"].rstrip("?"), target(wanted["uri"])),
    ):
        if ours != other:
            yield f"{what} {ours!r}, not {other!r}"


def target(uri: str) -> str:
    """Return the target as the application gets it: without a host and without a fragment."""
    parts = urlsplit(uri if uri.startswith("http") else f"http://h{uri}" if uri != "*" else uri)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


async def verdict(
    port: int, path: Path, wanted: list[dict] | None, *, bytewise: bool, silent: bool
) -> str:
    """Return the fault of the answer to a file, or "".

    With *silent*, the server may refuse it without an answer, because HTTP itself is valid.
    """
    data = with_host(bytes_of(path), everywhere=wanted is None or len(wanted) > 1)
    answers = await ask(port, data, bytewise=bytewise)
    if wanted is None:
        if answers.statuses and answers.statuses[-1] < 400:
            return f"accepted: {answers.statuses}"
        if not answers.statuses and not silent:
            return "not answered"
        return "" if answers.closed else f"not closed: {answers.statuses}"
    if len(answers.understood) != len(wanted):
        return f"answered {answers.statuses}, not {len(wanted)} times 200"
    return "; ".join(
        text
        for one, other in zip(answers.understood, wanted, strict=True)
        for text in differences(one, other)
    )


def options(settings: Settings) -> tuple[str, ...]:
    """The command line that has *settings*; 0 is gunicorn's default."""
    found = []
    for name, value in sorted((DEFAULTS | settings).items()):
        if value and name in OPTIONS:
            found += [OPTIONS[name]] if value is True else [OPTIONS[name], str(value)]
    return (*found, *TIMEOUTS)


async def main() -> None:
    """Every file, by the server that has its settings."""
    groups = defaultdict(list)
    counts = Counter()
    for path in sorted(REQUESTS.glob("*valid/*.http")):
        name = f"{path.parent.name}/{path.stem}"
        wanted, settings = described(path)
        if name in ACCEPTED:
            continue
        if path.parent.name == "invalid" or name in REFUSED or LENIENT & settings.keys():
            wanted = None
        groups[options(settings)].append((name, path, wanted))
        counts["to be refused" if wanted is None else "to be understood"] += 1
    bad = []
    for arguments, files in groups.items():
        silent = OPTIONS["proxy_protocol"] in arguments
        with serving(*server("gunicorn_requests_program:app", *arguments)) as port:
            for name, path, wanted in files:
                for bytewise in (False, True):
                    wrong = await verdict(port, path, wanted, bytewise=bytewise, silent=silent)
                    if wrong:
                        say(f"{name}{' byte by byte' if bytewise else ''}: {wrong}")
                        bad.append(name)
    say(", ".join(f"{count} {what}" for what, count in counts.items()))
    expect(counts.total() > 100 and not bad, f"all are as they have to be, but {bad}")


if __name__ == "__main__":
    run(main())
