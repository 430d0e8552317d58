# SPDX-License-Identifier: GPL-2.0-only
# cython: always_allow_keywords=False
# _loop.pyx explains the directive.
"""Run the iterations of a loop: wait for events, and run the callbacks and watchers that are ready.

One iteration has these phases:

    deadline     compute how long to wait: not at all if something is ready or the loop is
                 stopping, else until the next timer, else without limit
    greenlets    only if gevent or eventlet has patched the process: wait through their selector
    poll         call mg_mgr_poll(), which waits and appends the ready watchers to the ready queue
    timers       append the timers that are due
    batch        run everything that is in the queue now, in order: callbacks, watchers, timers
    flush        send the writes that the transports deferred, and append new connection attempts

Callbacks therefore run in asyncio's order, and the loop polls as often as asyncio's. The loop moves
the handles from the cross-thread queue to the ready queue at the beginning of an iteration and
again after the poll, before the events of that poll.

A batch has two forms. Debug mode, timing, and tools that replace asyncio's Handle._run() observe
each callback, and the batch then goes through run_observed(). All other batches go through the
short loop in run_batch().

IterationCore owns no state of its own. It is native because its code runs per callback. The loop's
thread calls all methods, without releasing the GIL; only the poll does.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint32_t

from mgloop._entries cimport is_handle
from mgloop._handle cimport Handle, TimerHandle
from mgloop._loop cimport LoopCore, Watcher, store_gauges
from mgloop._measured cimport key_of
from mgloop._port cimport (
    Py_TYPE, PyTypeObject, mgl_clock_ns, mgl_count, mgl_count_most, mgl_posted_any,
    mgl_ring, mgl_ring_len, mgl_ring_pop, mgl_thread_queue,
)

from asyncio import events as asyncio_events
from asyncio.log import logger

from . import _greenlets, _stdlib


cdef extern from "ring.h":
    void mgl_ring_bring_forward(mgl_ring *r, size_t n, size_t m) noexcept


cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1


cdef extern from "poll.h":
    const int64_t MGL_NEVER


cdef extern from "threadqueue.h":
    void mgl_thread_queue_begin_wait(mgl_thread_queue *queue) noexcept
    void mgl_thread_queue_end_wait(mgl_thread_queue *queue) noexcept


cdef enum:
    DEFER_READY = 4     # batch size from which deferring writes pays off


# Tools that trace or measure callbacks replace asyncio's Handle._run(), possibly before this module
# is imported.
cdef object AsyncioHandle = asyncio_events.Handle
cdef object asyncio_run = None      # the original function, once it has been seen


cdef object find_patched_run():
    """Return the function that replaces asyncio's Handle._run(), or None if it is the original."""
    global asyncio_run
    run = AsyncioHandle._run
    if run is asyncio_run:
        return None
    if not _stdlib.is_asyncios(run):
        return run
    asyncio_run = run
    return None


