# SPDX-License-Identifier: GPL-2.0-only
"""Declare the base classes of awaitables of native methods; _awaitable.pyx explains them."""


# The futures of the awaitables that wait for one event, in the order in which they began to wait.
cdef class Waiters:
    cdef list futures           # None while nothing waits

    # Return a new future that the next event completes.
    cdef object new_future(self, object loop)
    # Remove a future that nothing waits for any more. Return whether it was still in the list.
    cdef bint discard(self, object future) except -1
    # Complete the first future that is not cancelled.
    cdef int wake_one(self) except -1
    # Complete all futures. Each awaitable checks for itself whether it can continue.
    cdef int wake_all(self) except -1


cdef class Awaitable:
    # Run one step. Return the object that the task has to wait for, or set `returned` and return
    # the result.
    cdef object step(self, bint *returned)
    # End without a result and release all references. It may be called more than once.
    cdef int finish(self) except -1


cdef class Waiting(Awaitable):
    cdef object future          # the future that the task waits for, or None

    # Return the object that step() has to return so that the task waits for `future`.
    cdef object suspend(self)
    # Begin to wait for the event of `waiters`: make `future`.
    cdef int wait_on(self, Waiters waiters, object loop) except -1
    # Continue after wait_on(), if that was called. Raise CancelledError if the future has been
    # cancelled; finish() then still finds the future.
    cdef int resume(self) except -1
    # Stop waiting, after wait_on(). Return whether the event has occurred already.
    cdef bint stop_waiting(self, Waiters waiters) except -1


cdef enum CallState:
    CALL_CLOSED                 # it has returned or failed, or no method has created it
    CALL_CREATED
    CALL_STARTED


cdef class Call(Waiting):
    cdef CallState state

    # Return the name of the method, for the warning and for tools.
    cdef str qualname(self)
    # Start or continue. Return the result, or set `future` and return PENDING.
    cdef object run(self)


# The result of Call.run() if the call has to wait.
cdef object PENDING

# Return the exception that throw() of a coroutine has to raise for these arguments.
cdef object thrown(object kind, object value, object traceback)
