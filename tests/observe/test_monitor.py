# SPDX-License-Identifier: GPL-2.0-only
"""mgloop.monitor(): it reports the values of stats(), and answers only the same user."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading

import pytest
import support

import mgloop
from mgloop.observe import monitor
from mgloop.observe.monitor import MonitorError

pytestmark = pytest.mark.mgloop_only


@pytest.fixture
def path(tmp_path):
    return tmp_path / "monitor"


def report_of(report, loop):
    (found,) = [told for told in report.loops if told.id == id(loop)]
    return found


def test_it_tells_what_stats_says(path):
    loop = mgloop.new_event_loop(timing=True)
    loop.call_later(1000, int)
    for _ in range(5):
        loop.call_soon(int)
    loop.call_soon(loop.stop)
    loop.run_forever()
    with mgloop.monitor(path):
        told = report_of(monitor.ask(path), loop)
    here = loop.stats()
    assert told.stats.seconds <= here.seconds
    assert told.stats.delta(here).callbacks == 0
    assert told.stats.timers_pending == here.timers_pending == 1
    assert told.stats.durations == here.durations
    assert told.callbacks == loop.callback_times()
    assert told.callbacks["int"].times == 5
    assert told.thread is None
    assert told.tasks == {}
    loop.close()


def test_tasks_by_their_coroutine(path):
    async def waits():
        await asyncio.Event().wait()

    async def main():
        tasks = [asyncio.create_task(waits()) for _ in range(3)]
        await asyncio.sleep(0)
        report = await asyncio.to_thread(monitor.ask, path)
        for task in tasks:
            task.cancel()
        return report_of(report, asyncio.get_running_loop())

    with mgloop.monitor(path):
        told = mgloop.run(main())
    assert told.tasks == {waits.__qualname__: 3, main.__qualname__: 1}
    assert told.thread == "MainThread"


def test_each_loop_of_the_process(path):
    loops = [mgloop.new_event_loop() for _ in range(3)]
    threads = [
        threading.Thread(target=loop.run_forever, name=f"runs {i}") for i, loop in enumerate(loops)
    ]
    for thread in threads:
        thread.start()
    with mgloop.monitor(path):
        loops[2].call_soon_threadsafe(loops[2].stop)
        threads[2].join()
        report = monitor.ask(path)
        assert [report_of(report, loop).thread for loop in loops] == ["runs 0", "runs 1", None]
        loops[2].close()
        assert id(loops[2]) not in [loop.id for loop in monitor.ask(path).loops]
    for loop, thread in zip(loops[:2], threads[:2], strict=True):
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_of_the_process(path):
    with mgloop.monitor(path):
        report = monitor.ask(path)
        assert monitor.find(os.getpid()) == str(path)
    assert report.pid == os.getpid()
    assert report.python == sys.version.split()[0]
    assert report.program == " ".join(sys.orig_argv)


# --- the socket ----------------------------------------------------------------------------------


def test_nobody_else_may_connect_and_it_goes_away(path):
    before = set(threading.enumerate())
    watcher = mgloop.monitor(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(path.stat().st_mode)
    watcher.close()
    watcher.close()
    assert not path.exists()
    assert set(threading.enumerate()) <= before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_other_users_are_refused_though_they_can_connect():
    with tempfile.TemporaryDirectory() as folder, mgloop.monitor(folder) as watcher:
        os.chmod(folder, 0o755)
        os.chmod(watcher.path, 0o666)
        code = (
            "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX);"
            "s.connect(sys.argv[1]); print(s.recv(100))"
        )
        done = support.finished([sys.executable, "-c", code, watcher.path], timeout=20)
        assert (done.stdout, done.stderr) == ("b''\n", "")
        assert monitor.ask(watcher.path).pid == os.getpid()


def test_an_idle_client_does_not_block_others(path):
    with mgloop.monitor(path), socket.socket(socket.AF_UNIX) as idle:
        idle.connect(os.fspath(path))
        assert monitor.ask(path).pid == os.getpid()


def test_a_directory_has_one_of_each_process(tmp_path):
    with mgloop.monitor(tmp_path) as watcher:
        assert watcher.path == f"{tmp_path}/mgloop-{os.getpid()}.sock"
        assert monitor.ask(watcher.path).pid == os.getpid()


@pytest.mark.parametrize("path", ["", "\0abstract", "a\0b", "/nowhere/at/all", "/tmp/" + "a" * 200])
def test_paths_where_none_can_be(path):
    fds, threads = support.open_fds(), set(threading.enumerate())
    with pytest.raises(MonitorError, match="cannot create a monitor at"):
        mgloop.monitor(path)
    with pytest.raises(MonitorError, match="cannot connect to a monitor"):
        monitor.ask(path)
    assert not support.fds_opened_since(fds)
    assert set(threading.enumerate()) <= threads


def test_an_existing_file_is_not_replaced(path):
    path.write_text("mine")
    with pytest.raises(MonitorError, match="Address already in use"):
        mgloop.monitor(path)
    assert path.read_text() == "mine"
    path.unlink()
    with mgloop.monitor(path):
        with pytest.raises(MonitorError, match="Address already in use"):
            mgloop.monitor(path)
        assert monitor.ask(path).pid == os.getpid()


def test_the_socket_of_a_dead_process_is_replaced(path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.fspath(path))
    with pytest.raises(MonitorError, match="Connection refused"):
        monitor.ask(path)
    with mgloop.monitor(path):
        assert monitor.ask(path).pid == os.getpid()


def test_a_successors_socket_is_not_removed(path):
    watcher = mgloop.monitor(path)
    path.unlink()
    with mgloop.monitor(path):
        watcher.close()
        assert monitor.ask(path).pid == os.getpid()


def test_a_forked_child_lets_go_of_it(path):
    with mgloop.monitor(path):
        reading, writing = os.pipe()
        child = support.fork()
        if child == 0:
            os.read(reading, 1)
            os._exit(0)
        path_of_child = monitor.find(os.getpid())
        with pytest.raises(MonitorError, match="has no monitor"):
            monitor.find(child)
    with pytest.raises(MonitorError):
        monitor.ask(path_of_child)  # raises without waiting, although the child lives
    os.write(writing, b"x")
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)


# --- sockets of other programs -------------------------------------------------------------------


def answering(path, answer):
    """Listen as another program would, and send `answer` to every client."""

    def serve():
        connection, _ = server.accept()
        with connection:
            connection.sendall(answer)

    server = socket.socket(socket.AF_UNIX)
    server.bind(os.fspath(path))
    server.listen()
    return server, support.in_thread(serve)


@pytest.mark.parametrize(
    "answer",
    [b"", b"hello", b"[]", b"{}", b'{"mgloop": "9.9"}', b"\xff\xfe",
     b'{"mgloop": "9.9", "format": 1, "pid": 1, "program": "", "python": "", "loops": [{}]}'],
)  # fmt: skip
def test_others_that_answer(path, answer):
    server, thread = answering(path, answer)
    with (
        server,
        thread,
        pytest.raises(MonitorError, match=r"is a monitor|is not an mgloop|cannot connect"),
    ):
        monitor.ask(path)


def test_fields_that_are_not_known(path):
    told = monitor.document()
    loop = mgloop.new_event_loop()
    told = json.loads(json.dumps(monitor.document()))
    told["loops"][-1]["stats"]["new"] = 1
    server, thread = answering(path, json.dumps(told).encode())
    with server, thread, pytest.raises(MonitorError, match=r"of mgloop \d"):
        monitor.ask(path)
    loop.close()


def test_processes_without_one():
    with pytest.raises(MonitorError, match="has no monitor: start it with MGLOOP_MONITOR"):
        monitor.find(os.getppid())
    with pytest.raises(MonitorError, match="cannot inspect process"):
        monitor.find(2**30)


# --- unchanged programs --------------------------------------------------------------------------

PROGRAM = """
import asyncio
import mgloop

