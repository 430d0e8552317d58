# SPDX-License-Identifier: GPL-2.0-only
"""Runs another project's own suite over two loops, and compares them test by test.

The suite comes from the project's source distribution, the package from its wheel. The loop is
swapped in by ``swap/sitecustomize.py`` in every process of the run, and the run is void unless
loops of the right class were made. A test that fails here but passes over the standard
library's loop runs once more over both loops, alone, because some suites depend on timing. A test
that fails again only over ours is a regression, unless ``expectations`` has a line for it.
"""

import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from tests.ecosystem import expectations, servers
from tests.ecosystem.environments import HERE, Environments

LOOP_CLASSES = {
    "mgloop": "mgloop:Loop",
    "uvloop": "uvloop:Loop",
    "asyncio": "asyncio:SelectorEventLoop",
}


#: What a run of a suite may take over one loop.
TIME_LIMIT = 900


class Suite(NamedTuple):
    """How to run a project's suite: what to leave out of the sources, and pytest's arguments."""

    leave_out: str | None
    #: A ``{NAME}`` stands for a variable that the server yields.
    arguments: tuple[str, ...]
    #: Whether ``overlays/`` has files to lay over the sources.
    overlay: bool = False
    #: Whose sources and requirements they are, where the target has another name.
    project: str | None = None
    #: Start a server that runs for as long as the suite, and yield variables for its environment.
    server: Callable[[], AbstractContextManager[Mapping[str, str] | None]] = nullcontext
    #: Further variables for the environment of the suite.
    variables: Mapping[str, str] = {}
    #: Run the suite under another user id if it would run as root.
    unprivileged: bool = False
    #: Seconds that one run over one loop may take.
    time_limit: int = TIME_LIMIT
    #: Whether the suite needs pytest's cache.
    cache: bool = False


#: For projects that do not configure pytest: it would go on looking in the folders above.
NO_CONFIGURATION = ("-c", os.devnull, "--rootdir=.")


def over_sockets(client: str, *arguments: str, leave_out: str | None) -> Suite:
    """Return the suite of a WSGI project whose test client uses a socket (ecosystem_wsgi.py)."""
    return Suite(
        leave_out,
        ("-p", "ecosystem_wsgi", "--timeout=120", "--tb=native", *arguments),
        variables={"ECOSYSTEM_WSGI": client},
    )


