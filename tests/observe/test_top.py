# SPDX-License-Identifier: GPL-2.0-only
"""`python -m mgloop.top` with a process that works at a known rate."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import termios

import pytest
import support

from mgloop import top
from mgloop.observe import monitor, rates

pytestmark = pytest.mark.mgloop_only

PROGRAM = """
import asyncio, os, socket, threading
import mgloop

async def ticks():
    while True:
        await asyncio.sleep(0.01)

async def main(connected):
    task = asyncio.create_task(ticks())
    left, right = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=left)
    other, back = await asyncio.open_connection(sock=right)
    connected()
    while True:
        writer.write(bytes(1000))
        await other.readexactly(1000)
        await asyncio.sleep(0.01)

thread = threading.Thread(
    target=mgloop.run, args=(main(lambda: None),), name="the second", daemon=True)
thread.start()
mgloop.run(main(lambda: print("runs", flush=True)), timing=True)
"""


@contextlib.contextmanager
def monitored(code, folder):
    """Run `code` until it has written "runs"; yield (process, path of its monitor)."""
    path = folder / "monitor"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"MGLOOP_MONITOR": str(path)}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "runs\n"
            yield process, path
        finally:
            process.kill()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Yield (process, path of its monitor): two loops, the first with timing."""
    with monitored(PROGRAM, tmp_path_factory.mktemp("top")) as found:
        yield found


def run_top(*arguments, returncode=0):
    done = support.finished([sys.executable, "-m", "mgloop.top", *map(str, arguments)])
    assert done.returncode == returncode, done.stderr
    return done.stdout, done.stderr


