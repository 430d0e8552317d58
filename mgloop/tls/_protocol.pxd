# SPDX-License-Identifier: GPL-2.0-only
"""The contract of mgloop's TLS layer towards the transport below it.

Any asyncio transport can be the lower one: it talks to `SSLProtocol` as to every other
`asyncio.BufferedProtocol` (`get_buffer`, `buffer_updated`, `eof_received`, `connection_lost`,
`pause_writing`, `resume_writing`). A native transport may replace the first two, which are the
ones that run per packet, by two C calls that create no Python object:

    cdef Py_ssize_t size
    cdef char* room = protocol.read_buffer(&size)     # NULL: MemoryError is set
    n = recv(fd, room, size, 0)
    if n > 0:
        protocol.data_arrived(n)                      # -1: an exception is set

Rules for the caller. It holds the GIL in both calls. The memory belongs to the loop and is shared
by all its TLS connections: nothing else may run on that loop between the two calls, and the
pointer is worthless after `data_arrived`. `data_arrived` runs user code, which may close, abort or
pause the caller or set another protocol on it: look at your own state again afterwards. An
exception from it is to be treated as one from `buffer_updated`. EOF is not reported here but by
`eof_received()`. (`get_buffer()` lends memory of the connection's own instead.)
"""

from mgloop.tls._buffers cimport LoopBuffers
from mgloop.tls._reading cimport Reading


cdef class SSLProtocol(Reading):
    cdef dict __dict__              # as its transport's
    cdef bint app_transport_created
    cdef object handshake_timeout
    cdef object shutdown_timeout
    cdef object handshake_timer
    cdef object shutdown_timer
    cdef object handshake_started
    cdef LoopBuffers arrival        # what get_buffer() lends of, or None

    cdef char* own_space(self, Py_ssize_t* size) except NULL

    cdef char* read_buffer(self, Py_ssize_t* size) except NULL
    cdef int data_arrived(self, Py_ssize_t nbytes) except -1

    cdef int on_ciphertext(self, char* data, Py_ssize_t size) except -1
    cdef int advance(self) except -1
    cdef int react(self, int event) except -1
    cdef int do_handshake(self) except -1
    cdef int on_handshake_complete(self, object error) except -1
    cdef int handshake_counted(self, bint done) except -1
    cdef int do_flush(self) except -1
    cdef int do_shutdown(self) except -1
    cdef int on_shutdown_complete(self, object error) except -1
    cdef int give_up(self) except -1
