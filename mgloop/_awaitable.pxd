# SPDX-License-Identifier: GPL-2.0-only
"""Declare the base class of awaitables of native methods; _awaitable.pyx explains it."""


cdef class Awaitable:
    # Run one step. Return the object that the task has to wait for, or set `returned` and return
    # the result.
    cdef object step(self, bint *returned)
    # End without a result and release all references. It may be called more than once.
    cdef int finish(self) except -1


# Return the exception that throw() of a coroutine has to raise for these arguments.
cdef object thrown(object kind, object value, object traceback)
