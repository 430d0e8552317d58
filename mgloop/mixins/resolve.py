# SPDX-License-Identifier: GPL-2.0-only
"""Name resolution in asyncio's executor, except for literal addresses, which need no thread.

A literal address with a numeric port needs no resolver, and a thread costs fifty times as much as
the conversion. All calls that may have another number of results than one are left to
getaddrinfo(): several socket types, service names, zones ("fe80::1%eth0"), flags that change the
result, and errors.
"""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PROTOCOLS = {
    socket.SOCK_STREAM: (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    socket.SOCK_DGRAM: (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
}
# An int, because the complement of a flag enumeration omits unknown bits.
_OTHER_FLAGS = ~int(socket.AI_PASSIVE | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV)


class ResolveMixin:
    """getaddrinfo() of the loop."""

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0,  # noqa: A002
        proto: int = 0, flags: int = 0,
    ) -> Any:  # fmt: skip
        """Resolve a host and a port; as asyncio.loop.getaddrinfo."""
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
    """Return the only result of getaddrinfo() for a literal address, or None to call it."""
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
