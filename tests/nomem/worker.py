# SPDX-License-Identifier: GPL-2.0-only
"""Make one run after another: ``python -m tests.nomem.worker``, with JSON lines in and out.

A run is a fork of this process. The worker plays the client of a program that has one, and judges
how the process ended.
"""

import asyncio
import contextlib
import dataclasses
import faulthandler
import gc
import itertools
import json
import logging
import os
import re
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import loops, workers
from tests.nomem import programs

try:
    import _testcapi
except ImportError:
    _testcapi = None

#: Seconds after which the process under test breaks its program off, and after which it is killed.
DEADLINE = 5.0
GRACE = 5.0
#: After so many seconds the address space is large enough again.
SHORTAGE = 0.1
#: How many allocations fail in a row.
BURST = 50

#: What programs import when they first need it.
LATE_IMPORTS = (
    "concurrent.futures.thread",
    "encodings.idna",
    "mgloop",
    "mgloop.http.wire._errorlog",
    "mgloop.http.wire._filewrapper",
    "mgloop.http.wire._site",
    "mgloop.http.wire._upgrade",
    "mgloop.http.wire._websocket",
    "mgloop.http.wire._wsgirequest",
    "mgloop.http.wire.deflate",
    "mgloop.http.wire.files",
    "mgloop.http.server",
    "mgloop.streams",
)

FAR = 200_000

#: Seconds that a program has to end after an error has been reported.
PATIENCE = 0.2


class DeadlinePassed(SystemExit):
    """Raised in the process under test when its time is up."""


# --- the shortage -----------------------------------------------------------------------------


class Shortage:
    """Make allocations fail. This ends by itself after SHORTAGE seconds."""

    def __init__(self) -> None:
        self._over = threading.Lock()
        self._over.acquire()
        self._seconds = SHORTAGE
        self._watch = threading.Thread(target=self._end_in_time, daemon=True)

    def arm(self) -> None:
        """Let it begin."""
        self._watch.start()
        self.begin()

    def _end_in_time(self) -> None:
        self._over.acquire(timeout=self._seconds)
        self.end()

    def disarm(self) -> None:
        """Let it end, if it has not."""
        self.end()
        if self._over.locked():
            self._over.release()
        if self._watch.ident is not None and self._watch is not threading.current_thread():
            self._watch.join()

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class OneAllocation(Shortage):
    """Make the allocation with number *at* fail, and no other."""

    def __init__(self, at: int) -> None:
        super().__init__()
        # This ends by the number of allocations, not by time: the thread waits for disarm().
        self._seconds = -1
        self.at = at

    def begin(self) -> None:
        _testcapi.set_nomemory(self.at, self.at + 1)

    def end(self) -> None:
        _testcapi.remove_mem_hooks()


class Burst(OneAllocation):
    """Make BURST allocations fail, from number *at* on.

    The burst has an end, because without memory for an integer CPython 3.11 unwinds a frame for
    ever (`PUSH_EXC_INFO` of a handler that keeps the last instruction).
    """

    def begin(self) -> None:
        _testcapi.set_nomemory(self.at, self.at + BURST)


class Count(OneAllocation):
    """Let all allocations succeed, and count them in `used`."""

    used = 0
    _usual = 0

    def begin(self) -> None:
        self._usual = self._left()
        _testcapi.set_nomemory(FAR, 0)

    def end(self) -> None:
        if not self.used and self._usual:
            left = self._count()
            _testcapi.remove_mem_hooks()
            self.used = max(1, FAR * (self._usual - left) // self._usual)
        _testcapi.remove_mem_hooks()

    def _left(self) -> int:
        _testcapi.set_nomemory(FAR, 0)
        count = self._count()
        _testcapi.remove_mem_hooks()
        return count

    @staticmethod
    def _count() -> int:
        """Count the objects that can be made before an allocation fails."""
        made = 0
        with contextlib.suppress(MemoryError):
            for _ in itertools.repeat(None):
                bytes(600)
                made += 1
        return made


class AddressSpace(Shortage):
    """Leave only *room* bytes of the RLIMIT_AS of the process."""

    SIZES = (1 << 20, 1 << 17, 1 << 14, 4096, 1024, 400, 200, 100, 40, 1)

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self._hoard: list = []
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        # A stack that cannot grow is a crash, and no MemoryError.
        _deep_stack()

    def begin(self) -> None:
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        rest = (limit + self.room, self._before[1])
        resource.setrlimit(resource.RLIMIT_AS, (limit, self._before[1]))
        for size in self.SIZES:
            with contextlib.suppress(MemoryError):
                while True:
                    self._hoard = [self._hoard, bytes(size)]
        resource.setrlimit(resource.RLIMIT_AS, rest)

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._before)
        # Without recursion, however deep it is.
        while self._hoard:
            self._hoard = self._hoard[0]


