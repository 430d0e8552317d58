# SPDX-License-Identifier: GPL-2.0-only
"""Declare the reading half of the stream transport; _receiving.pyx describes it."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from mgloop._loop cimport EPOLLERR, EPOLLHUP, EPOLLRDHUP
from mgloop.tls._protocol cimport SSLProtocol
from mgloop.transports._base cimport SocketTransport


cdef enum:
    GONE = EPOLLRDHUP | EPOLLHUP | EPOLLERR     # the peer has closed or reset the connection

cdef enum:
    # How the protocol receives data, unless it is mgloop's own TLS protocol.
    BYTES = 0                   # data_received() of an object gets bytes
    BUFFERED                    # the protocol is a BufferedProtocol
    COMPILED                    # data_received() is a C function, see _compiled.pyx


# The C functions of mgloop._compiled, which this module must not import.
cdef struct CompiledCalls:
    # Return whether deliver() can be used for the protocol.
    bint (*accepts)(object protocol) except -1
    # Call data_received(); return -1 with an exception set if it fails.
    int (*deliver)(PyObject *protocol, const char *data, Py_ssize_t size) noexcept

# Set the functions, once, for the life of the process.
cdef void set_compiled(CompiledCalls *calls) noexcept
# Return BYTES, BUFFERED or COMPILED for a protocol.
cdef int delivery_to(object protocol) except -1


cdef class ReceivingStream(SocketTransport):
    cdef SSLProtocol tls        # the protocol if it is mgloop's own TLS protocol, else None
    cdef uint32_t hint          # expected size of the next read, in bytes
    cdef int delivery           # how the protocol receives data
    cdef bint read_eof          # the peer has shut down its side

    cdef int read(self, uint32_t events) except -1
    cdef object receive(self, uint32_t events, Py_ssize_t *requested)
    cdef Py_ssize_t receive_into(self, uint32_t events, Py_ssize_t *requested) except -2
    cdef Py_ssize_t receive_tls(self, uint32_t events, Py_ssize_t *requested) except -2
    cdef int on_read_error(self, int error, uint32_t events) except -1
    cdef int on_eof(self) except -1
