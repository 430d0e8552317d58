# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native interface of Listener; _listener.pyx describes it."""

from mgloop._loop cimport Watcher
from mgloop.transports._socket cimport Address


cdef class Listener(Watcher):
    cdef object context         # context in which protocol factories run; None after stop()
    cdef object protocol_factory
    cdef object sock
    cdef object sslcontext
    cdef object server
    cdef int backlog            # maximum of connections that one iteration accepts
    cdef object handshake_timeout
    cdef object shutdown_timeout
    # Local address of every accepted connection, or None if the listener has a wildcard address.
    cdef object sockname
    cdef object retry           # timer that ends the pause after an error such as EMFILE, or None
    cdef int family
    cdef int proto
    # Use the Python socket's accept(), for a rare family or because its class overrides accept().
    cdef bint by_python
    cdef bint stopped

    cdef int accept(self, int fd, Address *peer, object peername) except -1
    cdef int accept_with_task(self, object conn, object peername) except -1
    cdef int accept_any_family(self) except -1
    cdef int count_accepted(self) noexcept
    cdef int accept_failed(self, int error) except -1
    cdef int out_of_resources(self, int error) except -1
    cdef report(self, str message, exc)
