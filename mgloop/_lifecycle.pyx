# SPDX-License-Identifier: GPL-2.0-only
# cython: always_allow_keywords=False
# _loop.pyx explains the directive.
"""Begin and end the runs of a loop, and close it.

A loop is run or closed by one thread at a time. LifecycleCore reserves it for the thread that runs
it, and when it closes runs the callbacks that other threads have submitted. The reservation is a
pair of atomics in the cross-thread queue (port/threadqueue.h), so the module is native. Any thread
may call _enter() and _begin_close(). The other methods belong to the thread that has reserved the
loop. mixins/signals.py and loop.py call them.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uintptr_t

from mgloop._counters cimport CounterCore
from mgloop._entries cimport is_posted
from mgloop._handle cimport Handle, PostedHandle
from mgloop._port cimport (
    WITHOUT_GIL, mgl_count, mgl_posted, mgl_ring_at, mgl_ring_len, mgl_store, mgl_thread_queue,
)

from asyncio import events as asyncio_events

from . import _loop


cdef extern from "threadqueue.h":
    ctypedef enum mgl_permit:
        MGL_MAY, MGL_RUNS, MGL_CLOSES
    mgl_permit mgl_thread_queue_enter(mgl_thread_queue *queue) noexcept
    void mgl_thread_queue_leave(mgl_thread_queue *queue) noexcept
    mgl_permit mgl_thread_queue_begin_close(mgl_thread_queue *queue) noexcept
    void mgl_thread_queue_abandon_close(mgl_thread_queue *queue) noexcept
    void mgl_wait_ended(mgl_thread_queue *queue) noexcept


cdef extern from "posted.h":
    PyObject *mgl_posted_next(mgl_posted *p, uintptr_t *cursor) noexcept
    void mgl_posted_close(mgl_posted *p) noexcept
    PyObject *mgl_posted_pop(mgl_posted *p) noexcept


cdef extern from "<unistd.h>":
    int gettid()


cdef class LifecycleCore(CounterCore):
    """Add to CounterCore the methods that reserve the loop for a run, or for closing it."""

    def _enter(self):
        """Reserve the loop for this thread and process until _leave(), before it runs.

        Raise RuntimeError if the loop is closed, or if it is already running.
        """
        # Until this thread owns the loop another thread may be closing it, so that only the
        # cross-thread queue may be accessed.
        cdef mgl_permit answer = mgl_thread_queue_enter(self.thread_queue)
        if answer == MGL_RUNS:
            raise RuntimeError(_loop.INHERITED if self.queue_forked()
                               else "This event loop is already running")
        if answer != MGL_MAY:
            raise RuntimeError("Event loop is closed")
        try:
            self.adopt()
            self.cache_keywords()
        except BaseException:
            mgl_thread_queue_leave(self.thread_queue)
            raise
        mgl_store(&self.native_thread, gettid())
        # If a stall detector watches the loop and sleeps, wake it (observe/stalls.h).
        mgl_wait_ended(self.thread_queue)

    cdef int cache_keywords(self) except -1:
        """Cache the keyword arguments with which futures and tasks are created.

        A new dict per future would cost a third of the time to create it. The dicts refer to the
        loop, and are cached only while it runs so that they make no lasting reference cycle.
        """
        # Without the GIL another thread could still use the dicts when the loop stops.
        if not WITHOUT_GIL:
            self.eager_keywords = {"loop": self, "eager_start": True}
            self.future_keywords = {"loop": self}
        return 0

    def _leave(self):
        """End the reservation of _enter()."""
        self.future_keywords = self.eager_keywords = None
        mgl_store(&self.native_thread, 0)
        mgl_thread_queue_leave(self.thread_queue)

    def _begin_close(self):
        """Close the cross-thread queue and return the posted handles from the ready queue.

        Return None if another call closes the loop or has closed it. Raise RuntimeError if the loop
        is running, and MemoryError if the list cannot be allocated; the loop then stays open.
        """
        cdef mgl_permit answer = mgl_thread_queue_begin_close(self.thread_queue)
        cdef list handles = []
        cdef PyObject *item
        cdef size_t i = 0
        if answer == MGL_RUNS:
            raise RuntimeError("Cannot close a running event loop")
        if answer == MGL_CLOSES:
            return None
        try:
            # Appending to the list may start the garbage collector, whose finalizers may add to the
            # queue. The condition therefore reads its length each time.
            while i < mgl_ring_len(&self.ready):
                item = mgl_ring_at(&self.ready, i)
                if is_posted(item) and (<PostedHandle>item).posted:
                    handles.append(<object>item)
                i += 1
        except MemoryError:
            mgl_thread_queue_abandon_close(self.thread_queue)
            raise
        mgl_posted_close(&self.thread_queue.posted)
        return handles

    def _run_posted(self, list handles):
        """Run the callbacks from other threads that have not run yet, when the loop closes.

        These are *handles* (from the ready queue) and the contents of the cross-thread queue.
        """
        cdef object interruption = None
        cdef object handle
        cdef PyObject *item
        cdef uintptr_t cursor = 0
        if not handles and mgl_posted_next(&self.thread_queue.posted, &cursor) is NULL:
            return
        running = asyncio_events._get_running_loop()
        asyncio_events._set_running_loop(self)
        try:
            handles.reverse()
            while True:
                if handles:
                    handle = handles.pop()
                else:
                    item = mgl_posted_pop(&self.thread_queue.posted)
                    if item is NULL:
                        break
                    mgl_count(&self.count.threadsafe_calls, 1)
                    handle = <object>item
                    Py_DECREF(handle)
                try:
                    (<Handle>handle).run(False)
                except BaseException as exc:
                    interruption = exc
        finally:
            asyncio_events._set_running_loop(running)
        if interruption is not None:
            raise interruption

    def _dispose(self):
        """Release every callback, timer and registration, and the Mongoose manager."""
        self.dispose()
