# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

# Nothing for Python to use: a part of SSLProtocol.

@disjoint_base
class Connection: ...
