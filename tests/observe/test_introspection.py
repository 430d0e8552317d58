# SPDX-License-Identifier: GPL-2.0-only
"""The standard library's tools for a running program show on mgloop what they show on asyncio.

docs/howto/introspection.md describes these tools, and others that are not tested here.
"""

import asyncio
import signal
import sys

import pytest
import support

needs_call_graphs = pytest.mark.skipif(
    not hasattr(asyncio, "capture_call_graph"), reason="call graphs came with CPython 3.14"
)

#: Two tasks in a group, for which a third one waits.
WAITING = """
async def leaf():
    while True:
        await asyncio.sleep(0.02)

async def branch():
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf(), name="leaf 1")
        group.create_task(leaf(), name="leaf 2")

async def root():
    task = asyncio.create_task(branch(), name="branch")
    await asyncio.sleep(0.1)
    {then}
    await task

run(root())
"""


def inspect_from_outside(pid, command):
    """Return the output of `python -m asyncio COMMAND PID`."""
    done = support.finished([sys.executable, "-m", "asyncio", command, str(pid)])
    if "PermissionError" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("this machine does not let a process read the memory of another")
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_call_graphs
def test_tasks_of_a_process(loop_kind):
    program = WAITING.format(then='print("ready")')
    with support.Program(loop_kind, program) as process:
        process.expect("ready")
        table = inspect_from_outside(process.process.pid, "ps")
        tree = inspect_from_outside(process.process.pid, "pstree")
    rows = {
        name: line for line in table.splitlines() for name in ("leaf 1", "leaf 2") if name in line
    }
    assert set(rows) == {"leaf 1", "leaf 2"}
    assert all("leaf" in row and "branch" in row for row in rows.values())
    assert [line.split("(T) ")[1] for line in tree.splitlines() if "(T)" in line] == [
        "Task-1",
        "branch",
        "leaf 1",
        "leaf 2",
    ]


@needs_call_graphs
def test_call_graph_of_a_task(loop_kind):
    show = """
def show():
    task = next(task for task in asyncio.all_tasks(loop) if task.get_name() == "leaf 1")
    graph = asyncio.capture_call_graph(task)
    while graph is not None:
        names = [entry.frame.f_code.co_name for entry in graph.call_stack]
        print(graph.future.get_name(), names[-1], flush=True)
        graph = graph.awaited_by[0] if graph.awaited_by else None
    os._exit(0)
"""
    # The callback runs when root() waits for its task.
    then = "global loop; loop = asyncio.get_running_loop(); loop.call_soon(show)"
    out, _ = support.run_python(loop_kind, show + WAITING.format(then=then))
    assert out.splitlines() == ["leaf 1 leaf", "branch branch", "Task-1 root"]


@pytest.mark.skipif(not hasattr(sys, "remote_exec"), reason="remote_exec() came with CPython 3.14")
def test_code_that_another_process_injects(loop_kind, tmp_path):
    script = tmp_path / "injected.py"
    script.write_text("""
import asyncio
loop = asyncio.get_running_loop()
print(*sorted(task.get_name() for task in asyncio.all_tasks(loop)), sep=", ", flush=True)
""")
    with support.Program(loop_kind, WAITING.format(then='print("ready")')) as process:
        process.expect("ready")
        try:
            sys.remote_exec(process.process.pid, str(script))
        except PermissionError:
            pytest.skip("this machine does not let a process write to the memory of another")
        process.expect("Task-1, branch, leaf 1, leaf 2")


def test_stack_of_a_blocked_loop(loop_kind):
    """faulthandler writes it from a thread of its own."""
    out, _ = support.run_python(
        loop_kind,
        """
        import faulthandler, tempfile
        from pathlib import Path

        def stack():
            return Path(file.name).read_text()

        async def stuck():
            while "in main" not in stack().partition("in stuck")[2]:
                time.sleep(0.01)

        async def main():
            faulthandler.dump_traceback_later(0.05, repeat=True, file=file)
            await stuck()
            faulthandler.cancel_dump_traceback_later()

        with tempfile.NamedTemporaryFile() as file:
            run(main())
        print("seen")
        """,
    )
    assert out == "seen\n"


def test_stack_of_a_waiting_loop(loop_kind):
    program = """
import faulthandler
faulthandler.register(signal.SIGUSR1, chain=False)

async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR2, loop.stop)
    print("ready")
    await loop.create_future()

try:
    run(main())
except RuntimeError:
    print("stopped")
"""
    with support.Program(loop_kind, program) as process:
        process.expect("ready")
        process.signal(signal.SIGUSR1)
        stack = [process.process.stderr.readline()]
        while "<module>" not in stack[-1]:
            stack.append(process.process.stderr.readline())
        assert any("in run_forever" in line for line in stack)
        process.signal(signal.SIGUSR2)
        process.expect("stopped")


@pytest.mark.parametrize("tool", ["settrace", "setprofile"])
def test_functions_that_a_tracer_sees(loop_kind, tool):
    """Coverage, debuggers and profilers depend on these two."""
    out, _ = support.run_python(
        loop_kind,
        """
        seen = set()

        def tracer(frame, event, argument):
            seen.add(frame.f_code.co_qualname)
            return tracer

        class Greeting(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport

            def data_received(self, data):
                self.transport.close()

            def connection_lost(self, error):
                done.set_result(None)

        def callback():
            pass

        async def in_task():
            await asyncio.sleep(0)

        async def main():
            global done
            loop = asyncio.get_running_loop()
            done = loop.create_future()
            loop.call_soon(callback)
            ours, theirs = socket.socketpair()
            await loop.create_connection(Greeting, sock=ours)
            theirs.send(b"data")
            await asyncio.create_task(in_task())
            await done
            theirs.close()

        sys.TOOL(tracer)
        run(main())
        sys.TOOL(None)
        print(*sorted(seen & {"callback", "in_task", "main", *(
            f"Greeting.{name}" for name in ("connection_made", "data_received", "connection_lost")
        )}))
        """.replace("TOOL", tool),
    )
    assert out.split() == [
        "Greeting.connection_lost",
        "Greeting.connection_made",
        "Greeting.data_received",
        "callback",
        "in_task",
        "main",
    ]
