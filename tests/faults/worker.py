# SPDX-License-Identifier: GPL-2.0-only
"""Runs one program at a time under strace: ``python -m tests.faults.worker``, spoken to in JSON.

A line in is a run to make, a line out its outcome. Everything that a program needs is imported
here, once; a run is a fork of this process. The process under test waits, strace attaches itself to
it, and only then it goes on: to make its loop (a fault "at birth"), or from within the running
program. Its result goes through shared memory, so that no failing system call can garble it, and
it is ended by signals whose handlers raise, so that neither timers nor wake-ups
of the loop under test need to work.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests import loops, workers
from tests.faults import matrix, programs
from tests.workers import RefusedError

#: Seconds after which the process under test ends itself, by default; it gets as long
#: again as GRACE before it is killed.
DEADLINE = 3.0
GRACE = 1.5

_ROOM = 1 << 16
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
_TRACED = [f"?{name}" for call in matrix.CALLS.values() for name in call.names]
_prctl = ctypes.CDLL(None, use_errno=True).prctl


#: What loops and programs import when they first need it: before anything fails, here.
LATE_IMPORTS = ("concurrent.futures.thread", "encodings.idna", "mgloop")

#: The messages between the processes of a run: addresses, the start, and the result.
SLOTS = ("from peer", "from subject", "ready", "go", "peer", "subject")


class PeerDone(SystemExit):
    """Raised in the process under test when its peer has ended."""


class DeadlinePassed(SystemExit):
    """Raised in the process under test when its time is up."""


class Slot:
    """A value in shared memory, written once by one process and read by others."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _ROOM)

    def write(self, value: object) -> None:
        """Publish *value*. The length is written last, and makes the value readable."""
        data = json.dumps(value).encode()[: _ROOM - 8]
        self._map[8 : 8 + len(data)] = data
        self._map[:8] = len(data).to_bytes(8, "little")

    def read(self) -> object:
        """Return the value, or None before it is set."""
        length = int.from_bytes(self._map[:8], "little")
        return json.loads(self._map[8 : 8 + length]) if length else None

    def wait(self, seconds: float = 3600) -> object:
        """Wait for the value and return it."""
        until = time.monotonic() + seconds
        while (value := self.read()) is None:
            if time.monotonic() > until:
                raise TimeoutError(f"nothing was said within {seconds} s")
            time.sleep(0.002)
        return value

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()


# --- the process under test ----------------------------------------------------------------------


def _play(spec: dict, stage: programs.Stage, gate: Callable[[], None]) -> dict:
    """Make the loop, run the program; how it went."""
    how = "refused"
    loop = None
    playing = True

    def raise_in_play(exception: type[BaseException]) -> None:
        if playing:
            raise exception

    signal.signal(signal.SIGUSR1, lambda *_: raise_in_play(PeerDone))
    signal.signal(signal.SIGALRM, lambda *_: raise_in_play(DeadlinePassed))
    # Again and again: the first may be raised where nothing but a destructor notices.
    signal.setitimer(signal.ITIMER_REAL, spec["deadline"], 0.3)

    async def main() -> None:
        if not spec["at_birth"]:
            gate()
        await programs.PROGRAMS[spec["program"]].main(stage)

    try:
        try:
            if spec["at_birth"]:
                gate()
            loop = loops.new_loop(spec["loop"])
            loop.set_exception_handler(lambda loop, context: stage.report(_reported(context)))
            how = "returned"
            loop.run_until_complete(main())
        except Exception as exc:
            traceback.print_exc()
            how = "raised" if how == "returned" else how
            stage.report(exc)
        finally:
            playing = False
    except PeerDone:
        # It may have come after an exception had ended the program already.
        how = "peer done" if how == "returned" else how
    except DeadlinePassed:
        how = "deadline"
    if loop is not None and not _close(loop, stage, spec["deadline"]):
        how = "deadline"
    return {"how": how, **_summary(stage)}


def _close(loop: asyncio.AbstractEventLoop, stage: programs.Stage, seconds: float) -> bool:
    """Close the loop; False if that did not end."""

    def too_late(*_: object) -> None:
        raise DeadlinePassed

    # An interrupted program leaves pending tasks, which no fault has caused.
    loop.set_exception_handler(lambda loop, context: None)
    signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        if not loop.is_closed():
            loop.close()
    except DeadlinePassed:
        stage.missing("close() did not end")
        return False
    except Exception as exc:
        traceback.print_exc()
        stage.report(exc)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def _reported(context: dict) -> object:
    return context.get("exception") or RuntimeError(context.get("message"))


def _summary(stage: programs.Stage) -> dict:
    return {"errors": stage.errors[:20], "lost": stage.lost[:20], "reached": stage.reached}


