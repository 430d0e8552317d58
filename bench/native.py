# SPDX-License-Identifier: GPL-2.0-only
"""Build the C load generator and the C floor server on demand, and create a certificate for TLS.

The programs are stored in the user's cache folder under the hash of their sources, so an edit
causes a rebuild and the source tree stays clean. OpenSSL's headers are optional: without them the
TLS workloads fall back to a client in Python, and every such row says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .errors import BenchError, MissingToolError

SOURCES = Path(__file__).with_name("native")


def cache_folder() -> Path:
    """Return the folder that holds the built programs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mgloop-bench"


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> str:
    """Return the command of the C compiler. MissingToolError if no compiler is installed."""
    named = os.environ.get("CC")
    for name in (named,) if named else ("cc", "gcc", "clang"):
        if found := shutil.which(name.split()[0]):
            return found
    raise MissingToolError(
        f"no C compiler ({named or 'cc'}), and the load generator is built by one: install it "
        "(Debian, Ubuntu: apt-get install gcc libc6-dev)"
    )


class Programs:
    """Paths of the built programs; ``tls`` is False when the client was built without OpenSSL."""

    def __init__(self, client: Path, floor: Path, tls: bool):
        self.client = client
        self.floor = floor
        self.tls = tls


def _compile(source: str, target: Path, *flags: str) -> str:
    """Compile *source* to *target*; return the compiler's last error, or "" on success."""
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as partial:
        pass
    done = subprocess.run(
        [compiler(), "-O2", "-o", partial.name, str(SOURCES / source), *flags],
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        os.chmod(partial.name, 0o755)
        os.replace(partial.name, target)
        return ""
    os.unlink(partial.name)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    return (errors or done.stderr.strip().splitlines() or ["unknown error"])[0]


def programs() -> Programs:
    """Build the programs that are not cached. BenchError if the compiler fails or is missing."""
    folder = cache_folder() / _digest()
    folder.mkdir(parents=True, exist_ok=True)
    client, floor, plain = folder / "client", folder / "floor", folder / "client-plain"
    if not floor.exists() and (problem := _compile("floor.c", floor)):
        raise BenchError(f"the C floor server could not be built: {problem}")
    if client.exists():
        return Programs(client, floor, True)
    if not _compile("client.c", client, "-DBENCH_TLS", "-lssl", "-lcrypto"):
        return Programs(client, floor, True)
    if not plain.exists() and (problem := _compile("client.c", plain)):
        raise BenchError(f"the C load generator could not be built: {problem}")
    return Programs(plain, floor, False)


def certificate(folder: Path) -> tuple[str, str]:
    """Return the paths of a self-signed P-256 certificate and its key, made by openssl."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    if not cert.exists():
        if shutil.which("openssl") is None:
            raise MissingToolError(
                "no openssl program, and the TLS workloads need it for a certificate: install it "
                "(Debian, Ubuntu: apt-get install openssl)"
            )
        done = subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "30",
                "-subj",
                "/CN=localhost",
                "-keyout",
                str(key),
                "-out",
                str(cert),
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise BenchError(f"openssl made no certificate: {done.stderr.strip().splitlines()[-1]}")
    return str(cert), str(key)
