# SPDX-License-Identifier: GPL-2.0-only
"""What a proxy in front says of the client: X-Forwarded-For and -Proto, and Forwarded (RFC 7239).

Anybody may send these headers, so they are believed of a trusted peer only, and of the chain of
addresses only as much as trusted proxies have written: from the right, the first that is not one
of them is the client. So it is with the scheme: what a client has sent stands left of that.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
from collections.abc import Iterator
from typing import Any

from .errors import ConfigError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# How much of the headers is read: hops, parameters of a hop, characters of Forwarded. A client can
# write thousands of hops in front of those that proxies add, and each of them costs time.
_MOST_HOPS = 100
_MOST_PARAMETERS = 16
_MOST_TEXT = 8192
# An IPv6 address with the name of an interface.
_LONGEST_ADDRESS = 64

# Whoever connects to the proxy may have written these texts, so no expression reads a place again
# for each place before it: where nothing fits, what has been read is part of a match, too.
#: A parameter of Forwarded: name=token or name="quoted", and what has to follow it.
_PARAMETER = re.compile(
    r'(?<!\w)(\w++)=(?:"((?:[^"\\]|\\.)*)"(?=\s*(?:;|$))|([^;,\s]*+))\s*+(;|$)?'
)
#: What may end an element of Forwarded, and what is escaped within quotes.
_MARK = re.compile(r'[",]|\\["\\]')
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


class TrustedProxies:
    """The peers that forwarded_allow_ips names.

    Called with the scope of a request that one of them has sent, puts in what it says.

    trusted: addresses, networks, `unix:` (all UNIX sockets) or `*` (everybody), separated by
    commas. Raises ConfigError. An IPv4 address is the same as its IPv4-mapped IPv6 address.
    """

    def __init__(self, trusted: str) -> None:
        names = [name for part in trusted.split(",") if (name := part.strip())]
        self.everybody = "*" in names
        self.unix = self.everybody or "unix:" in names
        self.networks: list[ipaddress.IPv6Network] = []
        for name in names:
            if name in ("*", "unix:"):
                continue
            try:
                network = ipaddress.ip_network(name, strict=False)
            except ValueError:
                raise ConfigError(
                    f"forwarded_allow_ips: {name!r} is not an address, a network, unix: or *"
                ) from None
            bits = network.max_prefixlen - network.prefixlen
            self.networks.append(
                ipaddress.IPv6Network((_mapped(network.network_address), 128 - bits))
            )
        # Asked of each hop of each request, mostly about the same few; it takes 4 us to find out.
        self._known = functools.lru_cache(maxsize=1024)(self._trusts)

    def trusts_peer(self, client: tuple[str, int] | None) -> bool:
        """Whether it is one of theirs who has connected. None: over a UNIX socket."""
        return self.unix if client is None else self.trusts(client[0])

    def trusts(self, host: str) -> bool:
        """Whether the address is one of theirs."""
        # A header can give any text as an address. The cache must not hold long ones.
        return self.everybody or (len(host) <= _LONGEST_ADDRESS and self._known(host))

    def _trusts(self, host: str) -> bool:
        try:
            address = _mapped(ipaddress.ip_address(host))
        except ValueError:
            return False
        return any(address in network for network in self.networks)

    def __call__(self, scope: dict[str, Any]) -> None:
        client, scheme = None, ""
        for hop, proto in _nearest_first(scope["headers"]):
            scheme = proto.lower() or scheme
            if hop:
                client = _address(hop)
                if not self.trusts(client[0]):
                    break
        if client is not None:
            scope["client"] = client
        if scheme in _SCHEMES:
            scope["scheme"] = _SCHEMES[scheme]


def _mapped(address: _Address) -> ipaddress.IPv6Address:
    """Return an IPv6 address as it is, an IPv4 address in its IPv4-mapped form.

    A socket of both families reports an IPv4 peer in that form, other sockets do not.
    """
    if isinstance(address, ipaddress.IPv6Address):
        return address
    return ipaddress.IPv6Address(0xFFFF << 32 | int(address))


def _nearest_first(headers: list[tuple[bytes, bytes]]) -> Iterator[tuple[str, str]]:
    """Yield (address, scheme) of each hop; "" stands for what a proxy has not written."""
    chains: dict[bytes, list[str]] = {b"x-forwarded-for": [], b"x-forwarded-proto": []}
    forwarded: list[str] = []
    for name, value in headers:
        if name in chains:
            chains[name].append(value.decode("latin-1"))
        elif name == b"forwarded":
            forwarded.append(value.decode("latin-1"))
    hops, protos = (_last_parts(",".join(chain)) for chain in chains.values())
    if not hops and not protos:
        for element in itertools.islice(_elements(forwarded), _MOST_HOPS):
            each = dict(itertools.islice(_parameters(element), _MOST_PARAMETERS))
            yield each.get("for", "").strip(), each.get("proto", "")
        return
    if len(protos) != len(hops):
        # Not a list beside the other: what counts is what the nearest proxy has written.
        hops = hops or [""]
        protos = protos[:1]
    yield from itertools.zip_longest(hops, protos, fillvalue="")


def _last_parts(text: str) -> list[str]:
    """Return the parts between commas, the last one first, without blank ones."""
    parts = text.rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]
    return [stripped for part in reversed(parts) if (stripped := part.strip())]


def _elements(values: list[str]) -> Iterator[str]:
    """Yield the elements of Forwarded, the nearest proxy's first."""
    room = _MOST_TEXT
    for text in reversed(values):
        if room <= 0:
            return
        # No more than can be used: each comma takes time.
        last = ",".join(text[-room:].rsplit(",", _MOST_HOPS)[-_MOST_HOPS:])
        yield from _split(last)
        room -= len(text)


def _split(text: str) -> Iterator[str]:
    """Split at the commas that are not quoted, from the right: the nearest proxy's element is well
    formed, and may stand behind a quote that its client has left open."""
    end, quoted = len(text), False
    for mark in reversed(list(_MARK.finditer(text))):
        if mark[0] == '"':
            quoted = not quoted
        elif mark[0] == "," and not quoted:
            yield text[mark.end() : end]
            end = mark.start()
    yield text[:end]


def _parameters(element: str) -> Iterator[tuple[str, str]]:
    for match in _PARAMETER.finditer(element):
        name, quoted, plain, end = match.groups()
        if end is not None:
            yield name.lower(), plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)


def _address(text: str) -> tuple[str, int]:
    """(host, port) of 1.2.3.4, 1.2.3.4:5, ::1, [::1], [::1]:5, unknown or _name; port 0 = none."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    return host, int(port) if port.isdecimal() and len(port) <= 5 else 0
