# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native interface of the datagram transport; _datagram.pyx describes it."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from mgloop._loop cimport mgl_connections
from mgloop.transports._base cimport SocketTransport
from mgloop.transports._socket cimport Address


cdef struct CachedAddress


cdef class RecvmmsgBuffers:
    cdef void *memory           # a `Buffers` structure, which _datagram.pyx defines

    cdef int receive(self, int fd) noexcept


cdef class AddressCache:
    cdef void *memory           # an `AddressTables` structure, which _datagram.pyx defines

    cdef object tuple_of(self, Address *name, unsigned int size)
    cdef CachedAddress *entry_of(self, PyObject *address, int family) noexcept


cdef class Datagram(SocketTransport):
    cdef RecvmmsgBuffers buffers
    cdef AddressCache addresses
    cdef object address         # remote address that the creator passed, or None
    cdef object queue           # deque of (bytes, address) that the kernel has not accepted yet
    cdef list undelivered       # (bytes, address) that were received before reading was paused
    cdef Py_ssize_t queued_bytes  # size of `queue`, including HEADER bytes per datagram
    cdef bint connected_socket
    cdef bint nameless_peer     # the peer has an empty address, as after socketpair()
    cdef bint by_address        # the family is IPv4 or IPv6, for which the address cache is used

    cdef mgl_connections *counters(self) noexcept
    cdef int read_batch(self, uint32_t events) except -1
    cdef int read_one(self, uint32_t events) except -1
    cdef int deliver(self, list batch) except -1
    cdef int on_error(self, object exc) except -1
    cdef int on_read_error(self, object exc) except -1
    cdef int send_now(self, const char *start, Py_ssize_t n, object address) except -1
    cdef int send_by_python(self, const char *start, Py_ssize_t n, object address) except -1
    cdef int send_queue(self) except -1
