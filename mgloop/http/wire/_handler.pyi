# SPDX-License-Identifier: GPL-2.0-only
from typing import Any

from typing_extensions import disjoint_base

def __getattr__(name: str) -> Any: ...

@disjoint_base
class HTTPRequest_1: ...  # noqa: N801 - the version of the interface

@disjoint_base
class HTTPResponse_1: ...  # noqa: N801

@disjoint_base
class HTTPHandler_1: ...  # noqa: N801
