# SPDX-License-Identifier: GPL-2.0-only
"""Child processes: starting, writing to, reading from, signalling and waiting, without leaks."""

import asyncio
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings

import pytest
import support

PIPE = asyncio.subprocess.PIPE


@pytest.fixture(autouse=True)
def child_watcher(request):
    """Before 3.12 asyncio's own loop needs a child watcher attached to the current loop.

    The fixture also checks that no child remains, not even as a zombie.
    """
    before = support.children()
    if request.getfixturevalue("loop_kind") == "asyncio" and sys.version_info < (3, 12):
        with asyncio.ThreadedChildWatcher() as watcher:
            asyncio.get_event_loop_policy().set_child_watcher(watcher)
            yield
    else:
        yield
    assert support.children() <= before


def python(code):
    """Return the arguments that run `code` in a minimal, and therefore fast, interpreter."""
    return (sys.executable, "-I", "-S", "-c", code)


CAT = python("import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)")


async def exit_code(*args, **kwargs):
    process = await asyncio.create_subprocess_exec(*args, **kwargs)
    return await asyncio.wait_for(process.wait(), support.PATIENCE)


# --- starting and ending -------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7, 255])
async def test_exit_codes(loop, code):
    assert await exit_code("/bin/sh", "-c", f"exit {code}") == code


async def test_death_by_signal(loop):
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "kill -TERM $$")
    assert await process.wait() == -signal.SIGTERM
    assert process.returncode == -signal.SIGTERM
    assert await process.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("end", "signum"),
    [
        (lambda process: process.kill(), signal.SIGKILL),
        (lambda process: process.terminate(), signal.SIGTERM),
        (lambda process: process.send_signal(signal.SIGINT), signal.SIGINT),
        (lambda process: process.send_signal(signal.SIGUSR1), signal.SIGUSR1),
    ],
    ids=["kill", "terminate", "SIGINT", "SIGUSR1"],
)
async def test_signals(loop, end, signum):
    process = await asyncio.create_subprocess_exec("sleep", "1000")
    assert process.pid > 0
    assert process.returncode is None
    end(process)
    assert await asyncio.wait_for(process.wait(), support.PATIENCE) == -signum


async def test_signals_to_a_process_that_has_ended(loop):
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    await support.turns(5)
    for end in (process.kill, process.terminate):
        with pytest.raises(ProcessLookupError):
            end()


async def test_no_such_program(loop):
    before = support.open_fds()
    for kwargs in ({}, {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}):
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/no/such/program", **kwargs)
    with pytest.raises(PermissionError):
        await asyncio.create_subprocess_exec("/etc/passwd")
    with pytest.raises(FileNotFoundError):
        await asyncio.create_subprocess_exec("true", cwd="/no/such/directory")
    await support.turns(3)
    assert not support.fds_opened_since(before)


async def test_shell(loop):
    process = await asyncio.create_subprocess_shell("echo $((6 * 7)); exit 3", stdout=PIPE)
    out, err = await process.communicate()
    assert (out, err, process.returncode) == (b"42\n", None, 3)


async def test_arguments_directory_and_environment(loop, tmp_path):
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        'pwd; echo "$VARIABLE"; echo "$1"',
        "name",
        "an argument",
        cwd=tmp_path,
        env={"VARIABLE": "value"},
        stdout=PIPE,
    )
    out, _ = await process.communicate()
    assert out.decode().splitlines() == [str(tmp_path), "value", "an argument"]


async def test_start_new_session_and_pass_fds(loop):
    read_end, write_end = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *python(f"import os; os.write({write_end}, b'passed'); print(os.getsid(0))"),
        start_new_session=True,
        pass_fds=(write_end,),
        stdout=PIPE,
    )
    out, _ = await process.communicate()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b"passed"
    assert int(out) == process.pid


@pytest.mark.parametrize(
    "kwargs",
    [{"universal_newlines": True}, {"shell": True}, {"bufsize": 1}, {"text": True}],
    ids=str,
)
async def test_arguments_that_make_no_sense(loop, kwargs):
    with pytest.raises(ValueError, match="must be"):
        await loop.subprocess_exec(asyncio.SubprocessProtocol, "true", **kwargs)


