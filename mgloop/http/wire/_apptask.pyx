# SPDX-License-Identifier: GPL-2.0-only
"""The coroutine of a request's task, which steps the application's coroutine.

A request is itself the coroutine of its task. It therefore notices each time that the application
waits, returns or raises, without a Python frame in between and without a done callback. The module
is native because it runs per step of an application, on the thread of the loop.

AppTask is the third class of the chain that ends with Request. Request is in another module: a type
copies the slots of its base when it is created, and am_send is set after the types of this module
have been created.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from mgloop._awaitable cimport thrown
from mgloop.http.wire._body cimport RequestBody

from collections.abc import Coroutine


cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef struct PyAsyncMethods:
        PySendResult (*am_send)(PyObject *self, PyObject *value,
                                PyObject **result) except PYGEN_ERROR
    ctypedef struct PyTypeObject:
        PyAsyncMethods *tp_as_async
    PySendResult PyIter_Send(PyObject *iterator, PyObject *value,
                             PyObject **result) except PYGEN_ERROR


cdef inline int check_idle(AppTask self) except -1:
    """Raise ValueError if the application's coroutine is running already; call it before each step.

    The coroutine itself would raise the same error. But here that exception would count as the end
    of the application, and the coroutine would be freed while it runs.
    """
    if self.app_state == APP_RUNNING:
        raise ValueError("coroutine already executing")
    return 0


cdef PySendResult step(PyObject *task, PyObject *value, PyObject **result) except PYGEN_ERROR:
    """Run the application up to its next suspension, as am_send of a coroutine.

    Store the object that the application waits for in `result`, or None at its end.
    """
    cdef AppTask self = <AppTask>task
    cdef PySendResult outcome
    result[0] = NULL
    if self.app_state == APP_CLOSED:
        raise RuntimeError("cannot reuse a request that has ended")
    check_idle(self)
    self.app_state = APP_RUNNING
    try:
        if self.coroutine is None:
            self.coroutine = self.call_app()
        outcome = PyIter_Send(<PyObject *>self.coroutine, value, result)
    except BaseException as exc:
        self.app_state = APP_SUSPENDED
        self.app_raised(exc)    # re-raises CancelledError, KeyboardInterrupt and GeneratorExit
        outcome = PYGEN_RETURN
    else:
        self.app_state = APP_SUSPENDED
        if outcome == PYGEN_NEXT:
            self.app_suspended()
            return outcome
        value = result[0]
        result[0] = NULL
        try:
            self.app_returned(<object>value)
        finally:
            Py_DECREF(<object>value)
    result[0] = <PyObject *>None
    Py_INCREF(None)
    return outcome


cdef class AppTask(RequestBody):
    """Implement the protocol of coroutines around the application's coroutine."""

    def __await__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Run one step, as coroutine.send(): for tasks that do not use am_send."""
        cdef PyObject *result
        cdef PySendResult outcome = step(<PyObject *>self, <PyObject *>value, &result)
        value = <object>result
        Py_DECREF(value)
        if outcome == PYGEN_RETURN:
            raise StopIteration
        return value

    def throw(self, kind, value=None, traceback=None):
        """Raise the exception at the point where the application waits, as coroutine.throw()."""
        check_idle(self)
        value = thrown(kind, value, traceback)
        if self.app_state == APP_CLOSED:
            raise value
        if self.coroutine is None:      # the task was cancelled before its first step
            self.app_raised(value)
            raise StopIteration
        self.app_state = APP_RUNNING
        try:
            yielded = self.coroutine.throw(value)
        except StopIteration as stop:
            self.app_state = APP_SUSPENDED
            self.app_returned(stop.value)
        except BaseException as exc:
            self.app_state = APP_SUSPENDED
            self.app_raised(exc)
        else:
            self.app_state = APP_SUSPENDED
            self.app_suspended()
            return yielded
        raise StopIteration

    def close(self):
        """Close the application's coroutine, as coroutine.close()."""
        check_idle(self)
        if self.app_state == APP_SUSPENDED and self.coroutine is not None:
            self.app_state = APP_RUNNING
            try:
                self.coroutine.close()
            finally:
                self.app_state = APP_SUSPENDED
                self.app_closed()

    @property
    def cr_frame(self):
        """The frame of the application's coroutine, for tools that print the stacks of tasks."""
        return getattr(self.coroutine, "cr_frame", None)

    @property
    def cr_await(self):
        """The object that the application's coroutine awaits, or None."""
        return getattr(self.coroutine, "cr_await", None)

    @property
    def cr_code(self):
        """The code object of the application's coroutine, or None."""
        return getattr(self.coroutine, "cr_code", None)

    @property
    def cr_running(self):
        """Whether the application's coroutine is running now."""
        return self.app_state == APP_RUNNING

    cdef object call_app(self):
        raise NotImplementedError

    cdef int app_suspended(self) except -1:
        raise NotImplementedError

    cdef int app_returned(self, object value) except -1:
        raise NotImplementedError

    cdef int app_raised(self, object exc) except -1:
        raise NotImplementedError

    cdef int app_closed(self) except -1:
        raise NotImplementedError

    cdef int flush_later(self) except -1:
        # During a step the buffer is flushed when the application waits.
        return 0 if self.app_state == APP_RUNNING else self.flush_soon()


Coroutine.register(AppTask)
(<PyTypeObject *>AppTask).tp_as_async.am_send = step
