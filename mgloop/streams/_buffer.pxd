# SPDX-License-Identifier: GPL-2.0-only
"""Declare ByteQueue, the buffer of a stream reader; _buffer.pyx describes it."""

from cpython.bytearray cimport PyByteArray_GET_SIZE


cdef class ByteQueue:
    cdef bytes first            # the oldest chunk, or None if the queue is empty
    cdef Py_ssize_t start       # number of bytes of `first` that were already taken
    cdef list more              # the later chunks, or None
    cdef Py_ssize_t size        # number of bytes in the chunks
    cdef bytearray shared       # holds the data instead of the chunks, or None

    cdef inline Py_ssize_t length(self) noexcept:
        return self.size if self.shared is None else PyByteArray_GET_SIZE(self.shared)

    # Add the data at the end: a bytes object by reference, or another object by copy.
    cdef int append(self, bytes data) except -1
    cdef int extend(self, object data) except -1
    # Remove the first n bytes, or all if there are fewer, and return them.
    cdef bytes take(self, Py_ssize_t n)
    cdef bytes take_all(self)
    # Remove the first n bytes. There must be that many.
    cdef int drop(self, Py_ssize_t n) except -1
    cdef int clear(self) except -1
    # Return the position of the separator at or after `offset`, or -1.
    cdef Py_ssize_t find(self, bytes separator, Py_ssize_t offset) except -2

    cdef bytearray share(self)
    cdef int merge_first(self) except -1
    cdef int next_chunk(self) except -1
