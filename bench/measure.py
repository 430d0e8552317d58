# SPDX-License-Identifier: GPL-2.0-only
"""Carry out one measurement: start a server, load it, and turn the result into a sample.

A sample is a dict for the results file. Its ``value`` is in the unit of the workload's metric and
is absent unless ``status`` is ``ok``: a server that answers wrongly has errors, not a speed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import resource
import shutil
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import native, neighbours, processes
from .errors import BenchError, MissingToolError, RunError, UnsupportedError
from .loops import Loop
from .processes import Child, Cores
from .registry import Workload

# Above this share of failed operations the row shows errors instead of a figure.
ERROR_SHARE = 0.001
# The client was the bottleneck when it was busier than this while the server was less busy.
CLIENT_BUSY, SERVER_BUSY = 0.95, 0.90
# Seconds that a measurement may take in addition to its planned time.
GRACE = 30.0
WRK_SCRIPT = Path(__file__).with_name("wrk.lua")
WRK_MISSING = (
    "wrk is not installed, and it measures HTTP: install it (Debian, Ubuntu: apt-get install wrk; "
    "Fedora: dnf install wrk; macOS has no epoll to measure)"
)


@dataclass(frozen=True)
class Settings:
    """The options of a run, as stored in the results file. Times are in seconds."""

    quick: bool = False
    rounds: int = 3
    windows: int = 5
    seconds: float = 0.25
    warmup: float = 0.05
    micro_scale: float = 0.1
    seeds_seconds: int = 10
    time_limit: float | None = None
    port: int = 0

    def as_dict(self) -> dict:
        return asdict(self)


QUICK = Settings(
    quick=True,
    rounds=1,
    windows=3,
    seconds=0.15,
    warmup=0.03,
    micro_scale=0.03,
    seeds_seconds=1,
)


class Bench:
    """The resources that a run's measurements share: settings, cores, programs, a folder."""

    def __init__(self, settings: Settings, cores: Cores):
        self.settings = settings
        self.cores = cores
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self.folder = Path(self._folder.name)
        self._programs: native.Programs | None = None
        self._serial = 0

    def close(self) -> None:
        """Remove the temporary folder."""
        self._folder.cleanup()

    @property
    def programs(self) -> native.Programs:
        """The C programs, built when first needed."""
        if self._programs is None:
            self._programs = native.programs()
        return self._programs

    def file(self, name: str, data: bytes) -> str:
        """Return the path of a file in the temporary folder that holds *data*."""
        path = self.folder / name
        if not path.exists():
            path.write_bytes(data)
        return str(path)

    def unique(self, stem: str) -> str:
        """Return an unused path in the temporary folder."""
        self._serial += 1
        return str(self.folder / f"{stem}{self._serial}")


def pattern(size: int) -> bytes:
    """Return *size* bytes without repetition, the same in every run."""
    return random.Random(size).randbytes(size)


def _websocket(size: int) -> tuple[bytes, bytes, bytes]:
    """Return the upgrade request, a binary frame (masked with zeros) and the server's echo."""
    payload = pattern(size)
    length = bytes([126]) + size.to_bytes(2, "big")
    hello = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    masked = b"\x82" + bytes([0x80 | length[0]]) + length[1:] + bytes(4) + payload
    return hello, masked, b"\x82" + length + payload


def _messages(client: dict) -> tuple[bytes, bytes, bytes]:
    """Return the hello (may be empty), request and reply that the *client* part describes."""
    if client.get("websocket"):
        return _websocket(client["size"])
    request = pattern(client["size"])
    if "reply" in client:
        return b"", request, b"w" * client["reply"]
    return b"", request, request


class Target:
    """A running server and its address."""

    def __init__(self, child: Child, client: list[str], fds: Sequence[int] = ()):
        self.child = child
        self.client = client
        self.fds = fds


