# SPDX-License-Identifier: GPL-2.0-only
"""permessage-deflate (RFC 7692): what a client offers, and what the server agrees to.

Python, for it runs once per connection; what was agreed upon is carried out by _frames. Of several
offers the first that can be met is taken. An offer with a parameter that is unknown, doubled or
out of range is declined, as the RFC wants it, and so is what cannot be read.

Memory per connection: zlib's window and hash tables are 256 KiB for sending and 44 KiB for
receiving if nobody says anything, so the server says 12 bits where it may: 32 KiB and 12 KiB.
"""

import dataclasses
import importlib.util

__all__ = ["Agreement", "negotiate"]

AVAILABLE = importlib.util.find_spec("zlib") is not None

#: The windows that the server asks for.
WINDOW_BITS = 12

#: zlib makes none of 8 for sending; for receiving a larger one does as well.
LEAST_BITS = 9


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The values for FrameWriter and FrameReader, and the header's value in the answer."""

    server_bits: int
    server_takeover: bool
    client_bits: int
    client_takeover: bool
    answer: bytes


def negotiate(values: list[bytes]) -> Agreement | None:
    """Agree to an offer in `values`, those of Sec-WebSocket-Extensions; None if to none."""
    if not AVAILABLE:
        return None
    for value in values:
        for offer in value.decode("latin-1").split(","):
            agreement = _agree(offer)
            if agreement is not None:
                return agreement
    return None


def _agree(offer: str) -> Agreement | None:
    # One more part than the name and the four parameters that there are: it declines the offer.
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
