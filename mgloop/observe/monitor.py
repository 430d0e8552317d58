# SPDX-License-Identifier: GPL-2.0-only
"""A process's loops, told over a UNIX socket to whoever may ask: mgloop.top, or a script.

Whoever connects is sent one JSON document of all loops that are open, and the connection is
closed. There is nothing to be sent to the process, so nothing to be parsed by it. The socket is of
mode 0600, and users other than the process's own (and root) are refused. All is done in a thread of
its own, which sleeps until somebody asks; the loops do not notice.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import dataclasses
import errno
import json
import logging
import os
import socket
import stat
import struct
import sys
import threading
import weakref
from collections.abc import Iterable
from typing import Any

from ..loop import Loop, open_loops
from ..stats import LoopStats, TimeSpent, from_json
from .closing import Closing
from .environment import OncePerProcess
from .naming import coroutine_name

logger = logging.getLogger("mgloop.monitor")

#: Of the document; another one has other fields.
FORMAT = 1

#: Seconds that who has asked may take to read, and that mgloop.top waits.
_PATIENCE = 5.0
_ACCEPTS = 0x10000  # SO_ACCEPTCON in /proc/net/unix
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: SO_PEERCRED, unix(7)


#: That have a socket.
_monitors: weakref.WeakSet[Monitor] = weakref.WeakSet()


class MonitorError(Exception):
    """A monitor that cannot be made, or asked."""


class Monitor(Closing):
    """Tells of the process's loops at `path` until close(), or the end of the `with`.

    path: of the socket to be made; that of a directory: mgloop-PID.sock in it, so that several
    processes may share a setting. MonitorError if it cannot be made there. A socket that a process
    which is no more has left is replaced, nothing else is.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _in_directory(os.fsdecode(path))
        self._socket = _listening_at(self.path)
        self._inode = os.stat(self.path).st_ino
        _monitors.add(self)
        self._thread = threading.Thread(target=self._run, name="mgloop monitor", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._forget()
            raise

    def close(self) -> None:
        """Tell no more, and remove the socket. May be called again."""
        if self._socket.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which ends accept()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._forget()

    def _forget(self) -> None:
        self._socket.close()
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)

    # --- in the monitor's thread -------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except ConnectionError:
                continue
            except OSError:
                return  # closed
            with connection:
                try:
                    self._answer(connection)
                except OSError:
                    pass  # gone, or it does not read
                except Exception:
                    logger.exception("Failed to send the report of the event loops")

    def _answer(self, connection: socket.socket) -> None:
        if _uid_of_peer(connection) not in (0, os.geteuid()):
            return
        connection.settimeout(_PATIENCE)
        connection.sendall(json.dumps(document()).encode())


def document() -> dict[str, Any]:
    """What is told: of all loops of this process that are open."""
    from .. import __version__

    return {
        "mgloop": __version__,
        "format": FORMAT,
        "pid": os.getpid(),
        "program": " ".join(sys.orig_argv),
        "python": sys.version.split()[0],
        "loops": [_of(loop) for loop in open_loops()],
    }


def _of(loop: Loop) -> dict[str, Any]:
    thread: Any = loop._thread_id
    return {
        "id": id(loop),
        "thread": next((t.name for t in threading.enumerate() if t.ident == thread), None),
        "stats": dataclasses.asdict(loop.stats()),
        "callbacks": loop.callback_times(),
        "tasks": _tasks(loop),
    }


def _tasks(loop: Loop) -> dict[str, int]:
    """How many there are of each coroutine; nothing where they change too fast to be counted."""
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:
        return {}
    return dict(collections.Counter(map(coroutine_name, tasks)))


def _uid_of_peer(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)


# --- the socket ----------------------------------------------------------------------------------


def _in_directory(path: str) -> str:
    return os.path.join(path, f"mgloop-{os.getpid()}.sock") if os.path.isdir(path) else path


