# SPDX-License-Identifier: GPL-2.0-only
# cython: always_allow_keywords=False
# Cython then compiles methods without arguments as METH_NOARGS. By default each of them checks for
# keywords.
"""Represent scheduled callbacks: the handles that call_soon(), call_later() and add_reader() make.

The module is native because the loop makes and runs one handle per callback. A handle stores up to
four arguments itself and passes them by vectorcall, so that a call needs neither a tuple nor a
Python frame between the loop and the callback. The context is entered and left in C. A C type
cannot inherit the layouts of both Handle and asyncio.Handle; a `__class__` property makes
`isinstance(handle, asyncio.Handle)` true nevertheless.

A handle owns references to its callback, arguments and context. run() takes the references to the
callback and the arguments out of the handle, so that a callback that cancels its own handle cannot
free objects that the call still uses. A handle that has run or was cancelled refers to none of
them, even if the program keeps the handle. The handles of add_reader() and add_writer() run many
times and keep their references.

The garbage collector does not track handles, because that costs a quarter of call_soon(). Instead
the loop visits the references of its queued handles for the collector, and clears the handles when
it closes.

Only the loop's thread may use a handle, except for the handles that call_soon_threadsafe() returns.
Any thread may cancel those. With free threading this requires a ThreadSafeHandle.
"""

cimport cython
from cpython.object cimport Py_EQ, Py_GE, Py_GT, Py_LE, Py_LT, PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF

import threading
from asyncio import events

from . import _stdlib


cdef extern from "Python.h":
    PyObject *PyContext_CopyCurrent() except NULL
    int PyContext_Enter(PyObject *context)
    int PyContext_Exit(PyObject *context)
    PyObject *PyObject_Vectorcall(PyObject *f, PyObject *const *args, size_t nargs, PyObject *kwn)
    PyObject *PyObject_CallObject(PyObject *f, PyObject *args)
    PyObject *PyTuple_New(Py_ssize_t n) except NULL
    void PyTuple_SET_ITEM(PyObject *t, Py_ssize_t i, PyObject *o)
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET


cdef extern from "runstate.h":
    bint mgl_run_state_begin(mgl_run_state *state) noexcept
    bint mgl_run_state_end(mgl_run_state *state) noexcept
    bint mgl_run_state_cancel(mgl_run_state *state) noexcept
    bint mgl_run_state_runs(mgl_run_state *state, bint here) noexcept
    bint mgl_run_state_is_mine(mgl_run_state *state) noexcept
    bint mgl_run_state_inspect(mgl_run_state *state) noexcept
    void mgl_run_state_inspected(mgl_run_state *state) noexcept
    bint mgl_run_state_await(mgl_run_state *state) noexcept


cdef extern from "posted.h":
    const bint WITHOUT_GIL "MGL_WITHOUT_GIL"
    PyObject *mgl_new_shared_reference(PyObject *o)


cdef object AsyncioHandle = events.Handle
cdef object AsyncioTimerHandle = events.TimerHandle
cdef object AsyncioThreadSafeHandle = _stdlib.ThreadSafeHandle
# Without the GIL this is also necessary on Python 3.13, because otherwise a thread that cancels a
# handle and the thread that runs it could both take the callback out of it.
cdef bint CANCEL_WAITS = AsyncioThreadSafeHandle is not None or WITHOUT_GIL


cdef int raise_pending() except -1:
    """Raise the exception that a C call has set, so that Cython handles it like any other."""
    return -1


cdef inline void drop_args(Handle h, int n) noexcept:
    cdef int i
    for i in range(1, 1 + n):
        Py_DECREF(<object>h.args[i])


