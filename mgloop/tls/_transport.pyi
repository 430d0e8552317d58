# SPDX-License-Identifier: GPL-2.0-only
from asyncio.sslproto import _SSLProtocolTransport
from typing import final

# At run time this is not a subclass, but its `__class__` returns the base, so isinstance() is true.

@final
class SSLTransport(_SSLProtocolTransport): ...
