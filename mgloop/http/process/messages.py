# SPDX-License-Identifier: GPL-2.0-only
"""The messages that a supervisor and its workers exchange over a socket pair.

The supervisor sends the length of the task, the task, and then single bytes. The worker sends lines
of JSON: an object with the key "event" (an Event) and its values.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from enum import StrEnum

from ..config import Config

LENGTH = struct.Struct("!I")

# The supervisor sends this to a worker that has been replaced.
RETIRE = b"r"
# The supervisor sends this to request the counters of the worker.
COUNT = b"c"
# The supervisor sends this, before or after SIGTERM, to stop the worker without --drain-delay.
STOP = b"s"


class Event(StrEnum):
    """What a worker reports."""

    READY = "ready"  # it serves; urls: list of its addresses
    REPLACE = "replace"  # it has reached a limit; reason: which one
    STATS = "stats"  # in reply to COUNT; stats: its counters
    ALIVE = "alive"  # its loop runs
    ENDED = "ended"  # it has stopped serving and exits


@dataclass
class Task:
    """The first message of the supervisor to a worker."""

    config: Config
    fds: list[list[int]]  # listening descriptors of each thread
    path: list[str]
    argv: list[str]

    def packed(self) -> bytes:
        data = pickle.dumps(self)
        return LENGTH.pack(len(data)) + data
