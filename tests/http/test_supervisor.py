# SPDX-License-Identifier: GPL-2.0-only
"""Workers under the supervisor: started, replaced, recycled, ended; and --reload.

test_under_load.py replaces them while clients send requests.
"""

import asyncio
import errno
import os
import re
import signal

import pytest
from commands import (
    APPLICATION,
    PATIENCE,
    WSGI_APPLICATION,
    Command,
    fails,
    get,
    pending,
    serve,
    wait_gone,
    write_app,
)

from mgloop.http import Config, StartError
from mgloop.http.process.supervisor import Supervisor, WorkerError, supervise

pytestmark = pytest.mark.timeout(4 * PATIENCE)


@pytest.fixture(params=[APPLICATION, WSGI_APPLICATION], ids=["asgi", "wsgi"])
def application(request, tmp_path):
    """Return the source of an ASGI or a WSGI application, which is in the test's folder."""
    write_app(tmp_path, request.param)
    return request.param


class Supervised(Command):
    """`mgloop serve main:app` with workers, after all of them are ready.

    It must stop with status 0 at the end, unless it has ended before.
    """

    def __init__(self, *arguments, cwd, workers=2):
        arguments = ["serve", "main:app", "--port", 0, "--workers", workers, *arguments]
        super().__init__(*arguments, cwd=cwd)
        self.workers = [self.ready()]
        self.address = self.url()
        self.workers += [self.ready() for _ in range(workers - 1)]

    def __exit__(self, *exc_info):
        try:
            if exc_info[0] is None and self.process.poll() is None:
                assert self.stop() == 0
        finally:
            super().__exit__(*exc_info)

    def ready(self):
        """Wait until a worker is ready; return its process id."""
        return int(self.wait_for(r"Worker \[(\d+)\] is ready")[1])


def answering(url, wanted):
    """Send requests until each process in `wanted` has answered; no other process may answer."""
    missing = set(wanted)
    for _ in range(1000):
        pid = int(get(url))
        assert pid in wanted, f"{pid} answered, which is none of {wanted}"
        missing.discard(pid)
        if not missing:
            return
    raise AssertionError(f"{missing} have answered none of 1000 requests")


def test_workers_share_an_address(application, tmp_path):
    with Supervised(cwd=tmp_path, workers=3) as command:
        assert len(set(command.workers)) == 3
        answering(command.address, command.workers)
    assert command.output.count("the application has shut down") == 3


def test_workers_share_a_unix_socket(folder):
    path = folder / "a.sock"
    with serve(folder, "--uds", path, "--workers", 2) as command:
        url = command.url()
        workers = {int(pid) for pid in (get(url), get(url))}
        assert command.pid not in workers
        assert command.stop() == 0
    assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_lets_requests_finish(folder, number):
    with Supervised(cwd=folder) as command:
        with pending(command.address, "/gate") as answer:
            command.wait_for("in the gate")
            # Ctrl-C at a terminal and an init system send the signal to all processes.
            os.killpg(command.pid, number)
            command.wait_for("the application has shut down")  # of the worker without a request
            assert command.process.poll() is None
            os.killpg(command.pid, signal.SIGINT)
            if number == signal.SIGTERM:
                command.wait_for("CTRL[+]C to force quit")
                os.killpg(command.pid, signal.SIGTERM)  # ignored
                os.killpg(command.pid, signal.SIGINT)
            assert command.end() == 0
            with pytest.raises((ConnectionError, OSError)):
                answer()
    # That was the supervisor's second SIGINT: it cancels requests, and applications shut down.
    assert command.output.count("the application has shut down") == 2
    assert "the gate was cancelled" in command.output  # the line may be mixed with another worker's


