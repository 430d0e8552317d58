# SPDX-License-Identifier: GPL-2.0-only
"""The interpreter options that child processes of mgloop inherit."""

from __future__ import annotations

import subprocess
import sys


def options() -> list[str]:
    """Return the options that this interpreter was started with, such as -O, -W, -X and -u."""
    # The function is that of multiprocessing, which omits -u and unknown -X options.
    given: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    for name, value in sys._xoptions.items():
        given.append(f"-X{name}" if value is True else f"-X{name}={value}")
    if getattr(sys.stdout, "write_through", False):
        given.append("-u")
    return given
