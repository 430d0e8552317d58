# SPDX-License-Identifier: GPL-2.0-only
"""`python -m mgloop.top`, of a process that works at a known rate."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

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


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """(process, path of its monitor): two loops, the first with timing."""
    path = tmp_path_factory.mktemp("top") / "monitor"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"MGLOOP_MONITOR": str(path)}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "runs\n"
        yield process, path
        process.kill()


def run_top(*arguments, returncode=0):
    done = subprocess.run(
        [sys.executable, "-m", "mgloop.top", *map(str, arguments)],
        capture_output=True, text=True, timeout=support.PATIENCE,
    )  # fmt: skip
    assert done.returncode == returncode, done.stderr
    return done.stdout, done.stderr


@contextlib.contextmanager
def watching(whose):
    """The command, after its first line."""
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
            # As fast as the machine lets it, and as much as was sent, but for a message that was
            # on its way when either sample was taken.
            assert loop["received"] > 0
            assert round(abs(loop["received"] - loop["sent"]) * loop["seconds"]) <= 1000
            # At most every 10 ms: one more may be in the span, and one leave while it is sampled.
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


def test_nobody_reads_it(program):
    with watching(program[0].pid) as command:
        command.stdout.close()
        assert command.wait(support.PATIENCE) == 0
        assert command.stderr.read() == ""


def test_the_process_ends_meanwhile(tmp_path):
    path = tmp_path / "monitor"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"MGLOOP_MONITOR": str(path)}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "runs\n"
        with watching(path) as command:
            process.kill()
            process.wait()
            _, errors = command.communicate(timeout=support.PATIENCE)
    assert command.returncode == 1
    assert re.fullmatch(r"mgloop.top: .*: (no monitor answers|this is no monitor).*\n", errors)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--interval", "nan"], "not a time"),
        (["--interval", "0"], "not a time"),
        (["--interval", "soon"], "invalid"),
        (["--count", "0"], "less than 1"),
        (["--colour"], "unrecognized arguments"),
    ],
)
def test_bad_options(arguments, says):
    _, errors = run_top(1, *arguments, returncode=2)
    assert says in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("whose", [2**30, os.getppid(), "/nowhere", "/etc/passwd", ""])
def test_nobody_there(whose):
    _, errors = run_top(whose, "--json", returncode=1)
    assert errors.startswith("mgloop.top: ")
    assert len(errors.splitlines()) == 1


def test_without_rich(program, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert top.main([str(program[1])]) == 1
    assert capsys.readouterr().err.startswith("mgloop.top: the screen needs rich: install mgloop")


def test_another_loop_where_the_former_was(program):
    """Its numbers are less: it is told as a new one."""
    report = monitor.ask(program[1])
    (told, *_) = report.loops
    older = told.stats.delta(told.stats)  # all 0
    (fresh,) = rates.between(
        monitor.Report(1, "", "", [told]),
        monitor.Report(1, "", "", [monitor.LoopReport(told.id, "new", older, {}, {})]),
    )
    assert fresh.callbacks == 0
    assert fresh.sent == 0
