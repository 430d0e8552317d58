# SPDX-License-Identifier: GPL-2.0-only
"""What native methods return to be awaited: a coroutine to everybody who looks, without a frame.

A coroutine per call would be a frame, and a future a turn of the loop. A subclass says in step()
what there is to wait for, if anything, and the interpreter takes that step by one C call: am_send,
or, since CPython 3.12, tp_iternext, which returns NULL at the end with the result, if there is one,
in a StopIteration that no traceback is made for.

No subclass may stand in this module: a type takes over the slots of its base when it is made.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from collections.abc import Coroutine


cdef extern from "Python.h":
    ctypedef struct PyAsyncMethods:
        void *am_send
    ctypedef struct PyTypeObject:
        PyAsyncMethods *tp_as_async
        void *tp_iternext
    int PYGEN_RETURN
    int PYGEN_NEXT
    void PyErr_SetObject(PyObject *type, PyObject *value)
    PyObject *PyExc_StopIteration


cdef class Awaitable:

    cdef object step(self, bint *returned):
        raise NotImplementedError

    cdef int finish(self) except -1:
        return 0

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Take the next step, as a coroutine's send()."""
        cdef bint returned = False
        result = self.step(&returned)
        if returned:
            raise StopIteration(result)
        return result

    def throw(self, kind, value=None, traceback=None):
        """End it and raise the exception, as a coroutine's throw()."""
        self.finish()
        raise thrown(kind, value, traceback)

    def close(self):
        """End it, as a coroutine's close()."""
        self.finish()


Coroutine.register(Awaitable)


cdef object thrown(object kind, object value, object traceback):
    if isinstance(kind, BaseException):
        value = kind
    elif not isinstance(value, BaseException):
        value = kind() if value is None else kind(value)
    return value if traceback is None else value.with_traceback(traceback)


cdef int send_slot(PyObject *self, PyObject *_value, PyObject **result) except -1:
    """send() without a StopIteration for the result; PYGEN_ERROR is -1."""
    cdef bint returned = False
    cdef object out = (<Awaitable>self).step(&returned)
    Py_INCREF(out)
    result[0] = <PyObject *>out
    return PYGEN_RETURN if returned else PYGEN_NEXT


cdef PyObject *next_slot(PyObject *self) except? NULL:
    """As CPython 3.12 and later call it: NULL without an exception stands for None."""
    cdef bint returned = False
    cdef object out = (<Awaitable>self).step(&returned)
    if not returned:
        Py_INCREF(out)
        return <PyObject *>out
    if out is not None:
        PyErr_SetObject(PyExc_StopIteration, <PyObject *>out)
    return NULL


(<PyTypeObject *>Awaitable).tp_as_async.am_send = <void *>send_slot
(<PyTypeObject *>Awaitable).tp_iternext = <void *>next_slot