def test_a_worker_signalled_twice_still_finishes_its_request(folder):
    write_app(
        folder,
        APPLICATION.replace(
            'print(f"in the gate of {os.getpid()}", flush=True)', "await signalled()"
        )
        + """
async def signalled():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10):
        await asyncio.sleep(0)
    GATE.set()
""",
    )
    with Supervised(cwd=folder) as command:
        assert int(get(command.address, "/gate")) in command.workers
        command.wait_for(r"Worker \[\d+\] exited with status 0; starting a replacement")
        command.ready()


def test_a_killed_worker_is_replaced_and_the_reason_said(application, tmp_path):
    with Supervised(cwd=tmp_path) as command:
        victim, other = command.workers
        os.kill(victim, signal.SIGKILL)
        command.wait_for(rf"Worker \[{victim}\] was terminated by SIGKILL; starting a replacement")
        successor = command.ready()
        answering(command.address, {other, successor})
        # The supervisor waits before it replaces a worker that ended soon after its start.
        os.kill(successor, signal.SIGKILL)
        command.wait_for(rf"Worker \[{successor}\] was terminated by SIGKILL")
        command.wait_for(r"Starting the next worker in 0\.5 seconds")
        answering(command.address, {other, command.ready()})


def test_an_application_that_cannot_start_is_said_once(tmp_path):
    write_app(tmp_path, "import not_installed")
    arguments = ["serve", "main:app", "--port", 0, "--workers", 3]
    lines = fails(*arguments, cwd=tmp_path, status=1)
    text = "\n".join(lines)
    assert text.count("ModuleNotFoundError: No module named 'not_installed'") == 2
    assert "Worker failed to boot." in lines[-1]


def test_sighup_brings_new_code_and_lets_old_requests_finish(application, tmp_path):
    with Supervised(cwd=tmp_path) as command:
        with pending(command.address, "/gate") as answer:
            gatekeeper = int(command.wait_for(r"in the gate of (\d+)")[1])
            write_app(tmp_path, application.replace('body = b"%d"', 'body = b"new %d"'))
            command.send(signal.SIGHUP)
            command.wait_for("Shutting down")
            command.wait_for("Shutting down")  # only the new workers listen
            assert get(command.address).startswith("new")
            # The worker of that request drains, and ends after its request.
            os.kill(gatekeeper, signal.SIGUSR1)
            assert answer() == (200, str(gatekeeper))
            wait_gone(gatekeeper)


def test_sighup_with_broken_code_keeps_the_old_workers(folder):
    with Supervised(cwd=folder) as command:
        write_app(folder, "app = 1 / 0")
        command.send(signal.SIGHUP)
        command.wait_for("ZeroDivisionError")
        command.wait_for(r"Worker \[\d+\] exited with status 1 before it was ready")
        command.wait_for("keeping the remaining workers")
        answering(command.address, command.workers)


def test_a_worker_at_its_memory_limit_is_replaced(folder):
    with Supervised("--limit-max-memory", "1M", cwd=folder) as command:
        command.wait_for(r"reached limit_max_memory \(\d+ MiB in use\)")
        command.ready()
        get(command.address)


def test_a_process_that_a_worker_has_forked_does_not_delay_the_shutdown(folder):
    """The forked process inherits the worker's socket to the supervisor, and lives on."""
    forking = """await receive()
        if os.fork() == 0:
            os.close(1)
            os.close(2)
            signal.pause()"""
    write_app(folder, APPLICATION.replace("await receive()", forking, 1))
    with Supervised(cwd=folder) as command:
        os.kill(command.workers[0], signal.SIGKILL)
        command.wait_for("was terminated by SIGKILL; starting a replacement")
        command.ready()


# SIGSEGV is left out because sanitizers handle it.
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_workers_end_when_the_supervisor_dies(folder, number):
    with Supervised(cwd=folder) as command:
        command.send(number)
        assert command.process.wait(PATIENCE) == -number
        for pid in command.workers:
            wait_gone(pid)
        command.wait_for("Supervisor exited; shutting down worker")


