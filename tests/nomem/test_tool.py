# SPDX-License-Identifier: GPL-2.0-only
"""Programs survive that they run out of memory; and the tool that shows it knows how a run ends."""

import asyncio
import re
import signal
import sys
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from tests.nomem import __main__ as command_line  # noqa: E402
from tests.nomem import programs, worker  # noqa: E402

needs_testcapi = pytest.mark.skipif(
    worker._testcapi is None, reason="this interpreter has no _testcapi"
)


# CPython makes 16 MemoryErrors beforehand. This holds them all, and needs another.
NO_MEMORY_ERRORS_LEFT = """
import _testcapi

held = [MemoryError() for _ in range(40)]
try:
    raise ValueError
except ValueError:
    _testcapi.set_nomemory(0, 0)
    [0] * 1000
"""


NO_MEMORY_FOR_TLS = """
import faulthandler, ssl
from tests.nomem import worker

def connect():
    return context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")

faulthandler.enable()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
connections = [connect()] * 10_000
shortage = worker.AddressSpace(1 << 19)
shortage.begin()
try:
    for number in range(len(connections)):
        connections[number] = connect()
except (MemoryError, ssl.SSLError):
    shortage.end()
"""


# asyncio's tasks without an event loop of asyncio or of mgloop. The loop finds no memory for the
# wake-up of the task, which has a file, and which is cancelled later.
NO_MEMORY_FOR_A_WAKE_UP = """
import asyncio, gc, os

class Loop:
    calls, short = [], False

    def call_soon(self, callback, *arguments, context=None):
        if self.short:
            raise MemoryError
        self.calls.append((callback, arguments))

    def get_debug(self):
        return False

    def call_exception_handler(self, context):
        pass

def run_calls():
    while loop.calls:
        callback, arguments = loop.calls.pop(0)
        callback(*arguments)

async def wait(file):
    with file:
        await woken

loop = Loop()
asyncio._set_running_loop(loop)
woken = asyncio.Future(loop=loop)
file = open(os.devnull, "rb", 0)
task = asyncio.Task(wait(file), loop=loop)
run_calls()
loop.short = True
try:
    woken.set_result(None)
except MemoryError:
    loop.short = False
task.cancel()
run_calls()
print(woken.done(), task.done(), file.closed)
"""


def run_python(*arguments):
    return support.finished([sys.executable, *arguments], cwd=ROOT, timeout=50)


def judge(met="", status=0, **answer):
    usual = {"how": "success", "reports": [], "left": [], "used": 0}
    return worker._judge(usual | answer, status, met, "").how


class TestJudgement:
    @pytest.mark.parametrize(
        ("word", "met", "answer"),
        [
            ("success", "", {}),
            ("MemoryError", "", {"how": "MemoryError", "reports": ["MemoryError"]}),
            ("MemoryError", "told: ToldError()", {}),
            ("hang", "hang", {}),
            ("hang", "", {"how": "hang"}),
            ("leak", "", {"left": ["socket:[1]"]}),
            ("broken", "", {"how": "MemoryError", "reports": ["SystemError"]}),
            ("wrong data", "wrong data", {}),
        ],
    )
    def test_word(self, word, met, answer):
        assert judge(met, **answer) == word

    def test_death(self):
        assert worker._judge(None, signal.SIGSEGV, "", "").how == "crash"
        assert worker._judge(None, signal.SIGKILL, "", "").how == "hang"
        said = (
            "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7 (most recent call first):"
        )
        said += '\n  File "/python3.11/ssl.py", line 870 in _create\n'
        assert worker._judge(None, signal.SIGSEGV, "", said).how == "crash of Python"
        said = said.replace("in _create", "in read") + '  File "ssl.py", line 870 in _create\n'
        assert worker._judge(None, signal.SIGSEGV, "", said).how == "crash"

    @needs_testcapi
    @pytest.mark.skipif(sys.version_info >= (3, 12), reason="CPython 3.12 does not recurse")
    def test_memory_errors_run_out(self):
        done = run_python("-c", NO_MEMORY_ERRORS_LEFT)
        assert done.returncode == -signal.SIGABRT
        assert worker._judge(None, signal.SIGABRT, "", done.stderr).how == "crash of Python"

    def test_a_task_that_cannot_be_woken_never_ends(self):
        """There is no event loop in the program. The tool lets another task end the coroutine."""
        done = run_python("-W", "ignore", "-c", NO_MEMORY_FOR_A_WAKE_UP)
        assert done.stdout.split() == ["True", "False", "False"], done.stderr

    def test_the_coroutine_of_such_a_task_ends(self):
        loop = asyncio.new_event_loop()
        call_soon, woken, ended = loop.call_soon, loop.create_future(), []

        def fail(*_, **__):
            raise MemoryError

        async def wait():
            try:
                await woken
            finally:
                ended.append(True)

        task = loop.create_task(wait())
        loop.run_until_complete(asyncio.sleep(0))
        loop.call_soon = fail
        with pytest.raises(MemoryError):
            woken.set_result(None)
        loop.call_soon = call_soon
        worker._end_tasks(loop)
        loop.close()
        assert ended
        assert not task.done()
        task._log_destroy_pending = False

    def test_a_tls_connection_without_memory(self):
        """There is no event loop in the program, and CPython 3.11 to 3.13 crash."""
        done = run_python("-c", NO_MEMORY_FOR_TLS)
        if done.returncode:
            assert done.returncode == -signal.SIGSEGV, done.stderr
            assert worker._judge(None, signal.SIGSEGV, "", done.stderr).how == "crash of Python"

    def test_worse(self):
        def outcomes(over_asyncio, over_mgloop):
            return {
                command_line.Run("tcp", "asyncio", "one", 1): {"how": over_asyncio},
                command_line.Run("tcp", "mgloop", "one", 2): {"how": over_mgloop},
            }

        assert not command_line.worse(outcomes("success", "MemoryError"))
        assert not command_line.worse(outcomes("leak", "leak"))
        assert command_line.worse(outcomes("leak", "hang"))
        assert command_line.worse(outcomes("MemoryError", "crash"))


