# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop._awaitable; _awaitable.pyx says what it is."""


cdef class Awaitable:
    # One step: what the task is to wait for, or (returned) the result.
    cdef object step(self, bint *returned)
    # It ends without a result: let go of what is held. May be called again.
    cdef int finish(self) except -1


# The exception that a coroutine's throw() has to raise.
cdef object thrown(object kind, object value, object traceback)
