# SPDX-License-Identifier: GPL-2.0-only
"""The description of one option of the server: type, bounds and documentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from . import converters
from .errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Option:
    """Describe how one field of Config is parsed, bounded and documented.

    read: converts a value or raises ValueError. low, high: inclusive bounds of a number. many: the
    option may be repeated.
    """

    group: str
    help: str
    read: Callable[[object], object] = converters.text
    choices: tuple[str, ...] = ()
    many: bool = False
    low: float | None = None
    high: float | None = None
    metavar: str = ""
    flag: str = ""  # name on the command line, if it differs from the name of the field
    separator: str = ","  # between several values in one environment variable
    valued: bool = False  # the flag takes true or false as its value, as in uvicorn
    shown: str = ""  # description of the default, if the value itself is not descriptive

    @property
    def is_flag(self) -> bool:
        return self.read is converters.flag

    def convert_one(self, value: object, where: str) -> object:
        """Return `value` converted.

        where: the source of the value, for the message of the ConfigError.
        """
        try:
            result = self.read(value)
        except ValueError as exc:
            raise ConfigError(f"{where}: {value!r} {exc}") from None
        if self.choices and isinstance(result, str) and result not in self.choices:
            raise ConfigError(f"{where}: {value!r} is not one of {', '.join(self.choices)}")
        if isinstance(result, int | float):
            if self.low is not None and result < self.low:
                raise ConfigError(f"{where}: {value!r} is less than the minimum of {self.low}")
            if self.high is not None and result > self.high:
                raise ConfigError(f"{where}: {value!r} is greater than the maximum of {self.high}")
        return result