def _start_server(bench: Bench, workload: Workload, subject: Loop) -> Target:
    """Start the subject's server (or the C floor) for *workload* and wait until it listens."""
    transport = workload.client.get("kind", workload.server.get("transport", "tcp"))
    extra: list[str] = []
    fds: list[int] = []
    config = {"role": "servers", "port": bench.settings.port, **workload.server}
    server_fds: tuple[int, ...] = ()
    if transport == "unix":
        config["path"] = bench.unique("s")
        extra = ["--path", config["path"]]
    elif transport == "pipe":
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        server_fds = (request_read, reply_write)
        fds = [reply_read, request_write]
        config["fds"] = list(server_fds)
        extra = ["--fds", f"{reply_read},{request_write}"]
    elif workload.server.get("transport") == "tls":
        config["cert"], config["key"] = native.certificate(bench.folder)
    tls = "cert" in config
    if "file_units" in config:
        units = config.pop("file_units")
        config["file"] = bench.file(f"file{units}", b"w" * 65536 * units)
    command = (
        _floor_command(bench, workload, config)
        if subject.name == "floor"
        else subject.command(config)
    )
    cores = _cores(bench, workload, subject)
    child = processes.spawn(subject.name, command, cores, pass_fds=server_fds)
    for fd in server_fds:
        os.close(fd)
    try:
        ready = processes.wait_ready(child)
        if not ready.get("listening", True):
            await_answer(child, ready["port"], tls=tls)
    except BaseException as exc:
        for fd in fds:
            os.close(fd)
        child.stop()
        if isinstance(exc, RunError) and "Address already in use" in str(exc):
            raise BenchError(f"port {bench.settings.port} is in use: choose another") from exc
        raise
    return Target(child, ["--port", str(ready.get("port", 0)), *extra], fds)


def _cores(bench: Bench, workload: Workload, subject: Loop) -> frozenset[int]:
    """Return the subject's cores: several loops use all cores, including the client's."""
    several = workload.suite == "threads" or subject.count > 1
    return bench.cores.all if several else bench.cores.server


def _floor_command(bench: Bench, workload: Workload, config: dict) -> list[str]:
    floor = workload.floor or {}
    command = [str(bench.programs.floor), "--kind", floor["kind"], "--mode", floor["mode"]]
    if floor["mode"] == "http":
        from .httpservers import PLAIN

        command += ["--reply", bench.file("plain", PLAIN)]
    if "reply" in floor:
        command += ["--reply", bench.file(f"w{floor['reply']}", b"w" * floor["reply"])]
    if "request_size" in floor:
        command += ["--request-size", str(floor["request_size"])]
    if "path" in config:
        command += ["--path", config["path"]]
    if "fds" in config:
        command += ["--fds", ",".join(map(str, config["fds"]))]
    return command


def _json_line(child: Child, timeout: float, prefix: str = "{") -> dict:
    """Return the last line of *child*'s output that starts with *prefix*, parsed as JSON."""
    found = None
    for line in processes.lines(child, timeout):
        if line.startswith(prefix):
            found = line[len(prefix) - 1 if prefix == "{" else len(prefix) :]
    child.process.wait()
    if found is None:
        raise RunError(f"{child.name} gave no result ({child.complaint()})")
    return json.loads(found)


