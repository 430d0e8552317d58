# SPDX-License-Identifier: GPL-2.0-only
"""Every workload by name: its server, its load generator and the figure that decides.

This module holds data only; :mod:`bench.measure` runs the workloads. A workload's name is
``suite/what``. The ``core`` workloads are those of a quick run and of the regression guard.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from . import micro
from .errors import BenchError

SUITES = ("micro", "echo", "http", "tls", "scale", "threads", "asgi", "wsgi", "seeds")
# The references of the servers of the suites asgi and wsgi.
ASGI_REFERENCE = "uvicorn"
WSGI_REFERENCE = "gunicorn gthread"

# Each metric's title, its unit, and whether less is better.
METRICS = {
    "cpu": ("server CPU time per operation", "us", True),
    "rate": ("operations per second", "1/s", False),
    "late": ("median lateness", "us", True),
    "p99": ("99th percentile of latency", "us", True),
    "rss": ("resident memory per idle connection", "KiB", True),
}


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    ``kind`` is the way to measure it: ``micro``, ``load`` (the C client), ``wrk``, ``driver`` (the
    loop is the client) or ``system`` (a whole server of the seeds). ``server`` goes to the child,
    ``client`` to the load generator, ``floor`` to the C server (None for a workload without it).
    ``reference`` overrides the run's reference where that one cannot do the workload.
    """

    name: str
    title: str
    kind: str
    metric: str = "cpu"
    core: bool = False
    server: dict = field(default_factory=dict)
    client: dict = field(default_factory=dict)
    floor: dict | None = None
    reference: str | None = None
    also: str | None = None

    @property
    def suite(self) -> str:
        return self.name.partition("/")[0]

    def describe(self) -> dict:
        """Return the workload's description for the results file."""
        return {
            "name": self.name,
            "suite": self.suite,
            "title": self.title,
            "kind": self.kind,
            "metric": self.metric,
            "core": self.core,
            "reference": self.reference,
        }


KIB = 1024
MIB = 1024 * KIB
SIZES = {"64": 64, "1k": KIB, "10k": 10 * KIB, "100k": 100 * KIB}
APIS = {
    "protocol": "Protocol",
    "buffered": "BufferedProtocol",
    "streams": "streams",
    "sock": "sock_recv/sock_sendall",
}
CORE_ECHO = {
    "protocol-64-c100",
    "protocol-1k-c100",
    "protocol-10k-c100",
    "protocol-100k-c100",
    "protocol-1k-c1",
    "buffered-1k-c100",
    "streams-1k-c100",
    "sock-1k-c100",
}


def _micro(suite: str = "micro") -> list[Workload]:
    return [
        Workload(
            f"{suite}/{name}",
            spec["title"],
            "micro",
            spec["metric"],
            core=suite == "micro",
            server={"many": True} if spec["many"] else {},
        )
        for name, spec in micro.WORKLOADS.items()
        if spec["suite"] == suite
    ]


