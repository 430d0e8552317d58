# SPDX-License-Identifier: GPL-2.0-only
"""Implement the base class of protocols whose data consists of frames.

A call of data_received() brings any part of the stream: half a frame, or many frames and the
beginning of another. Complete frames are processed where they are, in the receive buffer. Only an
incomplete frame is copied. The answers to the frames of one call leave in one write.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize,
)
from libc.string cimport memcpy

from mgloop cimport Protocol


cdef int append(bytearray target, const char *data, Py_ssize_t size) except -1:
    cdef Py_ssize_t end = PyByteArray_GET_SIZE(target)
    if size > 0:
        PyByteArray_Resize(target, end + size)
        memcpy(PyByteArray_AS_STRING(target) + end, data, size)
    return 0


cdef class Framed(Protocol):
    """Call take_frame() with each frame, and read no more while the peer does not read."""

    cdef int data_received(self, const char *data, Py_ssize_t size) except -1:
        cdef bytearray joined = self.rest
        cdef Py_ssize_t taken, used = 0
        if joined is not None:
            self.rest = None
            append(joined, data, size)
            data, size = PyByteArray_AS_STRING(joined), PyByteArray_GET_SIZE(joined)
        self.receiving = True
        while used < size and not self.finished:
            taken = self.take_frame(data + used, size - used)
            if taken == 0:
                break
            used += taken
        self.receiving = False
        self.flush()
        if used < size and not self.finished:
            if joined is None:
                joined = PyByteArray_FromStringAndSize(<char *>data + used, size - used)
            else:
                del joined[:used]
            self.rest = joined

    cdef Py_ssize_t take_frame(self, const char *data, Py_ssize_t size) except -1:
        return size

    cdef int send(self, const char *head, Py_ssize_t head_size,
                  const char *body, Py_ssize_t body_size) except -1:
        if self.finished:
            return 0
        if self.output is None:
            self.output = bytearray()
        append(self.output, head, head_size)
        append(self.output, body, body_size)
        if not self.receiving:
            self.flush()

    cdef int flush(self) except -1:
        # write_bytes() may call pause_writing(), and a subclass may send there.
        cdef bytearray output = self.output
        if output is not None:
            self.output = None
            self.transport.write_bytes(PyByteArray_AS_STRING(output), PyByteArray_GET_SIZE(output))

    cdef int finish(self) except -1:
        self.finished = True
        self.flush()
        self.transport.close()

    cdef int connection_lost(self, object exc) except -1:
        self.finished = True

    cdef int pause_writing(self) except -1:
        self.transport.pause_reading()

    cdef int resume_writing(self) except -1:
        self.transport.resume_reading()
