# SPDX-License-Identifier: GPL-2.0-only
"""Declare the write side of a TLS connection: from the application to the transport below."""

from mgloop.tls._buffers cimport LoopBuffers
from mgloop.tls._states cimport Connection


cdef class Writing(Connection):
    cdef readonly bint _ssl_writing_paused
    cdef readonly bint _app_writing_paused
    cdef readonly object _outgoing_high_water
    cdef readonly object _outgoing_low_water
    cdef readonly Py_ssize_t _write_buffer_size

    cdef object backlog             # collections.deque of plaintext, or None before the first use
    cdef bint coalescing            # inside a callback or writelines(), which flushes at its end
    cdef bint delivering            # inside a callback that delivers data
    cdef void* outer                # the connection with the enclosing callback (TLS over TLS)
    cdef bint exposed               # user code has the bare descriptor: defer no writes
    cdef Py_ssize_t unsent          # approximate plaintext bytes in the outgoing BIO

    # Called by SSLTransport.
    cdef int write_one(self, object data) except -1
    cdef int write_many(self, object list_of_data) except -1
    cdef int append(self, object data) except -1
    cdef int control_app_writing(self) except -1
    cdef object write_buffer_size(self)

    # Called by the other parts. end_of_callback(), process_outgoing() and send_backlog() may run
    # callbacks of the application.
    cdef int end_of_callback(self) except -1
    cdef int claim_cipher_buffer(self) except -1
    cdef int release_cipher_buffer(self) except -1
    cdef int process_outgoing(self) except -1
    cdef int send_outgoing(self) except -1
    cdef int send_cipher_buffer(self) except -1
    cdef int flush_record(self) except -1
    cdef int flush_pending(self) except -1
    cdef int send_backlog(self, bint everything) except -1
    cdef int drop_writes(self) except -1

    cdef bint refuse_write(self) except -1
    cdef bint claim_record(self, LoopBuffers buffers, Py_ssize_t size) except -1
    cdef int encrypt_or_queue(self, object data) except -1
    cdef int encrypt_or_queue_memory(self, object data, char* start, Py_ssize_t size) except -1
    cdef int enqueue(self, object data, char* start, Py_ssize_t size) except -1
    cdef Py_ssize_t encrypt(self, char* start, Py_ssize_t size) except -1
