# SPDX-License-Identifier: GPL-2.0-only
"""Worker processes of tests.faults and tests.nomem, which answer JSON lines with JSON lines.

A worker makes one run after another in forks of itself, so that a crash ends only the fork.
"""

import gc
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable


class WorkerError(Exception):
    """A worker failed, or a program failed without any fault."""


class RefusedError(Exception):
    """A worker cannot make any run here; the message gives the reason."""


class Worker:
    """A process that runs `module` and makes one run after another."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def ask(self, spec: dict) -> dict:
        """Make the run that `spec` describes; return its outcome.

        Raise WorkerError if the worker fails, and RefusedError if it can make no run.
        """
        self._process.stdin.write(json.dumps(spec) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"the worker ended during {spec}")
        answer = json.loads(line)
        if "refused" in answer:
            raise RefusedError(answer["refused"])
        if "failed" in answer:
            raise WorkerError(f"{spec}\n{answer['failed']}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def share(workers: list[Worker], tasks: list, function: Callable) -> None:
    """Call ``function(worker, task)`` for each task, in one thread per worker.

    Raise the first exception that a call raises.
    """
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    failures: list[BaseException] = []

    def work(worker: Worker) -> None:
        try:
            while not failures:
                function(worker, waiting.get_nowait())
        except queue.Empty:
            pass
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as exc:
        failures.append(exc)
        raise
    if failures:
        raise failures[0]


def serve(run: Callable[[dict], dict], late_imports: Iterable[str]) -> int:
    """Answer the runs that standard input asks for, until it ends; return 0.

    Import the modules `late_imports` first, because a run must not pay for them.
    """
    warnings.simplefilter("ignore")
    for module in late_imports:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except RefusedError as exc:
            answer = {"refused": str(exc)}
        except Exception:
            answer = {"failed": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0
