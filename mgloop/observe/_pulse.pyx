# SPDX-License-Identifier: GPL-2.0-only
"""Pulse: the native half of a watchdog, which waits for a loop to stand still.

Native because it must neither cost the loops anything nor want the GIL, which a callback that holds
up its loop may have.  port/pulse.h says how it is done; what is made of it is in watchdog.py.

To look is native too: native code that has let go of the GIL may take it again at once, and would
be over by the time that this thread has it the next time.  Nothing here gives it up between the
look at the stack and the question whether the loop still stands there.  Without the GIL the loop's
thread goes on meanwhile: port/calls.h says how it is looked at all the same.
"""

import asyncio
import collections
import sys

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from mgloop._handle cimport Handle
from mgloop._loop cimport LoopCore, mgl_count, mgl_counters, mgl_inbox, mgl_ring

from mgloop._stdlib import has_gil


cdef extern from "clock.h":
    int64_t mgl_clock_ns() nogil


cdef extern from "pulse.h":
    ctypedef struct mgl_watcher:
        pass
    ctypedef enum mgl_pulse:
        MGL_STOPPED, MGL_CALLED, MGL_STALLS, MGL_GOES_ON
    ctypedef enum mgl_watching:
        MGL_IS_WATCHED, MGL_WAS_WATCHED, MGL_TOO_MANY
    mgl_watcher *mgl_watcher_new(int64_t threshold, int64_t period)
    void mgl_watcher_give_back(mgl_watcher *w)
    void mgl_watcher_stop(mgl_watcher *w)
    mgl_watching mgl_watcher_add(mgl_watcher *w, mgl_inbox *inbox, const mgl_ring *ready,
                                 mgl_counters *count)
    void mgl_watcher_call(mgl_watcher *w)
    bint mgl_watcher_tells(mgl_watcher *w, mgl_inbox *inbox, int64_t *stood)
    int64_t mgl_watcher_remove(mgl_watcher *w, mgl_inbox *inbox)
    bint mgl_watcher_stands(mgl_watcher *w, mgl_inbox *inbox)
    mgl_pulse mgl_watcher_wait(mgl_watcher *w, mgl_inbox **which, int64_t *lasted) nogil


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
    """What the thread with this number has called, as (code, line, globals), outermost first, from
    the call of the code `outer` inwards; None if there is no such thread."""
    return read_calls(thread, outer, None)


cdef list read_calls(object thread, object outer, Glance glance):
    """calls_of(), and what `glance` is to see at the same moment."""
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
    """What a loop runs. Without the GIL its handle may be over before it can be described, and lets
    go of what it referred to: so a handle that refers to the same is."""

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
    """Of calls.h's `also`: no Python, and nothing is given back."""
    cdef Glance glance = <Glance>arg
    glance.item = glance.loop._current_handle
    if not HAS_GIL and isinstance(glance.item, Handle):
        (<Handle>glance.item).show_as(glance.copy)


cdef class Pulse:
    """Of the loops that were added; wait() is for one thread, the rest for any."""

    cdef mgl_watcher *watcher
    cdef dict loops         # by the address of its inbox, which lives as long as the loop
    cdef object left        # (loop, nanoseconds that it stood): removed before wait() told of it

    def __cinit__(self, double threshold, double period):
        self.loops = {}
        self.left = collections.deque()
        self.watcher = mgl_watcher_new(<int64_t>(threshold * 1e9), <int64_t>(period * 1e9))
        if self.watcher is NULL:
            raise MemoryError

    def __del__(self):
        # The watcher points into the loops, and the collector clears `loops` before __dealloc__().
        if self.watcher is not NULL:
            self.remove_all()

    def __dealloc__(self):
        if self.watcher is not NULL:
            mgl_watcher_give_back(self.watcher)

    def add(self, LoopCore loop not None):
        """Watch it as well. RuntimeError if somebody does already."""
        cdef mgl_watching done = mgl_watcher_add(
            self.watcher, loop.inbox, &loop.ready, &loop.count)
        if done == MGL_WAS_WATCHED:
            raise RuntimeError(f"{loop!r} already has a watchdog")
        if done == MGL_TOO_MANY:
            raise RuntimeError("a watchdog watches at most 256 loops: create another one")
        try:
            self.loops[<size_t>loop.inbox] = loop
        except BaseException:
            mgl_watcher_remove(self.watcher, loop.inbox)
            raise

    def remove(self, LoopCore loop not None):
        """Watch it no longer; wait() still tells what is due."""
        cdef int64_t stood = mgl_watcher_remove(self.watcher, loop.inbox)
        self.loops.pop(<size_t>loop.inbox, None)
        if stood > 0:
            self.left.append((loop, stood))
            mgl_watcher_call(self.watcher)

    def remove_all(self):
        """Watch none any longer."""
        for loop in list(self.loops.values()):
            self.remove(loop)

    def wait(self):
        """(loop, whether it stands still, seconds of that, seconds until this was told, what was
        seen), when there is something to tell; None after stop(). The fourth is what the GIL had to
        be waited for, or without one the thread; for the fifth see look()."""
        cdef mgl_inbox *which = NULL
        cdef int64_t lasted = 0, began
        cdef mgl_pulse what
        cdef LoopCore loop
        while True:
            if self.left:
                loop, lasted = self.left.popleft()
                mgl_count(&loop.count.stalls, 1)
                return loop, False, lasted * 1e-9, 0.0, None
            with nogil:
                what = mgl_watcher_wait(self.watcher, &which, &lasted)
                began = mgl_clock_ns()
            loop = self.loops.get(<size_t>which)
            if what == MGL_STALLS and loop is not None:
                seen = self.look(loop)
                return loop, True, lasted * 1e-9, (mgl_clock_ns() - began) * 1e-9, seen
            if what == MGL_GOES_ON and mgl_watcher_tells(self.watcher, which, &lasted):
                mgl_count(&loop.count.stalls, 1)
                return loop, False, lasted * 1e-9, (mgl_clock_ns() - began) * 1e-9, None
            if what == MGL_STOPPED and not self.left:
                return None

    cdef object look(self, LoopCore loop):
        """(calls, task, handle) of a loop that stands still: the calls of its thread, as calls_of()
        tells them, from run_forever() inwards (so none if a callback is native), and how its handle
        describes itself. None if it has gone on, or its thread has ended."""
        cdef Glance glance = Glance(loop)
        cdef list calls = read_calls(
            loop._thread_id, asyncio.BaseEventLoop.run_forever.__code__, glance)
        if calls is None:
            return None
        task = asyncio.current_task(loop)
        return (calls, task, glance.described()) if self.stands(loop) else None

    def stands(self, LoopCore loop not None):
        """Whether it still is where it was."""
        return mgl_watcher_stands(self.watcher, loop.inbox)

    def stop(self):
        """Have wait() return None, now and from now on."""
        mgl_watcher_stop(self.watcher)