def _subject(spec: dict, slots: dict[str, Slot], output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    # strace may then attach where only ancestors may trace (Yama); without Yama the call fails.
    _prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
    faulthandler.enable(2)
    faulthandler.register(signal.SIGQUIT, file=2, all_threads=True)

    def gate() -> None:
        slots["ready"].write(True)
        slots["go"].wait()

    stage = programs.Stage(slots["from peer"].wait, slots["from subject"].write)
    slots["subject"].write(_play(spec, stage, gate))


def _peer(spec: dict, slots: dict[str, Slot]) -> None:
    stage = programs.Stage(slots["from subject"].wait, slots["from peer"].write)
    try:
        programs.PROGRAMS[spec["program"]].peer(stage)
    except Exception as exc:
        stage.report(exc)
    slots["peer"].write(_summary(stage))


def _fork(function, *args) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        function(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Buffers are the parent's, and what threads or destructors still want to do is not wanted.
        os._exit(status)


# --- the run -------------------------------------------------------------------------------------


class _Strace:
    """strace, attached to one process; its log is read when it has ended."""

    def __init__(self, pid: int, injection: str | None, folder: Path) -> None:
        self._log = folder / "strace.log"
        command = ["strace", "-f", "-p", str(pid), "-o", str(self._log), "-s", "0", "-e"]
        command += [f"trace={','.join(_TRACED)}", "-e", "signal=none"]
        if injection:
            command += ["-e", injection]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        said = ""
        while "attached" not in said:
            line = self.process.stderr.readline()
            if not line:
                self.process.wait()
                reason = said.strip() or "strace ended without a message"
                raise RefusedError(f"No faults without ptrace: {reason}")
            said += line

    def counts(self) -> tuple[Counter, int]:
        """Return the calls by purpose, and how many of them failed by injection."""
        purposes = {
            name.encode(): purpose for purpose, call in matrix.CALLS.items() for name in call.names
        }
        counts: Counter = Counter()
        injected = 0
        with self._log.open("rb") as file:
            for line in file:
                name = line.split(b"(", 1)[0].rsplit(None, 1)[-1]
                if name in purposes:
                    counts[purposes[name]] += 1
                injected += line.endswith(b"(INJECTED)\n")
        return counts, injected

    def end(self) -> None:
        """Wait until strace has ended, which it does with the process that it traces."""
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()


def _wait(pidfds: list[int], seconds: float) -> list[int]:
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)]


def run(spec: dict) -> dict:
    """Make one run; return the observations."""
    slots = {name: Slot() for name in SLOTS}
    pids: list[int] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        for slot in slots.values():
            stack.callback(slot.close)
        stack.callback(_end_all, pids)
        output = stack.enter_context((folder / "output").open("w+"))
        peer_pidfd = None
        program = programs.PROGRAMS[spec["program"]]
        if program.peer:
            pids.append(_fork(_peer, spec, slots))
            peer_pidfd = os.pidfd_open(pids[-1])
            stack.callback(os.close, peer_pidfd)
        pid = _fork(_subject, spec, slots, output.fileno())
        pids.append(pid)
        pidfd = os.pidfd_open(pid)
        stack.callback(os.close, pidfd)

        slots["ready"].wait(10)
        strace = _Strace(pid, spec["injection"], folder)
        slots["go"].write(True)
        killed = _watch(spec, pid, pidfd, peer_pidfd if program.peer_decides else None)
        status = os.waitpid(pid, 0)[1]
        pids.remove(pid)
        strace.end()
        if program.peer_decides:
            _wait([peer_pidfd], 0.3)
        counts, injected = strace.counts()
        output.seek(0)
        return {
            "subject": slots["subject"].read(),
            "peer": slots["peer"].read() if program.peer_decides else None,
            "killed": killed,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) and not killed else 0,
            "status": os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None,
            "counts": counts,
            "injected": injected,
            "output": output.read()[-4000:],
        }


def _watch(spec: dict, pid: int, pidfd: int, peer_pidfd: int | None) -> bool:
    """Wait for the end; True if it had to be brought about."""
    until = time.monotonic() + spec["deadline"] + GRACE
    waiting = [pidfd] if peer_pidfd is None else [pidfd, peer_pidfd]
    while (left := until - time.monotonic()) > 0:
        ended = _wait(waiting, left)
        if pidfd in ended:
            return False
        if ended:
            os.kill(pid, signal.SIGUSR1)
            waiting.remove(peer_pidfd)
    os.kill(pid, signal.SIGQUIT)
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    return True


def _end_all(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(workers.serve(run, LATE_IMPORTS))
