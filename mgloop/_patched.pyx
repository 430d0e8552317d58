# SPDX-License-Identifier: GPL-2.0-only
"""Notice that a program has replaced asyncio's Handle._run().

Tools that trace or measure callbacks do so, possibly before this module is imported. The loop looks
for a replacement when it begins to run and before each wait. The original function is kept for the
process, because the class is the same for all loops.
"""

from asyncio import events as asyncio_events

from . import _stdlib


cdef object AsyncioHandle = asyncio_events.Handle
cdef object asyncio_run = None      # the original function, once it has been seen


cdef object patched_run():
    global asyncio_run
    run = AsyncioHandle._run
    if run is asyncio_run:
        return None
    if not _stdlib.is_asyncios(run):
        return run
    asyncio_run = run
    return None
