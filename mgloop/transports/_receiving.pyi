# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

from ._base import SocketTransport

@disjoint_base
class ReceivingStream(SocketTransport): ...  # Nothing for Python to use.
