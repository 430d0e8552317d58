# SPDX-License-Identifier: GPL-2.0-only
"""Notice that a program has replaced asyncio's Handle._run().

Tools that trace or measure callbacks do so, possibly before this module is imported. The loop
checks for that in each batch, so the check is native. It is cheap because it compares the version
tag of the class first. The cache belongs to the process: the class is the same for all loops.
Threads without the GIL may call patched_run() at the same time.
"""

from libc.stdint cimport int64_t

from mgloop._port cimport PyTypeObject, mgl_store, mgl_version_of

from asyncio import events as asyncio_events

from . import _stdlib


cdef object AsyncioHandle = asyncio_events.Handle
cdef object asyncio_run = None
asyncio_handle = <PyTypeObject *>AsyncioHandle


cdef object find_patched_run():
    """Return as patched_run() does, and update the cache."""
    global asyncio_run
    # Read the version before the attribute, because another thread may change the class between
    # the two reads.
    cdef int64_t version = mgl_version_of(asyncio_handle)
    run = AsyncioHandle._run
    if run is not asyncio_run:
        if not _stdlib.is_asyncios(run):
            return run
        asyncio_run = run
    mgl_store(&asyncio_version, version)
    return None


# Initialise the cache before other threads exist. A repeated call gives the same result.
find_patched_run()
