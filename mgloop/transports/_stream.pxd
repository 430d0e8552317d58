# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native interface of the stream transport; _stream.pyx describes it."""

from libc.stdint cimport uint32_t

from mgloop.transports._receiving cimport ReceivingStream
from mgloop.transports._writequeue cimport mgl_queue


cdef class Stream(ReceivingStream):
    cdef object empty_waiter    # future of sendfile() that is done when the queue is empty, or None
    cdef mgl_queue queue        # data that the kernel has not accepted yet
    cdef uint32_t long_write_iteration  # number of the iteration with the last long write
    cdef bint eof               # write_eof() was called
    cdef bint blocked           # nothing is sent until EPOLLOUT, after EAGAIN or a full time slice

    cdef int send_queue(self) except -1
    cdef int send_later(self) except -1
    cdef int all_sent(self) except -1
    cdef _write(self, object data, const char *start, Py_ssize_t n)
    cdef int write_bytes(self, object data, const char *start, Py_ssize_t n) except -1
    cdef bint may_defer(self, object data, Py_ssize_t n) noexcept
    cdef int defer(self) except -1
    cdef int write_failed(self, int error) except -1
    cdef int shutdown_write(self) except -1


# Set TCP_NODELAY on a TCP socket; do nothing for other sockets.
cdef int set_nodelay(object sock) except -1
