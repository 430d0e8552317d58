# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

from ._response import BaseConnection

@disjoint_base
class WebSocketConnection(BaseConnection):
    # Called by the loop.
    def on_progress_timer(self) -> None: ...
    def on_ping_timer(self) -> None: ...
    def on_pong_timer(self) -> None: ...
