# SPDX-License-Identifier: GPL-2.0-only
"""To wait for nothing, and for one thing with others."""

from mgloop._awaitable cimport Awaitable


cdef class Ready(Awaitable):
    """What a send() returns that need not wait: one for all of a site's."""

    cdef object step(self, bint *returned):
        returned[0] = True
        return None


cdef class Waiters:
    """The futures of those who wait for one thing: one each, for who waits may be cancelled."""

    def __cinit__(self):
        self.futures = None

    cdef object new_future(self, object loop):
        cdef object future = loop.create_future()
        if self.futures is None:
            self.futures = []
        self.futures.append(future)
        return future

    cdef int forget(self, object future) except -1:
        """Nobody waits for it any more; it may have been woken."""
        if self.futures is not None and future in self.futures:
            self.futures.remove(future)
        return 0

    cdef int wake_all(self) except -1:
        cdef list futures = self.futures
        if futures is None:
            return 0
        self.futures = None
        for future in futures:
            if not future.done():
                future.set_result(None)
        return 0