def run_tool(*arguments):
    return run_python("-m", "tests.nomem", *arguments)


@needs_testcapi
class TestSample:
    @pytest.mark.parametrize("name", ["tcp_protocols", "tls", "http", "timers"])
    def test_neither_crash_nor_hang(self, name):
        if programs.PROGRAMS[name].needs_tls and programs.make_contexts() is None:
            pytest.skip("no certificates can be made")
        done = run_tool("--only", name, "--loop", "mgloop", "--limit", "4")
        lines = [line for line in done.stdout.splitlines() if " runs: " in line]
        assert len(lines) == len(command_line.MODES), done.stdout + done.stderr
        assert not [line for line in lines if re.search(r" (crash|hang)(,|$)", line)]


RAISING_PROTOCOL = """
import asyncio, signal, sys
import _testcapi
from tests.loops import new_loop

def late(*_):
    # The failure may have cost the loop its timer.
    raise TimeoutError

signal.signal(signal.SIGALRM, late)

class Raises(asyncio.Protocol):
    def data_received(self, data):
        raise ValueError

async def connect():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Raises, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    transport, _ = await loop.create_connection(asyncio.Protocol, *address)
    await asyncio.sleep(0)
    return server, transport

for n in range(45):
    loop = new_loop(sys.argv[1])
    loop.set_exception_handler(lambda loop, context: None)
    server, transport = loop.run_until_complete(connect())
    transport.write(b"x")
    loop.call_soon(_testcapi.set_nomemory, n, n + 1)
    loop.call_later(0.005, loop.stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        loop.run_forever()
    except (MemoryError, TimeoutError):
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    _testcapi.remove_mem_hooks()
    asyncio._set_running_loop(None)
    loop._thread_id = None
    transport.abort()
    server.close()
    loop.close()
"""


@needs_testcapi
@pytest.mark.parametrize("kind", command_line.LOOPS)
def test_exception_of_a_protocol_without_memory_for_its_traceback(kind):
    if kind == "asyncio" and sys.version_info >= (3, 15):
        pytest.skip("asyncio's loop crashes in PyArg_ParseTuple() on CPython 3.15.0")
    done = run_python("-W", "ignore", "-c", RAISING_PROTOCOL, kind)
    assert done.returncode == 0, done.stderr[-2000:]


BATCH_OF_DATAGRAMS = """
import asyncio, gc, socket, sys
import _testcapi
from tests.loops import new_loop

loop = new_loop("mgloop")
loop.set_exception_handler(lambda loop, context: None)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

async def endpoint():
    return await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
    )

def receive_without_memory():
    for n in range(60):
        transport, _ = loop.run_until_complete(endpoint())
        for _ in range(8):
            sender.sendto(bytes(100), transport.get_extra_info("sockname"))
        loop.call_soon(_testcapi.set_nomemory, n, n + 1)
        loop.call_soon(loop.call_soon, loop.stop)
        try:
            loop.run_forever()
        except MemoryError:
            pass
        _testcapi.remove_mem_hooks()
        asyncio._set_running_loop(None)
        loop._thread_id = None
        transport.abort()
        loop.run_until_complete(asyncio.sleep(0))
    gc.collect()

for _ in range(2):
    receive_without_memory()
before = sys.getallocatedblocks()
for _ in range(3):
    receive_without_memory()
print(sys.getallocatedblocks() - before)
sender.close()
loop.close()
"""


@needs_testcapi
def test_datagrams_are_freed_if_memory_runs_out_within_their_batch():
    """asyncio receives one datagram at a time."""
    done = support.finished(
        [sys.executable, "-W", "ignore", "-c", BATCH_OF_DATAGRAMS], cwd=ROOT, timeout=50
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 40
