# SPDX-License-Identifier: GPL-2.0-only
"""The supervisor process, which starts workers, keeps their number constant and replaces them.

It owns the listening sockets (sockets.py describes how they are shared) and serves no requests, so
a failure of a worker does not affect it. A slot is a number with a set of sockets. Each slot has
one task that keeps a worker running in it.

- A worker that dies is replaced, the first time immediately and then after increasing delays. If
  the first worker never becomes ready, waiting would not help, and the supervisor exits with the
  status of that worker.
- On SIGHUP, and when a worker has reached a limit, a new worker starts first, and then the old one
  drains. If the new one cannot start, the old one keeps running.
- On SIGTERM and SIGINT all workers drain, and the supervisor exits with status 0. On a second
  SIGINT all workers cancel their requests. A third SIGINT kills them.
- With --reload there is one worker, which exits before the next one starts. If a worker cannot
  start, the supervisor waits for the next change of a file.
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

from ...use import interpreter
from ...use.install import new_event_loop
from ..config import Config
from ..errors import StartError
from ..logs import announce
from ..metrics import ServerStats, total
from ..server import metrics_endpoint
from . import reloading, signals, sockets
from .loops import run_loop
from .messages import COUNT, RETIRE, STOP, Event, Task

logger = logging.getLogger("mgloop.http")

# Seconds. A worker that exits earlier counts as a failure, and its replacement is delayed: by 0,
# 0.5, 1, 2 ... seconds.
_SHORT_LIFE = 10.0
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# Seconds until SIGKILL that a worker has in addition to the deadlines for requests and for the
# lifespan shutdown. Also the seconds that its process has to exit when its server has stopped.
_GRACE = 10.0
# Seconds that a worker has to report its counters. After that, its last report is used.
_STATS_TIMEOUT = 1.0
# Deadline in seconds for requests when files have changed, because the developer is waiting.
_RELOAD_DEADLINE = 2.0


class WorkerError(StartError):
    """The first worker could not start. It has logged the reason; `status` is its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__("Worker failed to boot.")
        self.status = status


def supervise(config: Config) -> None:
    """Run config.workers workers until a signal arrives. Raises StartError."""
    run_loop(new_event_loop, Supervisor(config).run)


class Worker:
    """A worker process.

    ready: future that becomes True when the worker serves, or False if it exits before that.
    ended: task whose result is the return code of the process, as in subprocess.
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
        """Update `stats`, unless the worker does not report in time."""
        if self.writer is None:
            return
        if self._counted is None or self._counted.done():
            self._counted = asyncio.get_running_loop().create_future()
        self.writer.write(COUNT)
        events: list[asyncio.Future[Any]] = [self._counted, self.ended]
        await asyncio.wait(events, timeout=_STATS_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)

    def counted(self, values: dict[str, Any]) -> None:
        """Store the counters that the worker has reported."""
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
        """Send SIGTERM, and SIGKILL after `deadline` seconds unless that is None."""
        self.signal(signal.SIGTERM)
        self.kill_after(deadline)

    def hurry(self) -> None:
        """Stop the worker without --drain-delay."""
        if self.writer is not None:
            self.writer.write(STOP)

    def retire(self, deadline: float | None) -> None:
        """Let the worker finish after its replacement has become ready; see Server.retire()."""
        if self.writer is not None:
            self.writer.write(RETIRE)
        self.kill_after(deadline)

    def kill_after(self, deadline: float | None) -> None:
        """Send SIGKILL after `deadline` seconds if the worker is still running; None: never."""
        if deadline is not None:
            timer = asyncio.get_running_loop().call_later(deadline, self.signal, signal.SIGKILL)
            self.ended.add_done_callback(lambda _: timer.cancel())

    def why(self) -> str:
        """Describe how the process ended."""
        status = self.ended.result()
        if status >= 0:
            return f"exited with status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"was terminated by {name}"


class _Slot:
    """A slot for a worker, and the request to replace that worker."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: Worker | None = None
        self.starting = False  # a replacement is starting
        self.restart = _Restart()

    def replace(self) -> asyncio.Future[bool]:
        """Request a worker that starts from now on; the future says whether it became ready."""
        if not self.restart.requested.done():
            self.restart.requested.set_result(None)
        return self.restart.succeeded

    def take_restart(self) -> asyncio.Future[bool]:
        """Begin to fulfil the request with a worker that is about to start; return its future.

        Later requests need another worker, because this one may already have read old code.
        """
        restart, self.restart = self.restart, _Restart()
        return restart.succeeded


