# SPDX-License-Identifier: GPL-2.0-only
from typing import final

@final
class EnvironFactory: ...
