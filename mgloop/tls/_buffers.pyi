# SPDX-License-Identifier: GPL-2.0-only
from typing import final

# This class has no attributes for Python code.

@final
class LoopBuffers: ...
