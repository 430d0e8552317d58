# SPDX-License-Identifier: GPL-2.0-only
"""Child processes when something is exhausted or ends too early: descriptors, the loop, the caller.

In no case may a descriptor or a zombie remain. The ordinary use of child processes is in
test_subprocess.py.
"""

import asyncio
import contextlib
import gc
import os
import signal
import threading
import warnings

import pytest
import support
from test_subprocess import PIPE, child_watcher, exit_code

__all__ = ["child_watcher"]  # a fixture


async def test_a_hundred_megabytes_both_ways(loop):
    """`cat`, whose output has to be read while its input is still being written."""
    data = os.urandom(1 << 20) * 100
    process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
    out, _ = await process.communicate(data)
    assert out == data
    assert process.returncode == 0


@support.needs_popen_that_cleans_up
def test_too_few_descriptors(in_child):
    """With 0, 1, 2 ... free descriptors it either works or raises EMFILE, without leaks."""
    out, err = in_child("""
        import errno, resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

        async def start():
            process = await asyncio.create_subprocess_exec("true", stdin=-1, stdout=-1, stderr=-1)
            await process.communicate()
            return process.returncode

        async def main():
            assert await start() == 0
            await asyncio.sleep(0.01)
            descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))
            # The last one is that of the listing itself.
            held = descriptors[:-1]
            outcomes = []
            for spare in range(12):
                # Fill the gaps, so that exactly `spare` numbers are free below the limit.
                filler = []
                while (fd := os.dup(0)) < held[-1]:
                    filler.append(fd)
                os.close(fd)
                resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 + spare, hard))
                try:
                    outcomes.append(await start())
                except OSError as exc:
                    assert exc.errno == errno.EMFILE, exc
                    outcomes.append("EMFILE")
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                    for fd in filler:
                        os.close(fd)
                await asyncio.sleep(0.01)
                after = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
                assert after == held, (spare, held, after)
                try:
                    pid, _ = os.waitpid(-1, os.WNOHANG)
                    raise AssertionError(f"a child is left: {pid}")
                except ChildProcessError:
                    pass
            print(outcomes)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(main())
    """)
    outcomes = eval(out)
    assert set(outcomes) == {"EMFILE", 0}, err
    # The outcomes are monotonic: if it works with some descriptors, it works with more.
    assert outcomes == sorted(outcomes, key=lambda outcome: outcome == 0)


@pytest.mark.mgloop_only
@pytest.mark.parametrize("failure", [OSError, PermissionError])
async def test_without_pidfd_a_thread_waits(loop, monkeypatch, failure):
    def refused(pid, flags=0):
        raise failure

    monkeypatch.setattr(os, "pidfd_open", refused)
    before = set(threading.enumerate())
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "read x; exit 3", stdin=PIPE)
    assert len(set(threading.enumerate()) - before) == 1
    process.stdin.write(b"go\n")
    assert await asyncio.wait_for(process.wait(), support.PATIENCE) == 3
    await support.wait_until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.mgloop_only
async def test_the_waiting_thread_leaves_the_reaping_to_the_loop(loop, monkeypatch):
    """Until the loop knows of a child's end, its pid must remain valid, because it may be used."""

    def refused(pid, flags=0):
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refused)
    before = set(threading.enumerate())
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "read x; exit 3", stdin=PIPE)
    process.stdin.write(b"go\n")
    support.eventually(lambda: set(threading.enumerate()) <= before)  # while the loop is blocked
    assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    assert await asyncio.wait_for(process.wait(), support.PATIENCE) == 3


@pytest.mark.mgloop_only
def test_without_pidfd_and_without_wake_up(loop_factory, monkeypatch):
    def refused(pid, flags=0):
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", refused)
    loop = loop_factory(enable_wakeup=False)
    before = support.children()
    with pytest.raises(RuntimeError, match="created with enable_wakeup=False"):
        loop.run_until_complete(asyncio.create_subprocess_exec("sleep", "1000"))
    loop.run_until_complete(support.turns(3))
    # The loop cannot notice the child's end, so it has killed and reaped the child.
    assert support.children() <= before
    loop.close()


@pytest.mark.mgloop_only
def test_the_loop_is_closed_while_a_child_runs(loop_factory):
    before = support.open_fds()
    loop = loop_factory()
    process = loop.run_until_complete(asyncio.create_subprocess_exec("sleep", "1000"))
    loop.close()
    assert not support.fds_opened_since(before)
    os.kill(process.pid, 0)  # it is still alive
    pid = process.pid
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del process
        gc.collect()
    # asyncio's transport and subprocess.Popen: nothing of mgloop's own.
    messages = sorted(str(warning.message) for warning in caught)
    assert len(messages) == 2, messages
    assert messages[0] == f"subprocess {pid} is still running"
    assert messages[1].startswith("unclosed transport <_UnixSubprocessTransport")
    # Collecting its transport has killed it, as with asyncio; it only has to be reaped, unless the
    # destructor of Popen ran late enough to do so.
    with contextlib.suppress(ChildProcessError):
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


async def test_cancelled_while_being_started(loop):
    """The child is killed and reaped before the cancellation is passed on."""
    await exit_code("true")
    before = support.open_fds()
    for turns in range(4):
        task = loop.create_task(
            asyncio.create_subprocess_exec("sleep", "1000", stdin=PIPE, stdout=PIPE)
        )
        await support.turns(turns)
        if task.done():
            task.result().kill()
            await task.result().wait()
            continue
        await support.cancel(task)
    await support.turns(5)
    assert not support.fds_opened_since(before)


@pytest.mark.parametrize("action", ["kill", "terminate", "signal"])
async def test_signals_at_each_stage(loop, loop_kind, action):
    """A signal to a child that ended but was not waited for is ignored; afterwards it raises."""
    act = {
        "kill": lambda process: process.kill(),
        "terminate": lambda process: process.terminate(),
        "signal": lambda process: process.send_signal(signal.SIGUSR1),
    }[action]
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "read x", stdin=PIPE)
    process.stdin.write(b"go\n")
    # The loop gets no chance to notice. (Before 3.12 asyncio has a thread that may notice.)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    act(process)
    code = await asyncio.wait_for(process.wait(), support.PATIENCE)
    # Before 3.13 the call asks Popen, which reaps the child, and asyncio does not know the status.
    assert code == 0 or (loop_kind == "asyncio" and code == 255)
    await support.turns(3)
    with pytest.raises(ProcessLookupError):
        act(process)


async def test_a_program_that_cannot_be_executed(loop, tmp_path):
    text = tmp_path / "text"
    text.write_text("not a program")
    await exit_code("true")
    before = support.open_fds()
    cases = [(tmp_path / "absent", FileNotFoundError), (text, PermissionError)]
    for program, expected in cases:
        with pytest.raises(expected):
            await asyncio.create_subprocess_exec(str(program), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    text.chmod(0o755)
    with pytest.raises(OSError, match="Exec format error"):
        await asyncio.create_subprocess_exec(str(text), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    with pytest.raises(FileNotFoundError):
        await asyncio.create_subprocess_exec("true", cwd=tmp_path / "absent")
    await support.turns(3)
    assert not support.fds_opened_since(before)


async def test_no_warnings_when_everything_is_closed(loop):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
            assert await process.communicate(b"x") == (b"x", None)
        await support.turns(3)
        del process
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
