# SPDX-License-Identifier: GPL-2.0-only
from typing import Any

from typing_extensions import disjoint_base

from .._loop import Watcher

@disjoint_base
class SocketWatcher(Watcher):
    def get_extra_info(self, name: str, default: Any = None) -> Any: ...
