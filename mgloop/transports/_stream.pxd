# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native interface of the stream transport; _stream.pyx describes it."""

from libc.stdint cimport uint32_t

from mgloop.tls._protocol cimport SSLProtocol
from mgloop.transports._base cimport SocketTransport


cdef extern from "writequeue.h":
    ctypedef struct mgl_queue:
        uint32_t len
        size_t offset
        size_t size


cdef class Stream(SocketTransport):
    cdef object empty_waiter    # future of sendfile() that is done when the queue is empty, or None
    cdef SSLProtocol tls        # the protocol if it is mgloop's own TLS protocol, else None
    cdef mgl_queue queue        # data that the kernel has not accepted yet
    cdef uint32_t hint          # expected size of the next read, in bytes
    cdef uint32_t turn          # number of the iteration with the last long write
    cdef bint buffered          # the protocol is a BufferedProtocol
    cdef bint eof               # write_eof() was called
    cdef bint read_eof          # the peer has shut down its side
    cdef bint blocked           # nothing is sent until EPOLLOUT, after EAGAIN or a full time slice

    cdef int read(self, uint32_t events) except -1
    cdef object receive(self, uint32_t events, Py_ssize_t *asked)
    cdef Py_ssize_t receive_into(self, uint32_t events, Py_ssize_t *asked) except -2
    cdef Py_ssize_t receive_tls(self, uint32_t events, Py_ssize_t *asked) except -2
    cdef int on_read_error(self, int error, uint32_t events) except -1
    cdef int on_eof(self) except -1
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
