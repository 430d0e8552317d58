# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native part of StreamReader; _reader.pyx describes it."""

from mgloop._awaitable cimport Call
from mgloop.streams._buffer cimport ByteQueue


cdef class ReaderCall(Call):
    cdef NativeReader reader            # None when the call has ended

    cdef int begin(self) except -1
    cdef object attempt(self, bint woken)
    cdef object wait(self, str method)
    cdef int stop(self) except -1


cdef class NativeReader(ByteQueue):
    cdef public object _loop
    cdef public object _transport       # the transport that is paused and resumed, or None
    cdef public object _exception       # the exception that each read raises, or None
    cdef public object _waiter          # the future of the read that waits, or None
    cdef public bint _eof
    cdef public bint _paused
    cdef object given_limit             # `limit` as the program has given it
    cdef Py_ssize_t limit               # the same in bytes; the largest number if it is larger
    cdef object woken                   # the future that feed_data() or feed_eof() has completed
    cdef ReaderCall spare               # the last call that has ended, to be used again
    cdef bint plain                     # no subclass overrides a method that others call

    cdef int feed(self, object data) except -1
    cdef ReaderCall reusable(self, type kind)
    cdef ReaderCall read_line(self, bint iterates)
    cdef int wake_up(self) except -1
    cdef int resume_transport(self) except -1
    cdef int set_limit(self, object limit) except -1


# Return a new future of the loop.
cdef object new_future(object loop)

# Return whether no class between `kind` and `public` overrides one of the methods.
cdef bint inherits(type kind, object public, tuple methods) except -1
