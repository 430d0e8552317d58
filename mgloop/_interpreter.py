# SPDX-License-Identifier: GPL-2.0-only
"""What another process needs, to be run by Python as this one is."""

from __future__ import annotations

import subprocess
import sys


def options() -> list[str]:
    """The options that this interpreter was started with: -O, -W, -X, -u and the like."""
    # As multiprocessing has them: of -X only those that it knows, and without -u.
    given: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    for name, value in sys._xoptions.items():
        given.append(f"-X{name}" if value is True else f"-X{name}={value}")
    if getattr(sys.stdout, "write_through", False):
        given.append("-u")
    return given
