# SPDX-License-Identifier: GPL-2.0-only
"""Implement the protocol of the echo server."""

from mgloop cimport Protocol


cdef class Echo(Protocol):
    """Send all data back, and read no more while the peer does not read."""

    cdef readonly Py_ssize_t received       # bytes so far

    cdef int data_received(self, const char *data, Py_ssize_t size) except -1:
        self.received += size
        self.transport.write_bytes(data, size)

    cdef int pause_writing(self) except -1:
        self.transport.pause_reading()

    cdef int resume_writing(self) except -1:
        self.transport.resume_reading()