class _Restart:
    """A request for a new worker in a slot, and whether that worker became ready."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.requested: asyncio.Future[None] = loop.create_future()
        self.succeeded: asyncio.Future[bool] = loop.create_future()


class Supervisor:
    """Supervise the workers of a configuration: see run()."""

    def __init__(self, config: Config) -> None:
        if config.reload:
            config = dataclasses.replace(
                config,
                timeout_graceful_shutdown=config.timeout_graceful_shutdown or _RELOAD_DEADLINE,
                # Only changed files replace the worker.
                limit_max_requests=None,
                limit_max_memory=None,
                drain_delay=None,  # the developer is waiting
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
        self._counting: set[Worker] = set()  # workers that may still report counters
        self._past: dict[int, ServerStats] = {}  # sums of all earlier workers, by slot
        self._listeners: sockets.Listeners

    async def run(self) -> None:
        """Supervise until a signal arrives, and return after all workers have exited."""
        async with contextlib.AsyncExitStack() as resources:
            self._listeners = sockets.open_all(self.config)
            resources.callback(self._listeners.close)
            await resources.enter_async_context(
                metrics_endpoint(self.config, self._stats_by_worker)
            )
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
        running_workers = asyncio.ensure_future(self._run())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([running_workers, stopping], return_when=asyncio.FIRST_COMPLETED)
            # With a signal, the first worker may have exited because of the same signal.
            if not self._stopping.is_set():
                running_workers.result()
        finally:
            self._stopping.set()
            if not self._delaying():
                self._listeners.close()
            tasks: list[asyncio.Future[Any]] = [running_workers, stopping]
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
        """Keep a worker running in every slot. Raises WorkerError if the first one cannot start."""
        self._slots = [_Slot(number) for number in range(self.config.workers)]
        if self.config.reload:
            await self._run_and_reload(self._slots[0])
            return
        # Start the first worker alone, so that an error in the application is logged only once.
        first = await self._start(0)
        if not await first.ready:
            raise WorkerError(abs(await first.ended) or 1)
        self._announce(first.urls)
        self._slots[0].worker = first
        async with asyncio.TaskGroup() as group:
            for slot in self._slots:
                group.create_task(self._run_slot(slot))
            self._begin_to_roll()  # SIGHUP may have arrived after the first worker read its code

    # --- one slot ----------------------------------------------------------------------------

    async def _run_slot(self, slot: _Slot) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            worker = slot.worker
            if worker is None:
                if failures > 1:
                    delay = _pause(failures)
                    logger.info("Starting the next worker in %g seconds.", delay)
                    await asyncio.sleep(delay)
                succeeded = slot.take_restart()
                slot.worker = await self._start_ready(slot.number)
                if slot.worker is None:
                    failures += 1
                succeeded.set_result(slot.worker is not None)
                continue
            if worker.wants_successor and failures == 0:
                slot.replace()  # the worker reached its limit before it was reported ready
            events: list[asyncio.Future[Any]] = [worker.ended, slot.restart.requested]
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if worker.ended.done():
                lived = time.monotonic() - worker.born
                failures = failures + 1 if lived < _SHORT_LIFE else 1
                logger.error("Worker [%d] %s; starting a replacement.", worker.pid, worker.why())
                slot.worker = None
                continue
            succeeded = slot.take_restart()
            slot.starting = True
            successor = await self._start_ready(slot.number)
            slot.starting = False
            if successor is None:
                logger.error("Replacement failed to start; keeping worker [%d].", worker.pid)
            else:
                slot.worker = successor
                worker.retire(self._kill_after())
                failures = 0
            succeeded.set_result(successor is not None)
            if successor is None and worker.wants_successor:
                failures += 1
                loop.call_later(_pause(failures + 1), self._replace, worker)

    def _replace(self, worker: Worker) -> None:
        """Request a replacement for a worker, unless it has one or one is starting."""
        slot = self._slots[worker.slot]
        if slot.worker is worker and not slot.starting:
            slot.replace()

    async def _start_ready(self, number: int) -> Worker | None:
        """Start a worker and return it when it is ready; log a failure and return None."""
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

    async def _run_and_reload(self, slot: _Slot) -> None:
        changes = reloading.changes(self.config)
        # Begin before the first start, so that changes while a worker reads the files are noticed.
        changed = asyncio.ensure_future(anext(changes))
        try:
            while True:
                worker = slot.worker = await self._start(slot.number)
                # A changed file also ends a startup that hangs.
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
                    worker.signal(signal.SIGQUIT)  # there are no requests yet
                    worker.kill_after(self._kill_after())
                await asyncio.wait([worker.ended])
        finally:
            changed.cancel()
            await asyncio.wait([changed])
            await changes.aclose()

    async def _start(self, number: int) -> Worker:
        """Start a process for the slot. Raises StartError if no process can be created."""
        try:
            return await self._spawn(number)
        except OSError as exc:
            raise StartError(f"cannot start a worker: {exc.strerror or exc}") from None

    async def _spawn(self, number: int) -> Worker:
        threads = self.config.threads
        bound = [self._listeners.of_slot(number * threads + n) for n in range(threads)]
        ours, theirs = socket.socketpair()
        fds = [[sock.fileno() for sock in of_thread] for of_thread in bound]
        # A terminal sends these to all processes. The worker blocks them until it has handlers.
        blocked = {signal.SIGINT, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *interpreter.options(),
                "-P",  # do not import modules from the current directory
                "-c",
                f"from mgloop.http.process.worker import main; main({theirs.fileno()})",
                pass_fds=[theirs.fileno(), *(fd for of_thread in fds for fd in of_thread)],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
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
        """Send the task to a worker and receive its messages until it exits.

        The socket must stay open until then: see worker.py.
        """
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        worker.writer = writer
        receiving = asyncio.ensure_future(self._receive_messages(worker, reader))
        try:
            writer.write(task.packed())
            await asyncio.wait([worker.ended])
            # Receive the last messages. The stream may have no EOF, because a process that the
            # worker has forked also holds its end of the socket.
            await asyncio.wait([receiving], timeout=_STATS_TIMEOUT)
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            self._remember(worker)
            worker.writer = None
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _receive_messages(self, worker: Worker, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                self._on_message(worker, json.loads(line))

    def _on_message(self, worker: Worker, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == Event.READY:
            worker.urls = message["urls"]
            logger.info("Worker [%d] is ready.", worker.pid)
            if not worker.ready.done():
                worker.ready.set_result(True)
        elif event == Event.REPLACE:
            logger.info("Replacing worker [%d]: reached %s.", worker.pid, message["reason"])
            worker.wants_successor = True
            if not self._stopping.is_set():
                self._replace(worker)
        elif event == Event.STATS:
            worker.counted(message["stats"])
        elif event == Event.ALIVE:
            self._expect_life(worker)
        elif event == Event.ENDED:
            # A thread of the application may keep the process alive.
            worker.kill_after(max(_GRACE, self.config.timeout_graceful_shutdown or 0.0))

    def _remember(self, worker: Worker) -> None:
        """Keep the counters of a worker that has exited, so that the sums do not decrease."""
        before = self._past.get(worker.slot, ServerStats())
        self._past[worker.slot] = before + worker.stats.ended()
        self._counting.discard(worker)

    async def _stats_by_worker(self) -> dict[str, ServerStats]:
        """Return the counters of each slot: the sum over its current and earlier workers."""
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
            announce(self.config, urls)
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
        """Replace the workers of all slots, one after the other, until one fails to start."""
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
        """Stop, or at the second SIGINT cancel requests; see Server.interrupted() for SIGTERM."""
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
        """Return whether the workers keep serving for --drain-delay, which needs the sockets."""
        return bool(self.config.drain_delay and self._terminated)

    async def _serve_on(self) -> None:
        """Wait for --drain-delay, until SIGINT arrives, or until all workers have exited."""
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
    """Return the seconds until the next start, after `failures` (at least 2) failures in a row."""
    return min(_FIRST_WAIT * 2.0 ** min(failures - 2, 10), _LONGEST_WAIT)
