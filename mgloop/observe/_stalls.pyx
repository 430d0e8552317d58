# SPDX-License-Identifier: GPL-2.0-only
"""Detect stalled loops: StallDetector is the native half of the watchdog in watchdog.py.

A loop is stalled while one callback blocks it. The detection is native because it must cost the
loops nothing, and must run without the GIL, which the blocking callback may hold. observe/stalls.h
describes it. One thread, the watchdog's, waits in StallDetector.wait(); the other methods may be
called from any thread. A StallDetector holds a reference to each loop that it watches.

Reading the stack of the loop's thread is native too. A Python function can lose the GIL between any
two instructions. A callback that waits for the GIL in native code could then end before its stack
is complete. The code here does not release the GIL between reading the stack and checking that the
loop is still stalled. Without the GIL the loop's thread continues to run. observe/calls.h describes
how its stack is read nevertheless.
"""

import asyncio
import collections
import sys

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from mgloop._handle cimport Handle
from mgloop._loop cimport LoopCore, mgl_count, mgl_counters, mgl_thread_queue, mgl_ring

from mgloop._stdlib import has_gil


cdef extern from "clock.h":
    int64_t mgl_clock_ns() nogil


cdef extern from "stalls.h":
    ctypedef struct mgl_detector:
        pass
    ctypedef enum mgl_stall_event:
        MGL_STOPPED, MGL_CALLED, MGL_STALLED, MGL_CONTINUES
    ctypedef enum mgl_add_result:
        MGL_ADDED, MGL_HAS_DETECTOR, MGL_TOO_MANY
    mgl_detector *mgl_detector_new(int64_t threshold, int64_t period)
    void mgl_detector_release(mgl_detector *d)
    mgl_add_result mgl_detector_add(mgl_detector *d, mgl_thread_queue *queue,
                                    const mgl_ring *ready, mgl_counters *count)
    int64_t mgl_detector_remove(mgl_detector *d, mgl_thread_queue *queue)
    bint mgl_detector_is_stalled(mgl_detector *d, mgl_thread_queue *queue)
    mgl_stall_event mgl_detector_wait(
        mgl_detector *d, mgl_thread_queue **which, int64_t *lasted) nogil
    bint mgl_detector_take_resumed(mgl_detector *d, mgl_thread_queue *queue, int64_t *stalled_for)
    void mgl_detector_call(mgl_detector *d)
    void mgl_detector_stop(mgl_detector *d)


cdef extern from "calls.h":
    ctypedef struct mgl_call:
        PyObject *code
        PyObject *globals
        int line
    ctypedef struct mgl_calls:
        mgl_call *call
        Py_ssize_t len
        PyObject *outer
        PyObject *innermost
        void (*also)(void *arg) noexcept
        void *arg
    void mgl_calls_take(mgl_calls *c) noexcept
    void mgl_calls_clear(mgl_calls *c) noexcept


cdef bint HAS_GIL = has_gil()


def calls_of(thread, outer=None):
    """Return the call stack of a thread as a list of (code, line, globals), outermost call first.

    *thread* is the thread's identifier. The list begins after the call of the code object *outer*,
    if that is given. Return None if the thread does not exist.
    """
    return read_calls(thread, outer, None)


cdef list read_calls(object thread, object outer, Glance glance):
    """Return as calls_of() does, and fill in *glance* at the same moment unless it is None."""
    cdef mgl_calls calls
    cdef mgl_call *call
    cdef Py_ssize_t i
    cdef list found = []
    cdef object innermost = sys._current_frames().get(thread)
    if innermost is None:
        return None
    calls = mgl_calls(NULL, 0, <PyObject *>outer, <PyObject *>innermost, NULL, NULL)
    if glance is not None:
        calls.also = see
        calls.arg = <void *>glance
    mgl_calls_take(&calls)
    try:
        for i in range(calls.len - 1, -1, -1):
            call = &calls.call[i]
            if <object>call.code is not outer:
                found.append((<object>call.code, call.line, <object>call.globals))
    finally:
        mgl_calls_clear(&calls)
    return found


cdef class Glance:
    """A snapshot of the entry that a loop runs.

    Without the GIL the callback may end before its handle can be described, and the handle then
    drops its references. The snapshot therefore copies the fields of the handle.
    """

    cdef LoopCore loop
    cdef object item        # a handle, or the watcher of a descriptor
    cdef Handle copy

    def __cinit__(self, LoopCore loop not None):
        self.loop = loop
        self.copy = Handle.__new__(Handle)

    cdef str described(self):
        if self.item is None:
            return None
        if HAS_GIL:
            return repr(self.item)
        return repr(self.copy) if isinstance(self.item, Handle) else object.__repr__(self.item)


