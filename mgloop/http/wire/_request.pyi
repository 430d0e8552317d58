# SPDX-License-Identifier: GPL-2.0-only
from typing import Any, final

from typing_extensions import disjoint_base

from ..._awaitable import Awaitable
from ._apptask import AppTask

@final
class Request(AppTask):
    def send_message(self, message: Any) -> Any: ...
    def client_left(self) -> None: ...
    def cancel(self) -> None: ...
    def end_stream(self) -> bool: ...

@disjoint_base
class NextIteration(Awaitable): ...
