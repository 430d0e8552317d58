# SPDX-License-Identifier: GPL-2.0-only
from asyncio.sslproto import _SSLProtocolTransport
from typing import final

# At run time it is no subclass, but isinstance() says so: `__class__` answers for the base.

@final
class SSLTransport(_SSLProtocolTransport): ...
