# SPDX-License-Identifier: GPL-2.0-only
"""Declare the base classes of awaitables of native methods; _awaitable.pyx explains them."""


cdef class Awaitable:
    # Run one step. Return the object that the task has to wait for, or set `returned` and return
    # the result.
    cdef object step(self, bint *returned)
    # End without a result and release all references. It may be called more than once.
    cdef int finish(self) except -1


cdef enum CallState:
    CALL_CLOSED                 # it has returned or failed, or no method has created it
    CALL_CREATED
    CALL_STARTED


cdef class Call(Awaitable):
    cdef object future          # the future that the task waits for, or None
    cdef str qualname           # the name of the method, for the warning and for tools
    cdef CallState state

    # Start or continue. Return the result, or set `future` and return PENDING.
    cdef object run(self)


# The result of Call.run() if the call has to wait.
cdef object PENDING

# Return the exception that throw() of a coroutine has to raise for these arguments.
cdef object thrown(object kind, object value, object traceback)