def sample_of(raw: dict, workload: Workload, *, busy: bool = True) -> dict:
    """Return a sample from the load generator's *raw* result."""
    ops, seconds = raw["ops"], raw["seconds"]
    errors = {name: count for name, count in raw["errors"].items() if count}
    cpu = raw["server_main_cpu_s"] if workload.server.get("burner") else raw["server_cpu_s"]
    sample = {
        "ops": ops,
        "seconds": round(seconds, 6),
        "rate": ops / seconds if seconds else 0.0,
        "cpu_us": cpu / ops * 1e6 if ops else None,
        "errors": errors,
        "latency_us": raw.get("latency_us", {}),
        "rss_kib": raw.get("rss_kib"),
        **{name: raw[name] for name in ("others", "client_sleeps") if name in raw},
    }
    if busy and seconds:
        client, server = raw["client_cpu_s"] / seconds, raw["server_cpu_s"] / seconds
        sample["client_busy"] = round(client, 3)
        sample["server_busy"] = round(server, 3)
        sample["client_bound"] = client > CLIENT_BUSY and server < SERVER_BUSY
    failed = sum(errors.values())
    if ops == 0:
        sample["status"] = "errors"
        sample["note"] = "no operation succeeded"
    elif failed > ops * ERROR_SHARE:
        sample["status"] = "errors"
        sample["note"] = ", ".join(f"{count} {name}" for name, count in errors.items())
    else:
        sample["status"] = "ok"
        p99 = sample["latency_us"].get("99")
        sample["value"] = {"cpu": sample["cpu_us"], "rate": sample["rate"], "p99": p99}[
            workload.metric
        ]
    return sample


def measure_load(
    bench: Bench, workload: Workload, subject: Loop, windows: int
) -> Iterator[tuple[str, dict]]:
    """Load a server with the C client (for TLS without OpenSSL's headers, the Python client)."""
    settings, client = bench.settings, workload.client
    hello, request, reply = _messages(client)
    in_python = client["kind"] == "tls" and not bench.programs.tls
    command = (
        [sys.executable, "-P", "-m", "bench.pyclient"]
        if in_python
        else [str(bench.programs.client)]
    )
    stem = workload.name.replace("/", "-")
    command += [
        "--kind",
        client["kind"],
        "--mode",
        client.get("mode", "pingpong"),
        "--conns",
        str(client["conns"]),
        "--idle",
        str(client.get("idle", 0)),
        "--request",
        bench.file(f"{stem}.req", request),
        "--reply",
        bench.file(f"{stem}.rep", reply),
        "--reply-repeat",
        str(client.get("reply_repeat", 1)),
        "--warmup",
        str(settings.warmup),
        "--seconds",
        str(settings.seconds),
    ]
    if hello:
        command += ["--hello", bench.file(f"{stem}.hello", hello)]
    target = _start_server(bench, workload, subject)
    with processes.running(target.child):
        for _ in range(windows):
            raw = _load(bench, command, target)
            if not target.child.alive():
                raise RunError(f"{subject.name} died while it served ({target.child.complaint()})")
            if stalled := raw["errors"].get("stalled"):
                raise RunError(
                    f"{subject.name} hung: {stalled} connection(s) had no answer for 3 s"
                )
            sample = sample_of(raw, workload)
            if in_python:
                sample["note"] = "client in Python (no OpenSSL headers when the C client was built)"
            yield workload.name, sample
            if workload.also:
                yield workload.also, _idle_sample(raw, client["idle"])


def _load(bench: Bench, command: Sequence[str], target: Target) -> dict:
    """Run the load generator once; return its result."""
    pids = _pids_of(target.child)
    watch = neighbours.Watch(bench.cores.all, pids)
    try:
        generator = processes.spawn(
            "the load generator",
            [*command, *target.client, "--pid", ",".join(map(str, pids))],
            bench.cores.client,
            env={"PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
            pass_fds=target.fds,
        )
    finally:
        for fd in target.fds:
            os.close(fd)
    with processes.running(generator):
        raw = _json_line(generator, bench.settings.warmup + bench.settings.seconds + GRACE)
    return raw | watch.found(raw["ops"])


def _pids_of(child: Child) -> list[int]:
    """Return the pids of a server's processes, beginning with the child itself."""
    others = [pid for pid in processes.session_pids(child.pid) if pid != child.pid]
    return [child.pid, *others]


def _idle_sample(raw: dict, idle: int) -> dict:
    """Return a sample of the resident memory per idle connection."""
    grown = raw["rss_idle_kib"] - raw["rss_before_kib"]
    refused = raw["errors"].get("refused", 0)
    return {
        "status": "errors" if refused else "ok",
        "ops": idle,
        "errors": {"refused": refused} if refused else {},
        "latency_us": {},
        "rss_kib": raw["rss_idle_kib"],
        **({"note": f"{refused} refused"} if refused else {"value": grown / idle}),
    }


def wrk_path() -> str:
    """Return the path of wrk. MissingToolError, which explains how to install it, if missing."""
    found = shutil.which("wrk")
    if found is None:
        raise MissingToolError(WRK_MISSING)
    return found


def fetch(port: int, *, tls: bool = False, path: str = "/", body: bytes | None = None) -> bytes:
    """Send one request with the standard library; return the response's body.

    *body* is posted as JSON. RunError unless the status is 200.
    """
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    )
    try:
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as exc:
        raise RunError(f"no sound answer to a request: {type(exc).__name__}: {exc}") from exc
    finally:
        connection.close()
    if response.status != 200:
        raise RunError(f"answered with status {response.status}")
    return answer


