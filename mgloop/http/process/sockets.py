# SPDX-License-Identifier: GPL-2.0-only
"""The listening sockets of a server: created or inherited, distributed to workers, and removed.

Workers share a TCP address as follows. Each has its own socket with SO_REUSEPORT, but the
supervisor creates all of these sockets and keeps them open. A worker inherits the socket of its
slot, and so does the worker that replaces it. Two other ways are common:

- All workers inherit one socket. A connection wakes all of them, and the first one accepts the
  whole queue, so a burst of connections ends up in one process and stays there.
- Each worker binds its own socket with SO_REUSEPORT. The kernel distributes connections evenly, but
  when a worker exits, the connections in its accept queue are reset: each restart loses requests.

With sockets of the supervisor, connections are distributed evenly and are not lost with a worker.
UNIX sockets and inherited descriptors cannot be multiplied, so workers share one socket there.

SO_REUSEPORT would also allow a second server to bind the same port without an error. The first
socket is therefore bound before the option is set, and its bind() fails if the port is in use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..config import Config
from ..errors import ConfigError, StartError

_FIRST_SYSTEMD_FD = 3
# How often to ask the kernel for a port that is free on every address of a host name.
_ATTEMPTS = 10

# Mode of a UNIX socket if neither --uds-mode nor an existing socket file determines it.
_UNIX_MODE = 0o666

_Address = tuple[socket.AddressFamily, tuple[Any, ...]]

_ADVICE = {
    errno.EADDRINUSE: "address already in use; stop the other process or choose another port",
    errno.EACCES: "permission denied; ports below 1024 and foreign directories need privileges",
    errno.EPERM: "permission denied; ports below 1024 and foreign directories need privileges",
    errno.EADDRNOTAVAIL: "cannot assign requested address; choose an address of this machine",
}


@dataclass
class Listener:
    """One address: one socket for every slot, or one socket that all slots share."""

    sockets: list[socket.socket]
    # Path, device and inode of a UNIX socket that this process has created.
    made: tuple[str, int, int] | None = None

    def url(self, *, tls: bool) -> str:
        sock = self.sockets[0]
        if sock.family == socket.AF_UNIX:
            return f"unix:{_path_of(sock)}"
        host, port = sock.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if tls else 'http'}://{host}:{port}"


@dataclass
class Listeners:
    """All addresses of a server. The object owns the sockets until close()."""

    tls: bool
    addresses: list[Listener] = field(default_factory=list)

    @property
    def urls(self) -> list[str]:
        return [address.url(tls=self.tls) for address in self.addresses]

    def of_slot(self, slot: int) -> list[socket.socket]:
        """Return duplicates of the sockets of a worker or thread, which the caller owns."""
        return [a.sockets[slot % len(a.sockets)].dup() for a in self.addresses]

    def close(self) -> None:
        """Close the sockets. Remove UNIX socket files that open_all() created and still owns."""
        for address in self.addresses:
            if address.made is not None:
                path, *identity = address.made
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    if [status.st_dev, status.st_ino] == identity:
                        os.unlink(path)
            for sock in address.sockets:
                sock.close()
        self.addresses.clear()


def open_all(config: Config, environ: MutableMapping[str, str] | None = None) -> Listeners:
    """Bind every configured address, without listening yet.

    environ: variables of systemd's socket activation; os.environ by default. Raises StartError,
    after closing all sockets.
    """
    slots = config.workers * config.threads
    environ = os.environ if environ is None else environ
    listeners = Listeners(config.tls)
    with contextlib.ExitStack() as undo:
        undo.callback(listeners.close)
        if config.fd is not None:
            listeners.addresses.append(_inherited(config.fd, f"--fd {config.fd}"))
        elif config.uds is not None:
            listeners.addresses.append(_unix(config.uds, config.uds_mode))
        elif config.bind:
            for text in config.bind:
                listeners.addresses += _open_one(text, config, slots)
        elif inherited := _systemd_fds(environ):
            for fd in inherited:
                listeners.addresses.append(_inherited(fd, f"descriptor {fd} of LISTEN_FDS"))
        else:
            listeners.addresses += _tcp(config.host, config.port, slots)
        undo.pop_all()
    return listeners


def check(config: Config) -> None:
    """Raise ConfigError for an invalid address, without opening sockets."""
    if config.uds == "":
        _no_path()
    for text in config.bind:
        if not text.startswith("unix:"):
            _parse(text, config.port)
        elif text == "unix:":
            _no_path()


def _no_path() -> NoReturn:
    raise ConfigError("a UNIX socket requires a path, such as /run/app.sock")


def _open_one(text: str, config: Config, slots: int) -> list[Listener]:
    if text.startswith("unix:"):
        return [_unix(text.removeprefix("unix:"), config.uds_mode)]
    host, port = _parse(text, config.port)
    return _tcp(host, port, slots)


def _parse(text: str, port: int) -> tuple[str, int]:
    """Parse HOST:PORT, [IPv6]:PORT, :PORT or HOST; `port` is the default."""
    host, colon, digits = text.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        host = text
    else:
        if not digits.isascii() or not digits.isdigit() or int(digits) > 65535:
            raise ConfigError(f"--bind: {text!r} is not HOST:PORT or unix:PATH")
        port = int(digits)
    return host.removeprefix("[").removesuffix("]"), port


# --- TCP -----------------------------------------------------------------------------------------


def _tcp(host: str, port: int, slots: int) -> list[Listener]:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not a host name"
        raise StartError(f"cannot listen on {host!r}: {reason}; choose another host") from None
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for _ in range(_ATTEMPTS - 1):
        try:
            return _tcp_addresses(addresses, slots)
        except StartError as exc:
            # The port that the kernel chose for the first address may be in use on the second.
            if port != 0 or _errno(exc) != errno.EADDRINUSE:
                raise
    return _tcp_addresses(addresses, slots)


def _tcp_addresses(addresses: Sequence[_Address], slots: int) -> list[Listener]:
    listeners: list[Listener] = []
    refused: StartError | None = None
    for family, (host, port, *more) in addresses:
        if port == 0 and listeners:
            # A host name with several addresses uses the same port on all of them.
            port = listeners[0].sockets[0].getsockname()[1]
        try:
            listeners.append(_tcp_address(family, (host, port, *more), slots))
        except StartError as exc:
            if _errno(exc) not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                for listener in listeners:
                    for sock in listener.sockets:
                        sock.close()
                raise
            # localhost has an IPv6 address even on machines without IPv6.
            refused = exc
    if not listeners:
        assert refused is not None
        raise refused
    return listeners


def _errno(refused: StartError) -> int | None:
    cause = refused.__cause__
    return cause.errno if isinstance(cause, OSError) else None


def _tcp_address(family: int, address: tuple[object, ...], slots: int) -> Listener:
    listener = Listener([])
    try:
        for slot in range(slots):
            sock = socket.socket(family, socket.SOCK_STREAM)
            listener.sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if slot > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            if slot == 0 and slots > 1:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                address = sock.getsockname()
    except OSError as exc:
        for sock in listener.sockets:
            sock.close()
        raise refusal(f"{address[0]}:{address[1]}", exc) from exc
    return listener


def refusal(what: str, exc: OSError) -> StartError:
    """Return the error for an address that could not be bound or listened on."""
    assert exc.errno is not None
    return StartError(f"cannot listen on {what}: {_ADVICE.get(exc.errno, os.strerror(exc.errno))}")


# --- UNIX sockets --------------------------------------------------------------------------------


def _unix(path: str, mode: int | None) -> Listener:
    if not path:
        _no_path()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        abstract = path.startswith("@")
        if abstract:
            sock.bind("\0" + path[1:])
            return Listener([sock])
        found = _remove_stale(path)
        if mode is None:
            mode = _UNIX_MODE if found is None else found
        # bind() creates the file with the mode of the socket, restricted by the umask. With a
        # chmod() after that, the file would have another mode for a moment, and chmod() could hit
        # another file at the same path.
        os.fchmod(sock.fileno(), mode)
        before = os.umask(0o777 & ~mode)
        try:
            sock.bind(path)
        finally:
            os.umask(before)
        status = os.lstat(path)
        return Listener([sock], (os.path.abspath(path), status.st_dev, status.st_ino))
    except StartError:
        sock.close()
        raise
    except OSError as exc:
        sock.close()
        if exc.errno is None:  # the path is too long
            raise StartError(f"{path}: {exc}; choose a shorter path") from None
        raise refusal(path, exc) from exc


def _remove_stale(path: str) -> int | None:
    """Remove a socket file that is not in use and return its mode, or None if there is no file.

    Raises StartError for a socket in use and for any other file.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        raise StartError(f"{path} exists and is not a socket: remove it, or choose another path")
    # A datagram socket does not disturb a server on the path. It fails with EPROTOTYPE if a stream
    # socket is bound there, even one that does not listen yet.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return stat.S_IMODE(status.st_mode)
        except OSError as exc:
            if exc.errno != errno.EPROTOTYPE:
                raise
    raise StartError(
        f"cannot listen on {path}: address already in use; stop the other process or choose another"
        " path"
    )