cdef class IterationCore(LoopCore):
    """Add to LoopCore the iterations."""

    def _run_once(self):
        """Run iterations until stop() is called.

        BaseEventLoop.run_forever() calls this method in a loop that ends when `_stopping` is set.
        Iterating here saves a Python frame per iteration, and the standard library of each Python
        version still does its own set-up and clean-up.

        Raise RuntimeError if the loop is closed.
        """
        if self.poll is NULL:
            raise RuntimeError("Event loop is closed")
        self.check_clock()
        self.clock_checked = True
        self.patched_run = find_patched_run()
        selector = _greenlets.selector()
        self.iterating = True
        if self.measured is not None:
            self.measured.start_running()
        try:
            if self._thread_id is None:
                self.iterate(selector)      # the caller is not run_forever()
            else:
                self.run_until_stopped(selector)
        finally:
            try:
                self.flush()
            finally:
                self.iterating = self.clock_checked = False
                self.post_deferred()
                if self.measured is not None:
                    self.measured.stop_running()

    cdef int run_until_stopped(self, object selector) except -1:
        while True:
            self.iterate(selector)
            if self._stopping:
                return 0

    cdef int iterate(self, object selector) except -1:
        cdef int64_t deadline = 0
        cdef int events
        cdef size_t count, before
        if mgl_posted_any(&self.thread_queue.posted):
            self.collect_posted()
        if mgl_ring_len(&self.ready) == 0 and not self._stopping:
            # A tool may be enabled while the loop runs, for example by the module of an application
            # that a running server imports. A lookup before each wait is cheap compared with the
            # wait. Chains of callbacks, which do not wait, need none.
            self.patched_run = find_patched_run()
            deadline = self.first_deadline()
            if mgl_ring_len(&self.ready) > 0 or self._stopping:
                deadline = 0    # a replaced time() has scheduled a callback or stopped the loop
            elif deadline < self.next_wake:
                deadline = self.next_wake
        if selector is not None:
            self.wait_with_greenlets(selector, deadline)
            deadline = 0
        before = mgl_ring_len(&self.ready)
        events = self.poll_events(deadline)
        if mgl_posted_any(&self.thread_queue.posted):
            self.collect_posted_before(mgl_ring_len(&self.ready) - before)
        # Check for signals also without EINTR, because a loop may iterate for a long time without
        # running any Python code.
        PyErr_CheckSignals()
        if self.timers.len > 0:
            self.collect_timers()
        count = mgl_ring_len(&self.ready)
        mgl_count(&self.count.iterations, 1)
        mgl_count(&self.count.events, events)
        mgl_count_most(&self.count.most_events, events)
        mgl_count_most(&self.count.most_ready, count)
        store_gauges(self)
        self.busy = count >= DEFER_READY
        self.run_batch(count)
        if mgl_ring_len(&self.flushes) > 0:
            self.flush()
        return 0

    cdef int wait_with_greenlets(self, object selector, int64_t deadline) except -1:
        """Let greenlets run until the poll would report an event, or until *deadline*.

        A greenlet runs in the loop's thread, but must wake the loop as another thread does.
        """
        descriptor = self.poll_fd()
        timeout = None
        self.post_deferred()
        if deadline != MGL_NEVER:
            timeout = max(0.0, (deadline - mgl_clock_ns()) * 1e-9)
        if self.measured is not None:
            self.measured.start_waiting(mgl_ring_len(&self.ready))
        mgl_thread_queue_begin_wait(self.thread_queue)
        try:
            if mgl_posted_any(&self.thread_queue.posted):
                timeout = 0.0
            _greenlets.wait(selector, descriptor, timeout)
        finally:
            mgl_thread_queue_end_wait(self.thread_queue)
            if self.measured is not None:
                self.measured.stop_waiting(mgl_ring_len(&self.ready))
        return 0

    cdef int collect_posted_before(self, size_t events) except -1:
        """Put callbacks that were posted during the wait before the *events* that ended it.

        This is asyncio's order: if a thread connects and then posts, its callback runs before the
        connection is accepted.
        """
        cdef size_t before = mgl_ring_len(&self.ready)
        self.collect_posted()
        if events > 0:
            mgl_ring_bring_forward(&self.ready, mgl_ring_len(&self.ready) - before, events)
        return 0

    cdef int collect_timers(self) except -1:
        """Move the timers that are due to the ready queue.

        The clock is not read if the poll shows that the first deadline cannot have passed.
        """
        if self.has_other_clock() or self.may_have_passed(self.first_deadline()):
            mgl_count(&self.count.timers, self.take_due(&self.ready))
        return 0

    # -------------------------------------------------------------- batches ----

    cdef int run_batch(self, size_t n) except -1:
        cdef PyObject *item = NULL
        cdef uint32_t events = 0
        cdef int64_t ran = 0
        if self._debug or self.patched_run is not None or self.measured is not None:
            return self.run_observed(n, self.patched_run)
        # One try statement encloses as much of the batch as possible, because entering one takes
        # time. The conditions also check the queue, because a callback may have run part of this
        # batch itself by calling _run_once().
        while n > 0 and mgl_ring_len(&self.ready) > 0:
            try:
                while n > 0 and mgl_ring_len(&self.ready) > 0:
                    n -= 1
                    item = mgl_ring_pop(&self.ready)
                    if is_handle(item):
                        ran += (<Handle>item).run(False)
                    else:
                        events = (<Watcher>item).ready
                        (<Watcher>item).queued = False
                        (<Watcher>item).ready = 0
                        if events:
                            (<Watcher>item).on_ready(events)
                    Py_DECREF(<object>item)
            except BaseException as exc:
                held = <object>item
                Py_DECREF(held)
                mgl_count(&self.count.callbacks, ran + is_handle(item))
                ran = 0
                self.caught(held, events, exc)
        mgl_count(&self.count.callbacks, ran)
        return 0

    cdef int run_observed(self, size_t n, object patched) except -1:
        cdef int64_t start = mgl_clock_ns()
        if self.measured is not None:
            self.measured.mark(mgl_ring_len(&self.ready), start)
        while n > 0 and mgl_ring_len(&self.ready) > 0:
            n -= 1
            start = self.run_entry(start, patched)
        return 0

    cdef int64_t run_entry(self, int64_t start, object patched) except -1:
        """Run the oldest entry of the ready queue, and return the time when it ended.

        *start* is the time when the previous entry ended. *patched* replaces asyncio's
        Handle._run(), unless it is None.
        """
        cdef PyObject *popped = mgl_ring_pop(&self.ready)
        cdef object item = <object>popped
        cdef object key = None
        cdef uint32_t events = 0
        cdef int64_t end
        cdef bint keep, ran = False
        Py_DECREF(item)
        if self.measured is not None:
            self.measured.add_lag(start - self.ready_since(popped, start))
            key = key_of(item)
        keep = self._debug or self.measured is not None
        if patched is not None and not is_handle(popped):
            item = self.make_handle((<Watcher>item)._on_ready, (), None)
        try:
            if keep:
                self._current_handle = item
            ran = self.run_item(item, patched, keep, &events)
            mgl_count(&self.count.callbacks, ran)
            if keep and (mgl_clock_ns() - start) * 1e-9 >= self.slow_callback_duration:
                logger.warning("Executing %s took %.3f seconds", _stdlib.format_handle(item),
                               (mgl_clock_ns() - start) * 1e-9)
        except BaseException as exc:
            self.caught(item, events, exc)
        finally:
            self._current_handle = None
            end = mgl_clock_ns()
            if self.measured is not None:
                self.measured.add_run(key, end - start)
                self.measured.mark(mgl_ring_len(&self.ready), end)
        if keep and ran and not (<Handle>item).lasting:
            (<Handle>item).finish()
        return end

    cdef int run_item(self, object item, object patched, bint keep, uint32_t *events) except -1:
        """Run a handle or a watcher, and store a watcher's events in *events*.

        Return 1 for a handle that was not cancelled, else 0. With *keep* a handle keeps its
        references until finish().
        """
        if not is_handle(<PyObject *>item):
            events[0] = (<Watcher>item).ready
            (<Watcher>item).queued = False
            (<Watcher>item).ready = 0
            if events[0]:
                (<Watcher>item).on_ready(events[0])
            return 0
        if patched is not None:
            return (<Handle>item).run_by(patched, keep)
        return (<Handle>item).run(keep)

    cdef int64_t ready_since(self, PyObject *entry, int64_t now) noexcept:
        """Return the time in nanoseconds since when the entry just taken has been ready.

        For a timer this is its deadline, else the time when it was put into the queue.
        """
        cdef int64_t since = self.measured.take(now)
        cdef double due
        if Py_TYPE(entry) == <PyTypeObject *>TimerHandle and not self.has_other_clock():
            due = (<TimerHandle>entry).deadline * 1e9
            # A deadline before the loop existed, such as -inf, says nothing about the lag.
            if self.made_at <= due <= now:
                return <int64_t>due
        return since