def test_a_stuck_worker_ends_when_the_supervisor_dies(folder):
    with Supervised("--timeout-graceful-shutdown", 0.2, cwd=folder) as command:
        with pending(command.address, "/stuck"):
            command.send(signal.SIGKILL)
            for pid in command.workers:
                wait_gone(pid)


def test_a_stuck_worker_is_replaced_if_so_wanted(folder):
    with Supervised("--timeout-worker-healthcheck", 4, cwd=folder) as command:
        with pending(command.address, "/stuck"):
            command.wait_for("its event loop has been unresponsive for 4 seconds")
            command.wait_for("was terminated by SIGKILL; starting a replacement")
            command.ready()


def test_a_third_sigint_kills(folder):
    with Supervised(cwd=folder) as command:
        with pending(command.address, "/stuck"):
            command.send(signal.SIGINT)
            command.wait_for("the application has shut down")  # the other worker
            command.send(signal.SIGINT)
            command.wait_for("Forcing shutdown")
            command.send(signal.SIGINT)
            assert command.end() == 0


def held_start(number):
    """Return an application whose start with that number waits for the file "go"."""
    starting = f"""await receive()
        with open("starts", "a+") as starts:
            print("start", file=starts, flush=True)
            starts.seek(0)
            number = len(starts.readlines())
        print("start", number, flush=True)
        while number == {number} and not os.path.exists("go"):
            await asyncio.sleep(0.01)"""
    return APPLICATION.replace("await receive()", starting, 1)


@pytest.mark.parametrize("held", [1, 2])
def test_a_sighup_counts_for_a_worker_that_is_starting(folder, held):
    """The first or the second worker has read the old code when SIGHUP arrives."""
    old = held_start(held)
    write_app(folder, old)
    with serve(folder, "--workers", 2) as command:
        command.wait_for(f"start {held}")
        write_app(folder, old.replace('body = b"%d"', 'body = b"new %d"'))
        command.send(signal.SIGHUP)
        if held == 2:  # when it is the second one's turn
            command.wait_for("Received SIGHUP, restarting workers")
            command.wait_for("is ready")
        (folder / "go").touch()
        command.wait_for("All workers have been restarted")
        while command.output.count("the application has shut down") < 2:
            command.wait_for("the application has shut down")
        url = re.search(r"Serving on (\S+)", command.output)[1]
        assert all(get(url).startswith("new") for _ in range(50))
        assert command.stop() == 0


def test_a_sighup_counts_for_the_successor_of_a_worker_at_its_limit(folder):
    """The successor has read the old code, too, and is replaced once, not twice."""
    old = held_start(3)
    write_app(folder, old)
    with Supervised("--limit-max-requests", 5, cwd=folder) as command:
        answers = [get(command.address)]
        while answers.count(answers[-1]) < 5:
            answers.append(get(command.address))
        command.wait_for("start 3")
        write_app(folder, old.replace('body = b"%d"', 'body = b"new %d"'))
        command.send(signal.SIGHUP)
        command.wait_for("Received SIGHUP, restarting workers")
        (folder / "go").touch()
        command.wait_for("All workers have been restarted")
        while command.output.count("the application has shut down") < 3:
            command.wait_for("the application has shut down")
        assert get(command.address).startswith("new")
        assert command.output.count("is ready") == 5


@pytest.mark.parametrize("options", [["-OO", "-BEsu", "-Xdev", "-Xanything=1"], ["-I"]])
def test_workers_run_with_the_options_of_the_interpreter(tmp_path, options):
    told = """
        import sys

        async def app(scope, receive, send):
            seen = [*sys.flags, sorted(sys._xoptions.items()), sys.stdout.write_through]
            body = ascii(seen).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
        """
    write_app(tmp_path, told)
    bodies = []
    for workers in (1, 2):
        # Both run with -P, which workers use in any case.
        arguments = ("--workers", workers, "--lifespan", "off")
        with serve(tmp_path, *arguments, options=["-P", *options]) as command:
            bodies.append(get(command.url()))
            assert command.stop() == 0
    assert bodies[0] == bodies[1]


