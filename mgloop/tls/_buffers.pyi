# SPDX-License-Identifier: GPL-2.0-only
from typing import final

# Nothing for Python to use.

@final
class LoopBuffers: ...