def _listening_at(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        if "\0" in path or not path:
            raise ValueError(
                "not a file system path"
            )  # an abstract name has no mode, and anybody gets in
        _remove_what_was_left(path)
        os.fchmod(sock.fileno(), 0o600)  # of what bind() makes, so nobody else is ever let in
        sock.bind(path)
        sock.listen()
    except (OSError, ValueError) as exc:
        sock.close()
        raise MonitorError(f"cannot create a monitor at {path!r}: {_why(exc)}") from exc
    return sock


def _remove_what_was_left(path: str) -> None:
    """A socket that nobody listens to any more."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def _why(exc: Exception) -> str:
    return getattr(exc, "strerror", None) or str(exc)


# --- who asks ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LoopReport:
    """Of one loop. thread: the name of the one that runs it, or None. callbacks: as
    Loop.callback_times(). tasks: how many there are of each coroutine."""

    id: int
    thread: str | None
    stats: LoopStats
    callbacks: dict[str, TimeSpent]
    tasks: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Report:
    """Of a process. program: its command line; python: its version; loops: those that are open."""

    pid: int
    program: str
    python: str
    loops: list[LoopReport]


def ask(path: str | os.PathLike[str]) -> Report:
    """What the monitor at this path tells. MonitorError if none does."""
    path = os.fsdecode(path)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_PATIENCE)
            sock.connect(path)
            told = json.loads(b"".join(iter(lambda: sock.recv(65536), b"")))
    except json.JSONDecodeError as exc:
        raise MonitorError(
            f"{path!r} is not an mgloop monitor socket, or it belongs to another user"
        ) from exc
    except (OSError, ValueError) as exc:
        raise MonitorError(f"cannot connect to a monitor at {path!r}: {_why(exc)}") from exc
    try:
        return _report(told)
    except (KeyError, TypeError, ValueError) as exc:
        version = told.get("mgloop") if isinstance(told, dict) else None
        if version:
            message = f"{path!r} is a monitor of mgloop {version}, whose format is not supported"
        else:
            message = f"{path!r} is not an mgloop monitor socket"
        raise MonitorError(message) from exc


def _report(told: dict[str, Any]) -> Report:
    if told["format"] != FORMAT:
        raise ValueError("unsupported format")
    loops = [
        LoopReport(
            loop["id"],
            loop["thread"],
            from_json(loop["stats"]),
            {name: TimeSpent(*spent) for name, spent in loop["callbacks"].items()},
            loop["tasks"],
        )
        for loop in told["loops"]
    ]
    return Report(told["pid"], told["program"], told["python"], loops)


def find(pid: int) -> str:
    """Where the monitor of a process is: of the UNIX sockets that it listens at, the one that
    answers as a monitor does. MonitorError if there is none."""
    try:
        listening = list(_listening(pid))
    except OSError as exc:
        raise MonitorError(f"cannot inspect process {pid}: {_why(exc)}") from exc
    # One of another kind waits to be spoken to: those that look like a monitor's come first.
    for path in sorted(listening, key=lambda path: "mgloop" not in path):
        with contextlib.suppress(MonitorError):
            if ask(path).pid == pid:
                return path
    raise MonitorError(
        f"process {pid} has no monitor: start it with MGLOOP_MONITOR=PATH, or call "
        "mgloop.monitor(PATH) in it"
    )


def find_all(pid: int) -> list[str]:
    """Return the monitors of a process and of those that it has started, directly or indirectly.

    MonitorError if none of them has a monitor.
    """
    found = []
    for each in _with_children(pid):
        with contextlib.suppress(MonitorError):
            found.append(find(each))
    return found or [find(pid)]


def _with_children(pid: int) -> list[int]:
    """The process and its descendants, parents first (proc(5))."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    family = [pid]
    for each in family:
        family += sorted(children.get(each, ()))
    return family


def _listening(pid: int) -> Iterable[str]:
    """Paths of sockets, by the kernel's tables (proc(5))."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as table:
        next(table)  # the names of its columns
        for line in table:
            fields = line.rstrip("\n").split(maxsplit=7)
            listens = len(fields) == 8 and int(fields[3], 16) & _ACCEPTS
            if listens and f"socket:[{fields[6]}]" in inodes:
                yield os.path.join(f"/proc/{pid}/cwd", fields[7])


# --- unchanged programs --------------------------------------------------------------------------


def _make() -> Monitor | None:
    path = os.environ["MGLOOP_MONITOR"]
    try:
        try:
            monitor = Monitor(path)
        except MonitorError as exc:
            if getattr(exc.__cause__, "errno", None) != errno.EADDRINUSE:
                raise
            # Another process with the same environment is at the path, such as the supervisor of a
            # worker. mgloop.top finds this one by the process.
            monitor = Monitor(f"{path}.{os.getpid()}")
    except (MonitorError, OSError, RuntimeError) as exc:  # the last: no thread can be started
        logger.error("MGLOOP_MONITOR: %s", exc)
        return None
    atexit.register(monitor.close)
    return monitor


#: The one that MGLOOP_MONITOR asks for; if it cannot be made that is logged, once.
of_environment = OncePerProcess(_make)


def _leave_to_the_parent() -> None:
    """In the child of a fork, where no monitor's thread is: were the sockets to stay open here,
    who asks there when the parent is no more would wait for ever."""
    for monitor in list(_monitors):
        monitor._socket.close()


os.register_at_fork(after_in_child=_leave_to_the_parent)