def _path_of(sock: socket.socket) -> str:
    name = sock.getsockname()
    if isinstance(name, bytes):
        return "@" + name[1:].decode(errors="backslashreplace")
    return str(name)


# --- inherited descriptors -----------------------------------------------------------------------


def _inherited(fd: int, what: str) -> Listener:
    try:
        sock = socket.socket(fileno=fd)
    except OSError as exc:
        reason = os.strerror(exc.errno or 0)
        raise StartError(f"{what} is not a socket ({reason}): pass a bound stream socket") from None
    if sock.type != socket.SOCK_STREAM or sock.family not in (
        socket.AF_INET,
        socket.AF_INET6,
        socket.AF_UNIX,
    ):
        sock.detach()
        raise StartError(f"{what} is not a TCP or UNIX stream socket: pass a bound stream socket")
    name = sock.getsockname()
    if not (name if sock.family == socket.AF_UNIX else name[1]):
        sock.detach()
        raise StartError(f"{what} is not bound to an address: pass a bound stream socket")
    sock.setblocking(False)
    sock.set_inheritable(False)
    return Listener([sock])


def _systemd_fds(environ: MutableMapping[str, str]) -> list[int]:
    """Return the descriptors of sd_listen_fds(3), and unset the variables for child processes."""
    pid, count = environ.get("LISTEN_PID"), environ.get("LISTEN_FDS")
    if pid is None or count is None or pid != str(os.getpid()):
        return []
    if not (count.isascii() and count.isdigit()):
        return []
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    return list(range(_FIRST_SYSTEMD_FD, _FIRST_SYSTEMD_FD + int(count)))
