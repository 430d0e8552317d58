# SPDX-License-Identifier: GPL-2.0-only
"""Pulse: the native half of a watchdog, which waits for a loop to stand still.

Native because it must neither cost the loops anything nor want the GIL, which a callback that holds
up its loop may have.  port/pulse.h says how it is done; what is made of it is in watchdog.py.

To look is native too: native code that has let go of the GIL may take it again at once, and would
be over by the time that this thread has it the next time.  Nothing here gives it up between the
look at the stack and the question whether the loop still stands there.
"""

import asyncio
import collections
import sys

from libc.stdint cimport int64_t

from mgloop._loop cimport LoopCore, mgl_count, mgl_counters, mgl_inbox, mgl_ring


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

    def __dealloc__(self):
        if self.watcher is not NULL:
            mgl_watcher_give_back(self.watcher)

    def add(self, LoopCore loop not None):
        """Watch it as well. RuntimeError if somebody does already."""
        cdef mgl_watching done = mgl_watcher_add(
            self.watcher, loop.inbox, &loop.ready, &loop.count)
        if done == MGL_WAS_WATCHED:
            raise RuntimeError(f"{loop!r} has a watchdog already")
        if done == MGL_TOO_MANY:
            raise RuntimeError("a watchdog has no more than 256 loops: make another")
        self.loops[<size_t>loop.inbox] = loop

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
        """(frames, task, handle) of a loop that stands still: the frames of its thread with their
        lines, outermost first, without those from run_forever() outwards (so none if a callback is
        native). None if it has gone on, or its thread has ended."""
        cdef object outer = asyncio.BaseEventLoop.run_forever.__code__
        cdef list frames = []
        cdef object frame = sys._current_frames().get(loop._thread_id)
        if frame is None:
            return None
        while frame is not None and frame.f_code is not outer:
            frames.append((frame, frame.f_lineno))
            frame = frame.f_back
        frames.reverse()
        task, handle = asyncio.current_task(loop), loop._current_handle
        return (frames, task, handle) if self.stands(loop) else None

    def stands(self, LoopCore loop not None):
        """Whether it still is where it was."""
        return mgl_watcher_stands(self.watcher, loop.inbox)

    def stop(self):
        """Have wait() return None, now and from now on."""
        mgl_watcher_stop(self.watcher)