@contextlib.contextmanager
def watching(whose):
    """Run the command; yield it after its first line."""
    with subprocess.Popen(
        [sys.executable, "-m", "mgloop.top", str(whose), "--json", "--interval", "0.1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        json.loads(command.stdout.readline())
        yield command


@pytest.mark.parametrize("by", ["pid", "path"])
def test_as_json(program, by):
    process, path = program
    whose = process.pid if by == "pid" else path
    out, errors = run_top(whose, "--json", "--count", 2, "--interval", 0.5)
    assert errors == ""
    first, last = map(json.loads, out.splitlines())
    for told in first, last:
        assert told["pid"] == process.pid
        loops = {loop["thread"]: loop for loop in told["loops"]}
        assert set(loops) == {"MainThread", "the second"}
        for loop in loops.values():
            assert loop["seconds"] >= 0.5
            assert loop["callbacks"] > 0
            # The rate depends on the machine. It equals the sent rate, except for a message
            # that was in transit when either sample was taken.
            assert loop["received"] > 0
            assert round(abs(loop["received"] - loop["sent"]) * loop["seconds"]) <= 1000
            # At most every 10 ms: the span may contain one more, and one may leave during sampling.
            most = 100 + 2 / loop["seconds"]
            assert 0 < loop["sent"] <= 1000 * most
            assert loop["connections"] == 2
            assert loop["tasks"] == {"main": 1, "ticks": 1}
            assert loop["cpu"] >= 0
        assert loops["the second"]["busy"] is loops["the second"]["top"] is None
        measured = loops["MainThread"]
        assert 0 < measured["busy"] < 1
        assert 0 < measured["lag_p50"] <= measured["lag_p99"] <= measured["lag_max"]
        assert {"main", "ticks", "turns of StreamReaderProtocol"} <= set(measured["top"])
        assert measured["top"]["ticks"]["rate"] <= 100 + 2 / measured["seconds"]
        shares = [entry["share"] for entry in measured["top"].values()]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(measured["busy"], abs=0.5)


def test_the_screen(program):
    pytest.importorskip("rich")
    process, _ = program
    out, errors = run_top(process.pid, "--count", 1, "--interval", 0.3)
    assert errors == ""
    assert f"mgloop {process.pid}" in out
    for text in ("MainThread", "the second", "lag p50", "turns of StreamReaderProtocol", "ticks"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("width", [60, 80, 200])
def test_headings_are_whole(program, width, monkeypatch, capsys):
    """This also holds at 60 columns, with more tables."""
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", str(width))
    assert top.main([str(program[1]), "--count", "1", "--interval", "0.1"]) == 0
    out = capsys.readouterr().out
    words = re.sub(r"\s+", " ", out)
    for name in top._COLUMNS:
        assert f" {name} " in words, out
    assert max(map(len, out.splitlines())) <= width


LOADED = """
import asyncio, os, socket
import mgloop

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
        if self.sends:
            transport.write(b"x")
    def data_received(self, data):
        self.transport.write(data)

async def main():
    loop = asyncio.get_running_loop()
    ends = [type("End", (Echo,), {"sends": sends}) for sends in (False, True)]
    for end, sock in zip(ends, socket.socketpair()):
        await loop.connect_accepted_socket(end, sock)
    print("runs", flush=True)
    await asyncio.Event().wait()

mgloop.run(main())
"""


def test_transports_that_run_no_callback_are_calls(tmp_path):
    """A loop that only serves transports runs no handle, but serves descriptors."""
    with monitored(LOADED, tmp_path) as (_, path):
        out, _ = run_top(path, "--json", "--count", 1, "--interval", 0.3)
    (loop,) = json.loads(out)["loops"]
    assert loop["events"] > 10 * max(loop["callbacks"], 1)


SUPERVISOR = """
import subprocess, sys
import mgloop

async def main():
    program = [sys.executable, "-c", sys.argv[1]]
    workers = [subprocess.Popen(program, stdout=subprocess.PIPE) for _ in range(2)]
    for worker in workers:
        worker.stdout.readline()
    print(*(worker.pid for worker in workers), flush=True)
    sys.stdin.readline()
    for worker in workers:
        worker.kill()
        worker.wait()
        worker.stdout.close()

mgloop.run(main())
"""


@pytest.mark.parametrize("setting", ["directory", "path"])
def test_all_processes_of_a_supervisor(tmp_path, setting):
    """The workers have the supervisor's environment, and a monitor each."""
    path = tmp_path if setting == "directory" else tmp_path / "monitor"
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, PROGRAM],
        env=os.environ | {"MGLOOP_MONITOR": str(path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        pids = {process.pid, *map(int, process.stdout.readline().split())}
        out, _ = run_top(process.pid, "--json", "--count", 1, "--interval", 0.1)
        assert {json.loads(line)["pid"] for line in out.splitlines()} == pids
        if importlib.util.find_spec("rich"):
            out, _ = run_top(process.pid, "--count", 1, "--interval", 0.1)
            assert all(f"{pid} MainThread" in out for pid in pids)
        process.communicate("\n", support.PATIENCE)


def test_q_quits(program):
    pytest.importorskip("rich")
    ours, theirs = os.openpty()
    before = termios.tcgetattr(theirs)
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "mgloop.top", str(program[1]), "--interval", "0.1"],
            stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as command:  # fmt: skip
            os.write(ours, b"xq")
            _, errors = command.communicate(timeout=support.PATIENCE)
        assert (command.returncode, errors) == (0, "")
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_picture_of_it(program, tmp_path):
    pytest.importorskip("rich")
    out, _ = run_top(program[1], "--svg", tmp_path / "top.svg", "--interval", 0.3)
    assert out == ""
    svg = (tmp_path / "top.svg").read_text()
    assert svg.startswith("<svg")
    assert "font-face" not in svg
    assert "MainThread" in svg


def test_a_picture_that_cannot_be_written(program):
    pytest.importorskip("rich")
    options = ["--svg", "/nowhere/top.svg", "--interval", 0.1]
    _, errors = run_top(program[1], *options, returncode=1)
    assert errors == "mgloop.top: /nowhere/top.svg: No such file or directory\n"


def test_it_ends_quietly_when_interrupted(program):
    with watching(program[0].pid) as command:
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=support.PATIENCE)
    assert (command.returncode, errors) == (0, "")


def test_output_without_a_reader(program):
    with watching(program[0].pid) as command:
        command.stdout.close()
        assert command.wait(support.PATIENCE) == 0
        assert command.stderr.read() == ""


def test_the_process_ends_meanwhile(tmp_path):
    with monitored(PROGRAM, tmp_path) as (process, path), watching(path) as command:
        process.kill()
        process.wait()
        _, errors = command.communicate(timeout=support.PATIENCE)
    assert command.returncode == 1
    assert re.fullmatch(
        r"mgloop.top: .*(cannot connect to a monitor|is not an mgloop monitor).*\n", errors
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--interval", "nan"], "must be at least 0.01"),
        (["--interval", "0"], "must be at least 0.01"),
        (["--interval", "soon"], "invalid"),
        (["--count", "0"], "must be at least 1"),
        (["--colour"], "unrecognized arguments"),
    ],
)
def test_bad_options(arguments, says):
    _, errors = run_top(1, *arguments, returncode=2)
    assert says in errors
    assert len(errors.splitlines()) == 1


@pytest.fixture
def sleeping():
    """Yield a process without a monitor."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize("whose", [2**30, "sleeping", "/nowhere", "/etc/passwd", ""])
def test_nobody_there(whose, request):
    if whose == "sleeping":
        whose = request.getfixturevalue("sleeping")
    _, errors = run_top(whose, "--json", returncode=1)
    assert errors.startswith("mgloop.top: ")
    assert len(errors.splitlines()) == 1


def test_without_rich(program, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert top.main([str(program[1])]) == 1
    assert capsys.readouterr().err.startswith(
        "mgloop.top: the screen requires rich: pip install 'mgloop"
    )


def test_another_loop_where_the_former_was(program):
    """Its counters are smaller, so it is reported as a new loop."""
    report = monitor.ask(program[1])
    (told, *_) = report.loops
    older = told.stats.delta(told.stats)  # all 0
    (fresh,) = rates.between(
        monitor.Report(1, "", "", [told]),
        monitor.Report(1, "", "", [monitor.LoopReport(told.id, "new", older, {}, {})]),
    )
    assert fresh.callbacks == 0
    assert fresh.sent == 0
