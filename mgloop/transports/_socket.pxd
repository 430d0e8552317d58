# SPDX-License-Identifier: GPL-2.0-only
"""Declare SocketWatcher, which owns a transport's socket; _socket.pyx describes it."""

from libc.stdint cimport uint32_t

from mgloop._loop cimport Watcher


cdef extern from "<netinet/in.h>":
    cdef struct sockaddr:
        unsigned short sa_family
    cdef struct sockaddr_in:
        unsigned short sin_family
        unsigned short sin_port
    cdef struct sockaddr_in6:
        unsigned short sin6_family
        unsigned short sin6_port
        unsigned int sin6_flowinfo
        unsigned int sin6_scope_id


cdef union Address:
    sockaddr any
    sockaddr_in v4
    sockaddr_in6 v6


cdef class SocketWatcher(Watcher):
    cdef object sock            # the Python socket that owns fd, or None until it is needed
    cdef object public_socket   # the TransportSocket that get_extra_info() returned, or None
    cdef object sockname        # local address, or None until it is needed
    cdef object peername        # peer's address, or None until it is needed
    cdef dict extra             # information from the transport's creator, or None
    cdef Address peer           # peer's address of an accepted connection, until peername is made
    cdef int family
    cdef int proto              # protocol number of an accepted socket
    cdef bint watched           # registered with epoll
    cdef bint exposed           # other code has the descriptor, so that nothing is deferred
    cdef bint epollout_on_demand  # register for EPOLLOUT only while data waits: it is not TCP
    cdef bint awaits_writable   # the transport waits for EPOLLOUT

    cdef int flush_pending(self) except -1          # send the deferred writes; subclasses override
    cdef int take_socket(self, object sock, dict extra) except -1
    cdef object make_socket(self)
    cdef int close_descriptor(self) except -1
    cdef uint32_t interest(self) noexcept
    cdef int await_writable(self, bint wanted) except -1
    cdef object local_name(self)
    cdef int flush_for_external_use(self, bint permanent) except -1


# Return the index of a stream socket's address family in mgl_counters.connections.
cdef int kind_of(int family) noexcept
cdef object address_tuple(Address *address)
