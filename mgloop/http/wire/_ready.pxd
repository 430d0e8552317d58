# SPDX-License-Identifier: GPL-2.0-only
"""Declare the primitives of waiting of _ready.pyx, and a check for broken connections."""

from mgloop._awaitable cimport Awaitable


# An awaitable that returns None immediately.
cdef class Ready(Awaitable):
    cdef object step(self, bint *returned)


cdef enum:
    LOOKS_AT = 16   # check one of so many send() calls, because a check of each would cost too much


cdef inline bint is_leaving(object transport, unsigned int *sends) except -1:
    """Return whether the connection is broken, and connection_lost() only waits to be called.

    send() must wait for the loop then. Otherwise an application that sends without ever waiting
    would keep the loop from calling connection_lost(). `sends` counts the calls of send().
    """
    sends[0] += 1
    return sends[0] % LOOKS_AT == 0 and transport.is_closing()


# Futures that are all done after the next call of wake_all().
cdef class Waiters:
    cdef list futures

    cdef object new_future(self, object loop)
    cdef int forget(self, object future) except -1
    cdef int wake_all(self) except -1