def _echo() -> list[Workload]:
    found = []
    for api, title in APIS.items():
        for label, size in SIZES.items():
            for conns in (1, 100):
                name = f"{api}-{label}-c{conns}"
                found.append(
                    Workload(
                        f"echo/{name}",
                        f"{title} echo, {_size(size)} x {conns}",
                        "load",
                        core=name in CORE_ECHO,
                        server={"kind": api, "transport": "tcp"},
                        client={"kind": "tcp", "size": size, "conns": conns},
                        floor={"kind": "tcp", "mode": "echo"},
                    )
                )
    found += [
        Workload(
            "echo/unix-1k-c100",
            "UNIX stream Protocol echo, 1 KiB x 100",
            "load",
            core=True,
            server={"kind": "protocol", "transport": "unix"},
            client={"kind": "unix", "size": KIB, "conns": 100},
            floor={"kind": "unix", "mode": "echo"},
        ),
        Workload(
            "echo/udp-1k-c50",
            "UDP echo, 1 KiB x 50",
            "load",
            core=True,
            server={"kind": "datagram", "transport": "udp"},
            client={"kind": "udp", "size": KIB, "conns": 50},
            floor={"kind": "udp", "mode": "echo"},
        ),
        Workload(
            "echo/pipe-1k",
            "pipe echo, 1 KiB",
            "load",
            server={"kind": "protocol", "transport": "pipe"},
            client={"kind": "pipe", "size": KIB, "conns": 1},
            floor={"kind": "pipe", "mode": "echo"},
        ),
        Workload(
            "echo/pipe-64k",
            "pipe echo, 64 KiB",
            "load",
            server={"kind": "protocol", "transport": "pipe"},
            client={"kind": "pipe", "size": 64 * KIB, "conns": 1},
            floor={"kind": "pipe", "mode": "echo"},
        ),
        Workload(
            "echo/bulk-receive",
            "bulk receive, one way (per 64 KiB)",
            "load",
            core=True,
            server={"kind": "sink", "transport": "tcp"},
            client={"kind": "tcp", "mode": "send", "size": 256 * KIB, "conns": 1},
            floor={"kind": "tcp", "mode": "sink"},
        ),
        Workload(
            "echo/bulk-send",
            "bulk send, one way (per 64 KiB)",
            "load",
            core=True,
            server={"kind": "source", "transport": "tcp"},
            client={"kind": "tcp", "mode": "recv", "size": 1, "reply": 64 * KIB, "conns": 1},
            floor={"kind": "tcp", "mode": "source", "reply": 64 * KIB},
        ),
        Workload(
            "echo/writelines-10x1k-c100",
            "64 B request, writelines of 10 x 1 KiB, x 100",
            "load",
            core=True,
            server={
                "kind": "reply",
                "transport": "tcp",
                "request_size": 64,
                "piece": KIB,
                "pieces": 10,
            },
            client={"kind": "tcp", "size": 64, "reply": 10 * KIB, "conns": 100},
            floor={"kind": "tcp", "mode": "reply", "reply": 10 * KIB, "request_size": 64},
        ),
        Workload(
            "echo/sendfile-100m",
            "sendfile of 100 MB",
            "load",
            reference="asyncio",
            server={"kind": "sendfile", "transport": "tcp", "file_units": 1600},
            client={"kind": "tcp", "size": 1, "reply": 64 * KIB, "reply_repeat": 1600, "conns": 1},
        ),
    ]
    return found


def _http() -> list[Workload]:
    def wrk(name, title, kind, core=False, floor=None, conns=50):
        return Workload(
            name,
            title,
            "wrk",
            core=core,
            floor=floor,
            server={"role": "httpservers", "kind": kind, "transport": "tcp"},
            client={"threads": 1, "conns": conns},
        )

    return [
        wrk(
            "http/raw-c50",
            "HTTP on a raw Protocol, x 50",
            "raw",
            floor={"kind": "tcp", "mode": "http"},
        ),
        wrk("http/httptools-c50", "HTTP with httptools, x 50", "httptools"),
        wrk("http/aiohttp-c50", "aiohttp server, JSON, x 50", "aiohttp", core=True),
        wrk("http/aiohttp-c100", "aiohttp server, JSON, x 100", "aiohttp", conns=100),
        wrk("http/uvicorn-c50", "uvicorn, plaintext ASGI, x 50", "uvicorn", core=True),
        Workload(
            "http/aiohttp-client-c20",
            "aiohttp client, 20 at once",
            "driver",
            client={"conns": 20},
        ),
        Workload(
            "http/websockets-1k-c50",
            "websockets echo, 1 KiB x 50",
            "load",
            server={"role": "httpservers", "kind": "websockets", "transport": "tcp"},
            client={"kind": "tcp", "size": KIB, "conns": 50, "websocket": True},
        ),
    ]


def _tls() -> list[Workload]:
    def load(name, title, kind, size, conns, core=False, **client):
        return Workload(
            name,
            title,
            "load",
            core=core,
            server={"kind": kind, "transport": "tls"},
            client={"kind": "tls", "size": size, "conns": conns, **client},
        )

    return [
        load("tls/protocol-1k-c100", "TLS Protocol echo, 1 KiB x 100", "protocol", KIB, 100, True),
        load("tls/protocol-100k-c10", "TLS Protocol echo, 100 KiB x 10", "protocol", 100 * KIB, 10),
        load("tls/streams-1k-c100", "TLS streams echo, 1 KiB x 100", "streams", KIB, 100),
        load(
            "tls/handshakes",
            "TLS connect + handshake + echo + close, 10 at once",
            "protocol",
            64,
            10,
            mode="accept",
        ),
        Workload(
            "tls/https-aiohttp-c50",
            "aiohttp server, JSON, HTTPS, x 50",
            "wrk",
            server={"role": "httpservers", "kind": "aiohttp", "transport": "tls"},
            client={"threads": 1, "conns": 50},
        ),
        Workload(
            "tls/https-file-c10",
            "aiohttp server, FileResponse of 1 MiB, HTTPS, x 10",
            "wrk",
            server={
                "role": "httpservers",
                "kind": "aiohttp",
                "transport": "tls",
                "file_units": MIB // 65536,
            },
            client={"threads": 1, "conns": 10, "path": "/file", "expect": b"", "length": MIB},
        ),
    ]


