# SPDX-License-Identifier: GPL-2.0-only
from collections.abc import Awaitable
from typing import Any, final

from typing_extensions import disjoint_base

from mgloop._awaitable import Call

def set_public(public: type) -> None: ...

@disjoint_base
class NativeProtocol:
    _loop: Any
    _stream_reader_wr: Any
    _drain_waiters: Any
    _paused: bool
    _connection_lost: bool
    def data_received(self, data: Any) -> None: ...

@disjoint_base
class NativeWriter:
    _transport: Any
    _protocol: Any
    _reader: Any
    _loop: Any
    def __init__(self, transport: Any, protocol: Any, reader: Any, loop: Any) -> None: ...
    @property
    def _complete_fut(self) -> Any: ...
    @property
    def transport(self) -> Any: ...
    def write(self, data: Any) -> None: ...
    def writelines(self, data: Any) -> None: ...
    def close(self) -> None: ...
    def is_closing(self) -> bool: ...
    def drain(self) -> Awaitable[None]: ...

@final
class Drain(Call): ...
