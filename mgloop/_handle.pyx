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

A handle owns references to its callback, arguments and context. run() takes the call, which is the
callback with its arguments, out of the handle, so that a callback that cancels its own handle
cannot free objects that the call still uses. A handle that has run or was cancelled refers to none
of them, even if the program keeps the handle. The handles of add_reader() and add_writer() run many
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


# --------------------------------------------------------------------- calls ----

cdef inline int references(const Call *call) noexcept:
    """Return how many elements of `args` hold a reference."""
    return 1 if call.nargs < 0 else call.nargs


cdef inline bint take(Call *call, Handle h, bint keep) noexcept:
    """Move the call of a handle to `*call`, or copy it with `keep`.

    Return False if the handle is empty, because it was cancelled or has run.
    """
    cdef int i
    call[0] = h.call
    if call.callback is NULL:
        return False
    if keep:
        Py_INCREF(<object>call.callback)
        for i in range(references(call)):
            Py_INCREF(<object>call.args[1 + i])
    else:
        h.call.callback = NULL
    return True


cdef inline void put_back(const Call *call, Handle h) noexcept:
    """Move `*call` to a handle without a callback."""
    h.call = call[0]


cdef inline void drop(Call *call) noexcept:
    """Drop the references of a call, which may run Python code."""
    cdef int i
    for i in range(references(call)):
        Py_DECREF(<object>call.args[1 + i])
    Py_DECREF(<object>call.callback)


