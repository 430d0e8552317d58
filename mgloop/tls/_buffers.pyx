# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Memory that all TLS connections of one loop use in turn.

There are three buffers: one for ciphertext (the encrypted bytes of TLS) that is received, one for
small writes that are collected into one TLS record, and one for ciphertext to send. A loop has one
of each, while asyncio.sslproto has 256 KiB per connection. The module is native because the engine
uses the buffers as plain memory.

The buffers are used on the thread of the loop, and are free between two callbacks. A connection
takes the received ciphertext out before anything else runs. It holds the other two buffers only
during a write, or during a callback of the application. While another connection holds the buffer
for ciphertext to send, OpenSSL writes into the memory BIO of the connection's own session.

The loop holds a reference, and so does each connection for its lifetime. A transport below that is
not native asks for memory by get_buffer(). A connection over such a transport has a buffer of its
own for received ciphertext.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc

from mgloop._loop cimport LoopCore


@cython.final
@cython.no_gc
cdef class LoopBuffers:
    """Hold the memory that all TLS connections of one loop use in turn."""

    def __cinit__(self):
        self.record = bytearray(RECORD_PLAIN_MAX)
        self.record_used = 0
        self.record_owner = NULL
        self.cipher = NULL
        self.cipher_owner = NULL
        self.delivering = NULL

    def __dealloc__(self):
        if self.receive_export.buf is not NULL:
            PyBuffer_Release(&self.receive_export)
        PyMem_Free(self.cipher)

    cdef char* receive_buffer(self, Py_ssize_t* size) except NULL:
        if self.receive_export.buf is NULL:
            memory = bytearray(RECEIVE_SIZE)
            self.receive_view = memoryview(memory)
            # This export is released in __dealloc__() only. Code that has the memoryview could
            # release it, and a bytearray without exports can be resized, which frees its memory.
            PyObject_GetBuffer(memory, &self.receive_export, PyBUF_WRITABLE)
        size[0] = RECEIVE_SIZE
        return <char*>self.receive_export.buf

    cdef char* cipher_buffer(self) except NULL:
        if self.cipher is NULL:
            self.cipher = <char*>PyMem_Malloc(CIPHER_SIZE)
            if self.cipher is NULL:
                raise MemoryError
        return self.cipher


cdef LoopBuffers buffers_for(object loop):
    if not isinstance(loop, LoopCore):
        return LoopBuffers()        # the loop is not mgloop's: the connection has its own buffers
    if (<LoopCore>loop).tls_buffers is None:
        (<LoopCore>loop).tls_buffers = LoopBuffers()
    return (<LoopCore>loop).tls_buffers


cdef LoopBuffers known_buffers(object loop):
    return (<LoopCore>loop).tls_buffers if isinstance(loop, LoopCore) else None
