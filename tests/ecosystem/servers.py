# SPDX-License-Identifier: GPL-2.0-only
"""PostgreSQL and Redis on loopback, for as long as a program runs.

Each gets a free port and a temporary folder. It is the distribution's own binary (Debian:
``postgresql``, ``redis-server``), started directly and not as a service, as an unprivileged user
when we are root (PostgreSQL refuses to be), and stopped by the pid that we started.
"""

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


class ServerError(Exception):
    """The server is not installed or did not come up; the message says how to get it or why."""


def _account() -> dict:
    """Return Popen's arguments to run as another user than root; {} if this process is not root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise ServerError(
        "running as root, and there is no account postgres or nobody to start a server as"
    )


def as_ordinary_user() -> list[str]:
    """Return the prefix of a command that must not run as root; empty for an ordinary user.

    The command runs in a user namespace where root has another id. Its own files, such as an
    interpreter in root's home directory, stay readable, which they are not after ``setuid()``.
    """
    account = _account()
    if not account:
        return []
    prefix = [
        "unshare",
        "--user",
        f"--map-user={account['user']}",
        f"--map-group={account['group']}",
    ]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        reason = getattr(exc, "stderr", None) or exc
        raise ServerError(
            f"running as root, and unshare(1) cannot make a user namespace ({reason}); run as an "
            "ordinary user, or install util-linux 2.38 or later"
        ) from None
    return prefix


@contextmanager
def _folder(account: dict) -> Iterator[Path]:
    # Not below TMPDIR: the path of a UNIX socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="eco-", dir="/tmp") as name:
        if account:
            os.chown(name, account["user"], account["group"])
        yield Path(name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _serving(
    command: list, port: int, stop: signal.Signals, log: Path, account: dict, environment: dict
) -> Iterator[None]:
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env=environment,
            **account,
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"{command[0]} did not come up:\n{log.read_text()[-2000:]}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield
    finally:
        if process.poll() is None:
            process.send_signal(stop)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _postgres_binary(name: str) -> str:
    found = shutil.which(name) or next(
        iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None
    )
    if not found:
        raise ServerError(f"{name} is not installed; on Debian: apt-get install postgresql")
    return found


@contextmanager
def postgres_binaries() -> Iterator[dict[str, str]]:
    """Yield where PostgreSQL's programs are, for a suite that starts them itself."""
    # Some of the programs may have a link on PATH: the folder that the link leads to has them all.
    yield {"PGINSTALLATION": str(Path(_postgres_binary("initdb")).resolve().parent)}


@contextmanager
def postgres_as_psycopg_expects() -> Iterator[dict[str, str]]:
    """Start a PostgreSQL whose address is in the variable that psycopg's suite reads.

    The variables of libpq are not set, because the suite asserts that they are ignored.
    """
    with postgres() as variables:
        dsn = "host={PGHOST} port={PGPORT} user={PGUSER} dbname={PGDATABASE}"
        yield {"PSYCOPG_TEST_DSN": dsn.format_map(variables)}


@contextmanager
def postgres() -> Iterator[dict[str, str]]:
    """Start a new PostgreSQL cluster; yield the environment variables of libpq and asyncpg."""
    initdb, server = _postgres_binary("initdb"), _postgres_binary("postgres")
    account = _account()
    with _folder(account) as folder:
        data = folder / "data"
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        made = subprocess.run(
            [initdb, "-D", data, "-U", "eco", "-A", "trust", "-E", "UTF8", "--no-sync"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment,
            timeout=120,
            check=False,
            **account,
        )
        if made.returncode:
            raise ServerError(f"initdb failed:\n{made.stdout[-2000:]}")
        port = _free_port()
        command = [
            server,
            "-D",
            str(data),
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "-k",
            str(folder),
            "-F",
            "-c",
            "max_connections=60",
        ]
        # SIGINT is PostgreSQL's fast shutdown.
        with _serving(command, port, signal.SIGINT, folder / "log", account, environment):
            variables = {
                "PGHOST": "127.0.0.1",
                "PGPORT": str(port),
                "PGUSER": "eco",
                "PGDATABASE": "postgres",
                "ECOSYSTEM_PGSOCKET": str(folder),
            }
            _wait_ready(variables)
            yield variables


def _wait_ready(variables: dict[str, str]) -> None:
    """Wait until the database accepts queries, which may be later than it accepts connections."""
    isready = _postgres_binary("pg_isready")
    for _ in range(200):
        if subprocess.run([isready, "-q"], env=os.environ | variables, check=False).returncode == 0:
            return
        time.sleep(0.05)
    raise ServerError("postgres came up but does not accept connections")


#: Redis' own port.
_REDIS_PORT = 6379


def redis_on_its_port() -> AbstractContextManager[dict[str, str]]:
    """Start a Redis for redis-py's suite: on 127.0.0.1:6379, to which tests of it connect.

    Other tests use the command DEBUG, which Redis 7 refuses by default.
    """
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", _REDIS_PORT)) == 0:
            raise ServerError(
                f"a server listens on 127.0.0.1:{_REDIS_PORT}, the port that tests of redis-py's "
                "suite connect to: stop the server, or run the target in a network namespace"
            )
    return redis(_REDIS_PORT, "--enable-debug-command", "local")


@contextmanager
def redis(port: int | None = None, *options: str) -> Iterator[dict[str, str]]:
    """Start a Redis without persistence on *port*, by default a free one, with further *options*.

    Yields ECOSYSTEM_REDIS_PORT and ECOSYSTEM_REDIS_SOCKET.
    """
    server = shutil.which("redis-server")
    if not server:
        raise ServerError("redis-server is not installed; on Debian: apt-get install redis-server")
    account = _account()
    with _folder(account) as folder:
        port = port or _free_port()
        path = folder / "redis.sock"
        command = [
            server,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            str(path),
            "--unixsocketperm",
            "777",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(folder),
            *options,
        ]
        with _serving(command, port, signal.SIGTERM, folder / "log", account, dict(os.environ)):
            os.chmod(folder, 0o755)
            yield {"ECOSYSTEM_REDIS_PORT": str(port), "ECOSYSTEM_REDIS_SOCKET": str(path)}
