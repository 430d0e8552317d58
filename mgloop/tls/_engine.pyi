# SPDX-License-Identifier: GPL-2.0-only
from typing_extensions import disjoint_base

# The interface of the engines, without attributes for Python code.

@disjoint_base
class Engine: ...
