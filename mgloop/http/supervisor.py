# SPDX-License-Identifier: GPL-2.0-only
"""The process that starts workers, keeps their number, and replaces them.

It owns the listening sockets (sockets.py says how they are shared), and serves nobody itself: what
happens to a worker does not touch it. Each slot, which is a number and a set of sockets, has one
task that keeps a worker in it.

- A worker that dies is replaced: the first time at once, then later and later. If none has ever
  been ready, the reason is not one that waiting mends: the supervisor ends with its exit status.
- SIGHUP, and a worker that has reached a limit: first a new worker, then the old one drains. If
  the new one cannot start, the old one stays.
- SIGTERM and SIGINT: all drain, then exit 0. A second SIGINT: all cancel their requests. A third:
  SIGKILL.
- --reload: one worker, which ends before the next starts; if it cannot start, files are waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from .. import _interpreter
from . import prometheus, reloading, running, signals, sockets
from .config import Config
from .errors import StartError
from .metrics import ServerStats, total
from .worker import COUNT, RETIRE, STOP, Task

logger = logging.getLogger("mgloop.http")

# A worker that lives shorter is a failure, and the next one waits: 0, 0.5, 1, 2 ... seconds.
_SHORT_LIFE = 10.0
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# What a worker gets beyond the deadlines for requests and for the application's shutdown, until
# SIGKILL; and when it has served to its end, for the exit of its process.
_GRACE = 10.0
# How long a worker may take to say what it has done, until the last that it has said counts.
_TO_COUNT = 1.0
# The deadline for requests when files have changed, and the developer waits.
_RELOAD_DEADLINE = 2.0


class WorkerError(StartError):
    """No worker could start: it has said why, and this is its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__("Worker failed to boot.")
        self.status = status


def supervise(config: Config) -> None:
    """Run config.workers workers until a signal; raises StartError."""
    import mgloop

    running.run_loop(mgloop.new_event_loop, Supervisor(config).run)


class Worker:
    """A process, from its start to its end.

    ready: a future, whether it came to serve. ended: a task, its return code as subprocess has it.
    """

    def __init__(self, slot: int, process: asyncio.subprocess.Process) -> None:
        self.slot = slot
        self.process = process
        self.pid = process.pid
        self.born = time.monotonic()
        self.urls: list[str] = []
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Task[int] = asyncio.ensure_future(self._wait())
        self.stuck: asyncio.TimerHandle | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.wants_successor = False
        self.stats = ServerStats()
        self._counted: asyncio.Future[None] | None = None

    async def count(self) -> None:
        """Have `stats` be those of now, if it answers in time."""
        if self.writer is None:
            return
        if self._counted is None or self._counted.done():
            self._counted = asyncio.get_running_loop().create_future()
        self.writer.write(COUNT)
        events: list[asyncio.Future[Any]] = [self._counted, self.ended]
        await asyncio.wait(events, timeout=_TO_COUNT, return_when=asyncio.FIRST_COMPLETED)

    def counted(self, values: dict[str, Any]) -> None:
        """It has said what it has done."""
        self.stats = ServerStats.unpacked(values)
        if self._counted is not None and not self._counted.done():
            self._counted.set_result(None)

    async def _wait(self) -> int:
        status = await self.process.wait()
        if self.stuck is not None:
            self.stuck.cancel()
        if not self.ready.done():
            self.ready.set_result(False)
        return status

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def stop(self, deadline: float | None) -> None:
        """Let it finish; SIGKILL after `deadline` seconds, if that is not None."""
        self.signal(signal.SIGTERM)
        self.kill_after(deadline)

    def hurry(self) -> None:
        """Stop it without --drain-delay."""
        if self.writer is not None:
            self.writer.write(STOP)

    def retire(self, deadline: float | None) -> None:
        """The same without haste: another one serves in its place."""
        if self.writer is not None:
            self.writer.write(RETIRE)
        self.kill_after(deadline)

    def kill_after(self, deadline: float | None) -> None:
        """SIGKILL after `deadline` seconds, unless it has ended by then, or there is none."""
        if deadline is not None:
            timer = asyncio.get_running_loop().call_later(deadline, self.signal, signal.SIGKILL)
            self.ended.add_done_callback(lambda _: timer.cancel())

    def why(self) -> str:
        """How it ended, in words."""
        status = self.ended.result()
        if status >= 0:
            return f"exited with status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"was terminated by {name}"


