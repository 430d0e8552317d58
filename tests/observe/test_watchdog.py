# SPDX-License-Identifier: GPL-2.0-only
"""The watchdog: it names the code that holds up a loop, and does not report a loop that runs."""

import asyncio
import ctypes
import gc
import logging
import math
import os
import re
import shutil
import sqlite3
import sys
import textwrap
import threading
import time

import pytest
import support

import mgloop
from mgloop._stdlib import has_gil
from mgloop.observe._stalls import StallDetector
from mgloop.observe.naming import coroutine_name
from mgloop.observe.watchdog import Watchdog

pytestmark = pytest.mark.mgloop_only

THRESHOLD = 0.1


class Stalls(list):
    """A callback that records its arguments."""

    def __call__(self, stall):
        self.append(stall)


@pytest.fixture
def stalls():
    return Stalls()


def watched(stalls, main, **options):
    """Run main() with a watchdog that reports to `stalls`."""

    async def outer():
        with mgloop.watchdog(THRESHOLD, callback=stalls, **options):
            await asyncio.sleep(0)  # starting the watchdog's thread has taken time, too
            await main()
            await asyncio.sleep(THRESHOLD)  # the report comes when the loop continues
        return asyncio.get_running_loop().stats()

    return mgloop.run(outer())


async def handler(seconds):
    time.sleep(seconds)


def test_a_callback_that_blocks_is_named_once(stalls):
    async def main():
        await handler(0.5)

    stats = watched(stalls, main)
    (stall,) = stalls
    assert stall.over
    assert stall.seconds > 0.35
    assert stats.stalls == 1
    sight = stall.sights[0]
    assert sight.after >= THRESHOLD
    assert [frame.name for frame in sight.stack][-2:] == ["main", "handler"]
    assert re.fullmatch(r"task 'Task-\d+' \(watched\.<locals>\.outer\)", sight.task)
    assert sight.doing == "a system call"
    text = str(stall)
    assert re.search(r"was blocked for 0\.\d+ s\n  after 0\.\d+ s, in a system call of task", text)
    assert "time.sleep(seconds)" in text


def test_python_code_that_runs(stalls):
    async def main():
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            sum(range(100))

    watched(stalls, main)
    (stall,) = stalls
    assert stall.sights
    assert stall.sights[0].stack[-1].name == "main"


def test_a_callback_and_its_handle(stalls):
    loop = mgloop.new_event_loop(timing=True)
    with Watchdog(THRESHOLD, loops=[loop], callback=stalls):
        loop.call_soon(time.sleep, 0.4)
        loop.call_later(0.6, loop.stop)
        loop.run_forever()
    loop.close()
    (stall,) = stalls
    assert stall.sights[0].task is None
    assert re.match(r"<Handle sleep\(", stall.sights[0].handle)


def test_a_repr_that_fails_is_not_the_end_of_it(stalls, caplog):
    class Odd:
        def __call__(self):
            time.sleep(0.5)

        def __repr__(self):
            raise LookupError("repr")

    loop = mgloop.new_event_loop(timing=True)
    with Watchdog(THRESHOLD, loops=[loop], callback=stalls):
        loop.call_soon(Odd())
        loop.call_later(0.7, time.sleep, 0.5)
        loop.call_later(1.4, loop.stop)
        loop.run_forever()
    loop.close()
    assert "LookupError: repr" in caplog.text
    assert [bool(stall.sights) for stall in stalls if stall.seconds > 0.35] == [False, True]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with CPython 3.12")
def test_a_task_that_ends_at_once(loop):
    """An ended task lacks a coroutine, and the watchdog may have read the task before its end."""

    async def at_once():
        pass

    async def main():
        return coroutine_name(asyncio.Task(at_once(), loop=loop, eager_start=True))

    assert loop.run_until_complete(main()) == "ended"


def test_many_short_callbacks_are_no_stall(stalls):
    async def main():
        with Watchdog(1, callback=stalls):
            for _ in range(300):
                asyncio.get_running_loop().call_soon(time.sleep, 0.005)
            await asyncio.sleep(0)

    mgloop.run(main())
    assert stalls == []


def test_a_loop_that_waits_is_no_stall(stalls):
    async def main():
        await asyncio.sleep(5 * THRESHOLD)

    watched(stalls, main)
    assert stalls == []


def test_native_code_that_keeps_the_gil(stalls):
    async def main():
        # Each further character doubles the time. Repeat it, because on a busy machine the
        # watchdog's thread may get no processor time during one call.
        count, long = 18, 0
        while long < 4:
            began = time.monotonic()
            re.match(r"(a+)+$", "a" * count + "b")
            if time.monotonic() - began > 0.5:
                long += 1
            else:
                count += 1
            await asyncio.sleep(0)

    watched(stalls, main)
    kept = "held the GIL" if has_gil() else "could not be stopped"
    assert any(f"native code {kept}" in str(stall) for stall in stalls)