def await_answer(child: Child, port: int, *, tls: bool = False, timeout: float = 20.0) -> None:
    """Poll a server that cannot announce its port until it answers."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if not child.alive():
            raise RunError(f"{child.name} died before it listened ({child.complaint()})")
        try:
            fetch(port, tls=tls)
        except RunError:
            time.sleep(0.1)
        else:
            return
    raise RunError(f"{child.name} hangs: no answer within {timeout:.0f} s ({child.complaint()})")


def run_wrk(
    bench: Bench,
    url: str,
    *,
    threads: int,
    conns: int,
    seconds: int,
    pids: Sequence[int],
    cores: frozenset[int],
    headers: Sequence[str] = (),
    post: str | None = None,
    clients: Sequence[int] = (),
) -> dict:
    """Return wrk's result in the load generator's format, with the CPU time of *pids*.

    *post* is a JSON body to send by POST instead of a GET, or ``@`` and a file that holds it.
    *clients*: the pids of the measurement's other clients, which do not count as other programs.
    """
    command = [
        wrk_path(),
        f"-t{threads}",
        f"-c{conns}",
        f"-d{seconds}s",
        "--timeout",
        "5s",
        *(part for header in headers for part in ("-H", header)),
        "-s",
        str(WRK_SCRIPT),
        url,
        *(["--", post] if post is not None else []),
    ]
    watch = neighbours.Watch(bench.cores.all, [*pids, *clients])
    server, own = processes.cpu_seconds(pids), _children_cpu()
    begun = time.monotonic()
    with processes.running(processes.spawn("wrk", command, cores)) as child:
        raw = _json_line(child, seconds + GRACE, "BENCH ")
    wall = time.monotonic() - begun
    raw["server_cpu_s"] = raw["server_main_cpu_s"] = processes.cpu_seconds(pids) - server
    raw["client_cpu_s"] = (_children_cpu() - own) / wall * raw["seconds"]
    raw["rss_kib"] = processes.rss_kib(pids)
    raw["command"] = " ".join(["wrk", *command[1:4], url])
    return raw | watch.found(raw["ops"])


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure_wrk(
    bench: Bench, workload: Workload, subject: Loop, windows: int
) -> Iterator[tuple[str, dict]]:
    """Load a server with wrk; check its answer before and after."""
    wrk_path()
    client = workload.client
    tls = workload.server["transport"] == "tls"
    path, body = client.get("path", "/"), client.get("body")
    if "upload" in client:
        body = pattern(client["upload"])
    post = None if body is None else "@" + bench.file(f"body{len(body)}", body)
    target = _start_server(bench, workload, subject)
    child = target.child
    with processes.running(child), contextlib.ExitStack() as crowds:
        port = child.ready["port"]
        clients: list[int] = []

        def check() -> None:
            answer = fetch(port, tls=tls, path=path, body=body)
            right = client.get("expect", b"Hello, World!") in answer
            if not right or len(answer) != client.get("length", len(answer)):
                raise RunError(f"{subject.name} answered {answer[:40]!r}, {len(answer)} bytes")

        def load(seconds: int) -> dict:
            return run_wrk(
                bench,
                f"{'https' if tls else 'http'}://127.0.0.1:{port}{path}",
                threads=client["threads"],
                conns=client["conns"],
                seconds=seconds,
                pids=processes.session_pids(child.pid),
                cores=bench.cores.client,
                headers=client.get("headers", ()),
                post=post,
                clients=clients,
            )

        check()
        if "crowd" in client:
            crowd = processes.crowd(bench.cores.client, port, *client["crowd"])
            clients.append(crowds.enter_context(crowd).pid)
            check()
        if not bench.settings.quick:
            load(1)
        for _ in range(windows):
            raw = load(max(1, round(bench.settings.seconds)))
            if not child.alive():
                raise RunError(f"{subject.name} died while it served ({child.complaint()})")
            check()
            yield workload.name, sample_of(raw, workload)


def measure_driver(
    bench: Bench, workload: Workload, subject: Loop, _windows: int
) -> Iterator[tuple[str, dict]]:
    """Run a client on the subject's loop and the server's core, against the C server."""
    from .httpservers import BODY

    peer = Workload("http/peer", "", "load", floor={"kind": "tcp", "mode": "http"})
    command = _floor_command(bench, peer, {})
    settings = bench.settings
    floor = processes.spawn("the C HTTP server", command, bench.cores.client)
    with processes.running(floor):
        config = {
            "role": "driver",
            "port": processes.wait_ready(floor)["port"],
            "body": BODY.decode(),
            "conns": workload.client["conns"],
            "warmup": settings.warmup,
            "seconds": settings.seconds,
        }
        child = processes.spawn(subject.name, subject.command(config), bench.cores.server)
        with processes.running(child):
            raw = _json_line(child, settings.warmup + settings.seconds + GRACE)
    if "unsupported" in raw:
        raise UnsupportedError(raw["unsupported"])
    if "error" in raw:
        raise RunError(f"{subject.name} failed: {raw['error']}")
    yield workload.name, sample_of(raw, workload, busy=False)


def measure_micro(
    bench: Bench, workload: Workload, subject: Loop, windows: int
) -> Iterator[tuple[str, dict]]:
    """Run one micro workload in a child that measures once per line of its stdin."""
    config = {
        "role": "micro",
        "name": workload.name.partition("/")[2],
        "scale": bench.settings.micro_scale,
    }
    cores = _cores(bench, workload, subject)
    child = processes.spawn(subject.name, subject.command(config), cores, talk=True)
    with processes.running(child):
        processes.wait_ready(child)
        for _ in range(windows):
            with contextlib.suppress(BrokenPipeError):  # the code below reports a dead child
                child.process.stdin.write(b"again\n")
                child.process.stdin.flush()
            for line in processes.lines(child, GRACE + 60 * bench.settings.micro_scale):
                if line.startswith("{"):
                    yield workload.name, _micro_sample(json.loads(line), workload)
                    break
            else:
                child.process.wait()
                raise RunError(f"{subject.name} died ({child.complaint()})")


def _micro_sample(raw: dict, workload: Workload) -> dict:
    if "unsupported" in raw:
        raise UnsupportedError(raw["unsupported"])
    if "error" in raw:
        raise RunError(raw["error"])
    value = raw["late_us"] if workload.metric == "late" else raw["cpu_us"]
    sample = {
        "status": "ok",
        "value": value,
        "ops": raw["ops"],
        "rate": 1e6 / raw["wall_us"],
        "cpu_us": raw["cpu_us"],
        "wall_us": raw["wall_us"],
        "errors": {},
        "latency_us": raw.get("latency_us", {}),
        "rss_kib": raw["rss_kib"],
    }
    if raw.get("earliest_us", 0) < 0:
        sample["note"] = f"fires up to {-raw['earliest_us']:.0f} us early"
    return sample


MEASURES = {
    "micro": measure_micro,
    "load": measure_load,
    "wrk": measure_wrk,
    "driver": measure_driver,
}
