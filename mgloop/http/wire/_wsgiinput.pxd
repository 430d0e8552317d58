# SPDX-License-Identifier: GPL-2.0-only
"""Declare the forms of wsgi.input; _wsgiinput.pyx explains them."""

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass


# A body in memory, and the base class of the other forms.
cdef class WsgiInput:
    cdef bytes data             # bytes of the body
    cdef Py_ssize_t at          # how many of them have been read

    # Replace `data`, which has been read, by the next bytes of the body. Return False at its end.
    cdef bint fill(self) except -1
    cdef bytes take(self, Py_ssize_t n)
    cdef bytes cut(self, Py_ssize_t n)
    cdef bytes line(self, Py_ssize_t n)


# A body in an unnamed file, which the object closes when it is freed.
cdef class FileInput(WsgiInput):
    cdef int fd
    cdef Py_ssize_t offset      # of the first byte in the file that is not in `data`
    cdef Py_ssize_t size        # of the file

    cdef int read_into(self, char *to, Py_ssize_t n) except -1


cdef enum StreamState:
    STREAM_ENDED                # the whole body has arrived, or __init__() has not been called
    STREAM_OPEN                 # more of the body will arrive
    STREAM_BROKEN               # the rest of the body will not arrive


# A body that the application reads while it arrives. The methods add(), end() and break_off() are
# for the thread of the loop. The application reads in another thread, which waits for data.
cdef class StreamInput(WsgiInput):
    cdef pthread_mutex_t mutex  # for the fields up to `state`
    cdef pthread_cond_t changed
    cdef char *buffer           # bytes that have arrived since the last fill()
    cdef Py_ssize_t length, capacity
    cdef StreamState state
    cdef Py_ssize_t limit       # bytes in `buffer` at which it is full
    cdef bint asked             # wants_more() has been called since the last add()
    cdef object wants_more      # called in the application's thread, or None

    # Add `n` bytes. Return whether the buffer is full: then reading from the client should pause
    # until wants_more() is called.
    cdef bint add(self, const char *data, Py_ssize_t n) except -1
    cdef int end(self) noexcept
    cdef int break_off(self) noexcept
    cdef int set_state(self, StreamState state) noexcept
    cdef int wait(self) except -1


# The body of a request that is received in full before the application starts: in memory, and in an
# unnamed file if it is larger than MGL_BODY_IN_MEMORY.
cdef class BodyBuffer:
    cdef object kept            # bytes that are not in the file (see gather()), or None
    cdef Py_ssize_t kept_len    # their number
    cdef Py_ssize_t length      # bytes of body
    cdef int fd                 # of the file, or -1

    # Add `n` bytes. Raise OSError if they cannot be written to the file.
    cdef int add(self, const char *data, Py_ssize_t n) except -1
    # Return the wsgi.input for the body. The buffer is empty afterwards.
    cdef WsgiInput as_input(self)
    cdef int write_kept(self) except -1


# The wsgi.input of requests without a body.
cdef WsgiInput NO_BODY

cdef enum:
    MGL_BODY_IN_MEMORY = 1 << 20