cdef void see(void *arg) noexcept:
    """Fill in the snapshot in *arg*; the function `also` of observe/calls.h.

    It must run no Python code and drop no references, because without the GIL the interpreter has
    stopped all other threads.
    """
    cdef Glance glance = <Glance>arg
    glance.item = glance.loop._current_handle
    if not HAS_GIL and isinstance(glance.item, Handle):
        (<Handle>glance.item).copy_to(glance.copy)


cdef class StallDetector:
    """Watch a set of loops for stalls.

    Only one thread may call wait(), and any thread the other methods.
    """

    cdef mgl_detector *detector
    # {address of the loop's cross-thread queue: loop}; the queue lives as long as the loop
    cdef dict loops
    # deque of (loop, nanoseconds of the stall) for loops that were removed before wait() reported
    # the end of their stall
    cdef object left

    def __cinit__(self, double threshold, double period):
        self.loops = {}
        self.left = collections.deque()
        self.detector = mgl_detector_new(<int64_t>(threshold * 1e9), <int64_t>(period * 1e9))
        if self.detector is NULL:
            raise MemoryError

    def __del__(self):
        # The detector has pointers into the loops. Remove them here, because the garbage collector
        # clears `loops` before __dealloc__() runs.
        if self.detector is not NULL:
            self.remove_all()

    def __dealloc__(self):
        if self.detector is not NULL:
            mgl_detector_release(self.detector)

    def add(self, LoopCore loop not None):
        """Start watching *loop*.

        Raise RuntimeError if the loop has a watchdog already, or if this one watches 256 loops.
        """
        cdef mgl_add_result done = mgl_detector_add(
            self.detector, loop.thread_queue, &loop.ready, &loop.count)
        if done == MGL_HAS_DETECTOR:
            raise RuntimeError(f"{loop!r} already has a watchdog")
        if done == MGL_TOO_MANY:
            raise RuntimeError("a watchdog watches at most 256 loops: create another one")
        try:
            self.loops[<size_t>loop.thread_queue] = loop
        except BaseException:
            mgl_detector_remove(self.detector, loop.thread_queue)
            raise

    def remove(self, LoopCore loop not None):
        """Stop watching *loop*. If it was stalled, wait() still reports the end of the stall."""
        cdef int64_t stalled_for = mgl_detector_remove(self.detector, loop.thread_queue)
        self.loops.pop(<size_t>loop.thread_queue, None)
        if stalled_for > 0:
            self.left.append((loop, stalled_for))
            mgl_detector_call(self.detector)

    def remove_all(self):
        """Stop watching all loops."""
        for loop in list(self.loops.values()):
            self.remove(loop)

    def wait(self):
        """Wait until a loop stalls or a stalled loop continues.

        Return (loop, stalled, duration, delay, seen), or None after stop(). *stalled* is False if
        the stall is over. *duration* is the length of the stall so far, in seconds. *delay* is how
        long this thread then waited for the GIL, or without the GIL for the loop's thread, in
        seconds. *seen* is the result of inspect_stall() if the loop is stalled, else None.
        """
        cdef mgl_thread_queue *which = NULL
        cdef int64_t lasted = 0, began
        cdef mgl_stall_event what
        cdef LoopCore loop
        while True:
            if self.left:
                loop, lasted = self.left.popleft()
                mgl_count(&loop.count.stalls, 1)
                return loop, False, lasted * 1e-9, 0.0, None
            with nogil:
                what = mgl_detector_wait(self.detector, &which, &lasted)
                began = mgl_clock_ns()
            loop = self.loops.get(<size_t>which)
            if what == MGL_STALLED and loop is not None:
                seen = self.inspect_stall(loop)
                return loop, True, lasted * 1e-9, (mgl_clock_ns() - began) * 1e-9, seen
            if what == MGL_CONTINUES and mgl_detector_take_resumed(self.detector, which, &lasted):
                mgl_count(&loop.count.stalls, 1)
                return loop, False, lasted * 1e-9, (mgl_clock_ns() - began) * 1e-9, None
            if what == MGL_STOPPED and not self.left:
                return None

    cdef object inspect_stall(self, LoopCore loop):
        """Return (calls, task, handle) of a stalled loop.

        *calls* is the list of calls_of() for the loop's thread below run_forever(); it is empty if
        the callback is native. *task* is the current task or None, and *handle* the repr() of the
        handle or watcher that the loop runs, or None. Return None if the loop has continued or its
        thread has ended.
        """
        cdef Glance glance = Glance(loop)
        cdef list calls = read_calls(
            loop._thread_id, asyncio.BaseEventLoop.run_forever.__code__, glance)
        if calls is None:
            return None
        task = asyncio.current_task(loop)
        return (calls, task, glance.described()) if self.is_stalled(loop) else None

    def is_stalled(self, LoopCore loop not None):
        """Return whether *loop* is still stalled in the same callback."""
        return mgl_detector_is_stalled(self.detector, loop.thread_queue)

    def stop(self):
        """Make wait() return None, immediately and in all later calls."""
        mgl_detector_stop(self.detector)
