# SPDX-License-Identifier: GPL-2.0-only
"""Shared parts of the applications: the files that they serve, the bodies that they stream, and a
ledger of events that no response shows.

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

#: Events and their number: the test requests them at /ledger.
ledger: Counter[str] = Counter()


def noted() -> Counter[str]:
    """Return the ledger, after the collection of streams that a server has abandoned."""
    gc.collect()
    return ledger


async def pieces():
    """Yield 1 MiB in 16 different pieces."""
    for number in range(16):
        yield bytes([number]) + PIECE[1:]
        await asyncio.sleep(0)


async def endless():
    """Yield pieces until the consumer ends."""
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
    """Give a client that the ledger contains the time to disconnect."""
    ledger["order begun"] += 1
    await asyncio.sleep(0.5)


async def ticks():
    """Yield five events for an EventSource."""
    for number in range(5):
        yield number
        await asyncio.sleep(0.01)


class Digest:
    """The digest of a body that arrives in pieces and is read slowly."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = hashlib.sha256()

    async def take(self, piece: bytes) -> None:
        """Add a piece, and let the client wait after each MiB."""
        before = self.size >> 20
        self.size += len(piece)
        self._hash.update(piece)
        if self.size >> 20 != before:
            await asyncio.sleep(0.02)

    def result(self) -> dict:
        """Return the values that the client compares."""
        return {"size": self.size, "sha256": self._hash.hexdigest()}


def described(note: str, filename: str | None, content: bytes) -> dict:
    """Return the parts of a multipart form that the client compares."""
    return {
        "note": note,
        "filename": filename,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def seen(scope: dict) -> dict:
    """Return the scope of a request without the ports, which vary."""
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
    """An error for which each application has a handler."""
