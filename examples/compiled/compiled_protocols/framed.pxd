# SPDX-License-Identifier: GPL-2.0-only
"""Declare the base class of protocols whose data consists of frames."""

from libc.stdint cimport uint64_t

from mgloop cimport Protocol


cdef class Framed(Protocol):
    cdef bytearray rest         # the beginning of a frame whose end has not arrived, or None
    cdef bytearray output       # frames that data_received() will send when it ends, or None
    cdef bint receiving         # data_received() is running
    cdef bint finished          # finish() was called: no further frames are read or sent

    # For the subclass to implement: process the frame at the beginning of the data, and return its
    # size. Return 0 if the frame is incomplete, or after finish().
    cdef Py_ssize_t take_frame(self, const char *data, Py_ssize_t size) except -1
    # Send a frame, which is `head` and then `body`.
    cdef int send(self, const char *head, Py_ssize_t head_size,
                  const char *body, Py_ssize_t body_size) except -1
    # Send the remaining data and close the connection.
    cdef int finish(self) except -1
    cdef int flush(self) except -1


cdef inline uint64_t load(const char *source, int size) noexcept:
    """Return a big-endian integer of `size` bytes."""
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | <unsigned char>source[i]
    return value


cdef inline void store(char *target, uint64_t value, int size) noexcept:
    """Write a big-endian integer of `size` bytes."""
    cdef int i
    for i in range(size):
        target[i] = <char>(value >> 8 * (size - 1 - i))