def _threads() -> list[Workload]:
    """Return the workloads that measure several loops, in threads of one process or in processes.

    The subjects are those of loops.together().
    """
    shapes = [
        ("protocol-1k", "Protocol echo, 1 KiB", "protocol", "tcp"),
        ("streams-1k", "streams echo, 1 KiB", "streams", "tcp"),
        ("tls-1k", "TLS Protocol echo, 1 KiB", "protocol", "tls"),
    ]
    return [
        *[
            Workload(
                f"threads/{name}",
                f"{title} x 100",
                "load",
                server={"kind": kind, "transport": transport, "many": True},
                client={"kind": transport, "size": KIB, "conns": 100},
            )
            for name, title, kind, transport in shapes
        ],
        Workload(
            "threads/raw",
            "HTTP on a raw Protocol x 100",
            "wrk",
            server={"role": "httpservers", "kind": "raw", "transport": "tcp", "many": True},
            client={"threads": 1, "conns": 100},
        ),
        *_micro("threads"),
    ]


def _scale() -> list[Workload]:
    found = []
    for idle in (0, 1_000, 10_000):
        found.append(
            Workload(
                f"scale/active50-idle{idle}",
                f"Protocol echo, 1 KiB x 50, among {idle:,} idle",
                "load",
                core=idle == 1_000,
                server={"kind": "protocol", "transport": "tcp"},
                client={"kind": "tcp", "size": KIB, "conns": 50, "idle": idle},
                floor={"kind": "tcp", "mode": "echo"},
                also="scale/rss-per-idle" if idle == 10_000 else None,
            )
        )
    found += [
        Workload(
            "scale/rss-per-idle",
            "RSS per idle connection (of 10,000)",
            "derived",
            metric="rss",
        ),
        Workload(
            "scale/accept",
            "connect + echo 64 B + close, 10 at once",
            "load",
            core=True,
            server={"kind": "protocol", "transport": "tcp"},
            client={"kind": "tcp", "mode": "accept", "size": 64, "conns": 10},
            floor={"kind": "tcp", "mode": "echo"},
        ),
        Workload(
            "scale/burner",
            "Protocol echo, 1 KiB x 50, beside a CPU-bound Python thread",
            "load",
            metric="rate",
            server={"kind": "protocol", "transport": "tcp", "burner": True},
            client={"kind": "tcp", "size": KIB, "conns": 50},
        ),
    ]
    return found


# Headers that a browser sends in addition to Host, and that wrk does not send.
BROWSER = (
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Language: en-US,en;q=0.5",
    "Accept-Encoding: gzip, deflate, br, zstd",
    "Connection: keep-alive",
    "Cookie: session=0123456789abcdef0123456789abcdef; theme=dark",
    "Upgrade-Insecure-Requests: 1",
)


