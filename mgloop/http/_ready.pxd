# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.http._ready; _ready.pyx says what it is."""

from mgloop._awaitable cimport Awaitable


# Nothing has to be waited for, and nothing comes of it.
cdef class Ready(Awaitable):
    cdef object step(self, bint *returned)


cdef enum:
    LOOKS_AT = 16   # at each send() it would cost too much to see whether anything can be sent


cdef inline bint is_leaving(object transport, unsigned int *sends) except -1:
    """Whether the connection is broken, and connection_lost() about to be called: which would
    never be while an application sends on and on, for it waits for nothing else."""
    sends[0] += 1
    return sends[0] % LOOKS_AT == 0 and transport.is_closing()


# Until somebody calls wake_all().
cdef class Waiters:
    cdef list futures

    cdef object new_future(self, object loop)
    cdef int forget(self, object future) except -1
    cdef int wake_all(self) except -1