@pytest.mark.skipif(not has_gil(), reason="a Python that always has its GIL")
def test_native_code_that_takes_the_gil_again_at_once(stalls):
    """The GIL is free only briefly between the calls, so the watchdog must not release it."""
    keeps_the_gil = ctypes.PyDLL(None).usleep

    async def main():
        await asyncio.sleep(0)
        keeps_the_gil(int(THRESHOLD * 1.4e6))
        keeps_the_gil(300_000)

    watched(stalls, main)
    (stall,) = stalls
    assert stall.sights, str(stall)
    assert stall.sights[0].stack[-1].name == "main"


def test_a_lock_of_sqlites(stalls, tmp_path):
    path = tmp_path / "base"
    with sqlite3.connect(path, isolation_level=None) as holder:
        holder.execute("create table t (x)")
        holder.execute("begin exclusive")
        waiter = sqlite3.connect(path, timeout=0.5)

        async def main():
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                waiter.execute("insert into t values (1)")

        watched(stalls, main)
        waiter.close()
        holder.execute("rollback")
    holder.close()
    (stall,) = stalls
    assert "insert into t" in stall.sights[0].stack[-1].line


def test_it_is_logged(caplog):
    async def main():
        with mgloop.watchdog(THRESHOLD):
            await handler(0.3)
            await asyncio.sleep(THRESHOLD)

    mgloop.run(main())
    (record,) = caplog.records
    assert record.name == "mgloop.watchdog"
    assert record.levelno == logging.WARNING
    assert "in handler" in record.getMessage()


def test_a_callback_of_the_watchdogs_that_fails(caplog):
    def fail(stall):
        raise ZeroDivisionError

    async def main():
        with mgloop.watchdog(THRESHOLD, callback=fail):
            for _ in range(2):
                await handler(0.3)
                await asyncio.sleep(THRESHOLD)

    mgloop.run(main())
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2


def test_a_stall_that_outlives_the_watchdog_is_reported(stalls):
    loop = mgloop.new_event_loop()
    entered, release = threading.Event(), threading.Event()
    loop.call_soon(lambda: (entered.set(), release.wait(support.PATIENCE)))
    loop.call_soon(loop.stop)
    thread = threading.Thread(target=loop.run_forever)
    with Watchdog(THRESHOLD, loops=[loop], callback=stalls):
        thread.start()
        entered.wait(support.PATIENCE)
        time.sleep(4 * THRESHOLD)
    release.set()
    thread.join()
    loop.close()
    (stall,) = stalls
    assert not stall.over
    assert "s and still is" in str(stall)


def test_several_loops_in_several_threads(stalls):
    loops = [mgloop.new_event_loop() for _ in range(3)]
    threads = [threading.Thread(target=loop.run_forever) for loop in loops]
    with Watchdog(THRESHOLD, loops=loops, callback=stalls):
        for thread in threads:
            thread.start()
        for loop in loops[:2]:
            loop.call_soon_threadsafe(time.sleep, 0.4)
        time.sleep(0.8)
        for loop, thread in zip(loops, threads, strict=True):
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
    assert {stall.loop for stall in stalls} == set(loops[:2])
    assert [loop.stats().stalls for loop in loops] == [1, 1, 0]
    for loop in loops:
        loop.close()


def test_a_loop_that_is_closed_while_it_is_watched(stalls):
    loop = mgloop.new_event_loop()
    with Watchdog(THRESHOLD, loops=[loop], callback=stalls):
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        time.sleep(2 * THRESHOLD)
    assert stalls == []


def test_a_last_stall_is_reported_when_watching_ends(loop, stalls):
    told = threading.Event()

    def note(stall):
        stalls.append(stall)
        told.set()

    async def hold_up():
        time.sleep(0.3)

    watchdog = Watchdog(0.05, loops=(), callback=note)
    watchdog.start()
    try:
        for count in (1, 2):
            with watchdog.watching(loop):
                loop.run_until_complete(hold_up())
            assert told.wait(support.PATIENCE)
            told.clear()
            assert len(stalls) == count
    finally:
        watchdog.stop()
    assert all(stall.over and 0.25 < stall.seconds < support.PATIENCE for stall in stalls)
    assert loop.stats().stalls == 2


def test_a_fork_while_the_watchdog_looks(in_child):
    """The child lacks the watchdog's thread, and must not inherit the locks that it held."""
    in_child("""
        import mgloop

        def fork():
            global pid, forks
            forks += 1
            if (pid := os.fork()) == 0:
                signal.alarm(10)
                raise SystemExit
            assert os.waitpid(pid, 0)[1] == 0
            loop.call_soon(fork if forks < most else loop.stop)

        # A fork takes 30 ms with AddressSanitizer.
        most = 200 if "libasan" in os.environ.get("LD_PRELOAD", "") else 600
        forks, pid = 0, None
        loop = new_loop()
        try:
            with mgloop.watchdog(threshold=1e-4, loops=[loop], callback=lambda stall: None):
                loop.call_soon(fork)
                loop.run_forever()
        except SystemExit:
            assert pid == 0
            os._exit(0)
        loop.close()
    """)


