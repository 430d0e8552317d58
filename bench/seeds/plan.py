# SPDX-License-Identifier: GPL-2.0-only
"""Which systems take part in which seed, and how each of them is started and loaded.

The plan is made before the run: a system whose packages no interpreter has, or whose program is
missing, is left out with a reason. wrk's parameters are the published ones; only the duration is
shorter in a quick run.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import measure, native, packages, processes
from ..errors import BenchError, RunError
from ..loops import Loop, child_command
from ..measure import Bench
from ..processes import Child
from ..registry import Workload
from ..runner import Item
from . import compiled, payload

ROOT = Path(__file__).resolve().parent.parent.parent
GO_SOURCE = Path(__file__).with_name("classify.go")
WORKERS = (1, 2, 4)
LENGTHS = (1, 11, 101)
# Servers that have their own command.
SERVERS = {"granian": ("granian", "--interface", "asgi"), "mgloop": ("mgloop", "serve")}
# wrk's threads and connections, as published.
WRK = {1: (4, 100), 2: (12, 400), 3: (4, 64), 4: (1, 40)}


@dataclass(frozen=True)
class System:
    """A whole server. ``app`` is one of serve.py's, or granian, mgloop (mgloop serve), or go.

    ``handler`` is one of handlers.pyx's, in front of the application of ``mgloop serve``.

    ``needs`` are the modules that its interpreter must have; ``spread`` runs it on all cores.
    """

    name: str
    app: str
    needs: tuple[str, ...] = ()
    loop: Loop | None = None
    target: str = ""
    handler: str = ""
    env: tuple[tuple[str, str], ...] = ()
    spread: bool = False
    python: str = sys.executable
    version: str = ""
    # Attributes of a subject that the results file needs.
    spec: str = ""
    control_of: str | None = None


def workloads(cpus: int | None = None) -> list[Workload]:
    """Return the rows of all seeds; the third has one row per number of processes."""
    cpus = cpus or os.cpu_count() or 1

    def row(name, title, **options):
        return Workload(f"seeds/{name}", title, "system", metric="rate", **options)

    found = [row("1-hello", "JSON greeting, wrk -t4 -c100", reference="aiohttp/asyncio")]
    for workers in WORKERS:
        for label, path in (("root", "GET /"), ("json", "GET /json"), ("echo", "POST /echo")):
            found.append(
                row(
                    f"2-{label}-w{workers}",
                    f"{path}, {workers} worker(s), wrk -t12 -c400",
                    reference="Cello",
                )
            )
    for count in range(1, 2 * cpus + 1):
        found.append(
            row(
                f"3-close-p{count}",
                f"{count} process(es), a connection per request, wrk -t4 -c64",
                reference="blocking, one at a time",
            )
        )
    for length in LENGTHS:
        found.append(
            row(
                f"4-classify-{length}",
                f"path of {length} character(s), wrk -t1 -c40",
                reference="uvloop",
            )
        )
    return found


def _served(name: str, module: str, needs: tuple[str, ...] = ()) -> System:
    """Return the system of an application under `mgloop serve`."""
    target = f"bench.seeds.{module}:app"
    return System(f"{name}/mgloop serve", "mgloop", ("mgloop", *needs), target=target)


def _handled(handler: str) -> System:
    """Return the system of a compiled handler under `mgloop serve`."""
    target = "bench.seeds.asgi_plain:app"
    needs = ("mgloop", "Cython")
    name = "compiled handler/mgloop serve"
    return System(name, "mgloop", needs, target=target, handler=handler)


def _systems(loops: Sequence[Loop]) -> dict[int, list[System]]:
    """Return all systems of each seed, including those that cannot run here."""
    ours = [loop for loop in loops if loop.name == "mgloop"] or list(loops[-1:])
    first = [System("cymongoose", "cymongoose", ("cymongoose",))]
    first += [System(f"aiohttp/{x.name}", "aiohttp", ("aiohttp",), x) for x in loops]
    first += [
        System(f"FastAPI/{x.name}", "fastapi", ("fastapi", "uvicorn", "httptools"), x)
        for x in loops
    ]
    first.append(System("Flask, threaded", "flask", ("flask",)))
    served = [
        _served("plain ASGI", "asgi_plain"),
        _served("BlackSheep", "asgi_blacksheep", ("blacksheep",)),
        _served("FastAPI", "asgi_fastapi", ("fastapi",)),
    ]
    first += [*served, _served("Flask", "wsgi_flask", ("flask",)), _handled("greeting")]
    second = [System("Cello", "cello", ("cello",), spread=True)]
    second += [_with(system, spread=True) for system in served]
    for loop in ours:
        second.append(System(f"aiohttp/{loop.name}", "aiohttp", ("aiohttp",), loop, spread=True))
        second.append(
            System(
                f"FastAPI/{loop.name}",
                "fastapi",
                ("fastapi", "uvicorn", "httptools"),
                loop,
                spread=True,
            )
        )
    second += [
        System(
            "BlackSheep/Granian",
            "granian",
            ("granian", "blacksheep"),
            spread=True,
            target="bench.seeds.asgi_blacksheep:app",
        ),
        System(
            "FastAPI/Granian",
            "granian",
            ("granian", "fastapi"),
            spread=True,
            target="bench.seeds.asgi_fastapi:app",
        ),
        System("Robyn", "robyn", ("robyn",), spread=True),
    ]
    third = [System("blocking, one at a time", "blocking", spread=True)]
    for loop in ours:
        third.append(System(f"{loop.name}, one at a time", "single", (), loop, spread=True))
        third.append(System(f"{loop.name}, multiplexed", "multiplexed", (), loop, spread=True))
    fourth = [System(loop.name, "classify", ("httptools",), loop) for loop in loops]
    fourth += [
        System("Go, GOMAXPROCS=1", "go", env=(("GOMAXPROCS", "1"),)),
        System("Go, all cores", "go", spread=True),
        _handled("classifier"),
    ]
    return {1: first, 2: second, 3: third, 4: fourth}


def _go() -> str | None:
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")


def _go_program() -> str:
    """Return the path of the built Go server. BenchError if it does not build."""
    digest = hashlib.sha256(GO_SOURCE.read_bytes()).hexdigest()[:16]
    target = native.cache_folder() / digest / "classify-go"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [_go(), "build", "-o", str(target), str(GO_SOURCE)],
            capture_output=True,
            text=True,
            env={**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"},
        )
        if done.returncode:
            raise BenchError(f"the Go server could not be built: {done.stderr.strip()[-200:]}")
    return str(target)


def _usable(system: System, pythons: Sequence[str]) -> tuple[System | None, str]:
    """Return the system with its interpreter and version, or None and why it cannot run here."""
    if system.app == "go":
        if _go() is None:
            return None, "no Go compiler on this machine (go)"
        version = subprocess.run([_go(), "version"], capture_output=True, text=True).stdout
        return _with(system, version=" ".join(version.split()[2:3])), ""
    needs, candidates = system.needs, [*pythons]
    if system.loop:
        needs = (*needs, system.loop.spec.partition(":")[0])
        candidates.insert(0, system.loop.python)
    python, version, reason = packages.choose(needs, candidates)
    return (_with(system, python=python, version=version) if python else None), reason


def _with(system: System, **changes) -> System:
    return System(**{**vars(system), **changes})


@dataclass
class Plan:
    """The seeds that can run here: their workloads, their systems, and the systems left out."""

    bench: Bench
    workloads: list[Workload]
    systems: dict[int, list[System]]
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def subjects(self) -> list[System]:
        """Return every system once."""
        return list({s.name: s for group in self.systems.values() for s in group}.values())

    def items(self, chosen: Sequence[Workload]) -> list[Item]:
        """Return one item per server start: a seed, or a seed with a number of processes."""
        groups: dict[str, list[Workload]] = {}
        for workload in chosen:
            seed, what, *rest = workload.name.partition("/")[2].split("-")
            groups.setdefault("-".join([seed, *(rest if seed in "23" else [what])]), []).append(
                workload
            )
        found = []
        for key, rows in groups.items():
            seed = int(key[0])
            seconds = 2.0 + len(rows) * self.bench.settings.seeds_seconds
            found.append(
                Item(
                    f"seeds/{key}",
                    self.systems[seed],
                    functools.partial(self._measure, seed, rows),
                    rows,
                    seconds,
                )
            )
        return found

    def _measure(
        self, seed: int, rows: Sequence[Workload], system: System
    ) -> Iterator[tuple[str, dict]]:
        count = int(rows[0].name.rpartition("-")[2][1:]) if seed in (2, 3) else 1
        threads, conns = WRK[seed]
        cores = self.bench.cores
        where = cores.all if system.spread else cores.server
        client = cores.all if system.spread else cores.client
        child = _start(self.bench, system, count, where)
        with processes.running(child):
            port = child.ready["port"]
            for row in rows:
                path, post = _request(row)
                _check(system, port, path, post)
                raw = measure.run_wrk(
                    self.bench,
                    f"http://127.0.0.1:{port}{path}",
                    threads=threads,
                    conns=conns,
                    seconds=self.bench.settings.seeds_seconds,
                    pids=processes.session_pids(child.pid),
                    cores=client,
                    post=post,
                    headers=["Connection: close"] if seed == 3 else (),
                )
                if not child.alive():
                    raise RunError(f"{system.name} died while it served ({child.complaint()})")
                sample = measure.sample_of(raw, row, busy=not system.spread)
                for key in (
                    "latency_mean_us",
                    "latency_min_us",
                    "latency_max_us",
                    "bytes",
                    "command",
                ):
                    sample[key] = raw[key]
                yield row.name, sample


def _request(row: Workload) -> tuple[str, str | None]:
    """Return the path and body (None: GET) of a row."""
    what = row.name.partition("/")[2].split("-")
    if what[1] == "echo":
        return "/echo", payload.ECHO
    if what[1] == "json":
        return "/json", None
    if what[1] == "classify":
        return payload.path_of(int(what[2])), None
    return "/", None


def _check(system: System, port: int, path: str, post: str | None) -> None:
    """Send one request. RunError unless the answer is correct."""
    answer = measure.fetch(port, path=path, body=None if post is None else post.encode())
    if system.app in ("classify", "go") or system.handler == "classifier":
        right = answer.decode() == payload.classify(path)
    else:
        expected = {"/": payload.HELLO, "/json": payload.NESTED}.get(path)
        expected = json.loads(post) if post is not None else expected
        try:
            right = json.loads(answer) == expected
        except ValueError:
            right = False
    if not right:
        raise RunError(f"{system.name} answered {answer[:60]!r} to {path}")


def _start(bench: Bench, system: System, workers: int, cores: frozenset[int]) -> Child:
    """Start *system* with *workers* processes and wait until it answers."""
    env = {**dict(system.env)}
    port = bench.settings.port
    waits = system.app in ("granian", "mgloop", "robyn", "cello")
    if waits:
        port = port or processes.free_port()
    if system.app == "go":
        command = [_go_program()]
    elif system.app in ("granian", "mgloop"):
        env["PYTHONPATH"] = str(ROOT)
        command = [system.python, "-m", *SERVERS[system.app], "--host", "127.0.0.1"]
        command += ["--port", str(port), "--workers", str(workers), "--backlog", "4096"]
        command += ["--log-level", "error", system.target]
        if system.handler:
            env["PYTHONPATH"] += os.pathsep + compiled.folder_of(system.python)
            command += ["--compiled-handler", f"handlers:{system.handler}"]
    else:
        config = {"role": "seeds.serve", "app": system.app, "workers": workers, "port": port}
        if system.loop:
            config["loop"] = system.loop.spec
        command = child_command(config, system.python)
    child = processes.spawn(system.name, command, cores, env=env, cwd=str(bench.folder))
    try:
        if waits:
            child.ready = {"port": port}
            measure.await_answer(child, port)
            time.sleep(1.0)  # its workers start later
        else:
            processes.wait_ready(child)
    except BaseException as exc:
        child.stop()
        if "Address already in use" in str(exc):
            raise BenchError(f"port {port} is in use: choose another") from exc
        raise
    return child


def prepare(bench: Bench, loops: Sequence[Loop], peers: Sequence[str]) -> Plan:
    """Return the plan for this machine. BenchError if an interpreter or wrk is missing."""
    measure.wrk_path()
    pythons = packages.interpreters(peers)
    missing: dict[str, str] = {}
    usable: dict[int, list[System]] = {}
    for seed, systems in _systems(loops).items():
        usable[seed] = []
        for system in systems:
            found, reason = _usable(system, pythons)
            if found is None:
                missing[system.name] = reason
            else:
                usable[seed].append(found)
    rows = []
    for row in workloads():
        group = usable[int(row.name.partition("/")[2][0])]
        if not group:
            continue
        # The first available system replaces a missing reference, so that there are ratios.
        if row.reference not in {s.name for s in group}:
            row = Workload(**{**vars(row), "reference": group[0].name})
        rows.append(row)
    return Plan(bench, rows, usable, missing)
