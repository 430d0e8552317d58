# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.transports._datagram: the datagram transport."""

from libc.stdint cimport uint32_t

from mgloop._loop cimport mgl_connections
from mgloop.transports._base cimport SocketTransport


# What all datagram transports of a loop share.
cdef class Room:
    cdef void *memory           # Buffers, in _datagram.pyx


cdef class Datagram(SocketTransport):
    cdef Room shared
    cdef object address         # remote address given by the creator, or None
    cdef object queue           # deque of (bytes, address) that the kernel had no room for
    cdef list undelivered       # read already when reading was paused
    cdef Py_ssize_t queued_bytes
    cdef bint connected_socket
    cdef bint nameless_peer     # connected, to one without an address: socketpair()
    cdef bint by_address        # IPv4 or IPv6: addresses go through the cache

    cdef mgl_connections *counters(self) noexcept
    cdef int read_batch(self, uint32_t events) except -1
    cdef int read_one(self, uint32_t events) except -1
    cdef int deliver(self, list batch) except -1
    cdef int on_error(self, object exc) except -1
    cdef int on_read_error(self, object exc) except -1
    cdef int send_now(self, const char *start, Py_ssize_t n, object address) except -1
    cdef int send_cold(self, const char *start, Py_ssize_t n, object address) except -1
    cdef int send_queue(self) except -1
