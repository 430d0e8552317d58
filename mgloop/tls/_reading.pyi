# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

from ._writing import Writing

# Nothing for Python to use: a part of SSLProtocol.

@disjoint_base
class Reading(Writing): ...