def _asgi() -> list[Workload]:
    """Return the workloads of ASGI servers (whole processes), loaded by wrk or the C client.

    The C client loads the WebSocket servers.
    """
    greeting = b"Hello, World!"
    body = b'{"values": [' + b", ".join(b"%d" % n for n in range(1000, 1168)) + b"]}"

    def row(name, title, conns, *, server=(), **client):
        return Workload(
            f"asgi/{name}-c{conns}",
            f"{title} x {conns}",
            "wrk",
            core=name in ("hello", "fastapi"),
            server={"role": "asgi.serve", "app": "plain", "transport": "tcp", **dict(server)},
            client={"threads": 1, "conns": conns, "expect": greeting, **client},
            reference=ASGI_REFERENCE,
        )

    def both(name, title, **rest):
        return [row(name, title, 100, **rest), row(name, title, 1, **rest)]

    def framework(name, title):
        return both(name, f"{title}, JSON greeting", server={"app": name, "needs": [name]})

    found = [
        *both("hello", "plaintext", length=len(greeting)),
        row("browser", "plaintext, 7 browser headers", 100, headers=BROWSER),
        *both("json", "JSON, 1 KiB", path="/json", expect=b'"item 9"'),
        *both("echo", "POST echo, 1 KiB", path="/echo", body=body, expect=body, length=len(body)),
        *both("stream", "streaming, 10 chunks", path="/stream", expect=b"event 9", length=1000),
        *framework("fastapi", "FastAPI"),
        *framework("blacksheep", "BlackSheep"),
        row("upload", "POST, 1 MiB", 10, path="/upload", upload=MIB, expect=str(MIB).encode()),
        row(
            "download",
            "file of 10 MiB (pathsend, or blocks)",
            4,
            server={"file_units": 10 * MIB // 65536},
            path="/download",
            expect=b"",
            length=10 * MIB,
        ),
        row("access-log", "plaintext, access log", 100, server={"access_log": True}),
        row("tls", "plaintext, TLS", 100, server={"transport": "tls"}),
    ]
    socket = row("websocket-1k", "WebSocket echo, 1 KiB", 100)
    client = {"kind": "tcp", "size": KIB, "conns": 100, "websocket": True}
    return [*found, replace(socket, kind="load", client=client)]


def _wsgi() -> list[Workload]:
    """Return the workloads of WSGI servers (whole processes), loaded by wrk."""
    greeting = b"Hello, World!"
    body = b'{"values": [' + b", ".join(b"%d" % n for n in range(1000, 1168)) + b"]}"

    def row(name, title, conns, *, server=(), metric="cpu", **client):
        return Workload(
            f"wsgi/{name}-c{conns}",
            f"{title} x {conns}",
            "wrk",
            metric=metric,
            core=name in ("hello", "flask"),
            server={"role": "wsgi.serve", "app": "plain", "transport": "tcp", **dict(server)},
            client={"threads": 1, "conns": conns, "expect": greeting, **client},
            reference=WSGI_REFERENCE,
        )

    def both(name, title, **rest):
        return [row(name, title, 100, **rest), row(name, title, 1, **rest)]

    def framework(name, title):
        return both(name, f"{title}, greeting", server={"app": name, "needs": [name]})

    return [
        *both("hello", "plaintext", length=len(greeting)),
        *both("json", "JSON, 1 KiB", path="/json", expect=b'"item 9"'),
        *both("page", "body of 10 KiB", path="/page", expect=b"<p>", length=10 * KIB),
        *both("echo", "POST echo, 1 KiB", path="/echo", body=body, expect=body, length=len(body)),
        *both("stream", "streaming, 10 pieces", path="/stream", expect=b"event 9", length=1000),
        row("upload", "POST, 1 MiB", 10, path="/upload", upload=MIB, expect=str(MIB).encode()),
        row(
            "download",
            "file of 10 MiB (wsgi.file_wrapper)",
            4,
            server={"file_units": 10 * MIB // 65536},
            path="/download",
            expect=b"",
            length=10 * MIB,
        ),
        *framework("flask", "Flask"),
        *framework("django", "Django"),
        row(
            "asleep",
            "plaintext, 9 of 10 threads asleep in the application,",
            8,
            metric="p99",
            server={"threads": 10},
            crowd=("sleepers", 9),
        ),
        row(
            "slow-bodies",
            "plaintext, with 1,000 clients that send bodies at 1 byte/s,",
            100,
            metric="p99",
            crowd=("trickle", 1000),
        ),
    ]


def _size(size: int) -> str:
    return f"{size} B" if size < KIB else f"{size // KIB} KiB"


def workloads() -> list[Workload]:
    """Return all workloads except those of the seeds, in the order of the table."""
    return _micro() + _echo() + _http() + _tls() + _scale() + _threads() + _asgi() + _wsgi()


def suites(text: str) -> list[str]:
    """Return the suites that ``--suite`` names. BenchError if a suite does not exist."""
    if text == "all":
        return list(SUITES)
    wanted = [part for part in text.split(",") if part]
    for name in wanted:
        if name not in SUITES:
            raise BenchError(f"unknown suite {name!r}: use one of {', '.join(SUITES)}, or all")
    return wanted


def asked_for(names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    """Return the *names* that ``--only`` selects: by name, else by a glob, else by a substring."""
    found: set[str] = set()
    for pattern in patterns:
        exact = {n for n in names if pattern in (n, n.partition("/")[2])}
        globbed = {n for n in names if fnmatch.fnmatchcase(n, pattern)}
        found |= exact or globbed or {n for n in names if pattern in n}
    return found


def select(
    candidates: Sequence[Workload], wanted: Sequence[str], only: Sequence[str], *, core: bool
) -> list[Workload]:
    """Return the workloads of the suites *wanted* that match *only* or, without it, are *core*."""
    chosen = [w for w in candidates if w.suite in wanted]
    if only:
        wanted_names = asked_for([w.name for w in chosen], only)
        chosen = [w for w in chosen if w.name in wanted_names]
        if not chosen:
            raise BenchError(f"no workload matches {', '.join(only)}: see `python -m bench list`")
        # Two workloads that share one measurement are selected together.
        names = {w.name for w in chosen}
        also = {w.also for w in chosen}
        chosen += [w for w in candidates if w not in chosen and (w.also in names or w.name in also)]
    elif core:
        chosen = [w for w in chosen if w.core]
    return chosen
