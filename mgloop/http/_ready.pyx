# SPDX-License-Identifier: GPL-2.0-only
"""Awaitables that cost nothing where there is nothing to wait for.

An application awaits each send() and each receive(), and mostly neither has to wait.  A coroutine
per call would be a frame, and a future a turn of the loop.  What is here ends at the first step,
which the interpreter takes by one C call: `tp_iternext` that returns NULL, with the value, if there
is one, in a StopIteration that no traceback is made for.
"""

from collections.abc import Coroutine


cdef class Awaitable:
    """What an `await` steps through; subclasses say how in __next__()."""

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration

    def send(self, value):
        """Take the next step, as a coroutine's send()."""
        return next(self)

    def throw(self, kind, value=None, traceback=None):
        """Raise the exception, as a coroutine's throw()."""
        if value is None:
            value = kind() if isinstance(kind, type) else kind
        if traceback is not None:
            value = value.with_traceback(traceback)
        raise value

    def close(self):
        """Nothing is held."""


Coroutine.register(Awaitable)


cdef PyObject *nothing_to_wait_for(PyObject *self) noexcept:
    return NULL


(<PyTypeObject *>Awaitable).tp_iternext = nothing_to_wait_for

READY = Awaitable()


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

    cdef int wake_all(self) except -1:
        cdef list futures = self.futures
        if futures is None:
            return 0
        self.futures = None
        for future in futures:
            if not future.done():
                future.set_result(None)
        return 0
