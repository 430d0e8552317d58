# SPDX-License-Identifier: GPL-2.0-only
"""Convert the values of options from text, TOML or Python to the types of their fields.

Each function returns the converted value, or raises ValueError with the second half of a message,
such as "is not a valid integer". config.py puts the option and the value before it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Headers that delimit one response. The same value on all responses would make clients misread
# some of them.
_FRAMING = {"connection", "content-length", "transfer-encoding"}
_FLAGS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def integer(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]+\s*", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("is not a valid integer")


def number(value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            result = float(value)
        except (ValueError, OverflowError):
            result = math.nan
        if math.isfinite(result):
            return result
    raise ValueError("is not a valid number")


def size(value: object) -> int:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+)\s*([kmg]?)(?:i?b)?\s*", value, re.IGNORECASE)
        if match:
            return int(match[1]) * _UNITS[match[2].lower()]
        raise ValueError("is not a valid size: expected bytes, or a number such as 64K, 16M or 1G")
    return integer(value)


def mode(value: object) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"(0o)?[0-7]{1,4}", value):
            raise ValueError("is not a valid octal mode such as 660")
        return int(value, 8)
    bits = integer(value)
    # The decimal number 660 is a common mistake for 0o660. It is greater than any valid mode.
    if not 0 <= bits <= 0o777:
        raise ValueError("is not a valid file mode such as 0o660")
    return bits


def flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    raise ValueError("is not a valid boolean: expected true or false")


def text(value: object) -> str:
    if isinstance(value, str | os.PathLike):
        path: object = os.fspath(value)
        if isinstance(path, str) and "\0" not in path:
            return path
    raise ValueError("is not a valid string")


def header(value: object) -> tuple[str, str]:
    if isinstance(value, str):
        name, colon, content = value.partition(":")
        if not colon:
            raise ValueError("is not a header of the form Name:Value")
    else:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError("is not a header: expected a pair of name and value")
        name, content = (
            part.decode("latin-1") if isinstance(part, bytes) else text(part) for part in value
        )
    name, content = name.strip(), content.strip(" \t")
    if not _TOKEN.fullmatch(name):
        raise ValueError("is not a header with a valid name")
    if name.lower() in _FRAMING:
        raise ValueError("is a framing header, which cannot be the same for all responses")
    if any(c in "\r\n\0" for c in content) or any(ord(c) > 255 for c in content):
        raise ValueError("is not a header with a valid value")
    return name, content


def log_level(value: object) -> str | int:
    """Return the lower-case name of a log level, or its number in the logging module."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return text(value).lower()


def log_config(value: object) -> str | dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else text(value)


def comma_separated(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(text, value))
    return text(value)


def anything(value: object) -> object:
    return value
