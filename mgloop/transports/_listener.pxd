# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.transports._listener: a listening socket."""

from mgloop._loop cimport Watcher
from mgloop.transports._base cimport Address


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
    cdef int proto
    cdef bint by_python         # by the socket's accept(): a rare family, or a method of its class
    cdef bint stopped

    cdef int accept(self, int fd, Address *peer, object peername) except -1
    cdef int accept_cold(self, object conn, object peername) except -1
    cdef int accept_any_family(self) except -1
    cdef int count_accepted(self) noexcept
    cdef int accept_failed(self, int error) except -1
    cdef int out_of_resources(self, int error) except -1
    cdef report(self, str message, exc)
