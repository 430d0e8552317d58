# SPDX-License-Identifier: GPL-2.0-only
from typing import final

from ._engine import Engine

# This class has no attributes for Python code.

@final
class DirectEngine(Engine): ...
