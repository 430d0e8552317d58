# SPDX-License-Identifier: GPL-2.0-only
from typing import Any

from typing_extensions import disjoint_base

from ..._awaitable import Waiting
from ._response import Response

@disjoint_base
class RequestBody(Response):
    @property
    def cut_off(self) -> bool: ...
    @property
    def disconnected(self) -> bool: ...
    def receive(self) -> Any: ...

@disjoint_base
class Receiving(Waiting): ...
