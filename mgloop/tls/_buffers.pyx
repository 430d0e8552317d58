# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Memory that all TLS connections of one loop use in turn: room for ciphertext that arrives, for
small writes that are on their way into one record, and for ciphertext that is to be sent.

One of each per loop, instead of 256 KiB per connection as with asyncio.sslproto. It is native
because it is lent as plain memory. It is used in the loop's thread, and belongs to nobody between
two callbacks: what arrives is taken out before anything else runs, and the record is held only
while its connection is inside a callback of the application, or in writelines(). So is the
ciphertext: who finds no room there has a BIO.
The loop refers to it, and connections as long as they live. A connection over a transport that does
not know it, and asks get_buffer() for room, has room for arrivals of its own.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc

from mgloop._loop cimport LoopCore


@cython.final
@cython.no_gc
cdef class LoopBuffers:
    """Memory that all TLS connections of one loop use in turn."""

    def __cinit__(self):
        self.record = bytearray(RECORD_PLAIN_MAX)
        self.record_used = 0
        self.record_owner = NULL
        self.cipher = NULL
        self.cipher_owner = NULL
        self.delivering = NULL

    def __dealloc__(self):
        if self.pin.buf is not NULL:
            PyBuffer_Release(&self.pin)
        PyMem_Free(self.cipher)

    cdef char* arrival_space(self, Py_ssize_t* size) except NULL:
        if self.pin.buf is NULL:
            arrival = bytearray(ARRIVAL_SIZE)
            self.arrival_view = memoryview(arrival)
            # For good: who has the view can release it, and could then resize what it shows.
            PyObject_GetBuffer(arrival, &self.pin, PyBUF_WRITABLE)
        size[0] = ARRIVAL_SIZE
        return <char*>self.pin.buf

    cdef char* cipher_space(self) except NULL:
        if self.cipher is NULL:
            self.cipher = <char*>PyMem_Malloc(CIPHER_SIZE)
            if self.cipher is NULL:
                raise MemoryError
        return self.cipher


cdef LoopBuffers buffers_for(object loop):
    if not isinstance(loop, LoopCore):
        return LoopBuffers()        # another loop's: the connection has its own
    if (<LoopCore>loop).tls_buffers is None:
        (<LoopCore>loop).tls_buffers = LoopBuffers()
    return (<LoopCore>loop).tls_buffers


cdef LoopBuffers known_buffers(object loop):
    return (<LoopCore>loop).tls_buffers if isinstance(loop, LoopCore) else None