def _deep_stack() -> None:
    """Touch some megabytes of the stack."""
    nested: list = []
    for _ in range(10_000):
        nested = [nested]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        repr(nested)
    finally:
        sys.setrecursionlimit(limit)


SHORTAGES = {"one": OneAllocation, "burst": Burst, "limit": AddressSpace, "count": Count}


# --- the process under test -------------------------------------------------------------------


class Witness(logging.Handler):
    """Collect the reports of the program and of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[str] = []

    def note(self, exc: object) -> None:
        """Note an exception, or a message."""
        self.reports.append(type(exc).__name__ if isinstance(exc, BaseException) else str(exc))

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            if record.exc_info:
                traceback.print_exception(record.exc_info[1])
            self.note(record.exc_info[1] if record.exc_info else record.msg)

    def unraisable(self, unraisable) -> None:
        """Record an unraisable exception, as sys.unraisablehook."""
        sys.__unraisablehook__(unraisable)
        self.note(unraisable.exc_value if unraisable.exc_value is not None else "unraisable")


def _descriptors() -> set[tuple[str, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return {(name, target) for name, target in found if not target.startswith("/proc/")}


def _play(spec: dict, stage: programs.Stage, witness: Witness) -> str:
    """Run the program on a loop of its own; how it ended."""
    loop = loops.new_loop(spec["loop"])
    task = None

    def reported(loop, context) -> None:
        exc = context.get("exception")
        if not isinstance(exc, programs.ExpectedError):
            witness.note(exc or context["message"])
            if isinstance(exc, BaseException):
                traceback.print_exception(exc)
            task.cancel()
            # The shortage may have cost the task its wake-up. Then it cannot even be cancelled.
            loop.call_later(PATIENCE, loop.stop)

    async def main() -> None:
        await programs.PROGRAMS[spec["program"]].main(stage)

    loop.set_exception_handler(reported)
    try:
        task = loop.create_task(main())
        try:
            loop.run_until_complete(task)
        finally:
            # A loop whose run has ended by an exception still has to end its tasks.
            stage.disarm()
            _end_run(loop)
            _end_tasks(loop)
            loop.run_until_complete(asyncio.sleep(0))
    except (Exception, asyncio.CancelledError) as exc:
        traceback.print_exc()
        witness.note(exc)
        if isinstance(exc, programs.WrongDataError):
            return "wrong data"
    finally:
        loop.close()
    return "MemoryError" if witness.reports else "success"


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks, and wait for them.

    A task of CPython that could not allocate its wake-up never runs again. Another task ends its
    coroutine, so that only descriptors that nothing would ever close remain open.
    """
    for _ in range(2):
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            _, lost = loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE))
            for task in lost:
                loop.create_task(task.get_coro())
                asyncio._unregister_task(task)


def _end_run(loop: asyncio.AbstractEventLoop) -> None:
    """Do what run_forever() does at its end, which a shortage may prevent."""
    sys.set_asyncgen_hooks(None, None)  # They would keep the loop, and with it its transports.
    asyncio._set_running_loop(None)
    loop._thread_id = None
    loop._stopping = False


def _subject(spec: dict, materials: dict, say: Callable[[dict], None]) -> None:
    witness = Witness()
    logging.getLogger().addHandler(witness)
    logging.getLogger("mgloop").addHandler(witness)
    sys.unraisablehook = witness.unraisable
    before = _descriptors()
    shortage = SHORTAGES[spec["mode"]](spec["at"])
    stage = programs.Stage(
        shortage.arm,
        shortage.disarm,
        lambda port: say({"port": port}),
        materials["contexts"],
        materials["client_end"],
    )
    playing = True

    def too_late(*_: object) -> None:
        if playing:
            shortage.end()
            raise DeadlinePassed

    signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, spec["deadline"], 0.5)
    try:
        how = _play(spec, stage, witness)
    except DeadlinePassed:
        how = "hang"
        traceback.print_exc()
    playing = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    answer = {"used": getattr(shortage, "used", 0), "left": [], "reports": witness.reports}
    if how != "hang":
        asyncio.set_event_loop(None)
        for _ in range(3):
            gc.collect()
        answer["left"] = sorted(target for _, target in _descriptors() - before)
    say(answer | {"how": how})


# --- the run ----------------------------------------------------------------------------------


