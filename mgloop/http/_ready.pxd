# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.http._ready; _ready.pyx says what it is."""

from mgloop._awaitable cimport Awaitable


# Nothing has to be waited for, and nothing comes of it.
cdef class Ready(Awaitable):
    cdef object step(self, bint *returned)


# Until somebody calls wake_all().
cdef class Waiters:
    cdef list futures

    cdef object new_future(self, object loop)
    cdef int forget(self, object future) except -1
    cdef int wake_all(self) except -1
