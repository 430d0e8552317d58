# SPDX-License-Identifier: GPL-2.0-only
"""An echo server whose protocol is compiled."""

from ._protocol import Echo

__all__ = ["Echo"]
