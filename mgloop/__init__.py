# SPDX-License-Identifier: GPL-2.0-only
"""mgloop: a drop-in asyncio event loop on top of the Mongoose networking library.

asyncio.run(main(), loop_factory=mgloop.new_event_loop)     # Python 3.12 and later
mgloop.run(main())                                          # any version
mgloop.install(); asyncio.run(main())                       # for code that is not yours
"""

from __future__ import annotations

from importlib.metadata import version as _version

from ._install import EventLoopPolicy, install, new_event_loop, run, uninstall
from ._loop import MONGOOSE_VERSION
from .loop import Loop

__all__ = [
    "MONGOOSE_VERSION",
    "EventLoopPolicy",
    "Loop",
    "install",
    "new_event_loop",
    "run",
    "uninstall",
]

__version__ = _version("mgloop")
