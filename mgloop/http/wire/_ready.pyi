# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

from ..._awaitable import Awaitable

class Ready(Awaitable): ...

@disjoint_base
class Waiters: ...
