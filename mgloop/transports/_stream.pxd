# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.transports._stream: the stream transport and the listener."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from mgloop._loop cimport Watcher
from mgloop.tls._protocol cimport SSLProtocol
from mgloop.transports._base cimport Address, SocketTransport


cdef extern from "writequeue.h":
    ctypedef struct mgl_queue:
        uint32_t len
        size_t offset
        size_t size


cdef class Stream(SocketTransport):
    cdef object empty_waiter
    cdef SSLProtocol tls        # the protocol, if it is our own TLS, else None
    cdef mgl_queue queue
    cdef uint32_t hint          # how much the next read may bring
    cdef bint buffered          # the protocol is a BufferedProtocol
    cdef bint eof               # write_eof() was called
    cdef bint read_eof          # the peer has shut down its side
    cdef bint blocked           # the kernel's buffer is full: wait for EPOLLOUT

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
    cdef int write_failed(self, int error) except -1
    cdef int shutdown_write(self) except -1


cdef class Listener(Watcher):
    cdef object context         # None once it is stopped
    cdef object protocol_factory
    cdef object sock
    cdef object sslcontext
    cdef object server
    cdef int backlog
    cdef object handshake_timeout
    cdef object shutdown_timeout
    cdef object sockname        # of every accepted connection, or None: the listener is a wildcard
    cdef object retry           # timer of the pause after EMFILE
    cdef int family
    cdef bint stopped

    cdef int accept(self, int fd, Address *peer) except -1
    cdef int accept_cold(self, object conn, object peername) except -1
    cdef int accept_any_family(self) except -1
    cdef int accept_failed(self, int error) except -1
    cdef int out_of_resources(self, int error) except -1
    cdef report(self, str message, exc)