async def test_the_program_must_be_text(loop):
    with pytest.raises(TypeError):
        await loop.subprocess_exec(asyncio.SubprocessProtocol, 5)
    with pytest.raises(ValueError, match="cmd must be a string"):
        await loop.subprocess_shell(asyncio.SubprocessProtocol, ["true"])


# --- pipes ---------------------------------------------------------------------------------------


async def test_communicate(loop):
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", "cat; echo problem >&2", stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert await process.communicate(b"input") == (b"input", b"problem\n")
    assert process.returncode == 0


async def test_communicate_24_megabytes(loop):
    """Input and output run concurrently: neither pipe may block the other."""
    message = support.pattern(24_000_000)
    process = await asyncio.create_subprocess_exec(*CAT, stdin=PIPE, stdout=PIPE)
    out, _ = await asyncio.wait_for(process.communicate(message), 50)
    assert out == message
    assert process.returncode == 0


async def test_line_by_line(loop):
    process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
    for number in range(50):
        process.stdin.write(b"%d\n" % number)
        await process.stdin.drain()
        assert await process.stdout.readline() == b"%d\n" % number
    process.stdin.close()
    assert await process.stdout.read() == b""
    assert await process.wait() == 0


async def test_input_that_the_child_does_not_want(loop, reported):
    """The child ends, or closes its input: a broken pipe is not a failure of the parent."""
    process = await asyncio.create_subprocess_exec("true", stdin=PIPE)
    await process.communicate(bytes(1_000_000))
    assert process.returncode == 0
    await support.turns()
    del process
    gc.collect()
    if not support.COMMUNICATE_IS_SILENT:
        # asyncio's own code leaves one future that is never awaited, on every loop.
        for context in reported.pop_all():
            assert context["message"] == "Future exception was never retrieved"
            assert isinstance(context["exception"], BrokenPipeError)


async def test_output_after_the_end_is_not_lost(loop):
    """The child has ended long before its output is read."""
    process = await asyncio.create_subprocess_exec("/bin/echo", "parting words", stdout=PIPE)
    await process.wait()
    await asyncio.sleep(0.05)
    assert await process.stdout.read() == b"parting words\n"


async def test_stdout_shared_with_stderr_and_devnull(loop):
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        "cat; echo out; echo err >&2",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, err = await process.communicate()
    assert out == b"out\nerr\n"
    assert err is None


async def test_a_grandchild_that_keeps_the_pipe_open(loop):
    """wait() does not wait for the end of the pipes."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", "sleep 1000 & echo $!", stdout=PIPE
    )
    grandchild = int(await process.stdout.readline())
    try:
        await support.wait_until(lambda: process.returncode is not None)
        assert process.returncode == 0
    finally:
        os.kill(grandchild, signal.SIGKILL)
    assert await process.stdout.read() == b""


async def test_a_terminal_as_standard_streams(loop):
    """pty: the parent's end is read with connect_read_pipe()."""
    parent, child = os.openpty()
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", "test -t 0 && echo a terminal", stdin=child, stdout=child, stderr=child
    )
    os.close(child)
    reader = asyncio.StreamReader()
    with os.fdopen(parent, "rb", 0) as file:
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        assert await reader.readline() == b"a terminal\r\n"
        assert await process.wait() == 0
        # The end of a terminal is EIO on Linux.
        with pytest.raises(OSError, match="Input/output") as info:
            await asyncio.wait_for(reader.read(), support.PATIENCE)
        assert info.value.errno == errno.EIO
        transport.close()
        await support.turns(3)


# --- the transport and its protocol --------------------------------------------------------------


class Witness(asyncio.SubprocessProtocol):
    def __init__(self, loop):
        self.events = []
        self.output = b""
        self.done = loop.create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def pipe_data_received(self, fd, data):
        self.output += data

    def pipe_connection_lost(self, fd, exc):
        self.events.append(f"pipe {fd} lost")

    def process_exited(self):
        self.events.append("exited")

    def connection_lost(self, exc):
        self.events.append("lost")
        self.done.set_result(exc)


