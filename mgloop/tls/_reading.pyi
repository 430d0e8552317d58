# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

from ._writing import Writing

# A base class of SSLProtocol, without attributes for Python code.

@disjoint_base
class Reading(Writing): ...
