# SPDX-License-Identifier: GPL-2.0-only
"""Two primitives of waiting: an awaitable that is done already, and a set of futures for one event.

They are native because send() uses them for each message. They belong to the thread of their loop.
A site owns one Ready. A connection and a request each own Waiters.
"""

from mgloop._awaitable cimport Awaitable


cdef class Ready(Awaitable):
    """An awaitable that returns None immediately: returned by a send() that need not wait."""

    cdef object step(self, bint *returned):
        returned[0] = True
        return None


cdef class Waiters:
    """The futures of several waiters for one event.

    Each waiter has its own future, because the cancellation of a waiter cancels its future.
    """

    def __cinit__(self):
        self.futures = None

    cdef object new_future(self, object loop):
        cdef object future = loop.create_future()
        if self.futures is None:
            self.futures = []
        self.futures.append(future)
        return future

    cdef int forget(self, object future) except -1:
        """Remove a future whose waiter has ended; it may have been removed by wake_all()."""
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
