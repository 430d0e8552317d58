# SPDX-License-Identifier: GPL-2.0-only
from ._loop import LoopCore

class IterationCore(LoopCore):
    def _run_once(self) -> None: ...
