# SPDX-License-Identifier: GPL-2.0-only
"""Other people's programs on mgloop, unchanged: `mgloop run COMMAND`.

The command is what Python, or the system, starts; mgloop comes along in its environment. PYTHONPATH
begins with the folder site/, whose sitecustomize.py every Python imports as it starts: that of the
command, and those of its children, however they are made. It calls activate().
"""

from __future__ import annotations

import asyncio
from typing import Any

from .. import _stdlib
from .._install import EventLoopPolicy, use
from ..loop import Loop
from . import others


class SelectorEventLoop(Loop):
    """mgloop's loop for a program that asks for asyncio's by name.

    selector: is not used; mgloop has its own.
    """

    def __init__(self, selector: Any = None) -> None:
        super().__init__()


#: Names in asyncio, and what they are instead. Policies: that of a program that resets its own.
_NAMES = {
    "SelectorEventLoop": SelectorEventLoop,
    "EventLoop": SelectorEventLoop,
    "DefaultEventLoopPolicy": EventLoopPolicy,
    "_DefaultEventLoopPolicy": EventLoopPolicy,
}


def activate() -> None:
    """Have this process make loops of mgloop's, also where it names asyncio's own, or another
    package's. For a process that has just started; it cannot be undone."""
    use()
    for name, instead in _NAMES.items():
        # 3.14 makes the policy's public name when it is asked for.
        if name in vars(asyncio) or name == "DefaultEventLoopPolicy":
            setattr(asyncio, name, instead)
    if "_DefaultEventLoopPolicy" in vars(_stdlib.policy_home):
        _stdlib.policy_home._DefaultEventLoopPolicy = EventLoopPolicy
    others.watch()
