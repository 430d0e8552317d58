# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop._handle; _handle.pyx says what it is."""

from cpython.object cimport PyObject


cdef extern from "timerheap.h":
    ctypedef struct mgl_timer:
        double when
        PyObject *timer

    ctypedef struct mgl_heap:
        mgl_timer *items
        Py_ssize_t len
        unsigned long long sequence     # timers until now

    int mgl_heap_push(mgl_heap *h, double when, PyObject *timer, Py_ssize_t *index) except -1
    PyObject *mgl_heap_remove(mgl_heap *h, Py_ssize_t i)
    void mgl_heap_clear(mgl_heap *h)


cdef extern from "posted.h":
    ctypedef struct mgl_letter:
        pass


cdef extern from "turn.h":
    ctypedef struct mgl_turn:
        pass

    void mgl_flag_raise(int *flag) noexcept
    bint mgl_flag_raised(const int *flag) noexcept


cdef enum:
    MAX_INLINE = 4


cdef class Handle:
    cdef PyObject *callback     # NULL once run or cancelled
    cdef PyObject *context      # a snapshot if `shared`: to be entered by way of a copy
    cdef PyObject *args[1 + MAX_INLINE]
    cdef int nargs              # -1: a tuple in args[1]
    cdef int cancelled_flag     # other threads may raise it
    cdef unsigned char shared   # these three truths are small, for all of it to be two cache lines
    cdef unsigned char lasting  # runs more than once: a reader or writer
    cdef unsigned char posted   # from another thread than its loop's
    cdef object loop
    cdef object source_traceback
    cdef object text            # repr kept by a cancel in debug mode
    cdef object __weakref__

    # 0 = it was cancelled. `keep` leaves what it refers to in place, until finish().
    cdef int run(self, bint keep) except -1
    cdef int run_by(self, object patched_run, bint keep) except -1
    cdef int own_context(self) except -1
    cdef int report(self, object loop) except -1
    cdef int drop(self) except -1
    cdef int keep_text(self) except -1
    cdef Handle seen(self)
    cdef void show_as(self, Handle other) noexcept
    cdef void show_past_as(self, Handle other) noexcept
    cdef void clear(self) noexcept
    cdef void abandon(self) noexcept
    cdef void finish(self) noexcept


cdef class TimerHandle(Handle):
    cdef double deadline
    cdef object given           # the deadline as it was given, unless a float
    cdef Py_ssize_t index       # place in the heap, -1 = not scheduled
    cdef mgl_heap *heap         # the loop's; looked at only while index >= 0


# One that another thread may put into the loop's inbox.
cdef class PostedHandle(Handle):
    cdef mgl_letter letter


# What call_soon_threadsafe() returns from 3.14 on, and without the GIL: other threads' cancel()
# waits for a running callback to end.
cdef class ThreadSafeHandle(PostedHandle):
    cdef mgl_turn turn
    cdef object ended               # threading.Event of those who wait for it, or None

    cdef int end_run(self) except -1


# `context` NULL = a copy of the current one, shared through *snapshot; NULL there = not shared.
# All arguments are borrowed.
cdef Handle new_handle(object loop, PyObject *callback, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *context, PyObject **snapshot)
cdef TimerHandle new_timer(object loop, double when, PyObject *callback, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *context, PyObject **snapshot)
# For call_soon_threadsafe(). A PostedHandle, unless it is the loop's thread (`here`) that calls.
cdef Handle new_posted_handle(object loop, PyObject *callback, PyObject *const *args,
                              Py_ssize_t nargs, PyObject *context, PyObject **snapshot, bint here)
