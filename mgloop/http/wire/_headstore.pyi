# SPDX-License-Identifier: GPL-2.0-only
from typing import final

from ._requestheaders import HeaderSink

@final
class HeadStore(HeaderSink): ...