SUITES = {
    # Coverage and doctests examine aiohttp's sources, not the loop; two processes as this is for
    # two cores.
    "aiohttp": Suite("aiohttp", ("--no-cov", "-n", "2", "--timeout=120", "tests")),
    "uvicorn": Suite("uvicorn", ("-n", "2", "--timeout=120", "tests")),
    # Warnings are errors in anyio's configuration, and sockets that the suite itself leaves open
    # on machines without IPv6 would end the run.
    "anyio-suite": Suite(
        "src",
        ("-p", "no:unraisableexception", "-W", "default",
         "--timeout=120", "-k", "not trio", "tests"),
    ),
    "tornado-suite": Suite(
        "tornado",
        (*NO_CONFIGURATION, "-p", "ecosystem_tornado", "--timeout=120",
         "-o", "python_files=*_test.py", "--pyargs", "tornado.test"),
    ),
    # The tests of the other halves of websockets make no loop.
    "websockets-suite": Suite(
        "src",
        (*NO_CONFIGURATION, "--timeout=60", "tests/asyncio",
         "tests/legacy"),
    ),
    # Left out are the modules that make no loop, and take most of the time with their keys; and the
    # tests of files that cannot be read, which root reads all the same: the connection that they
    # make against their will is never closed, and the tear-down of their class waits for it.
    "asyncssh": Suite(
        "asyncssh",
        ("-n", "2", "--dist=loadfile", "--timeout=120",
         "-k", "not not_readable",
         *(f"tests/test_{name}.py" for name in
           ("agent", "auth", "channel", "connection", "connection_auth", "editor", "forward", "kex",
            "logging", "pkcs11", "process", "sftp", "sk", "stream", "subprocess", "tuntap",
            "x11"))),
    ),
    # The sources' own options want pytest-cov.
    "hypercorn": Suite("src", ("-o", "addopts=", "--timeout=60", "-k", "not trio", "tests")),
    "starlette": Suite("starlette", ("--timeout=60", "-k", "not trio", "tests")),
    # The same tests through a server: uvicorn over asyncio's loop, mgloop's own over mgloop. For
    # tracebacks of its own pytest makes syntax trees, which CPython 3.11 cannot in two threads.
    "starlette-sockets": Suite(
        "starlette",
        ("-p", "ecosystem_starlette", "--timeout=120", "--tb=native",
         "-k", "not trio", "tests"),
        project="starlette",
    ),
    # Left out are the style of uvloop's sources, and what only uvloop has: its C interface, the
    # pointer to libuv's loop, and its watcher of file systems. Half a minute is enough: tests of a
    # socket that is closed while it is waited for hang over asyncio.
    "uvloop": Suite(
        None,
        ("--timeout=30", "--ignore=tests/test_sourcecode.py",
         "--ignore=tests/test_cython.py", "--ignore=tests/test_libuv_api.py",
         "--ignore=tests/test_fs_event.py", "tests"),
        overlay=True,
    ),
    # The rest of pyzmq's tests make no loop.
    "pyzmq": Suite(
        "zmq",
        ("--timeout=60", "tests/test_asyncio.py", "tests/test_auth.py",
         "tests/test_future.py", "tests/test_ioloop.py", "tests/test_zmqstream.py"),
    ),
    # The only one of its modules that makes a loop.
    "aioquic": Suite("src", (*NO_CONFIGURATION, "--timeout=60", "tests/test_asyncio.py")),
    # The suite starts PostgreSQL itself, which is why it does not run as root. The test of the
    # sources' style needs linters.
    "asyncpg-suite": Suite(
        "asyncpg",
        ("--timeout=120", "--ignore=tests/test__sourcecode.py", "tests"),
        server=servers.postgres_binaries,
        unprivileged=True,
        time_limit=1800,
    ),
    # The other half of redis-py's tests is synchronous. Left out are the tests that need a cluster
    # or replace one by mocks, modules of Redis Stack, or several databases in containers.
    "redis-suite": Suite(
        "redis",
        ("--timeout=60", "-m", "not onlycluster and not redismod",
         "--redis-url=redis://127.0.0.1:{ECOSYSTEM_REDIS_PORT}/0",
         "--ignore=tests/test_asyncio/test_scenario",
         "--ignore-glob=tests/test_asyncio/test_cluster*", "tests/test_asyncio"),
        server=servers.redis_on_its_port,
        time_limit=1800,
    ),
    # The synchronous half makes no loop. The suite's conftest needs pytest's cache.
    "psycopg-suite": Suite(
        "psycopg",
        ("-p", "ecosystem_psycopg", "--timeout=120", "-k", "async", "-m", "not slow and not mypy",
         "tests"),
        server=servers.postgres_as_psycopg_expects,
        time_limit=1800,
        cache=True,
    ),
    # The project's own options need pytest-cov, and take a warning of pkg_resources for an error.
    "aiosmtpd": Suite(
        None,
        ("-o", "addopts=", "-W", "ignore:pkg_resources is deprecated",
         "-o", "asyncio_default_fixture_loop_scope=function", "--timeout=60", "aiosmtpd/tests"),
    ),
    # Left out are the classes that the suite makes for reactors other than asyncio's, and the
    # packages whose tests replace the reactor by a clock. A name that begins with "Test" is a
    # mix-in here: only subclasses of TestCase are tests. test_cantChangeFileMode expects to be
    # refused a change of the mode of /dev/null, which for root is done, and harms other programs.
    "twisted": Suite(
        None,
        (*NO_CONFIGURATION, "-p", "ecosystem_twisted", "--timeout=180",
         "-o", "python_classes=None",
         "-k", "not _SelectReactor and not ThreadedSelectReactor and not GIReactor and not "
         "PollReactor and not test_cantChangeFileMode",
         *(f"src/twisted/{name}" for name in
           ("internet/test", "test", "web/test", "protocols/test", "protocols/haproxy/test",
            "application"))),
        unprivileged=True,
        time_limit=3600,
    ),
    "quart": Suite("src", ("-o", "addopts=", "--timeout=60", "tests")),
    # The sample project needs a browser.
    "channels": Suite(
        "channels",
        ("--timeout=60", "-o", "asyncio_mode=auto",
         "--ignore=tests/sample_project", "tests"),
    ),
    # Left out are benchmarks, the tests of annotations, which need mypy, and a test whose server
    # kills pytest when it is run alone. The setting keeps Sanic from uvloop, which it requires.
    "sanic": Suite(
        "sanic",
        (*NO_CONFIGURATION, "--timeout=60", "--ignore=tests/benchmark",
         "--ignore=tests/performance", "--ignore=tests/typing", "--ignore=tests/http3",
         "-k", "not test_server_run_with_repl", "tests"),
        variables={"SANIC_USE_UVLOOP": "false"},
        time_limit=1800,
    ),
    "python-engineio": Suite("src", ("--timeout=60", "tests/async")),
    # The project's own options need pytest-cov, and end the run at the first failure. The tests of
    # throttling replace sleeps by a sum of delays, to which they allow half a second of real time.
    "aioftp": Suite(
        "src",
        ("-p", "ecosystem_aioftp", "-o", "addopts=",
         "--import-mode=importlib", "--timeout=60", "--ignore=tests/test_throttle.py", "tests"),
    ),
    # The other modules make no loop, and spend their time on codecs.
    "aiortc": Suite(
        "src",
        (*NO_CONFIGURATION, "-p", "ecosystem_aiortc", "--timeout=300",
         *(f"tests/test_{name}.py" for name in
           ("contrib_media", "contrib_signaling", "mediastreams", "ortc", "rtcdtlstransport",
            "rtcicetransport", "rtcpeerconnection", "rtcrtpreceiver", "rtcrtpsender",
            "rtcrtptransceiver", "rtcsctptransport"))),
        time_limit=1800,
    ),
    # Suites of WSGI projects, whose clients call the application over a socket: of mgloop's server
    # over mgloop, of gunicorn's gthread worker over asyncio. Left out are tests of werkzeug's own
    # server, and modules that call no application.
    "werkzeug": over_sockets(
        "werkzeug", "tests/middleware",
        *(f"tests/test_{name}.py" for name in
          ("debug", "exceptions", "formparser", "send_file", "test", "utils", "wrappers", "wsgi")),
        leave_out="src",
    ),
    "flask": over_sockets("werkzeug", "tests", leave_out="src"),
    "webob": over_sockets(
        "webob",
        *(f"tests/test_{name}.py" for name in
          ("client", "dec", "exc", "request", "response", "static", "transcode")),
        leave_out="src",
    ),
    "bottle": over_sockets("bottle", *NO_CONFIGURATION, "test", leave_out=None),
    "whitenoise": over_sockets("whitenoise", "tests", leave_out="src"),
    "django": over_sockets(
        "django", *NO_CONFIGURATION, "-o", "python_files=test*.py",
        "tests/handlers", "tests/servers", "tests/wsgi",
        leave_out="django",
    ),
}  # fmt: skip


