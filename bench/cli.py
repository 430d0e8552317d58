# SPDX-License-Identifier: GPL-2.0-only
"""The command line: list, run, report, compare.

Exit status: 0 if everything succeeded; 1 if ``compare`` found a regression; 2 if the input or the
machine was unsuitable or a subject failed (each with one sentence on stderr); 130 if Ctrl-C
interrupted the run. Measurements made before a failure or an interrupt are kept. A missing program,
such as wrk, is not a failure: a sentence names the measurements that are skipped without it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import compare, loops, machine, measure, processes, registry, report, results, runner, served
from .asgi import servers as asgi
from .errors import BenchError, MissingToolError, scrub
from .wsgi import servers as wsgi

# The suites whose subjects are servers.
SERVED = {"asgi": asgi, "wsgi": wsgi}
DEFAULT_SUITES = "micro,echo,http,tls,scale"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Compare asyncio event loops on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    commands.add_parser("list", help="list the installed loops and all workloads")

    run = commands.add_parser("run", help="measure the workloads")
    run.add_argument(
        "--loops",
        default=",".join(loops.DEFAULT_LOOPS),
        metavar="A,B,...",
        help="loops to compare: [label=]name or module:factory[@python][?NAME=VALUE]; `bench list` "
        "prints the names (default: %(default)s)",
    )
    run.add_argument(
        "--servers",
        default="",
        metavar="A,B,...",
        help="servers of the suites asgi and wsgi (default: all installed ones)",
    )
    run.add_argument(
        "--suite",
        default=DEFAULT_SUITES,
        help=f"suites to run: {','.join(registry.SUITES)} or all (default: %(default)s)",
    )
    run.add_argument(
        "--only",
        default="",
        metavar="PATTERN,...",
        help="run only these workloads: names, globs or parts of names",
    )
    run.add_argument(
        "--quick",
        action="store_true",
        help="run only core workloads, with short windows, in under five minutes",
    )
    run.add_argument(
        "--core", action="store_true", help="run only core workloads, with full windows"
    )
    run.add_argument(
        "--rounds",
        type=int,
        help="number of rounds; servers restart in each (default: 3; quick: 1)",
    )
    run.add_argument(
        "--windows", type=int, help="measurements per workload and round (default: 5; quick: 3)"
    )
    run.add_argument(
        "--seconds",
        type=float,
        help="duration of a measurement in seconds (default: 0.25; quick: 0.15)",
    )
    run.add_argument(
        "--warmup", type=float, help="seconds of load before each one (default: 0.05; quick: 0.03)"
    )
    run.add_argument(
        "--time-limit",
        type=float,
        metavar="MINUTES",
        help="do not start a round that would exceed this time limit",
    )
    run.add_argument(
        "--reference", help="loop that ratios are relative to (default: uvloop, or else asyncio)"
    )
    run.add_argument(
        "--no-control", action="store_true", help="do not measure the reference a second time"
    )
    run.add_argument(
        "--control", metavar="LOOP", help="loop to use as the control instead of the reference"
    )
    run.add_argument("--no-floor", action="store_true", help="do not measure the C server")
    run.add_argument("--server-core", type=int, metavar="CPU")
    run.add_argument("--client-core", type=int, metavar="CPU")
    run.add_argument(
        "--port", type=int, default=0, help="port of the servers (default: a free one)"
    )
    run.add_argument(
        "--peers",
        metavar="PYTHON",
        action="append",
        default=[],
        help="additional interpreter whose packages asgi, wsgi and the seeds may use (repeatable)",
    )
    run.add_argument(
        "--json", metavar="FILE", help="write the results to this file (default: bench-TIME.json)"
    )

    rep = commands.add_parser("report", help="print or write tables and pictures of a results file")
    rep.add_argument("file")
    rep.add_argument("--md", metavar="FILE", help="write a Markdown report")
    rep.add_argument("--html", metavar="FILE", help="write the report as one HTML page")
    rep.add_argument("--png", metavar="DIR", help="draw pictures (needs matplotlib)")

    comp = commands.add_parser("compare", help="fail if B is slower than A beyond the noise")
    comp.add_argument("a")
    comp.add_argument("b")
    comp.add_argument("--loop", default="mgloop", help="loop to compare (default: %(default)s)")
    return parser


def _list() -> int:
    print("loops (short names; any other as module:factory):")
    for name, spec in loops.KNOWN.items():
        probed, reason = loops.probe(loops.Loop(name, spec))
        state = f"installed, {probed.version}" if probed else f"missing: {reason}"
        print(f"  {name:<18} {spec:<54} {state}")
    print("\nworkloads (* in a quick run):")
    for workload in registry.workloads():
        print(f"  {'*' if workload.core else ' '} {workload.name:<30} {workload.title}")
    from .seeds import plan as seeds

    for workload in seeds.workloads():
        print(f"    {workload.name:<30} {workload.title}")
    return 0


def _settings(args: argparse.Namespace) -> measure.Settings:
    settings = measure.QUICK if args.quick else measure.Settings()
    if args.rounds is not None:
        settings = replace(settings, rounds=args.rounds)
    if args.seconds is not None:
        settings = replace(
            settings, seconds=args.seconds, seeds_seconds=max(1, round(args.seconds))
        )
    if args.windows is not None:
        settings = replace(settings, windows=args.windows)
    if args.warmup is not None:
        settings = replace(settings, warmup=args.warmup)
    if args.time_limit is not None:
        settings = replace(settings, time_limit=args.time_limit * 60)
    if min(settings.rounds, settings.windows) < 1 or settings.seconds <= 0 or settings.warmup < 0:
        raise BenchError("rounds, windows and seconds must be positive")
    return replace(settings, port=args.port)


def _run(args: argparse.Namespace) -> int:
    wanted = registry.suites(args.suite)
    only = _parts(args.only)
    settings = _settings(args)
    subjects, missing, reference = [], {}, None
    if not set(wanted) <= set(SERVED):
        subjects, missing = loops.available(_parts(args.loops))
        reference = loops.choose_reference(subjects, args.reference)
        if not args.no_control:
            control = loops.control(reference, args.control)
            if control.name in {subject.name for subject in subjects}:
                raise BenchError(
                    f"the control has the name of another loop: label it, NAME={args.control}"
                )
            subjects.insert(subjects.index(reference) + 1, control)
    servers, absent = _servers(args, [suite for suite in SERVED if suite in wanted])
    missing = {**missing, **absent}
    for those in servers.values():
        reference = reference or those[0]
    for name, reason in missing.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    cores = processes.choose_cores(args.server_core, args.client_core)
    if cores.shared:
        print("server and client share one core here: trust CPU time only", file=sys.stderr)
    path = args.json or f"bench-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    bench = measure.Bench(settings, cores)
    try:
        return _carry_out(args, bench, wanted, only, subjects, servers, reference, missing, path)
    finally:
        bench.close()


def _servers(args, suites: Sequence[str]) -> tuple[dict[str, list], dict[str, str]]:
    """Return the installed servers of each of *suites*, and the reasons why others are missing."""
    found, missing = {}, {}
    names = _parts(args.servers)
    for suite in suites:
        module = SERVED[suite]
        # With two suites, a name belongs to one of them.
        others = {s.name for other in suites if other != suite for s in SERVED[other].every()}
        own = [name for name in names if name not in others]
        if own or not names:
            found[suite], absent = module.available(own, args.peers, control=not args.no_control)
            missing |= absent
    return found, missing


def _parts(text: str) -> list[str]:
    """Split a comma-separated list; drop empty parts."""
    return [part for part in text.split(",") if part]


def _carry_out(args, bench, wanted, only, subjects, servers, reference, missing, path) -> int:
    """Plan, run, save and print, after the input has been validated. Return the exit status."""
    cores = bench.cores
    core = args.quick or args.core
    candidates = registry.workloads()
    seeds_plan = None
    skipped = []
    if "seeds" in wanted:
        from .seeds import plan as seeds

        try:
            alone = [s for s in subjects if not s.control_of and s.takes_part("seeds")]
            seeds_plan = seeds.prepare(bench, alone, args.peers)
            candidates += seeds_plan.workloads
        except MissingToolError as exc:
            candidates += seeds.workloads()  # their names must be known in any case
            skipped.append(str(exc))
    chosen = registry.select(candidates, wanted, only, core=core)
    if seeds_plan is None:
        chosen = [w for w in chosen if w.suite != "seeds"]
    if seeds_plan is not None and core and not only:
        chosen += seeds_plan.workloads
    chosen = [served.related(w, servers[w.suite]) if w.suite in servers else w for w in chosen]
    chosen = [w for w in chosen if w.suite in servers or w.suite not in SERVED]
    by_servers = [w for w in chosen if w.suite in servers]
    # Relative to mgloop alone, if it is among the subjects.
    singles = [s for s in subjects if s.control_of is None and s.takes_part("threads")]
    scaled = [w for w in chosen if w.server.get("many") and singles]
    items = runner.plan(
        bench,
        [w for w in chosen if w not in by_servers and w not in scaled],
        subjects,
        floor=not args.no_floor,
    )
    columns = list(subjects) if items else []
    if scaled:
        preferred = [s for name in ("mgloop", reference.name) for s in singles if s.name == name]
        alone = (preferred or singles)[0]
        shapes = loops.together(singles, sorted({2, len(cores.all)} - {1}))
        if not args.no_control:
            shapes.insert(shapes.index(alone) + 1, loops.control(alone))
        scaled = [replace(w, reference=alone.name) for w in scaled]
        chosen = [next((s for s in scaled if s.name == w.name), w) for w in chosen]
        items += runner.plan(bench, scaled, shapes, floor=False)
        columns += [s for s in shapes if s.name not in {c.name for c in columns}]
    if any(runner.FLOOR in item.subjects for item in items):
        columns.append(runner.FLOOR)
    for suite, those in servers.items():
        rows = [w for w in by_servers if w.suite == suite]
        for workload in rows:
            able = wsgi.able(workload, those) if suite == "wsgi" else those
            items += runner.plan(bench, [workload], able, floor=False)
        columns += those if rows else []
    if seeds_plan is not None:
        items += seeds_plan.items([w for w in chosen if w.suite == "seeds"])
        columns += [s for s in seeds_plan.subjects if s.name not in {c.name for c in columns}]
        missing = {**missing, **seeds_plan.missing}
        for name, reason in seeds_plan.missing.items():
            print(f"left out: {name}: {reason}", file=sys.stderr)
    if not items:
        if not skipped:
            raise BenchError("nothing to measure: see `python -m bench list`")
        _tell_skipped(skipped)
        return 0
    found = results.Results(
        machine=machine.describe(),
        settings={
            **bench.settings.as_dict(),
            "cores": {"server": sorted(cores.server), "client": sorted(cores.client)},
            "suites": list(wanted),
            "only": list(only),
        },
        subjects=[
            {"name": s.name, "spec": s.spec, "version": s.version, "control_of": s.control_of}
            for s in columns
        ],
        reference=reference.name,
        workloads=[w.describe() for w in chosen],
        missing={name: scrub(reason) for name, reason in missing.items()},
        skipped=skipped,
    )
    found.save(path)
    runner.Runner(items, found, bench.settings, lambda: found.save(path)).run()
    print(report.terminal(found))
    print(f"\nresults: {path}")
    _tell_skipped(found.skipped)
    for sentence in found.failures:
        print(f"bench: {sentence}", file=sys.stderr)
    if found.interrupted:
        return 130
    return 2 if found.failures else 0


def _tell_skipped(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        print(f"left out: {sentence}", file=sys.stderr)


def _report(args: argparse.Namespace) -> int:
    found = results.load(args.file)
    pictures = []
    if args.png:
        from . import plots

        pictures = plots.draw(found, Path(args.png))
        for picture in pictures:
            print(picture.path)
    if args.md:
        folder = Path(args.md).parent
        shown = [report.Shown(p.suite, p.title, os.path.relpath(p.path, folder)) for p in pictures]
        _write(args.md, report.markdown(found, shown))
    if args.html:
        shown = [report.Shown(p.suite, p.title, p.inline()) for p in pictures]
        _write(args.html, report.document(found, shown))
    if not (args.md or args.html or args.png):
        print(report.terminal(found))
    return 0


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as exc:
        raise BenchError(f"cannot write {path}: {exc.strerror}") from exc


def _compare(args: argparse.Namespace) -> int:
    verdicts = compare.compare(results.load(args.a), results.load(args.b), args.loop)
    print(compare.table(verdicts))
    return 1 if any(v.regression for v in verdicts) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        if args.command == "list":
            return _list()
        if args.command == "run":
            return _run(args)
        if args.command == "report":
            return _report(args)
        return _compare(args)
    except BenchError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
