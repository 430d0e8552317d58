# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native interface of mgloop._handle; _handle.pyx describes the handles."""

from cpython.object cimport PyObject


cdef extern from "timerheap.h":
    ctypedef struct mgl_timer:
        double when
        PyObject *timer

    ctypedef struct mgl_heap:
        mgl_timer *items
        Py_ssize_t len
        unsigned long long sequence     # number of timers ever added

    int mgl_heap_push(mgl_heap *h, double when, PyObject *timer, Py_ssize_t *index) except -1
    PyObject *mgl_heap_remove(mgl_heap *h, Py_ssize_t i)
    void mgl_heap_clear(mgl_heap *h)


cdef extern from "posted.h":
    ctypedef struct mgl_node:
        pass


cdef extern from "runstate.h":
    ctypedef struct mgl_run_state:
        pass

    void mgl_flag_raise(int *flag) noexcept
    bint mgl_flag_raised(const int *flag) noexcept


cdef enum:
    MAX_INLINE = 4


# A callback with its arguments; it owns a reference to each.
cdef struct Call:
    PyObject *callback          # NULL after the callback has run or was cancelled
    # args[0] is free: a vectorcall with PY_VECTORCALL_ARGUMENTS_OFFSET may overwrite it.
    PyObject *args[1 + MAX_INLINE]
    int nargs                   # number of arguments, or -1 if args[1] is a tuple of them


cdef class Handle:
    cdef Call call
    cdef PyObject *context      # NULL after the callback has run or was cancelled
    cdef int cancelled_flag     # other threads may set it
    # These two flags are single bytes so that the object fits into two cache lines.
    cdef unsigned char lasting  # the callback runs more than once: a reader or a writer
    cdef unsigned char posted   # submitted by a thread other than the loop's
    cdef object loop
    cdef object source_traceback
    cdef object saved_repr      # in debug mode, repr() of a cancelled handle
    cdef object __weakref__

    # Call the callback. Return 0 if it was cancelled, else 1. With `keep` the handle keeps its
    # references until finish().
    cdef int run(self, bint keep) except -1
    cdef int fail(self, Call *call, PyObject *context, object loop) except -1
    cdef int run_by(self, object patched_run, bint keep) except -1
    cdef int report(self, object loop) except -1
    cdef int mark_cancelled(self) except -1
    cdef int save_repr(self) except -1
    cdef Handle readable(self)
    cdef void copy_to(self, Handle other) noexcept
    cdef void copy_outcome_to(self, Handle other) noexcept
    cdef void abandon(self) noexcept
    cdef void finish(self) noexcept


cdef class TimerHandle(Handle):
    cdef double deadline
    cdef object exact_when      # the caller's deadline if it is not a float, else None
    cdef Py_ssize_t index       # index in the timer heap, or -1 if not scheduled
    cdef mgl_heap *heap         # the loop's timer heap; valid only while index >= 0


# A handle that another thread may put into the loop's cross-thread queue.
cdef class PostedHandle(Handle):
    cdef mgl_node node          # the node that links the handle into that queue


# The handle that call_soon_threadsafe() returns on Python 3.14 and later, and without the GIL.
# cancel() from another thread waits until a running callback ends.
cdef class ThreadSafeHandle(PostedHandle):
    cdef mgl_run_state run_state    # defined in port/runstate.h
    cdef object ended               # threading.Event for threads that wait for the end, or None

    cdef int end_run(self) except -1


# Make a handle. All references in the arguments are borrowed. If `context` is NULL the handle gets
# a copy of the current context.
cdef Handle new_handle(object loop, PyObject *callback, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *context)
cdef TimerHandle new_timer(object loop, double when, PyObject *callback, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *context)
# Make a handle for call_soon_threadsafe(). It is a PostedHandle unless the caller runs in the
# loop's thread (`here`).
cdef Handle new_posted_handle(object loop, PyObject *callback, PyObject *const *args,
                              Py_ssize_t nargs, PyObject *context, bint here)
