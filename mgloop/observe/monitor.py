# SPDX-License-Identifier: GPL-2.0-only
"""A report of the loops of a process, sent over a UNIX socket to clients such as mgloop.top.

A client that connects receives one JSON document about all open loops, and the connection is
closed. The process reads nothing from clients, so it has nothing to parse. The socket has mode
0600, and clients of users other than that of the process and root are rejected. The monitor runs in
a separate thread, which sleeps until a client connects, and does not affect the loops.
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

#: Version of the document's format. It changes when fields change.
FORMAT = 1

#: Seconds that a client may take to read the document, and that mgloop.top waits for it.
_TIMEOUT = 5.0
_ACCEPTS = 0x10000  # SO_ACCEPTCON in /proc/net/unix
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: SO_PEERCRED, unix(7)


#: Monitors that have a socket.
_monitors: weakref.WeakSet[Monitor] = weakref.WeakSet()


class MonitorError(Exception):
    """A monitor cannot be created or queried."""


class Monitor(Closing):
    """Report the loops of the process at `path`, until close() or the end of the `with` block.

    path: path of the new socket. For a directory, the socket is mgloop-PID.sock in it, so that
    several processes can share the setting. A stale socket at the path is replaced; any other file
    is not. Raises MonitorError.
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
        """Stop reporting and remove the socket. Further calls do nothing."""
        if self._socket.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # makes accept() return
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
                    pass  # the client has disconnected, or does not read
                except Exception:
                    logger.exception("Failed to send the report of the event loops")

    def _answer(self, connection: socket.socket) -> None:
        if _uid_of_peer(connection) not in (0, os.geteuid()):
            return
        connection.settimeout(_TIMEOUT)
        connection.sendall(json.dumps(document()).encode())


def document() -> dict[str, Any]:
    """Return the report of all open loops of this process."""
    from .._loop import VERSION

    return {
        "mgloop": VERSION,
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
    """Return the number of tasks by coroutine; {} if tasks change too fast to be counted."""
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
            # An abstract name has no mode, so any user could connect.
            raise ValueError("not a file system path")
        _remove_stale_socket(path)
        os.fchmod(sock.fileno(), 0o600)  # before bind(), which creates the file with this mode
        sock.bind(path)
        sock.listen()
    except (OSError, ValueError) as exc:
        sock.close()
        raise MonitorError(f"cannot create a monitor at {path!r}: {_why(exc)}") from exc
    return sock


def _remove_stale_socket(path: str) -> None:
    """Remove the socket file at `path` if no process listens on it."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def _why(exc: Exception) -> str:
    return getattr(exc, "strerror", None) or str(exc)


# --- the client ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LoopReport:
    """The report of one loop.

    thread: name of the thread that runs it, or None. callbacks: as Loop.callback_times(). tasks:
    number of tasks by coroutine.
    """

    id: int
    thread: str | None
    stats: LoopStats
    callbacks: dict[str, TimeSpent]
    tasks: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of a process.

    program: its command line. python: its Python version. loops: reports of the open loops.
    """

    pid: int
    program: str
    python: str
    loops: list[LoopReport]


def ask(path: str | os.PathLike[str]) -> Report:
    """Return the report of the monitor at `path`. Raises MonitorError."""
    path = os.fsdecode(path)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_TIMEOUT)
            sock.connect(path)
            received = json.loads(b"".join(iter(lambda: sock.recv(65536), b"")))
    except json.JSONDecodeError as exc:
        raise MonitorError(
            f"{path!r} is not an mgloop monitor socket, or it belongs to another user"
        ) from exc
    except (OSError, ValueError) as exc:
        raise MonitorError(f"cannot connect to a monitor at {path!r}: {_why(exc)}") from exc
    try:
        return _report(received)
    except (KeyError, TypeError, ValueError) as exc:
        version = received.get("mgloop") if isinstance(received, dict) else None
        if version:
            message = f"{path!r} is a monitor of mgloop {version}, whose format is not supported"
        else:
            message = f"{path!r} is not an mgloop monitor socket"
        raise MonitorError(message) from exc


def _report(received: dict[str, Any]) -> Report:
    if received["format"] != FORMAT:
        raise ValueError("unsupported format")
    loops = [
        LoopReport(
            loop["id"],
            loop["thread"],
            from_json(loop["stats"]),
            {name: TimeSpent(*spent) for name, spent in loop["callbacks"].items()},
            loop["tasks"],
        )
        for loop in received["loops"]
    ]
    return Report(received["pid"], received["program"], received["python"], loops)


def find(pid: int) -> str:
    """Return the path of the monitor of a process.

    That is the UNIX socket on which the process listens and which sends a report. Raises
    MonitorError.
    """
    try:
        listening = list(_listening(pid))
    except OSError as exc:
        raise MonitorError(f"cannot inspect process {pid}: {_why(exc)}") from exc
    # Try sockets that look like a monitor's first, because other servers wait for a request.
    for path in sorted(listening, key=lambda path: "mgloop" not in path):
        with contextlib.suppress(MonitorError):
            if ask(path).pid == pid:
                return path
    raise MonitorError(
        f"process {pid} has no monitor: start it with MGLOOP_MONITOR=PATH, or call "
        "mgloop.monitor(PATH) in it"
    )


def find_all(pid: int) -> list[str]:
    """Return the paths of the monitors of a process and its descendants.

    Raises MonitorError if none of them has a monitor.
    """
    found = []
    for each in _with_children(pid):
        with contextlib.suppress(MonitorError):
            found.append(find(each))
    return found or [find(pid)]


def _with_children(pid: int) -> list[int]:
    """Return the process and its descendants, parents first, from /proc (proc(5))."""
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
    """Yield the paths of the UNIX sockets on which a process listens, from /proc (proc(5))."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as table:
        next(table)  # skip the column headings
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
            # Another process with the same environment uses the path, such as the supervisor of
            # this worker. mgloop.top finds this monitor by the PID.
            monitor = Monitor(f"{path}.{os.getpid()}")
    except (MonitorError, OSError, RuntimeError) as exc:  # RuntimeError: cannot start a thread
        logger.error("MGLOOP_MONITOR: %s", exc)
        return None
    atexit.register(monitor.close)
    return monitor


#: Returns the monitor that MGLOOP_MONITOR requests. An error is logged once.
of_environment = OncePerProcess(_make)


def _close_sockets_in_child() -> None:
    """Close the sockets in the child of a fork, where the monitors' threads do not run.

    Otherwise a client that connects after the parent has exited would wait forever.
    """
    for monitor in list(_monitors):
        monitor._socket.close()


os.register_at_fork(after_in_child=_close_sockets_in_child)
