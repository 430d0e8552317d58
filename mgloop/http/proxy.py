# SPDX-License-Identifier: GPL-2.0-only
"""The client according to a proxy: X-Forwarded-For, X-Forwarded-Proto and Forwarded (RFC 7239).

Any client can send these headers. They are therefore used only if the peer is a trusted proxy, and
only the part that trusted proxies have written is used: the client is the rightmost address that is
not a trusted proxy. The same applies to the scheme. Values that a client has sent are further left.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
from collections.abc import Iterator
from typing import Any

from .errors import ConfigError

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Limits for the hops, the parameters of a hop, and the characters of Forwarded that are read. A
# client can send thousands of hops before those that proxies add, and each of them costs time.
_MOST_HOPS = 100
_MOST_PARAMETERS = 16
_MOST_TEXT = 8192
# Characters of an IPv6 address with the name of an interface.
_LONGEST_ADDRESS = 64

# Clients can choose these strings, so the regular expressions run in linear time: text that does
# not fit is still consumed by a match, and is not scanned again from each of its characters.
#: A parameter of Forwarded, name=token or name="quoted", and the delimiter that must follow it.
_PARAMETER = re.compile(
    r'(?<!\w)(\w++)=(?:"((?:[^"\\]|\\.)*)"(?=\s*(?:;|$))|([^;,\s]*+))\s*+(;|$)?'
)
#: Characters that may end an element of Forwarded, and escaped characters within quotes.
_MARK = re.compile(r'[",]|\\["\\]')
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


class TrustedProxies:
    """The trusted proxies of forwarded_allow_ips.

    Calling the object with the scope of a request from a trusted proxy updates `client` and
    `scheme` in it.

    trusted: addresses, networks, `unix:` (all UNIX sockets) or `*` (all peers), separated by
    commas. Raises ConfigError. An IPv4 address and its IPv4-mapped IPv6 address are equal. Other
    IPv6 networks, even ::/0, contain no IPv4 addresses.
    """

    def __init__(self, trusted: str) -> None:
        names = [name for part in trusted.split(",") if (name := part.strip())]
        self.everybody = "*" in names
        self.unix = self.everybody or "unix:" in names
        self.networks: list[_Network] = []
        for name in names:
            if name in ("*", "unix:"):
                continue
            try:
                network = ipaddress.ip_network(name, strict=False)
            except ValueError:
                raise ConfigError(
                    f"forwarded_allow_ips: {name!r} is not an address, a network, unix: or *"
                ) from None
            self.networks.append(_unmapped(network))
        # Each hop of each request is looked up, mostly the same few, and a look-up takes 4 us.
        self._known = functools.lru_cache(maxsize=1024)(self._trusts)

    def trusts_peer(self, client: tuple[str, int] | None) -> bool:
        """Return whether a peer is a trusted proxy. client: its address; None for a UNIX socket."""
        return self.unix if client is None else self.trusts(client[0])

    def trusts(self, host: str) -> bool:
        """Return whether an address is that of a trusted proxy."""
        # A header can contain any string as an address. The cache must not hold long strings.
        return self.everybody or (len(host) <= _LONGEST_ADDRESS and self._known(host))

    def _trusts(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        forms = {address, getattr(address, "ipv4_mapped", None) or address}
        return any(form in network for network in self.networks for form in forms)

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


def _unmapped(network: _Network) -> _Network:
    """Return a network of IPv4-mapped IPv6 addresses as an IPv4 network, others unchanged.

    A dual-stack socket reports an IPv4 peer in its mapped form; other sockets do not.
    """
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((mapped, network.prefixlen - 96))
    return network


def _nearest_first(headers: list[tuple[bytes, bytes]]) -> Iterator[tuple[str, str]]:
    """Yield (address, scheme) of each hop, the nearest first; "" stands for a missing value."""
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
        # The two lists do not correspond. Only the scheme from the nearest proxy is reliable.
        hops = hops or [""]
        protos = protos[:1]
    yield from itertools.zip_longest(hops, protos, fillvalue="")


def _last_parts(text: str) -> list[str]:
    """Return the parts between commas, the last one first, without empty parts."""
    parts = text.rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]
    return [stripped for part in reversed(parts) if (stripped := part.strip())]


def _elements(values: list[str]) -> Iterator[str]:
    """Yield the elements of Forwarded, the nearest proxy's first."""
    remaining = _MOST_TEXT
    for text in reversed(values):
        if remaining <= 0:
            return
        # Split only as much as can be used, because each comma takes time.
        last = ",".join(text[-remaining:].rsplit(",", _MOST_HOPS)[-_MOST_HOPS:])
        yield from _split(last)
        remaining -= len(text)


def _split(text: str) -> Iterator[str]:
    """Split at unquoted commas and yield the elements from right to left.

    The nearest proxy's element is well formed, but may follow an unclosed quote of the client.
    """
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
    """Return (host, port) of a hop; port 0 if it has none.

    Accepts 1.2.3.4, 1.2.3.4:5, ::1, [::1], [::1]:5, unknown and _name.
    """
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    return host, int(port) if port.isdecimal() and len(port) <= 5 else 0
