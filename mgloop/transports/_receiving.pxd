# SPDX-License-Identifier: GPL-2.0-only
"""Declare the reading half of the stream transport; _receiving.pyx describes it."""

from libc.stdint cimport uint32_t

from mgloop._loop cimport EPOLLERR, EPOLLHUP, EPOLLRDHUP
from mgloop.tls._protocol cimport SSLProtocol
from mgloop.transports._base cimport SocketTransport


cdef enum:
    GONE = EPOLLRDHUP | EPOLLHUP | EPOLLERR     # the peer has closed or reset the connection


cdef class ReceivingStream(SocketTransport):
    cdef SSLProtocol tls        # the protocol if it is mgloop's own TLS protocol, else None
    cdef uint32_t hint          # expected size of the next read, in bytes
    cdef bint buffered          # the protocol is a BufferedProtocol
    cdef bint read_eof          # the peer has shut down its side

    cdef int read(self, uint32_t events) except -1
    cdef object receive(self, uint32_t events, Py_ssize_t *requested)
    cdef Py_ssize_t receive_into(self, uint32_t events, Py_ssize_t *requested) except -2
    cdef Py_ssize_t receive_tls(self, uint32_t events, Py_ssize_t *requested) except -2
    cdef int on_read_error(self, int error, uint32_t events) except -1
    cdef int on_eof(self) except -1
