# SPDX-License-Identifier: GPL-2.0-only
"""What the applications of this folder have in common: the files they serve, the bodies they
stream, and a ledger of what happened where no response can tell.

FRAMEWORKS_FOLDER names a folder with `static/page.html`, `static/data.bin` and a template.
"""

import asyncio
import gc
import hashlib
import os
from collections import Counter
from pathlib import Path

FOLDER = Path(os.environ["FRAMEWORKS_FOLDER"])
STATIC = FOLDER / "static"
DATA = STATIC / "data.bin"
ORIGIN = "https://front.example"
SECRET = "of the tests alone"
PIECE = bytes(range(256)) * 256

#: What happened: the test asks for it at /ledger.
ledger: Counter[str] = Counter()


def noted() -> Counter[str]:
    """The ledger. A stream that a server gave up ends when it is collected, if not before."""
    gc.collect()
    return ledger


async def pieces():
    """1 MiB in 16 pieces, each of which is another."""
    for number in range(16):
        yield bytes([number]) + PIECE[1:]
        await asyncio.sleep(0)


async def endless():
    """More and more, until nobody wants it."""
    ledger["endless begun"] += 1
    try:
        while True:
            yield PIECE
            await asyncio.sleep(0)
    finally:
        ledger["endless ended"] += 1


async def quiet():
    """Send one piece and wait for another, which never comes."""
    ledger["quiet begun"] += 1
    try:
        yield b"first"
        await asyncio.get_running_loop().create_future()
    finally:
        ledger["quiet ended"] += 1


async def broken():
    """Yield half of a response, and raise RuntimeError."""
    yield b"half of it"
    raise RuntimeError("on purpose")


async def wait_for_the_client_to_leave():
    """Give a client that has been noted the time to disconnect."""
    ledger["order begun"] += 1
    await asyncio.sleep(0.5)


async def ticks():
    """Five events for an EventSource."""
    for number in range(5):
        yield number
        await asyncio.sleep(0.01)


class Digest:
    """Of a body that comes in pieces, and is not read fast."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = hashlib.sha256()

    async def take(self, piece: bytes) -> None:
        """Count it, and let the client wait now and then."""
        before = self.size >> 20
        self.size += len(piece)
        self._hash.update(piece)
        if self.size >> 20 != before:
            await asyncio.sleep(0.02)

    def result(self) -> dict:
        """What the client compares."""
        return {"size": self.size, "sha256": self._hash.hexdigest()}


def described(note: str, filename: str | None, content: bytes) -> dict:
    """What the client compares of a multipart form."""
    return {
        "note": note,
        "filename": filename,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def seen(scope: dict) -> dict:
    """What the server says of a request; ports are another each time."""
    client, server = scope.get("client"), scope.get("server")
    return {
        "http_version": scope["http_version"],
        "method": scope["method"],
        "scheme": scope["scheme"],
        "path": scope["path"],
        "raw_path": scope["raw_path"].decode("latin-1"),
        "query_string": scope["query_string"].decode("latin-1"),
        "root_path": scope["root_path"],
        "client": client[0] if client else None,
        "server": server[0] if server else None,
        "headers": [
            [name.decode("latin-1"), value.decode("latin-1")]
            for name, value in scope["headers"]
            if name != b"host"
        ],
    }


class TeapotError(Exception):
    """For which each application has an error handler."""
