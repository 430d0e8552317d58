# SPDX-License-Identifier: GPL-2.0-only
"""The negotiation of permessage-deflate (RFC 7692), the compression of WebSocket messages.

The server accepts the first offer of the client that it supports. As the RFC requires, it declines
an offer with a parameter that is unknown, repeated or out of range. It also declines malformed
offers. The module is Python because it runs once per connection; _frames compresses and
decompresses.

By default, zlib's window and hash tables take 256 KiB of memory per connection for sending and
44 KiB for receiving. The server therefore requests a window of 12 bits where it may, which takes
32 KiB and 12 KiB.
"""

import dataclasses
import importlib.util

__all__ = ["Agreement", "negotiate"]

AVAILABLE = importlib.util.find_spec("zlib") is not None

#: Window size (base-2 logarithm) that the server requests.
WINDOW_BITS = 12

#: zlib cannot compress with a window of 8 bits. It can decompress with a larger one.
LEAST_BITS = 9


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The negotiated parameters of FrameWriter and FrameReader, and the response header's value."""

    server_bits: int
    server_takeover: bool
    client_bits: int
    client_takeover: bool
    answer: bytes


def negotiate(values: list[bytes]) -> Agreement | None:
    """Return the parameters of the first acceptable offer, or None.

    values: the values of the Sec-WebSocket-Extensions headers.
    """
    if not AVAILABLE:
        return None
    for value in values:
        for offer in value.decode("latin-1").split(","):
            agreement = _agree(offer)
            if agreement is not None:
                return agreement
    return None


def _agree(offer: str) -> Agreement | None:
    # The limit is one more than the name and the four known parameters. The excess part is then an
    # unknown parameter, which declines the offer.
    name, *parameters = (part.strip(" \t") for part in offer.split(";", 5))
    if name.lower() != "permessage-deflate":
        return None
    server_bits, client_bits = WINDOW_BITS, 15
    answer = [name.lower()]
    seen = set()
    for parameter in parameters:
        key, equals, bits = (part.strip(" \t") for part in parameter.lower().partition("="))
        if len(bits) >= 2 and bits[0] == bits[-1] == '"':
            bits = bits[1:-1]
        if key in seen:
            return None
        seen.add(key)
        if key in ("server_no_context_takeover", "client_no_context_takeover"):
            if equals:
                return None
            answer.append(key)
        elif key == "server_max_window_bits":
            if not _is_size(bits) or int(bits) < LEAST_BITS:
                return None
            server_bits = min(int(bits), WINDOW_BITS)
        elif key == "client_max_window_bits":
            if equals and not _is_size(bits):
                return None
            client_bits = min(int(bits) if equals else 15, WINDOW_BITS)
            answer.append(f"{key}={client_bits}")
        else:
            return None
    answer.append(f"server_max_window_bits={server_bits}")
    return Agreement(
        server_bits=server_bits,
        server_takeover="server_no_context_takeover" not in seen,
        client_bits=max(client_bits, LEAST_BITS),
        client_takeover="client_no_context_takeover" not in seen,
        answer="; ".join(answer).encode("ascii"),
    )


def _is_size(bits: str) -> bool:
    return bits in {"8", "9", "10", "11", "12", "13", "14", "15"}