#: mgloop brings a pytest plugin, of no use here; sitecustomize imports mgloop before pytest can
#: rewrite the asserts of its distribution, and pytest's warning of that would be an error in these
#: suites.
PLUGIN_OPTIONS = (
    "-p",
    "no:mgloop",
    "-W",
    "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning",
)


class SuiteError(Exception):
    """The suite did not run, or ran on another loop."""


def _command(
    python: Path, suite: Suite, variables: Mapping[str, str], extra: list[str]
) -> list[str]:
    """Return the command that runs *suite*, with the *variables* of its server."""
    return [
        *(servers.as_ordinary_user() if suite.unprivileged else []),
        str(python),
        "-m",
        "pytest",
        "-q",
        "-p",
        "ecosystem_record",
        "--tb=short",
        *PLUGIN_OPTIONS,
        *([] if suite.cache else ["-p", "no:cacheprovider"]),
        *(argument.format_map(variables) for argument in suite.arguments),
        *extra,
    ]


def _run(
    python: Path,
    source: Path,
    suite: Suite,
    loop: str,
    extra: list[str],
    only: set[str] | None = None,
) -> tuple[dict[str, dict], str]:
    """Return the result of each test, or of each in *only*, and the name of the loops' class."""
    # A run that is ended may leave processes that still write there.
    with tempfile.TemporaryDirectory(prefix="eco-", ignore_cleanup_errors=True) as scratch:
        record, counts = Path(scratch, "record"), Path(scratch, "counts")
        # A file, because a process that outlives the run would keep a pipe open.
        output = Path(scratch, "output")
        environment = dict(os.environ)
        own = ("ADDOPTS", "PLUGINS", "XDIST_WORKER")
        for name in ("PYTHONASYNCIODEBUG", *(f"PYTEST_{name}" for name in own)):
            environment.pop(name, None)
        environment |= {
            "PYTHONPATH": str(HERE / "swap"),
            "PATH": f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}",
            "ECOSYSTEM_LOOP": LOOP_CLASSES[loop],
            "ECOSYSTEM_RECORD": str(record),
            "ECOSYSTEM_COUNTS": str(counts),
            **suite.variables,
        }
        if only is not None:
            wanted = Path(scratch, "only")
            wanted.write_text(json.dumps(sorted(only)))
            environment["ECOSYSTEM_ONLY"] = str(wanted)
        print(f"  over {loop} ...", flush=True)
        try:
            with suite.server() as variables, output.open("wb") as stdout:
                status = subprocess.run(
                    _command(python, suite, variables or {}, extra),
                    cwd=source,
                    env=environment | (variables or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=suite.time_limit,
                    # Sanic kills the process group of a worker that does not end.
                    process_group=0,
                ).returncode
        except subprocess.TimeoutExpired:
            said = output.read_text(errors="replace")
            raise SuiteError(
                f"pytest over {loop} did not end within {suite.time_limit} s:\n{said[-4000:]}"
            ) from None
        said = output.read_text(errors="replace")
        # 0 and 1 are pytest's statuses of complete runs: all tests passed, or some failed.
        if status not in (0, 1) or not record.exists():
            raise SuiteError(f"pytest over {loop} ended with {status}:\n{said[-4000:]}")
        counted = counts.read_text().splitlines() if counts.exists() else []
        outcomes = {}
        class_name = counted[0].split()[1].rpartition(".")[2] if counted else ""
        for line in record.read_text().splitlines():
            entry = json.loads(line)
            outcomes[entry["id"]] = entry
        made = sum(int(line.split()[2]) for line in counted)
        if not made:
            raise SuiteError(
                f"no process made a loop of {LOOP_CLASSES[loop]}: the swap did not take, or "
                f"there was no test:\n{said[-4000:]}"
            )
        tally = Counter(entry["outcome"] for entry in outcomes.values())
        print(
            f"  over {loop}: {dict(tally)}, {made} loops of {LOOP_CLASSES[loop]} made", flush=True
        )
        return outcomes, class_name


GOOD = ("passed", "xfailed")


def _reason(name: str, nodeid: str) -> str | None:
    """Return the reason why this test may fail over ours, or None."""
    lines = expectations.EXPECTED.get(name, ())
    return next((line.reason for line in lines if fnmatch.fnmatchcase(nodeid, line.pattern)), None)


def _worse(name: str, control: dict[str, dict], subject: dict[str, dict]) -> list[str]:
    """Return the tests that pass only on the standard library's loop, or fail only on mgloop."""
    return [
        nodeid
        for nodeid, entry in control.items()
        if entry["outcome"] in GOOD
        and subject.get(nodeid, {}).get("outcome") not in GOOD
        and _reason(name, nodeid) is None
    ] + [
        nodeid
        for nodeid, entry in subject.items()
        if nodeid not in control and entry["outcome"] == "failed"
    ]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f"    {lines[-1]}" if lines else ""


def compare(name: str, environments: Environments, extra: list[str]) -> tuple[bool, dict]:
    """Run the suite of *name* over both loops; True when nothing is worse over ours."""
    suite = SUITES[name]
    project = suite.project or name.removesuffix("-suite")
    python = environments.python(project)
    source = environments.source(project, suite.leave_out, suite.overlay)
    control, control_class = _run(python, source, suite, "asyncio", extra)
    subject, subject_class = _run(python, source, suite, environments.loop, extra)

    def as_in_control(outcomes: dict[str, dict]) -> dict[str, dict]:
        # An id made of the class of the default loop names the same test over any loop; one of a
        # header that is called so ("CDN-Loop") stays as it is.
        return {
            nodeid
            if nodeid in control
            else nodeid.replace(f"-{subject_class}]", f"-{control_class}]"): entry
            for nodeid, entry in outcomes.items()
        }

    subject = as_in_control(subject)
    unsteady = []
    if again := _worse(name, control, subject):
        print(f"  {len(again)} once more, with nothing beside them", flush=True)
        only = set(again) | {
            nodeid.replace(f"-{control_class}]", f"-{subject_class}]") for nodeid in again
        }
        for loop, outcomes in (("asyncio", control), (environments.loop, subject)):
            second = as_in_control(_run(python, source, suite, loop, extra, only)[0])
            for nodeid in again:
                first = outcomes.get(nodeid)
                if first and nodeid in second and first["outcome"] != second[nodeid]["outcome"]:
                    unsteady.append((nodeid, loop, first, second[nodeid]))
                    outcomes[nodeid] = second[nodeid]

    worse = [
        (nodeid, subject.get(nodeid, {"outcome": "missing", "text": "not run"}))
        for nodeid in _worse(name, control, subject)
    ]
    both = [
        nodeid
        for nodeid, entry in control.items()
        if entry["outcome"] == "failed" and subject.get(nodeid, {}).get("outcome") == "failed"
    ]
    expected = [
        (nodeid, reason)
        for nodeid, entry in control.items()
        if entry["outcome"] in GOOD
        and subject.get(nodeid, {}).get("outcome") not in GOOD
        and (reason := _reason(name, nodeid))
    ]
    better = [
        nodeid
        for nodeid, entry in control.items()
        if entry["outcome"] == "failed" and subject.get(nodeid, {}).get("outcome") in GOOD
    ]

    for nodeid, entry in worse:
        print(f"\n=== {entry['outcome'].upper()} {nodeid}\n{entry['text'][-3000:]}")
    for nodeid, loop, first, second in unsteady:
        print(
            f"  unsteady: {nodeid} over {loop}: {first['outcome']}, and {second['outcome']} alone"
            f"\n{_last_line(first['text'])}"
        )
    for nodeid, reason in expected:
        print(f"  expected to differ: {nodeid} ({reason})")
    for nodeid in both:
        print(f"  fails over both: {nodeid}")
        errors = [_last_line(outcomes[nodeid]["text"]) for outcomes in (control, subject)]
        print(*dict.fromkeys(errors), sep="\n")  # one line if the errors are the same
    for nodeid in better:
        print(f"  fails over the standard library's loop only: {nodeid}")
    ok = not worse
    summary = {
        "control": dict(Counter(entry["outcome"] for entry in control.values())),
        environments.loop: dict(Counter(entry["outcome"] for entry in subject.values())),
        "worse": [nodeid for nodeid, _ in worse],
        "expected": [nodeid for nodeid, _ in expected],
        "unsteady": [f"{nodeid} over {loop}" for nodeid, loop, *_ in unsteady],
        "fail over both": both,
        "fail over the standard loop only": better,
        "python": sys.version.split()[0],
    }
    print(
        f"{'ok' if ok else 'NOT OK'}: {name} over {environments.loop}: "
        f"{len(worse)} worse than over the standard library's loop, "
        f"{len(expected)} expected to differ, "
        f"{len(both)} fail over both, {len(better)} over the standard library's loop only, "
        f"{len(unsteady)} unsteady",
        flush=True,
    )
    return ok, summary