def test_threads_in_workers(folder):
    with Supervised("--threads", 2, cwd=folder) as command:
        answering(command.address, command.workers)
    assert command.output.count("the application has shut down") == 4


@pytest.mark.parametrize("options", [{"workers": 2}, {"reload": True}])
def test_that_the_first_worker_cannot_be_started_is_one_line(monkeypatch, options):
    async def refused(*_args, **_options):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    with pytest.raises(StartError, match="cannot start a worker: Resource temporarily"):
        supervise(Config(app="main:app", port=0, **options))


def test_a_signal_that_also_ends_the_first_worker_is_no_failure(monkeypatch):
    """An init system sends it to all processes, and a worker cannot handle it yet."""

    async def ended(supervisor, _number):
        os.kill(os.getpid(), signal.SIGTERM)
        await supervisor._stopping.wait()
        raise WorkerError(signal.SIGTERM)

    monkeypatch.setattr(Supervisor, "_start", ended)
    supervise(Config(app="main:app", port=0, workers=2))


# --- reload --------------------------------------------------------------------------------------


@pytest.fixture(params=["watchfiles", "looking"])
def reload_options(request, folder):
    """Return the options, with watchfiles if it is installed, and without."""
    if request.param == "watchfiles":
        pytest.importorskip("watchfiles")
    else:
        write_app(folder, "raise ImportError", name="watchfiles.py")
    return ("--reload", "--reload-delay", 0.05)


def test_changed_code_is_served_and_broken_code_waited_with(folder, reload_options):
    with serve(folder, *reload_options) as command:
        url = command.url()
        assert not get(url).startswith("new")
        write_app(folder, APPLICATION.replace('body = b"%d"', 'body = b"new %d"'))
        command.wait_for(r"Detected changes in 'main\.py'")
        command.wait_for("is ready")
        assert get(url).startswith("new")

        write_app(folder, "app = 1 / 0")
        command.wait_for("ZeroDivisionError")
        command.wait_for("waiting for a file to change")

        (folder / "notes.txt").write_text("not watched")
        (folder / ".hidden.py").write_text("not watched")
        write_app(folder)
        assert command.wait_for(r"Detected changes in '(\S+)'")[1] == "main.py"
        command.wait_for("is ready")
        get(url)
        assert command.stop(signal.SIGINT) == 0


def test_a_reload_does_not_wait_for_requests_that_do_not_end(folder, reload_options):
    with serve(folder, *reload_options, "--timeout-graceful-shutdown", 0.1) as command:
        url = command.url()
        with pending(url, "/gate"):
            command.wait_for("in the gate")
            write_app(folder, APPLICATION.replace('body = b"%d"', 'body = b"new %d"'))
            command.wait_for("the gate was cancelled")
            command.wait_for("is ready")
            assert get(url).startswith("new")
        assert command.stop() == 0


def test_a_change_ends_a_start_up_that_stands_still(folder, reload_options):
    standing = 'print("standing still", flush=True)\n        await asyncio.Event().wait()'
    write_app(folder, APPLICATION.replace("await receive()", standing, 1))
    with serve(folder, *reload_options) as command:
        command.wait_for("standing still")
        write_app(folder)
        command.wait_for(r"Detected changes in 'main\.py'")
        get(command.url())
        assert command.stop() == 0


def test_limits_replace_no_worker_while_files_are_watched(folder, reload_options):
    limits = ("--limit-max-requests", 1, "--limit-max-memory", "1M")
    with serve(folder, *reload_options, *limits) as command:
        url = command.url()
        assert get(url) == get(url)
        assert command.stop() == 0
    assert "Replacing worker" not in command.output


def test_a_folder_to_watch_that_is_not_there_is_one_line(folder, reload_options):
    options = (*reload_options, "--reload-dir", "nowhere")
    lines = fails("serve", "main:app", "--port", 0, *options, cwd=folder, status=1)
    assert "nowhere: no such directory" in lines[-1]