@cython.no_gc
@cython.freelist(256)
cdef class Handle:
    """A scheduled callback, with the methods of asyncio.Handle."""

    # A destructor of a callback may reach the handle through a weak reference and keep it. A
    # finalizer permits that, and __dealloc__() does not.
    def __del__(self):
        """Drop the references of a handle that has not run."""
        if self.callback is not NULL or self.context is not NULL:
            self.finish()

    cdef void clear(self) noexcept:
        """Drop the callback and its arguments.

        The references go last, when the fields are consistent, because destructors may run Python
        code.
        """
        cdef PyObject *callback = self.callback
        cdef PyObject *args[MAX_INLINE]
        cdef int i, n = 1 if self.nargs < 0 else self.nargs
        if callback is NULL:
            return
        for i in range(n):
            args[i] = self.args[1 + i]
        self.callback = NULL
        self.nargs = 0
        for i in range(n):
            Py_DECREF(<object>args[i])
        Py_DECREF(<object>callback)

    cdef void abandon(self) noexcept:
        """Drop all references of a handle that was queued when its loop closed."""
        self.finish()

    cdef void finish(self) noexcept:
        """Drop all references of a handle that has run or was cancelled."""
        cdef PyObject *context = self.context
        self.context = NULL
        self.clear()
        self.loop = None
        Py_XDECREF(context)

    cdef int run(self, bint keep) except -1:
        """Call the callback; return 1, or 0 if it was cancelled or has already run.

        Raise only SystemExit and KeyboardInterrupt. Every other exception goes to the loop's
        exception handler. With `keep` (for debug mode and timing) the callback stays in the handle,
        until the caller calls finish().
        """
        cdef PyObject *callback
        cdef PyObject *result = NULL
        cdef PyObject *context
        cdef object loop
        cdef int i, nargs, n
        callback = self.callback
        nargs = self.nargs
        if callback is NULL:
            return 0
        n = 1 if nargs < 0 else nargs
        # The argument array stays in the handle during the call. If the callback cancels the
        # handle, clear() does not free the arguments, because either nargs is 0 now or each
        # argument has one more reference.
        if keep or self.lasting:
            Py_INCREF(<object>callback)
            for i in range(1, 1 + n):
                Py_INCREF(<object>self.args[i])
        else:
            self.callback = NULL
            self.nargs = 0
        # Keep the loop and the context alive, because the callback may cancel the handle, which
        # drops its references to them.
        loop = self.loop
        context = self.context
        Py_INCREF(<object>context)
        if PyContext_Enter(context) == 0:
            if nargs >= 0:
                result = PyObject_Vectorcall(
                    callback, &self.args[1], <size_t>nargs | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
            else:
                result = PyObject_CallObject(callback, self.args[1])
            if PyContext_Exit(context) != 0:
                Py_XDECREF(result)
                result = NULL
        if result is NULL:
            if self.callback is NULL and not mgl_flag_raised(&self.cancelled_flag):
                # Put the callback back into the handle, because the report contains its repr().
                self.callback = callback
                self.nargs = nargs
            else:
                drop_args(self, n)
                Py_DECREF(<object>callback)
            try:
                self.report(loop)
            finally:
                Py_DECREF(<object>context)
                if not self.lasting:
                    self.finish()
            return 1
        Py_DECREF(<object>result)
        drop_args(self, n)
        Py_DECREF(<object>callback)
        if not keep and not self.lasting and self.context is context:
            self.context = NULL
            self.loop = None
            Py_DECREF(<object>context)
        Py_DECREF(<object>context)
        return 1

    cdef int run_by(self, object patched_run, bint keep) except -1:
        """Run the callback through *patched_run*, a tool's replacement of asyncio's Handle._run().

        Return as run() does. As in asyncio, an exception of *patched_run* leaves run_forever().
        """
        if self.callback is NULL:
            return 0
        try:
            patched_run(self)
        finally:
            if not keep and not self.lasting:
                self.finish()
        return 1

    cdef int report(self, object loop) except -1:
        """Pass the current exception to the loop's exception handler.

        Raise it again if it is SystemExit or KeyboardInterrupt.
        """
        try:
            raise_pending()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            _stdlib.report_callback_failure(loop, self, exc)
        return 0

    cdef Handle seen(self):
        """Return a handle whose fields can be read safely in this thread: self, or a copy."""
        return self

    cdef void show_as(self, Handle other) noexcept:
        """Copy all fields to the new handle `other`, so that its repr() is the same.

        No Python code runs.
        """
        cdef int i
        other.context = self.context
        Py_XINCREF(other.context)
        if self.callback is not NULL:
            other.callback = self.callback
            Py_INCREF(<object>other.callback)
            other.nargs = self.nargs
            for i in range(1, 1 + (1 if self.nargs < 0 else self.nargs)):
                other.args[i] = self.args[i]
                Py_INCREF(<object>other.args[i])
        other.loop = self.loop
        self.show_past_as(other)

    cdef void show_past_as(self, Handle other) noexcept:
        """Copy to `other` the fields that remain valid after the callback was dropped."""
        other.source_traceback = self.source_traceback
        other.text = self.text
        other.cancelled_flag = mgl_flag_raised(&self.cancelled_flag)

    def _run(self):
        self.run(False)

    def cancel(self):
        """Cancel the callback. Do nothing if it has run or was cancelled."""
        self.drop()

    cdef int drop(self) except -1:
        if mgl_flag_raised(&self.cancelled_flag):
            return 0
        mgl_flag_raise(&self.cancelled_flag)
        if self.source_traceback is not None:
            self.keep_text()
        self.finish()
        return 0

    cdef int keep_text(self) except -1:
        """Keep repr(self) for debug messages such as "Executing <Handle...> took 2.5 seconds"."""
        try:
            self.text = repr(self)
        except BaseException:
            self.finish()
            raise
        return 0

    def cancelled(self):
        """Return whether the handle was cancelled."""
        return bool(mgl_flag_raised(&self.cancelled_flag))

    def get_context(self):
        """Return the contextvars.Context in which the callback runs, or None after it has run."""
        cdef Handle h = self.seen()
        return None if h.context is NULL else <object>h.context

    def _repr_info(self):
        return events.Handle._repr_info(self.seen())

    def __repr__(self):
        return events.Handle.__repr__(self)

    @property
    def __class__(self):
        return AsyncioHandle

    @property
    def _callback(self):
        cdef Handle h = self.seen()
        return None if h.callback is NULL else <object>h.callback

    @property
    def _args(self):
        cdef Handle h = self.seen()
        if h.callback is NULL:
            return None if mgl_flag_raised(&h.cancelled_flag) else ()
        if h.nargs < 0:
            return <object>h.args[1]
        return tuple([<object>h.args[1 + i] for i in range(h.nargs)])

    @property
    def _context(self):
        return self.get_context()

    @property
    def _cancelled(self):
        return bool(mgl_flag_raised(&self.cancelled_flag))

    @property
    def _loop(self):
        return self.seen().loop

    @property
    def _repr(self):
        return self.text

    @property
    def _source_traceback(self):
        return self.source_traceback


@cython.final
@cython.no_gc
cdef class TimerHandle(Handle):
    """A callback that is scheduled for a time, with the methods of asyncio.TimerHandle."""

    def __cinit__(self):
        self.index = -1

    def __del__(self):
        """Drop the references of a timer, which may have a number of the caller's own class."""
        self.exact_when = None
        self.finish()

    def cancel(self):
        """Cancel the timer, remove it from the timer heap and drop its callback immediately."""
        if self.index >= 0:
            Py_DECREF(<object>mgl_heap_remove(self.heap, self.index))
        self.drop()

    def when(self):
        """Return the deadline, in seconds of loop.time()."""
        return self.deadline if self.exact_when is None else self.exact_when

    def _repr_info(self):
        return events.TimerHandle._repr_info(self)

    @property
    def __class__(self):
        return AsyncioTimerHandle

    @property
    def _when(self):
        return self.when()

    @property
    def _scheduled(self):
        return self.index >= 0

    def __hash__(self):
        return hash(self.deadline)

    def __richcmp__(self, other, int op):
        if not isinstance(other, events.TimerHandle):
            return NotImplemented
        cdef double mine = (<TimerHandle>self).deadline
        cdef double theirs = other._when
        if op == Py_LT:
            return mine < theirs
        if op == Py_GT:
            return mine > theirs
        same = (mine == theirs and self._callback == other._callback
                and self._args == other._args and self._cancelled == other._cancelled)
        if op == Py_EQ:
            return same
        if op == Py_LE:
            return mine < theirs or same
        if op == Py_GE:
            return mine > theirs or same
        return not same


@cython.no_gc
cdef class PostedHandle(Handle):
    """A Handle that can be put into the cross-thread queue.

    call_soon_threadsafe() returns it up to Python 3.13.
    """


@cython.final
@cython.no_gc
cdef class ThreadSafeHandle(PostedHandle):
    """A Handle whose cancel() and cancelled() wait while another thread runs the callback.

    asyncio has such a handle since Python 3.14. The callback itself may cancel its handle.

    asyncio takes a lock for each run. Here the run state is an atomic word (port/runstate.h). A
    thread creates an Event only if it has to wait. Another thread can read the callback and its
    arguments only until the callback runs.
    """

    cdef void abandon(self) noexcept:
        # Another thread may be cancelling the handle now.
        if mgl_run_state_cancel(&self.run_state):
            self.finish()

    cdef Handle seen(self):
        cdef ThreadSafeHandle other
        if not WITHOUT_GIL or mgl_run_state_is_mine(&self.run_state):
            return self
        other = ThreadSafeHandle.__new__(ThreadSafeHandle)
        if mgl_run_state_inspect(&self.run_state):
            self.show_as(other)
            mgl_run_state_inspected(&self.run_state)
        else:
            self.show_past_as(other)
        return other

    cdef int run(self, bint keep) except -1:
        if not mgl_run_state_begin(&self.run_state):
            return 0
        try:
            return Handle.run(self, keep)
        finally:
            self.end_run()

    cdef int run_by(self, object patched_run, bint keep) except -1:
        if not mgl_run_state_begin(&self.run_state):
            return 0
        try:
            return Handle.run_by(self, patched_run, keep)
        finally:
            self.end_run()

    cdef int end_run(self) except -1:
        if mgl_run_state_end(&self.run_state):
            with cython.critical_section(self):
                ended = self.ended
            ended.set()
        return 0

    def cancel(self):
        """Cancel the callback, or wait until it ends if another thread is running it."""
        self._await_end()
        if mgl_run_state_cancel(&self.run_state) or mgl_run_state_runs(&self.run_state, True):
            self.drop()
        else:
            # The callback has run or another thread has cancelled it. That thread drops the
            # references.
            mgl_flag_raise(&self.cancelled_flag)

    def cancelled(self):
        self._await_end()
        return bool(mgl_flag_raised(&self.cancelled_flag))

    def _await_end(self):
        while mgl_run_state_runs(&self.run_state, False):
            with cython.critical_section(self):
                if self.ended is None:
                    self.ended = threading.Event()
                ended = self.ended
            if mgl_run_state_await(&self.run_state):
                ended.wait()

    @property
    def __class__(self):
        return AsyncioHandle if AsyncioThreadSafeHandle is None else AsyncioThreadSafeHandle


# ------------------------------------------------------------------ making handles ----

cdef inline PyObject *reference(PyObject *o, bint shared) noexcept:
    if shared:
        return mgl_new_shared_reference(o)
    Py_INCREF(<object>o)
    return o


# Set the fields of a new handle. With `shared`, count the references as those of another thread,
# because the loop's thread will drop them (mgl_new_shared_reference() in port/posted.h).
cdef inline int fill(Handle h, object loop, PyObject *callback, PyObject *const *args,
                     Py_ssize_t nargs, PyObject *context, bint shared) except -1:
    cdef Py_ssize_t i
    cdef PyObject *copy
    if context is NULL:
        copy = PyContext_CopyCurrent()
        h.context = reference(copy, shared)
        Py_DECREF(<object>copy)
    else:
        h.context = reference(context, shared)
    h.loop = loop
    if nargs <= MAX_INLINE:
        for i in range(nargs):
            h.args[1 + i] = reference(args[i], shared)
        h.nargs = <int>nargs
    else:
        h.args[1] = PyTuple_New(nargs)
        for i in range(nargs):
            PyTuple_SET_ITEM(h.args[1], i, reference(args[i], shared))
        h.nargs = -1
    h.callback = reference(callback, shared)
    return 0


cdef Handle new_handle(object loop, PyObject *callback, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *context):
    cdef Handle h = Handle.__new__(Handle)
    fill(h, loop, callback, args, nargs, context, False)
    return h


cdef TimerHandle new_timer(object loop, double when, PyObject *callback, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *context):
    cdef TimerHandle h = TimerHandle.__new__(TimerHandle)
    h.deadline = when
    fill(h, loop, callback, args, nargs, context, False)
    return h


cdef Handle new_posted_handle(object loop, PyObject *callback, PyObject *const *args,
                              Py_ssize_t nargs, PyObject *context, bint here):
    cdef Handle h
    if CANCEL_WAITS:
        h = ThreadSafeHandle.__new__(ThreadSafeHandle)
    elif here:
        h = Handle.__new__(Handle)
    else:
        h = PostedHandle.__new__(PostedHandle)
    fill(h, loop, callback, args, nargs, context, not here)
    return h
