# SPDX-License-Identifier: GPL-2.0-only
"""Read the environment file of the option --env-file, in the format of python-dotenv."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import ConfigError

# Backslash escapes inside double quotes in an environment file.
_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
# One assignment in an environment file, or a comment or an empty line.
_ENV_LINE = re.compile(
    r"""[^\S\n]*(?:\#[^\n]*|(?:export[^\S\n]+)?([A-Za-z_][A-Za-z0-9_.]*)[^\S\n]*=[^\S\n]*+"""
    r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|((?!["'])[^\n]*?))(?:[^\S\n]+\#[^\n]*)?)?"""
    r"""[^\S\n]*(?:\n|\Z)""",
    re.DOTALL,
)


def read_env_file(file: str) -> dict[str, str]:
    """Read a file of NAME=value lines and return the variables.

    Values may be quoted. Comments, empty lines and a leading `export` are accepted. A quoted value
    may have several lines, and its backslash escapes are those of python-dotenv. References to
    other variables are not expanded. Raises ConfigError.
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(f"cannot read the environment file {file}: {reason}") from None
    values = {}
    place = 0
    while place < len(text):
        match = _ENV_LINE.match(text, place)
        if not match:  # the message omits the line because it may contain a secret
            number = text.count("\n", 0, place) + 1
            raise ConfigError(f"{file}, line {number}: expected NAME=value")
        place = match.end()
        name, double, single, plain = match.groups()
        if double is not None:
            values[name] = re.sub(r"\\([\\'\"abfnrtv])", lambda m: _ESCAPES.get(m[1], m[1]), double)
        elif single is not None:
            values[name] = re.sub(r"\\([\\'])", r"\1", single)
        elif name is not None:
            values[name] = plain
    return values