async def main():
    print("runs", flush=True)
    await asyncio.to_thread(input)

mgloop.install()
asyncio.run(main())
asyncio.run(asyncio.sleep(0))
print("done")
"""


def started(value):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env=os.environ | {"MGLOOP_MONITOR": os.fspath(value)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_an_unchanged_program(path):
    with started(path) as program:
        assert program.stdout.readline() == "runs\n"
        assert monitor.find(program.pid) == str(path)
        assert [loop.tasks for loop in monitor.ask(path).loops] == [{"main": 1}]
        assert program.communicate("\n", support.PATIENCE) == ("done\n", "")
    assert not path.exists()


def test_a_program_that_is_killed_leaves_a_socket_that_the_next_replaces(path):
    with started(path) as program:
        assert program.stdout.readline() == "runs\n"
        program.send_signal(signal.SIGKILL)
        program.communicate()
    assert path.exists()
    with started(path) as program:
        assert program.stdout.readline() == "runs\n"
        assert monitor.ask(path).pid == program.pid
        program.communicate("\n", support.PATIENCE)


def test_a_bad_path_in_the_environment_is_said_once(tmp_path):
    with started(tmp_path / "no" / "folder") as program:
        out, errors = program.communicate("\n", support.PATIENCE)
    assert out == "runs\ndone\n"
    assert errors.count(": No such file or directory") == 1
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("setting", ["MGLOOP_MONITOR", "MGLOOP_WATCHDOG"])
def test_no_thread_can_be_started(setting, path):
    """As at the interpreter's end, or at a limit of the system: the program continues."""
    code = """
        def refuse(thread):
            raise RuntimeError("can't start new thread")

        threading.Thread.start = refuse
        for _ in range(2):
            run(asyncio.sleep(0.01))
        print("done")
    """
    value = os.fspath(path) if setting == "MGLOOP_MONITOR" else "0.1"
    out, errors = support.run_python("mgloop", code, env={setting: value})
    assert out == "done\n"
    assert errors.count("can't start new thread") == 1
    assert not path.exists()