def test_one_watchdog_for_a_loop(loop, stalls):
    with Watchdog(THRESHOLD, loops=[loop], callback=stalls):
        with pytest.raises(RuntimeError, match="already has a watchdog"):
            Watchdog(THRESHOLD, loops=[loop]).start()
    with Watchdog(THRESHOLD, loops=[loop], callback=stalls):
        pass


def test_a_dropped_detector_leaves_its_loops_to_others(loop):
    """This also holds in a cycle, if the loop is cleared before the detector is freed."""
    StallDetector(THRESHOLD, THRESHOLD).add(loop)
    another = StallDetector(THRESHOLD, THRESHOLD)
    another.add(loop)
    del another
    StallDetector(THRESHOLD, THRESHOLD).add(loop)
    forgotten = mgloop.new_event_loop()
    forgotten.detector = StallDetector(THRESHOLD, THRESHOLD)
    forgotten.detector.add(forgotten)
    forgotten.close()
    del forgotten
    gc.collect()
    StallDetector(THRESHOLD, THRESHOLD).add(loop)


@pytest.mark.parametrize("threshold", [0, -1, math.nan, math.inf])
def test_bad_thresholds(threshold):
    with pytest.raises(ValueError, match="must be a positive number of seconds"):
        Watchdog(threshold)


def test_only_loops_of_mgloops():
    other = asyncio.SelectorEventLoop()
    with pytest.raises(TypeError, match="is not an mgloop"):
        Watchdog(loops=[other]).start()
    other.close()


def test_no_thread_is_left(loop):
    before = set(threading.enumerate())
    watchdog = Watchdog(loops=[loop])
    watchdog.start()
    with pytest.raises(RuntimeError, match="only be started once"):
        watchdog.start()
    watchdog.stop()
    watchdog.stop()
    assert set(threading.enumerate()) <= before


PROGRAM = """
import asyncio, logging, sys, time
import mgloop

logging.basicConfig(format="%(name)s %(message)s")

async def main():
    await asyncio.sleep(0)
    time.sleep(0.4)
    await asyncio.sleep(float(sys.argv[1]))

mgloop.install()
asyncio.run(main())
print("done")
"""


def run_program(value, goes_on=0.2):
    return support.finished(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), str(goes_on)],
        env=os.environ | {"MGLOOP_WATCHDOG": value},
    )


@pytest.mark.parametrize("goes_on", [0.2, 0])
def test_an_unchanged_program(goes_on):
    """The stall is reported even if the process ends with it."""
    done = run_program("0.1", goes_on)
    assert done.stdout == "done\n"
    assert re.search(r"mgloop\.watchdog .* was blocked for 0\.\d+ s", done.stderr)
    assert "time.sleep(0.4)" in done.stderr or "line 9, in main" in done.stderr


def test_the_import_of_an_application_by_the_server(tmp_path):
    """The import runs on the server's loop."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.5)\nraise ValueError('enough')\n")
    done = support.finished(
        [sys.executable, "-m", "mgloop", "serve", "slow:app", "--port", "0"],
        cwd=tmp_path,
        env=os.environ | {"MGLOOP_WATCHDOG": "0.1"},
    )
    assert done.returncode == 1
    assert "ValueError: enough" in done.stderr
    assert re.search(r"was blocked for 0\.\d+ s", done.stderr)
    assert re.search(r'slow\.py", line 2, in <module>', done.stderr)


@pytest.mark.parametrize("value", ["nan", "-1", "soon"])
def test_a_bad_threshold_in_the_environment_is_said_once(value):
    done = run_program(value)
    assert done.stdout == "done\n"
    assert done.stderr == (
        f"mgloop.watchdog Ignoring MGLOOP_WATCHDOG={value}: expected a positive number of seconds\n"
    )


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_an_idle_loop_stays_without_system_calls(tmp_path):
    log = tmp_path / "strace.log"
    program = """
        import asyncio, os
        import mgloop

        def mark(name):
            try:
                os.stat(name)
            except OSError:
                pass

        async def main():
            with mgloop.watchdog(0.05):
                await asyncio.sleep(0.5)
                mark("/begin-mark")
                await asyncio.sleep(3)
                mark("/end-mark")

        mgloop.run(main())
    """
    done = support.finished(
        ["strace", "-f", "-ttt", "-o", str(log), sys.executable, "-c", textwrap.dedent(program)],
        timeout=50,
    )
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=2) for line in log.read_text().splitlines()]
    calls = [(float(time), call) for _, time, call in lines]
    [begun] = [time for time, call in calls if "/begin-mark" in call]
    assert any("/end-mark" in call for _, call in calls)
    # The watchdog checks a few more times, until it sees that the loop waits.
    idle = [call for time, call in calls if begun + 1 < time < begun + 2.9]
    assert idle == []
