# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

@disjoint_base
class ByteQueue: ...
