# SPDX-License-Identifier: GPL-2.0-only
"""Declare the read side of a TLS connection: from the transport below to the application."""

from mgloop.tls._buffers cimport LoopBuffers
from mgloop.tls._writing cimport Writing


cdef class Reading(Writing):
    cdef readonly bint _ssl_reading_paused
    cdef public bint _app_reading_paused
    cdef readonly object _incoming_high_water
    cdef readonly object _incoming_low_water

    cdef bint app_is_buffered       # the application's protocol is a BufferedProtocol
    cdef object app_get_buffer
    cdef object app_buffer_updated

    # Called by SSLTransport.
    cdef int resume_reading(self) except -1
    cdef int control_ssl_reading(self) except -1
    cdef object read_buffer_size(self)

    # Called by SSLProtocol. True: data is left, and the caller has to call do_read() for it.
    cdef bint read_received(self, char* data, Py_ssize_t size) except -1
    cdef bint do_read(self) except -1
    cdef int call_eof_received(self) except -1
    cdef int forget_application(self) except -1

    cdef int read_copied(self) except -1
    cdef bint read_buffered(self) except -1
    cdef int deliver(self, object callback, object data) except -1
    cdef void end_delivery(self, LoopBuffers buffers) noexcept
    cdef int end_of_stream(self) except -1