cdef inline PyObject *call_in_context(Call *call, PyObject *context) noexcept:
    """Return the result, or NULL with an exception set."""
    cdef PyObject *result
    if PyContext_Enter(context) != 0:
        return NULL
    if call.nargs >= 0:
        result = PyObject_Vectorcall(
            call.callback, &call.args[1], <size_t>call.nargs | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
    else:
        result = PyObject_CallObject(call.callback, call.args[1])
    if PyContext_Exit(context) != 0:
        Py_XDECREF(result)
        return NULL
    return result


# ------------------------------------------------------------------- handles ----


@cython.no_gc
@cython.freelist(256)
cdef class Handle:
    """A scheduled callback, with the methods of asyncio.Handle."""

    # A destructor of a callback may reach the handle through a weak reference and keep it. A
    # finalizer permits that, and __dealloc__() does not.
    def __del__(self):
        """Drop the references of a handle that has not run."""
        if self.call.callback is not NULL or self.context is not NULL:
            self.finish()

    cdef void abandon(self) noexcept:
        """Drop all references of a handle that was queued when its loop closed."""
        self.finish()

    cdef void finish(self) noexcept:
        """Drop all references of a handle that has run or was cancelled.

        They go last, when the fields are consistent, because destructors may run Python code.
        """
        cdef Call call
        cdef PyObject *context = self.context
        self.context = NULL
        if take(&call, self, False):
            drop(&call)
        self.loop = None
        Py_XDECREF(context)

    cdef int run(self, bint keep) except -1:
        """Call the callback; return 1, or 0 if it was cancelled or has already run.

        Raise only SystemExit and KeyboardInterrupt. Every other exception goes to the loop's
        exception handler. With `keep` (for debug mode and timing) the callback stays in the handle,
        until the caller calls finish().
        """
        cdef Call call
        cdef PyObject *context = self.context
        cdef PyObject *result
        # The callback may cancel the handle, which drops its references to the loop and the
        # context.
        cdef object loop = self.loop
        if not take(&call, self, keep or self.lasting):
            return 0
        Py_INCREF(<object>context)
        result = call_in_context(&call, context)
        if result is NULL:
            self.fail(&call, context, loop)
            return 1
        Py_DECREF(<object>result)
        drop(&call)
        if not keep and not self.lasting and self.context is context:
            self.context = NULL
            self.loop = None
            Py_DECREF(<object>context)
        Py_DECREF(<object>context)
        return 1

    cdef int fail(self, Call *call, PyObject *context, object loop) except -1:
        """Report the exception that `call` has raised, and drop `call` and `context`.

        The report contains the handle's repr(), which needs the callback.
        """
        if self.call.callback is NULL and not mgl_flag_raised(&self.cancelled_flag):
            put_back(call, self)
        else:
            drop(call)
        try:
            self.report(loop)
        finally:
            Py_DECREF(<object>context)
            if not self.lasting:
                self.finish()
        return 0

    cdef int run_by(self, object patched_run, bint keep) except -1:
        """Run the callback through *patched_run*, a tool's replacement of asyncio's Handle._run().

        Return as run() does. As in asyncio, an exception of *patched_run* leaves run_forever().
        """
        if self.call.callback is NULL:
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

    cdef Handle readable(self):
        """Return a handle whose fields can be read safely in this thread: self, or a copy."""
        return self

    cdef void copy_to(self, Handle other) noexcept:
        """Copy all fields to the new handle `other`, so that its repr() is the same.

        No Python code runs.
        """
        other.context = self.context
        Py_XINCREF(other.context)
        take(&other.call, self, True)
        other.loop = self.loop
        self.copy_outcome_to(other)

    cdef void copy_outcome_to(self, Handle other) noexcept:
        """Copy to `other` the fields that remain valid after the callback was dropped."""
        other.source_traceback = self.source_traceback
        other.saved_repr = self.saved_repr
        other.cancelled_flag = mgl_flag_raised(&self.cancelled_flag)

    def _run(self):
        self.run(False)

    def cancel(self):
        """Cancel the callback. Do nothing if it has run or was cancelled."""
        self.mark_cancelled()

    cdef int mark_cancelled(self) except -1:
        """Set the cancelled flag and drop all references."""
        if mgl_flag_raised(&self.cancelled_flag):
            return 0
        mgl_flag_raise(&self.cancelled_flag)
        if self.source_traceback is not None:
            self.save_repr()
        self.finish()
        return 0

    cdef int save_repr(self) except -1:
        """Save repr(self) for debug messages such as "Executing <Handle...> took 2.5 seconds"."""
        try:
            self.saved_repr = repr(self)
        except BaseException:
            self.finish()
            raise
        return 0

    def cancelled(self):
        """Return whether the handle was cancelled."""
        return bool(mgl_flag_raised(&self.cancelled_flag))

    def get_context(self):
        """Return the contextvars.Context in which the callback runs, or None after it has run."""
        cdef Handle h = self.readable()
        return None if h.context is NULL else <object>h.context

    def _repr_info(self):
        return events.Handle._repr_info(self.readable())

    def __repr__(self):
        return events.Handle.__repr__(self)

    @property
    def __class__(self):
        return AsyncioHandle

    @property
    def _callback(self):
        cdef Handle h = self.readable()
        return None if h.call.callback is NULL else <object>h.call.callback

    @property
    def _args(self):
        cdef Handle h = self.readable()
        if h.call.callback is NULL:
            return None if mgl_flag_raised(&h.cancelled_flag) else ()
        if h.call.nargs < 0:
            return <object>h.call.args[1]
        return tuple([<object>h.call.args[1 + i] for i in range(h.call.nargs)])

    @property
    def _context(self):
        return self.get_context()

    @property
    def _cancelled(self):
        return bool(mgl_flag_raised(&self.cancelled_flag))

    @property
    def _loop(self):
        return self.readable().loop

    @property
    def _repr(self):
        return self.saved_repr

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
        self.mark_cancelled()

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

    cdef Handle readable(self):
        cdef ThreadSafeHandle other
        if not WITHOUT_GIL or mgl_run_state_is_mine(&self.run_state):
            return self
        other = ThreadSafeHandle.__new__(ThreadSafeHandle)
        if mgl_run_state_inspect(&self.run_state):
            self.copy_to(other)
            mgl_run_state_inspected(&self.run_state)
        else:
            self.copy_outcome_to(other)
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
            self.mark_cancelled()
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

cdef inline PyObject *new_reference(PyObject *o, bint shared) noexcept:
    if shared:
        return mgl_new_shared_reference(o)
    Py_INCREF(<object>o)
    return o


# Set the fields of a new handle. With `shared`, count the references as those of another thread,
# because the loop's thread will drop them (mgl_new_shared_reference() in port/posted.h).
cdef inline int initialise(Handle h, object loop, PyObject *callback, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *context, bint shared) except -1:
    cdef Call *call = &h.call
    cdef Py_ssize_t i
    cdef PyObject *copy
    if context is NULL:
        copy = PyContext_CopyCurrent()
        h.context = new_reference(copy, shared)
        Py_DECREF(<object>copy)
    else:
        h.context = new_reference(context, shared)
    h.loop = loop
    if nargs <= MAX_INLINE:
        for i in range(nargs):
            call.args[1 + i] = new_reference(args[i], shared)
        call.nargs = <int>nargs
    else:
        call.args[1] = PyTuple_New(nargs)
        for i in range(nargs):
            PyTuple_SET_ITEM(call.args[1], i, new_reference(args[i], shared))
        call.nargs = -1
    call.callback = new_reference(callback, shared)
    return 0


cdef Handle new_handle(object loop, PyObject *callback, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *context):
    cdef Handle h = Handle.__new__(Handle)
    initialise(h, loop, callback, args, nargs, context, False)
    return h


cdef TimerHandle new_timer(object loop, double when, PyObject *callback, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *context):
    cdef TimerHandle h = TimerHandle.__new__(TimerHandle)
    h.deadline = when
    initialise(h, loop, callback, args, nargs, context, False)
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
    initialise(h, loop, callback, args, nargs, context, not here)
    return h