def _fork(spec: dict, materials: dict, output: int) -> tuple[int, int]:
    """Fork the process under test; return its pid and the descriptor that it writes to."""
    source, target = os.pipe()
    pid = os.fork()
    if pid:
        os.close(target)
        return pid, source
    status = 70
    try:
        os.close(source)
        os.close(materials.pop("client"))
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable(2)
        faulthandler.register(signal.SIGQUIT, file=2, all_threads=True)
        lines = os.fdopen(target, "w")

        def say(answer: dict) -> None:
            lines.write(json.dumps(answer) + "\n")
            lines.flush()

        _subject(spec, materials, say)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class Answers:
    """Read the answers of the process under test."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""

    def next(self, seconds: float) -> dict | None:
        """Return the next answer of the process; None after the last one or a timeout."""
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            if not select.select([self._fd], [], [], max(0, until - time.monotonic()))[0]:
                return None
            data = os.read(self._fd, 65536)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)


def _serve_as_client(client: Callable[[int], None], answer: dict | None) -> str:
    """Act as the client; return an empty string, or a description of the failure."""
    if answer is None or "port" not in answer:
        return ""
    try:
        client(answer["port"])
    except programs.WrongDataError:
        return "wrong data"
    except TimeoutError:
        return "hang"
    except (OSError, ValueError, programs.ToldError) as exc:
        return f"told: {exc!r}"
    return ""


@contextlib.contextmanager
def _process(spec: dict, materials: dict, output: int) -> Iterator[tuple[int, Answers]]:
    pid, source = _fork(spec, materials, output)
    try:
        yield pid, Answers(source)
    finally:
        os.close(source)


def run(spec: dict, contexts) -> dict:
    """Make one run; its outcome."""
    entry = programs.PROGRAMS[spec["program"]]
    patience = spec["deadline"] + GRACE
    met = ""
    with tempfile.TemporaryFile("w+") as output:
        client_end, client = os.pipe()
        materials = {"contexts": contexts, "client_end": client_end, "client": client}
        with _process(spec, materials, output.fileno()) as (pid, answers):
            os.close(client_end)
            answer = None
            if entry.client is not None:
                answer = answers.next(patience)
                met = _serve_as_client(entry.client, answer)
            os.close(client)
            if answer is None or "port" in answer:
                answer = answers.next(patience)
            status = _end(pid, answer)
        output.seek(0)
        said = output.read()[-6000:]
    return dataclasses.asdict(_judge(answer, status, met, said))


def _end(pid: int, answer: dict | None) -> int:
    """Wait for the process; its status. It is killed if it has not answered in time."""
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], 2.0)[0]:
            os.kill(pid, signal.SIGQUIT)
            time.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]
    finally:
        os.close(pidfd)


@dataclasses.dataclass
class Outcome:
    """Hold how a run ended."""

    how: str
    detail: str = ""
    used: int = 0


#: Output that shows that CPython itself crashed or gave up; test_tool.py has programs without an
#: event loop that show the same.
PYTHONS_OWN = (
    # SSL_new() fails. newPySSLSocket() in _ssl.c frees the object, and then reports the error with
    # the module's state, which it takes from the freed object: _setSSLError(state=NULL).
    r"Current thread .*\n  File \".*ssl\.py\", line \d+ in _create\n",
    # It makes an exception for an exception that it cannot make.
    "Cannot recover from MemoryErrors while normalizing exceptions",
    # CPython 3.11 recurses in C: it has used up its prepared MemoryErrors, needs memory to make
    # another, and raises MemoryError because the memory is exhausted.
    "_Py_CheckRecursiveCall: Cannot recover from stack overflow",
)

#: Exceptions that no shortage explains: an error was lost on the way, or never set.
BROKEN = {"SystemError"}


def _judge(answer: dict | None, status: int, met: str, said: str) -> Outcome:
    if answer is None or "how" not in answer:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if any(re.search(place, said) for place in PYTHONS_OWN):
            return Outcome("crash of Python", said)
        if number and number != signal.SIGKILL:
            return Outcome("crash", f"{signal.Signals(number).name}\n{said}")
        if number:
            return Outcome("hang", f"killed\n{said}")
        return Outcome("crash", f"status {status}\n{said}")
    detail = f"{answer['reports']} {met} {answer['left']}\n{said}"
    how = answer["how"]
    if met in ("hang", "wrong data"):
        how = met
    elif how in ("success", "MemoryError"):
        if answer["left"]:
            how = "leak"
        elif BROKEN & set(answer["reports"]):
            how = "broken"
        elif met:
            how = "MemoryError"
    return Outcome(how, detail, answer["used"])


def main() -> int:
    """Serve until the input ends."""
    contexts = programs.make_contexts()
    return workers.serve(lambda spec: run(spec, contexts), LATE_IMPORTS)


if __name__ == "__main__":
    sys.exit(main())
