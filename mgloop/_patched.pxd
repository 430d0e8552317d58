# SPDX-License-Identifier: GPL-2.0-only
"""Declare patched_run(), which the loop calls once per batch."""

from libc.stdint cimport int64_t

from mgloop._port cimport PyTypeObject, mgl_counted, mgl_version_of


cdef PyTypeObject *asyncio_handle   # asyncio.Handle
cdef int64_t asyncio_version        # version tag of the class with its original _run()

cdef object find_patched_run()


# Return the function that replaces asyncio's Handle._run(), or None if it is the original.
cdef inline object patched_run():
    cdef int64_t version = mgl_version_of(asyncio_handle)
    if version == mgl_counted(&asyncio_version) and version != 0:
        return None
    return find_patched_run()
