# SPDX-License-Identifier: GPL-2.0-only
from ..._awaitable import Awaitable

class Ready(Awaitable): ...
