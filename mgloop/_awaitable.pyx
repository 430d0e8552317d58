# SPDX-License-Identifier: GPL-2.0-only
"""The base classes of the awaitables that native methods return, and the list of those that wait.

An Awaitable has the interface of a coroutine, but no frame. A coroutine would cost a frame per
call, and a future would cost an iteration of the loop. A subclass implements step(), which returns
the object to wait for, or the result. The interpreter runs a step by one C call. That is am_send
or, since CPython 3.12, tp_iternext. At the end tp_iternext returns NULL, and sets a StopIteration
with the result unless that is None. It needs no traceback.

    Awaitable           step()
      +- Waiting        waits for a future
           +- Call      does its work when it is awaited, and only once, as the call of a coroutine
                        function; warns if it is never awaited
    Waiters             the futures of the awaitables that wait for one event

The module is native because an await runs per packet. An awaitable belongs to the thread of the
task that awaits it, and that task keeps it alive.

A type copies the slots of its base when it is created, and the slots below are set after the types
of this module have been created. So they are set for each class of this module. Classes of other
modules inherit them.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

import warnings
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


PENDING = object()


cdef class Waiters:
    """The futures of several awaitables that wait for one event.

    Each has its own future, because the cancellation of a task cancels the future that it waits
    for.
    """

    cdef object new_future(self, object loop):
        cdef object future = loop.create_future()
        if self.futures is None:
            self.futures = []
        self.futures.append(future)
        return future

    cdef bint discard(self, object future) except -1:
        if self.futures is None or future not in self.futures:
            return False
        self.futures.remove(future)
        return True

    cdef int wake_one(self) except -1:
        while self.futures:
            future = self.futures.pop(0)
            if not future.done():
                future.set_result(None)
                break
        return 0

    cdef int wake_all(self) except -1:
        cdef list futures = self.futures
        if futures is None:
            return 0
        self.futures = None
        for future in futures:
            if not future.done():
                future.set_result(None)
        return 0


cdef class Awaitable:
    """An object with the interface of a coroutine."""

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
        """Run the next step, as coroutine.send()."""
        cdef bint returned = False
        result = self.step(&returned)
        if returned:
            raise StopIteration(result)
        return result

    def throw(self, kind, value=None, traceback=None):
        """End the call and raise the exception, as coroutine.throw()."""
        self.finish()
        raise thrown(kind, value, traceback)

    def close(self):
        """End the call, as coroutine.close()."""
        self.finish()


Coroutine.register(Awaitable)


cdef class Waiting(Awaitable):
    """An awaitable that waits for a future."""

    cdef object suspend(self):
        # next() marks the future as awaited (_asyncio_future_blocking), which Task requires.
        return next(iter(self.future))

    cdef int wait_on(self, Waiters waiters, object loop) except -1:
        self.future = waiters.new_future(loop)
        return 0

    cdef int resume(self) except -1:
        if self.future is not None:
            self.future.result()
            self.future = None
        return 0

    cdef bint stop_waiting(self, Waiters waiters) except -1:
        cdef object future = self.future
        self.future = None
        return not waiters.discard(future)


cdef class Call(Waiting):
    """A call that does its work when it is awaited, and only once.

    A subclass implements run() and qualname(). The method that creates a call sets `state`.
    """

    def __del__(self):
        if self.state == CALL_CREATED:
            warnings.warn(
                f"coroutine {self.qualname()!r} was never awaited", RuntimeWarning, source=self)

    cdef str qualname(self):
        return type(self).__name__

    cdef object run(self):
        raise NotImplementedError

    cdef object step(self, bint *returned):
        cdef object result
        if self.state == CALL_CLOSED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        self.state = CALL_STARTED
        try:
            result = self.run()
            if result is PENDING:
                returned[0] = False
                return self.suspend()
            self.finish()
            returned[0] = True
            return result
        except BaseException:
            self.finish()
            raise

    cdef int finish(self) except -1:
        self.state = CALL_CLOSED
        self.future = None
        return 0

    @property
    def __name__(self):
        return self.qualname().rpartition(".")[2]

    @property
    def __qualname__(self):
        return self.qualname()

    @property
    def cr_await(self):
        """The future that the call waits for, for tools that print call graphs."""
        return self.future


cdef object thrown(object kind, object value, object traceback):
    if isinstance(kind, BaseException):
        value = kind
    elif not isinstance(value, BaseException):
        value = kind() if value is None else kind(value)
    return value if traceback is None else value.with_traceback(traceback)


cdef int send_slot(PyObject *self, PyObject *_value, PyObject **result) except -1:
    """Implement am_send: send() without a StopIteration for the result. PYGEN_ERROR is -1."""
    cdef bint returned = False
    cdef object out = (<Awaitable>self).step(&returned)
    Py_INCREF(out)
    result[0] = <PyObject *>out
    return PYGEN_RETURN if returned else PYGEN_NEXT


cdef PyObject *next_slot(PyObject *self) except? NULL:
    """Implement tp_iternext of CPython 3.12 and later: NULL without an exception means None."""
    cdef bint returned = False
    cdef object out = (<Awaitable>self).step(&returned)
    if not returned:
        Py_INCREF(out)
        return <PyObject *>out
    if out is not None:
        PyErr_SetObject(PyExc_StopIteration, <PyObject *>out)
    return NULL


cdef int set_slots(PyTypeObject *kind) except -1:
    kind.tp_as_async.am_send = <void *>send_slot
    kind.tp_iternext = <void *>next_slot
    return 0


set_slots(<PyTypeObject *>Awaitable)
set_slots(<PyTypeObject *>Waiting)
set_slots(<PyTypeObject *>Call)
