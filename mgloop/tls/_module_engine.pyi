# SPDX-License-Identifier: GPL-2.0-only
import sys
from typing import final

from typing_extensions import disjoint_base

from ._engine import Engine

# These classes have no attributes for Python code.

@final
class Span:
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

@disjoint_base
class ModuleEngine(Engine): ...

@final
class ObjectEngine(ModuleEngine): ...
