# SPDX-License-Identifier: GPL-2.0-only
"""Declare the awaitable of _ready.pyx, and a check for broken connections."""

from mgloop._awaitable cimport Awaitable


# An awaitable that returns None immediately.
cdef class Ready(Awaitable):
    cdef object step(self, bint *returned)


cdef enum:
    # Check one of so many send() calls, because a check of each would cost too much.
    CHECK_EVERY = 16


cdef inline bint is_leaving(object transport, unsigned int *sends) except -1:
    """Return whether the connection is broken, and connection_lost() only waits to be called.

    send() must wait for the loop then. Otherwise an application that sends without ever waiting
    would keep the loop from calling connection_lost(). `sends` counts the calls of send().
    """
    sends[0] += 1
    return sends[0] % CHECK_EVERY == 0 and transport.is_closing()
