# SPDX-License-Identifier: GPL-2.0-only
"""Declare SSLProtocol, and the interface of the TLS layer to the transport below it.

Any asyncio transport can be the lower one. It calls `SSLProtocol` as any other
`asyncio.BufferedProtocol` (`get_buffer`, `buffer_updated`, `eof_received`, `connection_lost`,
`pause_writing`, `resume_writing`). The first two run per packet. A native transport may call two C
methods instead of them, which create no Python object:

    cdef Py_ssize_t size
    cdef char* buffer = protocol.read_buffer(&size)     # NULL: MemoryError is set
    n = recv(fd, buffer, size, 0)
    if n > 0:
        protocol.data_arrived(n)                      # -1: an exception is set

Rules for the caller:

* It holds the GIL in both calls.
* The memory belongs to the loop, and all TLS connections of the loop share it. So nothing else may
  run on that loop between the two calls, and the pointer is invalid after `data_arrived`. (The
  memory that `get_buffer()` returns belongs to the connection.)
* `data_arrived` runs user code, which may close, abort or pause the caller, or set another protocol
  on it. So the caller must check its own state afterwards.
* It handles an exception of `data_arrived` as one of `buffer_updated`.
* It reports EOF by `eof_received()`.
"""

from mgloop.tls._buffers cimport LoopBuffers
from mgloop.tls._reading cimport Reading


cdef class SSLProtocol(Reading):
    cdef dict __dict__              # programs and tests override methods on the instance
    cdef bint app_transport_created
    cdef object handshake_timeout
    cdef object shutdown_timeout
    cdef object handshake_timer
    cdef object shutdown_timer
    cdef object handshake_started
    cdef LoopBuffers own_buffers    # the memory that get_buffer() returns, or None at first

    cdef char* own_receive_buffer(self, Py_ssize_t* size) except NULL

    cdef char* read_buffer(self, Py_ssize_t* size) except NULL
    cdef int data_arrived(self, Py_ssize_t nbytes) except -1

    cdef int on_ciphertext(self, char* data, Py_ssize_t size) except -1
    cdef int advance(self) except -1
    cdef int react(self, int event) except -1
    cdef int do_handshake(self) except -1
    cdef int on_handshake_complete(self, object error) except -1
    cdef int count_handshake(self, bint succeeded) except -1
    cdef int do_flush(self) except -1
    cdef int do_shutdown(self) except -1
    cdef int on_shutdown_complete(self, object error) except -1
    cdef int time_out(self) except -1
