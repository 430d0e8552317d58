# SPDX-License-Identifier: GPL-2.0-only
"""wsgi.input: the body of a request, as a binary stream that never goes past the body's end.

The module is native because each request with a body passes through it. There are three forms:

- WsgiInput reads from memory.
- FileInput reads from an unnamed temporary file. BodyBuffer chooses between these two, while the
  loop receives the body.
- StreamInput reads while the body arrives (--wsgi-stream-input), and waits for it.

The loop fills them in its thread, and the application reads in a thread of its own. Only a
StreamInput is used by both at the same time. Its buffer is therefore plain memory with a mutex.
While the mutex is held, no Python code runs and the GIL is not acquired, so neither thread can wait
for the GIL with it.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, EIO, errno
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcpy
from posix.unistd cimport close, write

from mgloop.http.wire._gather cimport gather, gathered

import os
import tempfile

from ..errors import ClientDisconnected


cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *to, size_t n, long offset)

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_cond_init(pthread_cond_t *cond, void *attributes)
    int pthread_cond_destroy(pthread_cond_t *cond)
    int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
    int pthread_cond_broadcast(pthread_cond_t *cond)

cdef extern from "Python.h":
    Py_ssize_t PyNumber_AsSsize_t(object number, void *error) except? -1
    enum:
        PY_SSIZE_T_MAX


cdef enum:
    BLOCK = 64 << 10    # bytes of one write to, and of one read from, the temporary file
    FIRST_CAPACITY = 4 << 10


cdef Py_ssize_t size_of(object size) except -1:
    """Return an argument of read() as a number of bytes; None and negative numbers mean all."""
    cdef Py_ssize_t n
    if size is None:
        return PY_SSIZE_T_MAX
    n = PyNumber_AsSsize_t(size, NULL)      # clips numbers that are too large
    return PY_SSIZE_T_MAX if n < 0 else n


cdef class WsgiInput:
    """Read a body that is in memory.

    data: the body.
    """

    def __cinit__(self, *args, **kwargs):
        self.data = b""

    def __init__(self, bytes data not None=b""):
        self.data = data

    def read(self, size=-1):
        """Return the next `size` bytes, or fewer at the end of the body; all without a size."""
        cdef Py_ssize_t n = size_of(size)
        cdef bytes data
        with cython.critical_section(self):
            data = self.take(n)
        return data

    def readline(self, size=-1):
        """Return the bytes up to and including the next newline, but at most `size`."""
        cdef Py_ssize_t n = size_of(size)
        cdef bytes data
        with cython.critical_section(self):
            data = self.line(n)
        return data

    def readlines(self, hint=-1):
        """Return a list of the remaining lines; stop after `hint` bytes, if that is positive."""
        cdef Py_ssize_t n = size_of(hint) or PY_SSIZE_T_MAX
        cdef Py_ssize_t total = 0
        cdef list lines = []
        cdef bytes line
        while total < n:
            line = self.readline()
            if not line:
                break
            lines.append(line)
            total += PyBytes_GET_SIZE(line)
        return lines

    def __iter__(self):
        return self

    def __next__(self):
        cdef bytes line
        with cython.critical_section(self):
            line = self.line(PY_SSIZE_T_MAX)
        if not line:
            raise StopIteration
        return line

    cdef bint fill(self) except -1:
        return False

    cdef bytes take(self, Py_ssize_t n):
        """Return the next n bytes, or fewer at the end of the body."""
        cdef object kept = None
        cdef bytes data
        while True:
            data = self.cut(min(n, PyBytes_GET_SIZE(self.data) - self.at))
            n -= PyBytes_GET_SIZE(data)
            if kept is None:
                kept = data
            else:
                kept = gather(kept, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            if n == 0 or not self.fill():
                return gathered(kept)

    cdef bytes cut(self, Py_ssize_t n):
        """Return the next n bytes of `data`, which has that many."""
        cdef bytes data = self.data
        cdef Py_ssize_t at = self.at
        self.at += n
        if self.at < PyBytes_GET_SIZE(data):
            return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + at, n)
        # Release the memory of the body, and do not copy a body that one call reads.
        self.data = b""
        self.at = 0
        return data if at == 0 else PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + at, n)

    cdef bytes line(self, Py_ssize_t n):
        """Return the next line, or its first n bytes."""
        cdef object kept = None
        cdef const char *start
        cdef const char *newline
        cdef Py_ssize_t part
        while True:
            start = PyBytes_AS_STRING(self.data) + self.at
            part = min(n, PyBytes_GET_SIZE(self.data) - self.at)
            newline = <const char *>memchr(start, 10, part)
            if newline is not NULL:
                part = n = newline + 1 - start
            if part == n and kept is None:
                return self.cut(n)
            kept = gather(kept, start, part)
            self.at += part
            n -= part
            if n == 0 or not self.fill():
                return gathered(kept)


NO_BODY = WsgiInput()


cdef class FileInput(WsgiInput):
    """Read a body from a file.

    fd: the file, which is closed when the object is freed.
    size: its size in bytes.
    """

    def __cinit__(self, *args, **kwargs):
        self.fd = -1

    def __init__(self, int fd, Py_ssize_t size):
        self.fd = fd
        self.size = size

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    cdef bint fill(self) except -1:
        cdef Py_ssize_t n = min(BLOCK, self.size - self.offset)
        cdef bytes data
        if n == 0:
            return False
        data = PyBytes_FromStringAndSize(NULL, n)
        self.read_into(PyBytes_AS_STRING(data), n)
        self.data = data
        self.at = 0
        return True

    cdef bytes take(self, Py_ssize_t n):
        cdef Py_ssize_t ready = PyBytes_GET_SIZE(self.data) - self.at
        cdef bytes data
        if n < BLOCK:
            return WsgiInput.take(self, n)
        n = min(n, ready + self.size - self.offset)
        if n == ready:
            return self.cut(n)
        data = PyBytes_FromStringAndSize(NULL, n)
        memcpy(PyBytes_AS_STRING(data), PyBytes_AS_STRING(self.data) + self.at, ready)
        self.read_into(PyBytes_AS_STRING(data) + ready, n - ready)
        self.data = b""
        self.at = 0
        return data

    cdef int read_into(self, char *to, Py_ssize_t n) except -1:
        """Read the next n bytes of the file, which has that many."""
        cdef Py_ssize_t got
        cdef int fd = self.fd
        cdef long offset = self.offset
        while n > 0:
            with nogil:
                got = pread(fd, to, n, offset)
            if got <= 0:
                if got < 0 and errno == EINTR:
                    PyErr_CheckSignals()
                    continue
                raise OSError(errno if got < 0 else EIO, "cannot read the temporary file of a body")
            to += got
            offset += got
            n -= got
        self.offset = offset
        return 0


cdef class StreamInput(WsgiInput):
    """Read a body while it arrives.

    limit: the number of bytes in the buffer at which feed() returns True.
    wants_more: called without arguments in the reading thread, before it waits for data and before
    it takes the data of a full buffer. It must not read from the stream.
    """

    def __cinit__(self, *args, **kwargs):
        pthread_mutex_init(&self.mutex, NULL)
        pthread_cond_init(&self.changed, NULL)

    def __init__(self, Py_ssize_t limit, wants_more=None):
        self.limit = limit
        self.wants_more = wants_more
        self.state = STREAM_OPEN

    def __dealloc__(self):
        pthread_cond_destroy(&self.changed)
        pthread_mutex_destroy(&self.mutex)
        free(self.buffer)

    def feed(self, bytes data not None):
        """Add data; return whether the buffer is full."""
        return self.add(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def feed_eof(self):
        """Mark the end of the body."""
        self.end()

    def disconnect(self):
        """Make reading raise ClientDisconnected after the data that has arrived."""
        self.break_off()

    cdef bint add(self, const char *data, Py_ssize_t n) except -1:
        cdef char *moved = NULL
        cdef Py_ssize_t capacity
        cdef bint full = False
        pthread_mutex_lock(&self.mutex)
        if self.length + n > self.capacity:
            capacity = max(self.length + n, 2 * self.capacity, FIRST_CAPACITY)
            moved = <char *>realloc(self.buffer, capacity)
            if moved is NULL:
                pthread_mutex_unlock(&self.mutex)
                raise MemoryError
            self.buffer = moved
            self.capacity = capacity
        if n > 0:       # otherwise the buffer may be NULL, which memcpy() does not accept
            memcpy(self.buffer + self.length, data, n)
        self.length += n
        full = self.length >= self.limit
        self.asked = False
        pthread_cond_broadcast(&self.changed)
        pthread_mutex_unlock(&self.mutex)
        return full

    cdef int end(self) noexcept:
        return self.set_state(STREAM_ENDED)

    cdef int break_off(self) noexcept:
        return self.set_state(STREAM_BROKEN)

    cdef int set_state(self, StreamState state) noexcept:
        pthread_mutex_lock(&self.mutex)
        if self.state == STREAM_OPEN:
            self.state = state
        pthread_cond_broadcast(&self.changed)
        pthread_mutex_unlock(&self.mutex)
        return 0

    cdef bint fill(self) except -1:
        cdef char *buffer = NULL
        cdef Py_ssize_t length
        cdef StreamState state
        cdef bint asks
        while True:
            pthread_mutex_lock(&self.mutex)
            length = self.length
            state = self.state
            asks = state == STREAM_OPEN and not self.asked and (
                length == 0 or length >= self.limit)
            if asks:
                self.asked = True
            elif length:
                buffer = self.buffer
                self.buffer = NULL
                self.length = self.capacity = 0
            pthread_mutex_unlock(&self.mutex)
            if asks:
                if self.wants_more is not None:
                    self.wants_more()
            elif length:
                break
            elif state == STREAM_ENDED:
                return False
            elif state == STREAM_BROKEN:
                raise ClientDisconnected("the client disconnected before the end of the body")
            else:
                self.wait()
        try:
            self.data = PyBytes_FromStringAndSize(buffer, length)
            self.at = 0
        except MemoryError:
            self.break_off()    # these bytes are lost
            raise
        finally:
            free(buffer)
        return True

    cdef int wait(self) except -1:
        """Wait until data has arrived or the state has changed."""
        with nogil:
            pthread_mutex_lock(&self.mutex)
            while self.length == 0 and self.state == STREAM_OPEN:
                pthread_cond_wait(&self.changed, &self.mutex)
            pthread_mutex_unlock(&self.mutex)
        return 0


cdef class BodyBuffer:
    """Receive the body of a request before its application starts."""

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def feed(self, bytes data not None):
        """Add data."""
        self.add(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def input(self):
        """Return the wsgi.input for the body; the buffer is empty afterwards."""
        return self.as_input()

    cdef int add(self, const char *data, Py_ssize_t n) except -1:
        self.kept = gather(self.kept, data, n)
        self.kept_len += n
        self.length += n
        if self.length > MGL_BODY_IN_MEMORY and self.kept_len >= BLOCK:
            self.write_kept()
        return 0

    cdef int write_kept(self) except -1:
        """Move the bytes in memory to the file."""
        cdef bytes data = gathered(self.kept)
        cdef const char *at = PyBytes_AS_STRING(data)
        cdef Py_ssize_t written, n = self.kept_len
        if self.fd < 0:
            self.fd = open_unnamed()
        while n > 0:
            written = write(self.fd, at, n)
            if written < 0:
                if errno == EINTR:
                    PyErr_CheckSignals()
                    continue
                raise OSError(errno, "cannot write a request body to a temporary file")
            at += written
            n -= written
        self.kept = None
        self.kept_len = 0
        return 0

    cdef WsgiInput as_input(self):
        cdef WsgiInput result
        if self.fd < 0:
            result = WsgiInput.__new__(WsgiInput)
            if self.kept is not None:
                result.data = gathered(self.kept)
            self.kept = None
        else:
            if self.kept_len:
                self.write_kept()
            result = FileInput(self.fd, self.length)
            self.fd = -1
        self.kept_len = self.length = 0
        return result


def open_unnamed():
    """Return the descriptor of a new file without a name, in the folder for temporary files."""
    file = tempfile.TemporaryFile(buffering=0)
    try:
        return os.dup(file.fileno())
    finally:
        file.close()
