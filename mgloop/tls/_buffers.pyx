# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Memory that all TLS connections of one loop use in turn: room for ciphertext that arrives, and
for small writes that are on their way into one record.

One pair per loop, instead of 256 KiB per connection as with asyncio.sslproto. It is native because
it is lent as plain memory. It is used in the loop's thread, with the GIL held, and belongs to
nobody between two callbacks: what arrives is taken out before anything else runs, and the record
is held only while its connection is inside a callback of the application, or in writelines().
Loops refer to it weakly, connections as long as they live.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

import weakref

# One LoopBuffers per loop, for as long as the loop or one of its TLS connections lives.
cdef object buffers_of_loop = weakref.WeakKeyDictionary()


@cython.final
@cython.no_gc
cdef class LoopBuffers:
    """Memory that all TLS connections of one loop use in turn."""

    def __cinit__(self):
        self.record = bytearray(RECORD_PLAIN_MAX)
        self.record_used = 0
        self.record_owner = NULL
        self.delivering = NULL

    def __dealloc__(self):
        if self.pin.buf is not NULL:
            PyBuffer_Release(&self.pin)

    cdef char* arrival_space(self, Py_ssize_t* size) except NULL:
        if self.pin.buf is NULL:
            arrival = bytearray(ARRIVAL_SIZE)
            self.arrival_view = memoryview(arrival)
            # For good: who has the view can release it, and could then resize what it shows.
            PyObject_GetBuffer(arrival, &self.pin, PyBUF_WRITABLE)
        size[0] = ARRIVAL_SIZE
        return <char*>self.pin.buf


cdef LoopBuffers buffers_for(object loop):
    try:
        found = buffers_of_loop.get(loop)
        if found is None:
            found = buffers_of_loop[loop] = LoopBuffers()
        return found
    except TypeError:
        return LoopBuffers()


cdef LoopBuffers known_buffers(object loop):
    try:
        return buffers_of_loop.get(loop)
    except TypeError:
        return None
