# SPDX-License-Identifier: GPL-2.0-only
"""Name resolution: asyncio's executor, with literal addresses answered without a thread.

A literal address and a numeric port need no resolver; a thread for them costs fifty times the
answer. Whatever is not certain to have exactly one answer is left to getaddrinfo() itself:
several kinds of socket, service names, zones ("fe80::1%eth0"), flags that change the result, and
everything that is an error.
"""

from __future__ import annotations

import socket
from typing import Any

_PROTOCOLS = {
    socket.SOCK_STREAM: (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    socket.SOCK_DGRAM: (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
}
# As an int: the complement of a flag type leaves out the bits that it does not know.
_OTHER_FLAGS = ~int(socket.AI_PASSIVE | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV)


class ResolveMixin:
    """getaddrinfo() of the loop."""

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0,  # noqa: A002
        proto: int = 0, flags: int = 0,
    ) -> Any:  # fmt: skip
        """As asyncio.loop.getaddrinfo."""
        answer = literal_address(host, port, family, type, proto, flags)
        if answer is not None:
            return [answer]
        base: Any = super()
        return await base.getaddrinfo(
            host, port, family=family, type=type, proto=proto, flags=flags
        )


def literal_address(
    host: Any, port: Any, family: int, kind: int, proto: int, flags: int
) -> tuple[Any, ...] | None:
    """What getaddrinfo() answers for a literal address, or None if it has to be asked."""
    if type(host) is not str or type(port) is not int or not 0 <= port <= 65535:
        return None
    known = _PROTOCOLS.get(kind)  # type: ignore[call-overload]
    if known is None or flags & _OTHER_FLAGS or proto not in (0, known[1]):
        return None
    if family in (0, socket.AF_INET) and ":" not in host:
        try:
            socket.inet_pton(socket.AF_INET, host)
        except (OSError, ValueError):
            return None
        return (socket.AF_INET, *known, "", (host, port))
    if family in (0, socket.AF_INET6):
        try:
            packed = socket.inet_pton(socket.AF_INET6, host)
        except (OSError, ValueError):
            return None
        canonical = socket.inet_ntop(socket.AF_INET6, packed)
        return (socket.AF_INET6, *known, "", (canonical, port, 0, 0))
    return None
