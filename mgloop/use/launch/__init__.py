# SPDX-License-Identifier: GPL-2.0-only
"""`mgloop run COMMAND`, which runs unmodified programs on mgloop.

The command is executed with a modified environment: PYTHONPATH begins with the directory site/.
Every Python interpreter, that of the command and those of its child processes, imports
sitecustomize.py from there at startup, which calls activate().
"""

from __future__ import annotations

import asyncio
from typing import Any

from ... import _stdlib
from ...loop import Loop
from .. import install
from . import others


class SelectorEventLoop(Loop):
    """mgloop's loop for a program that uses asyncio's loop class by name.

    selector: ignored, because mgloop has no selector.
    """

    def __init__(self, selector: Any = None) -> None:
        super().__init__()


#: Replacements of names in asyncio.
_NAMES: dict[str, Any] = {
    "SelectorEventLoop": SelectorEventLoop,
    "EventLoop": SelectorEventLoop,
}
if install.HAS_POLICIES:  # for a program that resets the policy
    _NAMES["DefaultEventLoopPolicy"] = install.EventLoopPolicy
    _NAMES["_DefaultEventLoopPolicy"] = install.EventLoopPolicy


def activate() -> None:
    """Make this process create mgloop's loops, even where it names asyncio's or a package's loop.

    It must be called early in a process, and cannot be undone.
    """
    install.use()
    for name, instead in _NAMES.items():
        # In 3.14 a module __getattr__ provides the policy's public name.
        if name in vars(asyncio) or name == "DefaultEventLoopPolicy":
            setattr(asyncio, name, instead)
    if "_DefaultEventLoopPolicy" in vars(_stdlib.policy_home):
        _stdlib.policy_home._DefaultEventLoopPolicy = install.EventLoopPolicy
    others.watch()