class _Slot:
    """A place for a worker, and the wish for another one in it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: Worker | None = None
        self.starting = False  # a successor
        self.wish = _Wish()

    def replace(self) -> asyncio.Future[bool]:
        """Ask for a worker that starts from now on; the future says whether it came."""
        if not self.wish.made.done():
            self.wish.made.set_result(None)
        return self.wish.granted

    def take_wish(self) -> asyncio.Future[bool]:
        """Before a start; later wishes are for another one, as this one may have read old code."""
        wish, self.wish = self.wish, _Wish()
        return wish.granted


class _Wish:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.made: asyncio.Future[None] = loop.create_future()
        self.granted: asyncio.Future[bool] = loop.create_future()


class Supervisor:
    """run() is all there is to do with it."""

    def __init__(self, config: Config) -> None:
        if config.reload:
            config = dataclasses.replace(
                config,
                timeout_graceful_shutdown=config.timeout_graceful_shutdown or _RELOAD_DEADLINE,
                # Files that change replace the worker, and nothing else does.
                limit_max_requests=None,
                limit_max_memory=None,
                drain_delay=None,  # the developer waits
            )
        self.config = config
        self._workers: set[Worker] = set()
        self._channels: set[asyncio.Task[None]] = set()
        self._slots: list[_Slot] = []
        self._stopping = asyncio.Event()
        self._terminated = False
        self._interrupts = 0
        self._hurrying = asyncio.Event()
        self._hangups = 0
        self._rolling: asyncio.Task[None] | None = None
        self._announced = False
        self._counting: set[Worker] = set()  # those that may have more to say
        self._past: dict[int, ServerStats] = {}  # of the others, by slot
        self._listeners: sockets.Listeners

    async def run(self) -> None:
        """Supervise until a signal; all workers have ended when it returns."""
        async with contextlib.AsyncExitStack() as around:
            self._listeners = sockets.open_all(self.config)
            around.callback(self._listeners.close)
            await around.enter_async_context(prometheus.endpoint(self.config, self._accounts))
            await self._supervise()
        logger.info("Stopped supervisor [%d]", os.getpid())

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGINT: self._on_sigint,
            signal.SIGTERM: self._on_sigterm,
            signal.SIGHUP: self._hung_up,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        logger.info("Started supervisor [%d]", os.getpid())
        keepers = asyncio.ensure_future(self._run())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([keepers, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping.is_set():  # else the same signal may have ended the first worker
                keepers.result()
        finally:
            self._stopping.set()
            if not self._delaying():
                self._listeners.close()
            tasks: list[asyncio.Future[Any]] = [keepers, stopping]
            if self._rolling is not None:
                tasks.append(self._rolling)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._delaying():
                await self._serve_on()
                self._listeners.close()
            await self._stop_all()
            for number in handlers:
                loop.remove_signal_handler(number)

    async def _run(self) -> None:
        """Keep every slot filled; raises WorkerError if the first one cannot be."""
        self._slots = [_Slot(number) for number in range(self.config.workers)]
        if self.config.reload:
            await self._keep_reloading(self._slots[0])
            return
        # The first alone: what is wrong with the application is said once.
        first = await self._start(0)
        if not await first.ready:
            raise WorkerError(abs(await first.ended) or 1)
        self._announce(first.urls)
        self._slots[0].worker = first
        async with asyncio.TaskGroup() as group:
            for slot in self._slots:
                group.create_task(self._keep(slot))
            self._begin_to_roll()  # the first may have started with old code

    # --- one slot ----------------------------------------------------------------------------

    async def _keep(self, slot: _Slot) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            worker = slot.worker
            if worker is None:
                if failures > 1:
                    delay = _pause(failures)
                    logger.info("Starting the next worker in %g seconds.", delay)
                    await asyncio.sleep(delay)
                granted = slot.take_wish()
                slot.worker = await self._start_ready(slot.number)
                if slot.worker is None:
                    failures += 1
                granted.set_result(slot.worker is not None)
                continue
            if worker.wants_successor and failures == 0:
                slot.replace()  # it has reached its limit before it was known to be ready
            events: list[asyncio.Future[Any]] = [worker.ended, slot.wish.made]
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if worker.ended.done():
                lived = time.monotonic() - worker.born
                failures = failures + 1 if lived < _SHORT_LIFE else 1
                logger.error("Worker [%d] %s; starting a replacement.", worker.pid, worker.why())
                slot.worker = None
                continue
            granted = slot.take_wish()
            slot.starting = True
            successor = await self._start_ready(slot.number)
            slot.starting = False
            if successor is None:
                logger.error("Replacement failed to start; keeping worker [%d].", worker.pid)
            else:
                slot.worker = successor
                worker.retire(self._kill_after())
                failures = 0
            granted.set_result(successor is not None)
            if successor is None and worker.wants_successor:
                failures += 1
                loop.call_later(_pause(failures + 1), self._replace, worker)

    def _replace(self, worker: Worker) -> None:
        """Unless it has a successor, or one that is starting."""
        slot = self._slots[worker.slot]
        if slot.worker is worker and not slot.starting:
            slot.replace()

    async def _start_ready(self, number: int) -> Worker | None:
        """A worker that serves, or None if it could not; that is logged."""
        try:
            worker = await self._start(number)
        except StartError as exc:
            logger.error("%s", exc)
            return None
        if await worker.ready:
            return worker
        await asyncio.wait([worker.ended])
        logger.error("Worker [%d] %s before it was ready.", worker.pid, worker.why())
        return None

    async def _keep_reloading(self, slot: _Slot) -> None:
        changes = reloading.changes(self.config)
        # Before the first start: what changes while a worker reads it counts.
        changed = asyncio.ensure_future(anext(changes))
        try:
            while True:
                worker = slot.worker = await self._start(slot.number)
                # A start that does not come to an end is mended by a change, too.
                starting: list[asyncio.Future[Any]] = [changed, worker.ready]
                await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
                if worker.ready.done():
                    self._announce(self._listeners.urls)
                events: list[asyncio.Future[Any]] = [changed, worker.ended]
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
                if not changed.done():
                    logger.error(
                        "Worker [%d] %s; waiting for a file to change.", worker.pid, worker.why()
                    )
                logger.warning("Detected changes in '%s'. Reloading...", await changed)
                changed = asyncio.ensure_future(anext(changes))
                if worker.ready.done():
                    worker.stop(self._kill_after())
                else:
                    worker.signal(signal.SIGQUIT)  # nobody is served yet
                    worker.kill_after(self._kill_after())
                await asyncio.wait([worker.ended])
        finally:
            changed.cancel()
            await asyncio.wait([changed])
            await changes.aclose()

    async def _start(self, number: int) -> Worker:
        """Another process for the slot; raises StartError if there can be none."""
        try:
            return await self._spawn(number)
        except OSError as exc:
            raise StartError(f"cannot start a worker: {exc.strerror or exc}") from None

    async def _spawn(self, number: int) -> Worker:
        threads = self.config.threads
        bound = [self._listeners.of_slot(number * threads + n) for n in range(threads)]
        ours, theirs = socket.socketpair()
        fds = [[sock.fileno() for sock in of_thread] for of_thread in bound]
        # Until its handlers are there, a terminal's signals to all are not for it.
        kept_back = {signal.SIGINT, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, kept_back)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *_interpreter.options(),
                "-P",  # The folder it is started in is no package.
                "-c",
                f"from mgloop.http.worker import main; main({theirs.fileno()})",
                pass_fds=[theirs.fileno(), *(fd for of_thread in fds for fd in of_thread)],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, kept_back)
            theirs.close()
            for of_thread in bound:
                for sock in of_thread:
                    sock.close()
        worker = Worker(number, process)
        self._workers.add(worker)
        self._counting.add(worker)
        worker.ended.add_done_callback(lambda _: self._workers.discard(worker))
        task = Task(self.config, fds, list(sys.path), list(sys.argv))
        channel = asyncio.ensure_future(self._listen_to(worker, ours, task))
        self._channels.add(channel)
        channel.add_done_callback(self._channels.discard)
        return worker

    async def _listen_to(self, worker: Worker, ours: socket.socket, task: Task) -> None:
        """The worker's messages, until it ends. The socket stays open that long: see worker.py."""
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        worker.writer = writer
        hearing = asyncio.ensure_future(self._hear(worker, reader))
        try:
            writer.write(task.packed())
            await asyncio.wait([worker.ended])
            # Its last words are here, but there need be no end behind them: a process that the
            # worker has forked has its end of the socket, too.
            await asyncio.wait([hearing], timeout=_TO_COUNT)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            self._remember(worker)
            worker.writer = None
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _hear(self, worker: Worker, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                self._on_message(worker, json.loads(line))

    def _on_message(self, worker: Worker, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "ready":
            worker.urls = message["urls"]
            logger.info("Worker [%d] is ready.", worker.pid)
            if not worker.ready.done():
                worker.ready.set_result(True)
        elif event == "replace":
            logger.info("Replacing worker [%d]: reached %s.", worker.pid, message["reason"])
            worker.wants_successor = True
            if not self._stopping.is_set():
                self._replace(worker)
        elif event == "stats":
            worker.counted(message["stats"])
        elif event == "alive":
            self._expect_life(worker)
        elif event == "ended":
            # A thread of the application may keep the process.
            worker.kill_after(max(_GRACE, self.config.timeout_graceful_shutdown or 0.0))

    def _remember(self, worker: Worker) -> None:
        """What it has done stays done: counts that fall are taken for a restart of the server."""
        before = self._past.get(worker.slot, ServerStats())
        self._past[worker.slot] = before + worker.stats.ended()
        self._counting.discard(worker)

    async def _accounts(self) -> dict[str, ServerStats]:
        """Of each slot: the workers that it has and those that it had."""
        workers = list(self._counting)
        await asyncio.gather(*(worker.count() for worker in workers))
        return {
            str(slot.number): total(
                [self._past.get(slot.number, ServerStats())]
                + [worker.stats for worker in self._counting if worker.slot == slot.number]
            )
            for slot in self._slots
        }

    def _expect_life(self, worker: Worker) -> None:
        if worker.stuck is not None:
            worker.stuck.cancel()
        limit = self.config.timeout_worker_healthcheck
        assert limit
        loop = asyncio.get_running_loop()
        worker.stuck = loop.call_later(limit, self._kill_stuck, worker, limit)

    def _kill_stuck(self, worker: Worker, limit: float) -> None:
        logger.error(
            "Killing worker [%d]: its event loop has been unresponsive for %g seconds.",
            worker.pid,
            limit,
        )
        worker.signal(signal.SIGKILL)

    def _announce(self, urls: list[str]) -> None:
        if not self._announced:
            running.announce(self.config, urls)
        self._announced = True

    # --- signals -----------------------------------------------------------------------------

    def _hung_up(self) -> None:
        if self.config.reload or self._stopping.is_set():
            return
        self._hangups += 1
        self._begin_to_roll()

    def _begin_to_roll(self) -> None:
        if self._hangups and self._rolling is None and self._announced:
            self._rolling = asyncio.ensure_future(self._roll())

    async def _roll(self) -> None:
        """Another worker in every slot, one after the other; ends at the first that fails."""
        try:
            while self._hangups:
                self._hangups = 0
                logger.info("Received SIGHUP, restarting workers.")
                for slot in self._slots:
                    if not await asyncio.shield(slot.replace()):
                        logger.error("Restart failed, keeping the remaining workers.")
                        break
                else:
                    logger.info("All workers have been restarted.")
        finally:
            self._rolling = None

    def _on_sigterm(self) -> None:
        if not self._stopping.is_set():
            self._terminated = True
            logger.info("Shutting down")
            self._stopping.set()

    def _on_sigint(self) -> None:
        """Cancel requests at the second SIGINT; Server.interrupted() says why not at SIGTERM."""
        self._interrupts += 1
        self._hurrying.set()
        for worker in self._workers:
            worker.hurry()
        signals.log_interrupt(self._interrupts, stopping=self._stopping.is_set())
        if self._interrupts > 1:
            number = signal.SIGQUIT if self._interrupts == 2 else signal.SIGKILL
            for worker in self._workers:
                worker.signal(number)
                worker.kill_after(self._kill_after())
        elif not self._stopping.is_set():
            logger.info("Shutting down")
        self._stopping.set()

    def _delaying(self) -> bool:
        """Whether the workers serve on for a while, for which their sockets must be there."""
        return bool(self.config.drain_delay and self._terminated)

    async def _serve_on(self) -> None:
        """Wait for --drain-delay, or until SIGINT comes or all workers have ended."""
        hurrying = asyncio.ensure_future(self._hurrying.wait())
        events: list[asyncio.Future[Any]] = [
            hurrying,
            asyncio.gather(*(worker.ended for worker in self._workers)),
        ]
        for worker in self._workers:
            worker.stop(self._kill_after())
        await asyncio.wait(
            events, timeout=self.config.drain_delay, return_when=asyncio.FIRST_COMPLETED
        )
        hurrying.cancel()
        await asyncio.wait([hurrying])

    def _kill_after(self) -> float | None:
        limit = self.config.timeout_graceful_shutdown
        return 2 * limit + (self.config.drain_delay or 0.0) + _GRACE if limit else None

    async def _stop_all(self) -> None:
        workers = list(self._workers)
        for worker in workers:
            if not self._terminated:
                worker.hurry()
            worker.stop(self._kill_after())
        if workers:
            await asyncio.wait([worker.ended for worker in workers])
        await asyncio.gather(*self._channels, return_exceptions=True)


def _pause(failures: int) -> float:
    """Seconds before the next start, after so many failures, more than one, in a row."""
    return min(_FIRST_WAIT * 2.0 ** min(failures - 2, 10), _LONGEST_WAIT)
