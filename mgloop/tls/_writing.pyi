# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

from ._states import Connection

# A base class of SSLProtocol, without attributes for Python code.

@disjoint_base
class Writing(Connection): ...