async def test_transport(loop):
    transport, protocol = await loop.subprocess_exec(lambda: Witness(loop), "cat")
    assert isinstance(transport, asyncio.SubprocessTransport)
    assert protocol.transport is transport
    assert transport.get_pid() > 0
    assert transport.get_returncode() is None
    assert isinstance(transport.get_pipe_transport(0), asyncio.WriteTransport)
    assert isinstance(transport.get_pipe_transport(1), asyncio.ReadTransport)
    assert transport.get_pipe_transport(5) is None
    assert isinstance(transport.get_extra_info("subprocess"), subprocess.Popen)
    transport.get_pipe_transport(0).write(b"meow")
    transport.get_pipe_transport(0).close()
    assert await protocol.done is None
    assert protocol.output == b"meow"
    assert protocol.events[0] == "made"
    assert protocol.events[-1] == "lost"
    assert sorted(protocol.events[1:-1]) == ["exited", "pipe 0 lost", "pipe 1 lost", "pipe 2 lost"]
    assert transport.get_returncode() == 0
    transport.close()


async def test_closing_the_transport_kills(loop):
    transport, protocol = await loop.subprocess_exec(lambda: Witness(loop), "sleep", "1000")
    transport.close()
    assert transport.is_closing()
    await asyncio.wait_for(protocol.done, support.PATIENCE)
    assert transport.get_returncode() == -signal.SIGKILL


async def test_cancelling_wait_leaves_the_child_alone(loop):
    process = await asyncio.create_subprocess_exec("sleep", "1000")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), 0.05)
    assert process.returncode is None
    process.kill()
    assert await process.wait() == -signal.SIGKILL


# --- the process as a whole ----------------------------------------------------------------------


async def test_many_at_once(loop):
    async def one(number):
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", f"cat; exit {number % 100}", stdin=PIPE, stdout=PIPE
        )
        out, _ = await process.communicate(b"%d" % number)
        assert (out, process.returncode) == (b"%d" % number, number % 100)

    await asyncio.gather(*(one(number) for number in range(60)))


async def test_nothing_is_left_behind(loop):
    await exit_code("true")
    before = support.open_fds()
    for _ in range(20):
        process = await asyncio.create_subprocess_exec("true", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        await process.communicate()
    await support.turns(5)
    assert not support.fds_opened_since(before)


@pytest.mark.mgloop_only
async def test_no_handler_and_no_thread_is_taken(loop):
    """SIGCHLD remains the application's: its handler, and its own children."""
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    threads = set(threading.enumerate())
    process = await asyncio.create_subprocess_exec("sleep", "1000")
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    assert set(threading.enumerate()) <= threads
    own = subprocess.Popen(["true"])
    assert await loop.run_in_executor(None, own.wait) == 0
    assert process.returncode is None
    process.kill()
    assert await process.wait() == -signal.SIGKILL


async def test_a_handler_for_sigchld_works_beside(loop):
    rung = asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, rung.set)
    assert await exit_code("/bin/sh", "-c", "exit 5") == 5
    await asyncio.wait_for(rung.wait(), support.PATIENCE)
    assert loop.remove_signal_handler(signal.SIGCHLD)


async def test_a_child_reaped_by_somebody_else(loop, caplog):
    """Its status is lost: asyncio reports 255, and logs a warning."""
    process = await asyncio.create_subprocess_exec("sleep", "1000")
    process.kill()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            os.waitpid(process.pid, 0)
        except ChildProcessError:
            pytest.skip("the loop was faster")
        code = await asyncio.wait_for(process.wait(), support.PATIENCE)
    assert code in (255, -signal.SIGKILL)


def test_children_in_a_thread(in_child):
    """A loop outside the main thread runs subprocesses, too."""
    out, err = in_child("""
        async def main():
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", "echo from a thread", stdout=-1
            )
            out, _ = await process.communicate()
            print(out.decode().strip(), process.returncode)

        thread = threading.Thread(target=run, args=(main(),))
        thread.start()
        thread.join()
    """)
    assert out == "from a thread 0\n", err
