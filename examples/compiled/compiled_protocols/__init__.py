# SPDX-License-Identifier: GPL-2.0-only
"""Servers whose protocols are compiled: an echo, remote calls and WebSockets."""

from .echo import Echo
from .rpc import Calculator
from .websocket import EchoSocket

__all__ = ["Calculator", "Echo", "EchoSocket"]
