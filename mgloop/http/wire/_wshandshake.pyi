# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

from ._wsconnection import WebSocketConnection

@disjoint_base
class WebSocketHandshake(WebSocketConnection): ...
