# SPDX-License-Identifier: GPL-2.0-only
"""Implement ByteQueue, the buffer of a stream reader.

The module is native because it runs once per packet and once per read. The queue holds the bytes
objects that the transport has delivered, by reference. A read that takes a whole chunk returns that
object, and every other read copies its bytes once. The separator of readuntil() is searched in the
first chunk. If it is not there, the first two chunks are joined. That happens at most once per
chunk for short lines, and the cost is then linear in the amount of data.

The queue changes to a bytearray in three cases, and then behaves as asyncio's buffer:

- code accesses StreamReader._buffer. Libraries do this, and may also change the bytearray;
- the data arrives in many small chunks, which would need many times their size in memory;
- a line has more bytes in its first chunk than in the second, so that repeated joins could cost
  quadratic time.

It returns to chunks when it is empty and no other code has a reference to the bytearray.

A queue belongs to its reader, and only the thread of the reader's loop may use it.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcpy


cdef extern from *:
    """
    #include <string.h>

    /* Return the first position of `what` in `data`, or -1. memmem() is a GNU extension. */
    static Py_ssize_t mgl_find(const char *data, Py_ssize_t size,
                               const char *what, Py_ssize_t length) {
        const char *found;
        if (size < length) return -1;
        found = length == 1 ? memchr(data, *what, size) : memmem(data, size, what, length);
        return found == NULL ? -1 : found - data;
    }
    """
    Py_ssize_t mgl_find(const char *data, Py_ssize_t size, const char *what, Py_ssize_t length)


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)


cdef enum:
    # Chunks that may be queued although they are small, and the average size of small chunks. A
    # bytes object needs 33 bytes in addition to its data.
    FEW_CHUNKS = 8
    SMALL_CHUNK = 1024


cdef class ByteQueue:
    """A queue of bytes."""

    cdef int append(self, bytes data) except -1:
        cdef Py_ssize_t count
        if self.shared is not None:
            if PyByteArray_GET_SIZE(self.shared) or Py_REFCNT(<PyObject *>self.shared) > 1:
                self.shared.extend(data)
                return 0
            self.shared = None
        if self.first is None:
            self.first = data
        elif self.more is None:
            self.more = [data]
        else:
            self.more.append(data)
            count = len(self.more)
            if count > FEW_CHUNKS and self.size < count * SMALL_CHUNK:
                self.size += PyBytes_GET_SIZE(data)
                self.share()
                return 0
        self.size += PyBytes_GET_SIZE(data)
        return 0

    cdef int extend(self, object data) except -1:
        if type(data) is bytearray or type(data) is memoryview:
            return self.append(bytes(data))
        self.share().extend(data)
        return 0

    cdef bytes take(self, Py_ssize_t n):
        cdef bytes result
        cdef char *target
        cdef Py_ssize_t left, part
        if n >= self.length():
            return self.take_all()
        if self.shared is not None:
            result = PyBytes_FromStringAndSize(PyByteArray_AS_STRING(self.shared), n)
            del self.shared[:n]
            return result
        left = PyBytes_GET_SIZE(self.first) - self.start
        if n < left:
            result = PyBytes_FromStringAndSize(PyBytes_AS_STRING(self.first) + self.start, n)
            self.start += n
            self.size -= n
            return result
        if n == left and self.start == 0:
            result = self.first
            self.size -= n
            self.next_chunk()
            return result
        result = PyBytes_FromStringAndSize(NULL, n)
        target = PyBytes_AS_STRING(result)
        while n > 0:
            part = min(n, PyBytes_GET_SIZE(self.first) - self.start)
            memcpy(target, PyBytes_AS_STRING(self.first) + self.start, part)
            self.drop(part)
            target += part
            n -= part
        return result

    cdef bytes take_all(self):
        cdef bytes result
        cdef list more
        if self.shared is not None:
            result = bytes(self.shared)
            self.shared.clear()
            return result
        if self.first is None:
            return b""
        result = self.first
        if self.start:
            result = PyBytes_FromStringAndSize(PyBytes_AS_STRING(result) + self.start,
                                               PyBytes_GET_SIZE(result) - self.start)
        if self.more is not None:
            more = [result]
            more += self.more
            result = b"".join(more)
        self.clear()
        return result

    cdef int drop(self, Py_ssize_t n) except -1:
        cdef Py_ssize_t left
        if self.shared is not None:
            del self.shared[:n]
            return 0
        self.size -= n
        while n > 0:
            left = PyBytes_GET_SIZE(self.first) - self.start
            if n < left:
                self.start += n
                return 0
            n -= left
            self.next_chunk()
        return 0

    cdef int clear(self) except -1:
        if self.shared is not None:
            self.shared.clear()
        self.first = None
        self.more = None
        self.start = 0
        self.size = 0
        return 0

    cdef Py_ssize_t find(self, bytes separator, Py_ssize_t offset) except -2:
        cdef Py_ssize_t left, found
        cdef Py_ssize_t length = PyBytes_GET_SIZE(separator)
        while self.shared is None:
            if self.first is None:
                return -1
            left = PyBytes_GET_SIZE(self.first) - self.start
            if offset < left:
                found = mgl_find(PyBytes_AS_STRING(self.first) + self.start + offset, left - offset,
                                 PyBytes_AS_STRING(separator), length)
                if found >= 0:
                    return offset + found
            if self.more is None:
                return -1
            offset = max(offset, left - length + 1)
            self.merge_first()
        return self.shared.find(separator, offset)

    cdef bytearray share(self):
        """Move the data into the bytearray and return it."""
        cdef bytearray shared
        if self.shared is None:
            shared = bytearray()
            if self.first is not None:
                shared.extend(memoryview(self.first)[self.start:])
                if self.more is not None:
                    for chunk in self.more:
                        shared.extend(chunk)
            self.clear()
            self.shared = shared
        return self.shared

    cdef int merge_first(self) except -1:
        """Join the first chunk with the second, or move all data into the bytearray."""
        cdef bytes second = self.more[0]
        cdef bytes joined
        cdef Py_ssize_t left = PyBytes_GET_SIZE(self.first) - self.start
        cdef Py_ssize_t size = PyBytes_GET_SIZE(second)
        if left > size:
            self.share()
            return 0
        joined = PyBytes_FromStringAndSize(NULL, left + size)
        memcpy(PyBytes_AS_STRING(joined), PyBytes_AS_STRING(self.first) + self.start, left)
        memcpy(PyBytes_AS_STRING(joined) + left, PyBytes_AS_STRING(second), size)
        self.next_chunk()
        self.first = joined
        return 0

    cdef int next_chunk(self) except -1:
        """Remove the first chunk."""
        self.start = 0
        if self.more is None:
            self.first = None
            return 0
        self.first = self.more.pop(0)
        if not self.more:
            self.more = None
        return 0
