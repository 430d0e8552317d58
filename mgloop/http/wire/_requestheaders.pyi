# SPDX-License-Identifier: GPL-2.0-only
from typing import final

from typing_extensions import disjoint_base

@disjoint_base
class HeaderSink: ...

@final
class HeaderList(HeaderSink): ...
