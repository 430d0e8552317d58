# SPDX-License-Identifier: GPL-2.0-only
from typing import final

from ..._loop import VERSION as VERSION
from ._requestheaders import HeaderSink

@final
class EnvironFactory(HeaderSink): ...
