# SPDX-License-Identifier: GPL-2.0-only
"""asyncio's streams with the code that runs per packet compiled.

The classes have the interface and the behaviour of asyncio's classes of the same name, of the
running version, and are subclasses of them. The code that runs once per connection is asyncio's
own. The functions are asyncio's functions with these classes. They work on every event loop.

    reader, writer = await mgloop.streams.open_connection("127.0.0.1", 8888)

use() puts the classes in the place of asyncio's, for programs that import asyncio's names.
mgloop.install(streams=True), `mgloop run --streams` and MGLOOP_STREAMS=1 in the environment call
it.

This module is Python because it runs once per process, and once per connection.
"""

from __future__ import annotations

import asyncio
from abc import ABCMeta
from asyncio import streams as _asyncio_streams
from typing import Any

from .. import _stdlib
from . import _reader, _writer

__all__ = [
    "StreamReader",
    "StreamReaderProtocol",
    "StreamWriter",
    "open_connection",
    "open_unix_connection",
    "start_server",
    "start_unix_server",
]


# The metaclass makes isinstance() true for objects that were made with asyncio's own classes before
# use(). asyncio's code makes such checks with the name that use() replaces.


class StreamReader(_reader.NativeReader, _stdlib.StreamReader, metaclass=ABCMeta):  # type: ignore[misc]
    """asyncio.StreamReader, compiled."""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return _is_asyncios(cls, other, StreamReader, _stdlib.StreamReader)


class StreamWriter(_writer.NativeWriter, _stdlib.StreamWriter, metaclass=ABCMeta):  # type: ignore[misc]
    """asyncio.StreamWriter, compiled."""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return _is_asyncios(cls, other, StreamWriter, _stdlib.StreamWriter)


class StreamReaderProtocol(
    _writer.NativeProtocol,
    _stdlib.StreamReaderProtocol,  # type: ignore[misc]
    metaclass=ABCMeta,
):
    """asyncio.StreamReaderProtocol, compiled."""

    connection_made = _stdlib.with_globals(
        _stdlib.StreamReaderProtocol.connection_made, __name__, StreamWriter=StreamWriter
    )

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return _is_asyncios(cls, other, StreamReaderProtocol, _stdlib.StreamReaderProtocol)


def _is_asyncios(cls: type, other: type, ours: type, asyncios: type) -> Any:
    """Implement issubclass(other, cls) for one of the classes above, and not for its subclasses."""
    return True if cls is ours and issubclass(other, asyncios) else NotImplemented


_reader.set_public(StreamReader)
_writer.set_public(StreamReaderProtocol)

_CLASSES = {
    "StreamReader": StreamReader,
    "StreamWriter": StreamWriter,
    "StreamReaderProtocol": StreamReaderProtocol,
}


def _with_classes(function: Any) -> Any:
    return _stdlib.with_globals(function, __name__, **_CLASSES)


open_connection = _with_classes(asyncio.open_connection)
start_server = _with_classes(asyncio.start_server)
open_unix_connection = _with_classes(asyncio.open_unix_connection)
start_unix_server = _with_classes(asyncio.start_unix_server)


def use() -> None:
    """Let asyncio's names refer to these classes.

    asyncio's functions, and the subprocesses that asyncio starts, use them then. Existing streams
    keep their classes, and so does code that has imported a class from asyncio before.
    """
    for name, ours in _CLASSES.items():
        setattr(_asyncio_streams, name, ours)
        setattr(asyncio, name, ours)


def restore() -> None:
    """Undo use()."""
    for name, ours in _CLASSES.items():
        for module in (_asyncio_streams, asyncio):
            if getattr(module, name) is ours:
                setattr(module, name, getattr(_stdlib, name))
