# SPDX-License-Identifier: GPL-2.0-only
"""Declare the awaitable of _ready.pyx, and a check for broken connections."""

from mgloop._awaitable cimport Awaitable


# An awaitable that returns None immediately.
cdef class Ready(Awaitable):
    cdef object step(self, bint *returned)


cdef enum:
    # Check one of so many send() calls, because a check of each would cost too much.
    CHECK_EVERY = 16


cdef inline bint must_yield(object transport, unsigned int *sends) except -1:
    """Return whether send() has to yield to the loop, so that it can call connection_lost().

    That is so if the connection is broken. An application that sends without ever waiting would
    otherwise keep the loop from calling connection_lost(). `sends` counts the calls of send().
    """
    sends[0] += 1
    return sends[0] % CHECK_EVERY == 0 and transport.is_closing()
