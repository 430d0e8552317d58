# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

from ._states import Connection

# Nothing for Python to use: a part of SSLProtocol.

@disjoint_base
class Writing(Connection): ...
