# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.http._ready; _ready.pyx says what it is."""

from cpython.object cimport PyObject


cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject *(*tp_iternext)(PyObject *self) noexcept

    void stop_iteration "PyErr_SetObject"(PyObject *type, PyObject *value) noexcept
    PyObject *PyExc_StopIteration


# An awaitable that send() and receive() return. It is a coroutine to whoever asks, so that it may
# be given to create_task().
cdef class Awaitable:
    pass


# Nothing has to be waited for, and nothing comes of it.
cdef Awaitable READY


# Until somebody calls wake_all().
cdef class Waiters:
    cdef list futures

    cdef object new_future(self, object loop)
    cdef int wake_all(self) except -1
