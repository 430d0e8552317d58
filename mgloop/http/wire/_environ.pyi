# SPDX-License-Identifier: GPL-2.0-only
from typing import final

from ..._loop import VERSION as VERSION

@final
class EnvironFactory: ...
