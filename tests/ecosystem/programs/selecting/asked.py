# SPDX-License-Identifier: GPL-2.0-only
"""The answer of the applications of this folder: the class of the loop that they run on.

With SELECTING_INSTALL in the environment they call mgloop.install() as they are imported.
"""

import asyncio
import os

if os.environ.get("SELECTING_INSTALL"):
    import mgloop

    mgloop.install()


def loop_class() -> str:
    """Of the running loop."""
    kind = type(asyncio.get_running_loop())
    return f"{kind.__module__}.{kind.__qualname__}"
