# SPDX-License-Identifier: GPL-2.0-only
import ssl
import sys
from typing import final

# Apart from their constructors, these classes have no attributes for Python code.

@final
class Span:
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Engine:
    def __init__(
        self, sslcontext: ssl.SSLContext, server_side: bool, server_hostname: str | None
    ) -> None: ...
