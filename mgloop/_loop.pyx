# SPDX-License-Identifier: GPL-2.0-only
# cython: always_allow_keywords=False
# Cython then compiles methods without arguments as METH_NOARGS. By default each of them checks for
# keywords.
"""Run the iterations of mgloop.Loop; this is the only module that calls the Mongoose port.

LoopCore owns the ready queue, the timer heap, the wake-up and the registrations of descriptors. It
is native because this code runs once per callback or per packet. mgloop.loop adds everything else
by inheriting from asyncio.BaseEventLoop. That class's private attributes (_debug, _stopping,
_thread_id ...) are C fields of LoopCore under the same names.

One iteration has these phases:

    deadline     compute how long to wait: not at all if something is ready or the loop is
                 stopping, else until the next timer, else without limit
    poll         call mg_mgr_poll(), which waits and appends the ready watchers to the ready queue
    timers       append the timers that are due
    batch        run everything that is in the queue now, in order: callbacks, watchers, timers
    flush        send the writes that the transports deferred, and append new connection attempts

Callbacks therefore run in asyncio's order, and the loop polls as often as asyncio's. User code runs
only outside mg_mgr_poll(), and nothing is freed inside it.

The loop catches every exception that a watcher raises, in run_batch() and flush(), and passes it to
the watcher's failed(). That method reports the exception and ensures that the descriptor does not
stay registered. SystemExit and KeyboardInterrupt leave run_forever(); the watcher then keeps the
events that it was called for and handles them when the loop runs again. Handle.run() catches the
exceptions of callbacks.

One thread runs a loop. Other threads submit handles to the cross-thread queue
(port/threadqueue.h). The loop moves these handles to the ready queue at the beginning of an
iteration and again after the poll, before the events of that poll. The ready queue, the timers and
the registrations live as long as the loop is open, the cross-thread queue as long as the loop
object. docs/architecture.md lists the owner of each piece of state.
"""

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_XDECREF
from libc.errno cimport EINTR, ENOENT
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.math cimport ceil

from mgloop._handle cimport (
    Handle, PostedHandle, ThreadSafeHandle, TimerHandle, mgl_heap_clear, mgl_heap_remove,
    mgl_node, new_handle,
)

import functools
import os
import types
from asyncio import events as asyncio_events, futures, tasks as asyncio_tasks
from asyncio.log import logger

from . import _stdlib


cdef extern from "poll.h":
    ctypedef void (*mgl_record_fn)(PyObject *loop, PyObject *owner, uint32_t events) noexcept
    mgl_poll *mgl_poll_new(PyObject *loop, mgl_record_fn record, mgl_thread_queue *thread_queue,
                           mgl_counters *count, bint enable_wakeup) except NULL
    void mgl_poll_free(mgl_poll *poll)
    const int64_t MGL_NEVER
    int mgl_poll_run(mgl_poll *poll, int64_t deadline)
    bint mgl_poll_may_have_passed(const mgl_poll *poll, int64_t deadline)
    int mgl_poll_batch(const mgl_poll *poll)
    int mgl_poll_claim(mgl_poll *poll, int fd, PyObject *owner)
    int mgl_poll_add(mgl_poll *poll, int fd, uint32_t events, PyObject *owner)
    int mgl_poll_modify(mgl_poll *poll, int fd, uint32_t events)
    void mgl_poll_remove(mgl_poll *poll, int fd, bint in_kernel)
    PyObject *mgl_poll_owner(const mgl_poll *poll, int fd)
    int mgl_poll_limit(const mgl_poll *poll)
    void mgl_poll_wakeup(mgl_thread_queue *thread_queue)
    bint mgl_poll_forked(const mgl_poll *poll)
    bint mgl_thread_queue_forked(const mgl_thread_queue *thread_queue)
    int mgl_poll_adopt(mgl_poll *poll)
    const char *mgl_mongoose_version()
    const char *mgl_version()


cdef extern from "clock.h":
    int64_t mgl_clock_ns() noexcept


cdef extern from "threadqueue.h":
    mgl_thread_queue *mgl_thread_queue_new() except NULL
    void mgl_thread_queue_free(mgl_thread_queue *queue)
    ctypedef enum mgl_permit:
        MGL_MAY, MGL_RUNS, MGL_CLOSES
    mgl_permit mgl_thread_queue_enter(mgl_thread_queue *queue) noexcept
    void mgl_thread_queue_leave(mgl_thread_queue *queue) noexcept
    mgl_permit mgl_thread_queue_begin_close(mgl_thread_queue *queue) noexcept
    void mgl_thread_queue_abandon_close(mgl_thread_queue *queue) noexcept
    bint mgl_thread_queue_elsewhere(mgl_thread_queue *queue) noexcept
    void mgl_wait_ended(mgl_thread_queue *queue) noexcept


cdef extern from "posted.h":
    int mgl_posted_add(mgl_posted *p, mgl_node *node, PyObject *handle) except -1
    PyObject *mgl_posted_next(mgl_posted *p, uintptr_t *cursor) noexcept
    Py_ssize_t mgl_posted_take(mgl_posted *p, mgl_ring *queue) except -1
    void mgl_posted_close(mgl_posted *p) noexcept
    PyObject *mgl_posted_pop(mgl_posted *p) noexcept


cdef extern from "timing.h":
    mgl_timing *mgl_timing_new()
    void mgl_timing_free(mgl_timing *timing)
    void mgl_histogram_add(mgl_histogram *histogram, int64_t ns) noexcept
    void mgl_stopwatch_start(int64_t *watch, int64_t now) noexcept
    void mgl_stopwatch_stop(int64_t *watch, int64_t now) noexcept
    void mgl_timing_read(mgl_timing *timing, int64_t *running, int64_t *waiting) noexcept
    void mgl_timing_mark(mgl_timing *timing, size_t length, int64_t now) noexcept
    int64_t mgl_timing_take(mgl_timing *timing, int64_t now) noexcept


cdef extern from "ring.h":
    size_t mgl_ring_len(const mgl_ring *r)
    void mgl_ring_bring_forward(mgl_ring *r, size_t n, size_t m)
    int mgl_ring_reserve(mgl_ring *r, size_t n) except -1
    PyObject *mgl_ring_pop(mgl_ring *r)
    PyObject *mgl_ring_at(const mgl_ring *r, size_t i)
    void mgl_ring_clear(mgl_ring *r)


cdef extern from "timerheap.h":
    Py_ssize_t mgl_heap_take_due(mgl_heap *h, double now, mgl_ring *ready) except -1


cdef extern from "watchedname.h":
    void mgl_watch_name(dict module, str name) noexcept
    PyObject *mgl_watched_value() except NULL


cdef extern from "<unistd.h>":
    int gettid()


cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    PyTypeObject *Py_TYPE(PyObject *o)
    ctypedef struct PyTupleObject:
        PyObject *ob_item[1]
    Py_ssize_t Py_REFCNT(PyObject *o)
    int PyObject_GenericSetAttr(object o, object name, PyObject *value) except -1


cdef enum:
    MAX_WAIT_SECONDS = 24 * 3600    # as asyncio: longer waits are split
    # Entries that one event can add to the ready queue: the reader, the writer, the watcher, and
    # the watcher that the watcher displaced.
    PUSHES_PER_EVENT = 4
    DEFER_READY = 4                 # batch size from which deferring writes pays off
    # Limit of the bytes in short writes that the whole loop defers, because more no longer fits
    # into the cache.
    DEFER_BYTES = 64 * 1024
    GATHER_BYTES = 256 * 1024       # the same limit for long writes
    # The minimum interval between two wake-ups for timers grows with the number of timers that were
    # due together, because the loop pays for one sleep per wake-up.
    WAKE_MIN_NS = 50 * 1000         # the timer slack that Linux adds to a timeout by default
    WAKE_PER_TIMER_NS = 10 * 1000
    WAKE_MAX_NS = 250 * 1000
    # Limit of the callback names whose running time is measured separately.
    MAX_NAMES = 1000

# Types whose names can be read without running user code.
cdef object NAMED = frozenset(
    (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType))

MONGOOSE_VERSION = mgl_mongoose_version().decode()
VERSION = mgl_version().decode()

cdef PyTypeObject *HandleType = <PyTypeObject *>Handle
cdef PyTypeObject *TimerHandleType = <PyTypeObject *>TimerHandle
cdef PyTypeObject *PostedHandleType = <PyTypeObject *>PostedHandle
cdef PyTypeObject *ThreadSafeHandleType = <PyTypeObject *>ThreadSafeHandle
# Read at each use, as asyncio does, because programs and tests replace the class.
mgl_watch_name(futures.__dict__, "Future")
cdef object NativeFuture = _stdlib.NativeFuture
cdef object asyncgen_begins = _stdlib.asyncgen_begins
cdef tuple NO_ARGS = ()
cdef str PARENTS = (
    "this event loop was running when the process forked and belongs to the parent; "
    "create a new one in the child, for example with asyncio.run()")

# Tools that trace or measure callbacks replace asyncio's Handle._run(), possibly before this module
# is imported. The loop checks for that in each batch. The check is cheap because it compares the
# class's version tag first: CPython changes the tag of a class when one of its attributes is set.
# The tag is then 0 until the next attribute lookup assigns a new one.
cdef object AsyncioHandle = asyncio_events.Handle
cdef object asyncio_run = None
cdef int64_t asyncio_version = 0    # version tag of the class with its original _run()

cdef extern from *:
    """
    static inline int64_t mgl_version_of(PyTypeObject *type) {
        return __atomic_load_n(&type->tp_version_tag, __ATOMIC_RELAXED);
    }
    """
    int64_t mgl_version_of(PyTypeObject *type) noexcept


cdef object patched_run():
    """Return the function that replaces asyncio's Handle._run(), or None if it is the original."""
    global asyncio_run
    # Read the version before the attribute, because another thread may change the class between
    # the two reads.
    cdef int64_t version = mgl_version_of(<PyTypeObject *>AsyncioHandle)
    if version == mgl_counted(&asyncio_version) and version != 0:
        return None
    run = AsyncioHandle._run
    if run is not asyncio_run:
        if not _stdlib.is_asyncios(run):
            return run
        asyncio_run = run
    mgl_note(&asyncio_version, version)
    return None


# ------------------------------------------------------------------ watchers ----

cdef class Watcher:
    """Handle the events of one descriptor; the base class of transports, listeners and FdWatch."""

    def __cinit__(self):
        self.fd = -1
        # A watcher without a loop refers to a closed loop, so that no method has to check for None.
        self.loop = CLOSED

    cdef int on_ready(self, uint32_t events) except -1:
        return 0

    def _on_ready(self):
        """Call on_ready() as the callback of a handle; see LoopCore.run_batch_slowly()."""
        cdef uint32_t events = self.ready
        self.queued = False
        self.ready = 0
        if events:
            try:
                self.on_ready(events)
            except BaseException as exc:
                self.loop.caught(self, events, exc)

    cdef int on_flush(self) except -1:
        return 0

    cdef bint on_event(self, uint32_t events) except -1:
        return False

    cdef int failed(self, object exc) except -1:
        self.loop.call_exception_handler({
            "message": f"Exception in callback {self!r}",
            "exception": exc,
        })
        return 0

    cdef int interrupted(self, uint32_t events) except -1:
        if self.fd >= 0:
            self.loop.mark_ready(self, events)
        return 0

    cdef int give_way(self, Watcher other) except -1:
        raise RuntimeError(f"File descriptor {self.fd} is used by {self!r}")

    cdef bint owns_descriptor(self) noexcept:
        return True


# The closed loop that watchers refer to until they get a loop.
cdef LoopCore CLOSED = None


cdef object os_error(int error):
    return OSError(error, os.strerror(error))


cdef int raise_errno(int error) except -1:
    raise os_error(error)


cdef void record(PyObject *loop, PyObject *owner, uint32_t events) noexcept:
    """Queue the owner of a ready registration. mg_mgr_poll() calls this; no user code runs here."""
    # Nothing here can fail, because iterate() has reserved space in the queue for all events that
    # one poll can return.
    if (<Watcher>owner).under is not None:
        (<LoopCore>loop).mark_ready((<Watcher>owner).under, events)
    if (<Watcher>owner).on_event(events):
        return
    (<Watcher>owner).ready |= events
    if not (<Watcher>owner).queued:
        (<Watcher>owner).queued = True
        mgl_ring_push(&(<LoopCore>loop).ready, owner)


# -------------------------------------------------------- garbage collection ----
#
# The collector does not track handles, and Cython does not generate code to traverse the C queue,
# the timer heap and the poll table. A loop that the program drops without closing it must be
# collected anyway (and then warns). The classes that own such references therefore visit them in
# tp_traverse.
#
# The references of a handle in the queue or in the heap count as references of the loop, although
# other code may also hold the handle (the awaiter of asyncio.sleep() does). That is safe: if the
# loop is garbage the handle can never run, and closing the loop drops the handle's references. The
# references of a reader or writer are visited only while its FdWatch is the only holder.

cdef inline bint is_posted(PyObject *o) noexcept:
    cdef PyTypeObject *kind = Py_TYPE(o)
    return kind == PostedHandleType or kind == ThreadSafeHandleType


cdef inline bint is_handle(PyObject *o) noexcept:
    cdef PyTypeObject *kind = Py_TYPE(o)
    return kind == HandleType or kind == TimerHandleType or is_posted(o)


cdef int show_handle(PyObject *o, visitproc visit, void *arg) noexcept:
    if o is NULL or Py_REFCNT(o) != 1 or not is_handle(o):
        return 0
    return show_references(<Handle>o, visit, arg)


cdef int show_references(Handle h, visitproc visit, void *arg) noexcept:
    cdef int i, n, rc = 0
    if h.context is not NULL:
        rc = visit(h.context, arg)
    if rc == 0:
        rc = visit(<PyObject *>h.loop, arg)
    if rc == 0 and h.callback is not NULL:
        rc = visit(h.callback, arg)
        n = 1 if h.nargs < 0 else h.nargs
        for i in range(n):
            if rc == 0:
                rc = visit(h.args[1 + i], arg)
    return rc


# ------------------------------------------------------------------ the loop ----

cdef class LoopCore:
    """Schedule callbacks, poll, and register descriptors; the base class of mgloop.Loop."""

    def __cinit__(self, *args, bint enable_wakeup=True, timing=None, **kwargs):
        self._closed = True     # if __cinit__() raises, there is nothing to close
        self.wakeup_enabled = enable_wakeup
        self.thread_queue = mgl_thread_queue_new()
        self.scratch = <char *>PyMem_RawMalloc(SCRATCH)
        if self.scratch is NULL:
            raise MemoryError
        self.poll = mgl_poll_new(
            <PyObject *>self, record, self.thread_queue, &self.count, enable_wakeup)
        self.made_at = mgl_clock_ns()
        if timing is None:
            timing = os.environ.get("MGLOOP_TIMING", "0") not in ("", "0")
        if timing:
            self.timing = mgl_timing_new()
            if self.timing is NULL:
                raise MemoryError
            self.spent = {}
        self._closed = False
        self.check_clock()

    def __dealloc__(self):
        self.dispose()
        mgl_thread_queue_free(self.thread_queue)
        mgl_timing_free(self.timing)
        PyMem_RawFree(self.scratch)

    def __setattr__(self, name, value):
        # Programs and tests that replace time() with a clock of their own expect the timers to
        # follow it. Detecting the assignment here costs nothing in all other programs.
        PyObject_GenericSetAttr(self, name, <PyObject *>value)
        if name == "time":
            self.time_given = True
            self.check_clock()

    def __delattr__(self, name):
        PyObject_GenericSetAttr(self, name, NULL)
        if name == "time":
            self.time_given = False
            self.check_clock()

    cdef int check_clock(self) except -1:
        """Check whether time() of this loop or of its class has been replaced."""
        # Read the version before the attribute, because another thread may change the class between
        # the two reads.
        cdef int64_t version = mgl_version_of(Py_TYPE(<PyObject *>self))
        self.time_patched = self.time_given or type(self).time is not LoopCore.time
        self.time_version = version
        return 0

    cdef bint has_other_clock(self) except -1:
        """Return whether time() has been replaced on this object or on its class."""
        cdef int64_t version = mgl_version_of(Py_TYPE(<PyObject *>self))
        if version == 0 or version != self.time_version:
            self.check_clock()
        return self.time_patched

    cdef void dispose(self) noexcept:
        """Break every reference cycle that contains the loop. User destructors may run."""
        cdef mgl_poll *poll
        cdef PyObject *item
        # Drop the callbacks even of handles that the user still holds.
        while mgl_ring_len(&self.ready) > 0:
            item = mgl_ring_pop(&self.ready)
            if is_handle(item):
                (<Handle>item).abandon()
            Py_DECREF(<object>item)
        if self.thread_queue is not NULL:
            mgl_posted_close(&self.thread_queue.posted)
            item = mgl_posted_pop(&self.thread_queue.posted)
            while item is not NULL:
                (<Handle>item).abandon()
                Py_DECREF(<object>item)
                item = mgl_posted_pop(&self.thread_queue.posted)
        while self.timers.len > 0:
            item = mgl_heap_remove(&self.timers, self.timers.len - 1)
            (<Handle>item).finish()
            Py_DECREF(<object>item)
        self.drop_snapshot()
        mgl_ring_clear(&self.flushes)
        mgl_ring_clear(&self.ready)
        mgl_heap_clear(&self.timers)
        poll = self.poll
        self.poll = NULL
        if poll is not NULL:
            mgl_poll_free(poll)

    # -------------------------------------------------------------- running ----

    def _run_once(self):
        """Run iterations until stop() is called.

        BaseEventLoop.run_forever() calls this method in a loop that ends when `_stopping` is set.
        Iterating here saves a Python frame per iteration, and the standard library of each Python
        version still does its own set-up and clean-up.

        Raise RuntimeError if the loop is closed.
        """
        if self.poll is NULL:
            raise RuntimeError("Event loop is closed")
        self.iterating = True
        if self.timing is not NULL:
            mgl_stopwatch_start(&self.timing.run, mgl_clock_ns())
        try:
            if self._thread_id is None:
                self.iterate()      # the caller is not run_forever()
            else:
                self.run_until_stopped()
        finally:
            try:
                self.flush()
            finally:
                self.iterating = False
                if self.timing is not NULL:
                    mgl_stopwatch_stop(&self.timing.run, mgl_clock_ns())

    cdef int check_open(self) except -1:
        if self._closed or self.poll is NULL:
            raise RuntimeError("Event loop is closed")
        return 0

    cdef bint forked(self) noexcept:
        """Return whether this is a child process that inherited the loop and has not adopted it."""
        return self.poll is not NULL and mgl_poll_forked(self.poll)

    cdef int adopt(self) except -1:
        """Take over a loop that was inherited through fork(); otherwise do nothing.

        Raise RuntimeError if the loop was running when the process forked.
        """
        cdef int rc
        if not self.forked():
            return 0
        if self._thread_id is not None:
            raise RuntimeError(PARENTS)
        rc = mgl_poll_adopt(self.poll)
        if rc < 0:
            raise_errno(-rc)
        self._adopted()
        return 0

    def _enter(self):
        """Reserve the loop for this thread and process until _leave(), before it runs.

        Raise RuntimeError if the loop is closed, or if it is already running.
        """
        # Until this thread owns the loop another thread may be closing it, so that only the
        # cross-thread queue may be accessed.
        cdef mgl_permit answer = mgl_thread_queue_enter(self.thread_queue)
        if answer == MGL_RUNS:
            raise RuntimeError(PARENTS if mgl_thread_queue_forked(self.thread_queue)
                               else "This event loop is already running")
        if answer != MGL_MAY:
            raise RuntimeError("Event loop is closed")
        try:
            self.adopt()
            self.keep_keywords()
        except BaseException:
            mgl_thread_queue_leave(self.thread_queue)
            raise
        mgl_note(&self.native_thread, gettid())
        # If a stall detector watches the loop and sleeps, wake it (observe/stalls.h).
        mgl_wait_ended(self.thread_queue)

    cdef int keep_keywords(self) except -1:
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
        self.future_keywords = self.eager_keywords = None
        mgl_note(&self.native_thread, 0)
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

    cdef int run_until_stopped(self) except -1:
        while True:
            self.iterate()
            if self._stopping:
                return 0

    cdef int iterate(self) except -1:
        cdef int64_t deadline = 0
        cdef int n
        cdef size_t count, before
        if mgl_poll_forked(self.poll):
            self.adopt()
        if mgl_posted_any(&self.thread_queue.posted):
            self.collect_posted()
        if mgl_ring_len(&self.ready) == 0 and not self._stopping:
            deadline = self.first_deadline()
            if mgl_ring_len(&self.ready) > 0 or self._stopping:
                deadline = 0    # a replaced time() has scheduled a callback or stopped the loop
            elif deadline < self.next_wake:
                deadline = self.next_wake
        mgl_ring_reserve(&self.ready, PUSHES_PER_EVENT * mgl_poll_batch(self.poll))
        before = mgl_ring_len(&self.ready)
        if self.timing is NULL:
            n = mgl_poll_run(self.poll, deadline)
        else:
            n = self.poll_timed(deadline)
        if n < 0 and n != -EINTR:
            raise_errno(-n)
        if mgl_posted_any(&self.thread_queue.posted):
            self.collect_posted_before(mgl_ring_len(&self.ready) - before)
        # Check for signals also without EINTR, because a loop may iterate for a long time without
        # running any Python code.
        PyErr_CheckSignals()
        self.collect_timers()
        count = mgl_ring_len(&self.ready)
        mgl_count(&self.count.iterations, 1)
        mgl_count(&self.count.events, n if n > 0 else 0)
        mgl_count_most(&self.count.most_events, n)
        mgl_count_most(&self.count.most_ready, count)
        note_levels(self)
        self.busy = count >= DEFER_READY
        self.run_batch(count)
        if mgl_ring_len(&self.flushes) > 0:
            self.flush()
        return 0

    cdef void drop_snapshot(self) noexcept:
        cdef PyObject *snapshot = self.snapshot
        self.snapshot = NULL
        Py_XDECREF(snapshot)

    cdef int run_batch(self, size_t n) except -1:
        cdef PyObject *item = NULL
        cdef uint32_t events = 0
        cdef int64_t ran = 0
        cdef object patched = patched_run()
        # Drop the loop's reference so that the last handle with this snapshot can enter it without
        # a copy, and so that the snapshot does not keep the values of context variables alive.
        self.drop_snapshot()
        if self._debug or patched is not None or self.timing is not NULL:
            return self.run_batch_slowly(n, patched)
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

    cdef int run_batch_slowly(self, size_t n, object patched) except -1:
        """Run a batch as run_batch() does, and measure each callback or run it by *patched*.

        The loop needs this in debug mode, with timing, or while a tool has replaced asyncio's
        Handle._run(); the replacement, *patched*, then runs each callback.
        """
        cdef object item, whose = None
        cdef PyObject *popped
        cdef uint32_t events
        cdef mgl_timing *timing = self.timing
        cdef int64_t start = mgl_clock_ns(), end
        cdef bint debug, measured, ran
        if timing is not NULL:
            mgl_timing_mark(timing, mgl_ring_len(&self.ready), start)
        while n > 0 and mgl_ring_len(&self.ready) > 0:
            n -= 1
            popped = mgl_ring_pop(&self.ready)
            item = <object>popped
            Py_DECREF(item)
            if timing is not NULL:
                mgl_histogram_add(&timing.lag, start - self.ready_since(popped, start))
                whose = whose_turn(item)
            debug = self._debug
            measured = debug or timing is not NULL
            events = 0
            ran = False
            if patched is not None and not is_handle(popped):
                item = self.make_handle((<Watcher>item)._on_ready, (), None)
            try:
                if measured:
                    self._current_handle = item
                if not is_handle(<PyObject *>item):
                    events = (<Watcher>item).ready
                    (<Watcher>item).queued = False
                    (<Watcher>item).ready = 0
                    if events:
                        (<Watcher>item).on_ready(events)
                elif patched is not None:
                    ran = (<Handle>item).run_by(patched, measured)
                else:
                    ran = (<Handle>item).run(measured)
                mgl_count(&self.count.callbacks, ran)
                if measured and (mgl_clock_ns() - start) * 1e-9 >= self.slow_callback_duration:
                    logger.warning("Executing %s took %.3f seconds", _stdlib.format_handle(item),
                                   (mgl_clock_ns() - start) * 1e-9)
            except BaseException as exc:
                self.caught(item, events, exc)
            finally:
                self._current_handle = None
                end = mgl_clock_ns()
                if timing is not NULL:
                    mgl_histogram_add(&timing.duration, end - start)
                    self.spend(whose, end - start)
                    mgl_timing_mark(timing, mgl_ring_len(&self.ready), end)
                start = end
            if measured and ran and not (<Handle>item).lasting:
                (<Handle>item).finish()
        return 0

    cdef void spend(self, object whose, int64_t ns) noexcept:
        cdef Spending spending = <Spending>self.spent.get(whose)
        if spending is None:
            if len(self.spent) >= MAX_NAMES:
                whose = "others"
            spending = <Spending>self.spent.setdefault(whose, Spending())
        mgl_count(&spending.times, 1)
        mgl_count(&spending.ns, ns)

    cdef int64_t ready_since(self, PyObject *item, int64_t now) noexcept:
        """Return the time in nanoseconds since when the item just taken has been ready.

        For a timer this is its deadline, else the time when it was put into the queue.
        """
        cdef int64_t since = mgl_timing_take(self.timing, now)
        cdef double due
        if Py_TYPE(item) == TimerHandleType and not self.has_other_clock():
            due = (<TimerHandle>item).deadline * 1e9
            # A deadline before the loop existed, such as -inf, says nothing about the lag.
            if self.made_at <= due <= now:
                return <int64_t>due
        return since

    cdef int poll_timed(self, int64_t deadline) noexcept:
        cdef mgl_timing *timing = self.timing
        cdef int64_t now = mgl_clock_ns()
        cdef int n
        mgl_timing_mark(timing, mgl_ring_len(&self.ready), now)
        mgl_stopwatch_start(&timing.wait, now)
        n = mgl_poll_run(self.poll, deadline)
        now = mgl_clock_ns()
        mgl_stopwatch_stop(&timing.wait, now)
        mgl_timing_mark(timing, mgl_ring_len(&self.ready), now)
        return n

    cdef int caught(self, object item, uint32_t events, object exc) except -1:
        """Handle an exception of a batch entry or of on_flush(); see the module's docstring.

        Handle.run() lets only those exceptions through that must leave run_forever().
        """
        if is_handle(<PyObject *>item):
            raise exc
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            (<Watcher>item).interrupted(events)
            raise exc
        return (<Watcher>item).failed(exc)

    cdef double read_clock(self) except? -1:
        if self.has_other_clock():
            return self.time()
        return mgl_clock_ns() / 1e9

    cdef int64_t first_deadline(self) except -1:
        """Return the deadline of the first timer in nanoseconds of the port's clock.

        Return MGL_NEVER without timers.
        """
        cdef double when, now = 0
        if self.timers.len == 0:
            return MGL_NEVER
        if self.has_other_clock():
            now = self.time()
            if self.timers.len == 0:
                return MGL_NEVER    # time() has cancelled the last timer
        when = self.timers.items[0].when
        if self.time_patched:
            # The deadline is in the time of the replaced clock, which may run at another rate.
            # Assume that the time until the deadline is as long as that clock says now.
            when = mgl_clock_ns() / 1e9 + min(when - now, <double>MAX_WAIT_SECONDS)
        if when * 1e9 < <double>MGL_NEVER:
            return <int64_t>ceil(max(when * 1e9, 0.0))
        return MGL_NEVER

    cdef int collect_timers(self) except -1:
        """Move the timers that are due to the ready queue.

        The clock is not read if the poll shows that the first deadline cannot have passed.
        """
        cdef double now
        cdef int64_t due
        if self.timers.len == 0:
            return 0
        if not self.has_other_clock() \
                and not mgl_poll_may_have_passed(self.poll, self.first_deadline()):
            return 0
        now = self.read_clock()
        due = mgl_heap_take_due(&self.timers, now, &self.ready)
        mgl_count(&self.count.timers, due)
        if due and not self.time_patched:
            self.next_wake = <int64_t>(now * 1e9) \
                + min(max(due * WAKE_PER_TIMER_NS, WAKE_MIN_NS), WAKE_MAX_NS)
        return 0

    def time(self):
        """Return the time of the loop's clock in seconds, which is that of time.monotonic()."""
        return mgl_clock_ns() / 1e9

    def get_debug(self):
        """Return whether the loop is in debug mode."""
        return self._debug

    # Native because each task that starts eagerly calls it.
    def is_running(self):
        """Return whether the loop is running."""
        return self._thread_id is not None

    def is_closed(self):
        """Return whether the loop was closed."""
        return self._closed

    # Native because anyio calls it for each task group.
    def get_task_factory(self):
        """Return the task factory, or None for the default."""
        return self._task_factory

    # Native because Python calls it for each asynchronous generator. One httpx request has nine.
    def _asyncgen_firstiter_hook(self, agen):
        if self._asyncgens_shutdown_called:
            asyncgen_begins(self, agen)     # warns
        else:
            self._asyncgens.add(agen)

    # -------------------------------------------------------------- statistics ----

    @property
    def _native_thread(self):
        """Return the kernel's thread id (gettid()) of the thread that runs the loop, or 0."""
        return mgl_counted(&self.native_thread)

    def _counted(self):
        """Return the counters from which stats() makes its result; callable from any thread."""
        cdef mgl_counters *c = &self.count
        cdef list connections = []
        cdef int i
        if not mgl_thread_queue_elsewhere(self.thread_queue):
            note_levels(self)
        for i in range(MGL_CONNECTION_KINDS):
            connections.append((
                mgl_counted(&c.connections[i].accepted), mgl_counted(&c.connections[i].opened),
                mgl_counted(&c.connections[i].closed)))
        return {
            "timing": self._timed(),
            "native_thread": self._native_thread,
            "seconds": (mgl_clock_ns() - self.made_at) * 1e-9,
            "iterations": mgl_counted(&c.iterations),
            "polls": mgl_counted(&c.polls),
            "events": mgl_counted(&c.events),
            "most_events": mgl_counted(&c.most_events),
            "callbacks": mgl_counted(&c.callbacks),
            "timers": mgl_counted(&c.timers),
            "timers_cancelled": mgl_counted(&c.timers_cancelled),
            "timers_pending": mgl_counted(&c.timers_pending),
            "ready": mgl_counted(&c.ready),
            "most_ready": mgl_counted(&c.most_ready),
            "threadsafe_calls": mgl_counted(&c.threadsafe_calls),
            "wakeups": mgl_counted(&self.thread_queue.wakeups),
            "connections": connections,
            "bytes_received": mgl_counted(&c.bytes_received),
            "bytes_sent": mgl_counted(&c.bytes_sent),
            "reads": mgl_counted(&c.reads),
            "reads_blocked": mgl_counted(&c.reads_blocked),
            "writes": mgl_counted(&c.writes),
            "writes_blocked": mgl_counted(&c.writes_blocked),
            "deferred_writes": mgl_counted(&c.deferred_writes),
            "deferred_sends": mgl_counted(&c.deferred_sends),
            "pauses": mgl_counted(&c.pauses),
            "handshakes": mgl_counted(&c.handshakes),
            "handshakes_failed": mgl_counted(&c.handshakes_failed),
            "executor_jobs": mgl_counted(&c.executor_jobs),
            "children": mgl_counted(&c.children),
            "stalls": mgl_counted(&c.stalls),
        }

    def _timed(self):
        """Return (seconds running, seconds waiting, lag, duration), or None without timing.

        *lag* and *duration* are histograms: see histogram().
        """
        cdef mgl_timing *timing = self.timing
        cdef int64_t running, waiting
        if timing is NULL:
            return None
        mgl_timing_read(timing, &running, &waiting)
        return (
            running * 1e-9, waiting * 1e-9,
            histogram(&timing.lag), histogram(&timing.duration))

    def _spent(self):
        """Return {callback name or protocol type: (times run, seconds)}, from any thread."""
        cdef Spending spending
        cdef dict spent = {}
        if self.spent is not None:
            for whose, spending in self.spent.copy().items():
                spent[whose] = mgl_counted(&spending.times), mgl_counted(&spending.ns) * 1e-9
        return spent

    def _count_executor_job(self):
        mgl_count(&self.count.executor_jobs, 1)

    def _count_child(self):
        mgl_count(&self.count.children, 1)

    def _count_sent(self, int64_t n):
        """Count *n* bytes that were sent without a transport's own write, as by sendfile()."""
        mgl_count(&self.count.bytes_sent, n)

    # -------------------------------------------------------------- deferred writes ----

    cdef bint may_defer(self, Py_ssize_t nbytes) noexcept:
        """Return whether a short write of *nbytes* may wait for flush(), and count it if so."""
        if not (self.iterating and self.busy and self.deferred + nbytes <= DEFER_BYTES):
            return False
        self.deferred += nbytes
        return True

    cdef bint may_gather(self, Py_ssize_t nbytes) noexcept:
        """Return whether a long write may wait for flush(), and count it if so.

        A transport asks this when it has already written in this iteration.
        """
        if not (self.iterating and self.gathered + nbytes <= GATHER_BYTES):
            return False
        self.gathered += nbytes
        return True

    cdef int defer_flush(self, Watcher watcher) except -1:
        if not watcher.flush_queued:
            watcher.flush_queued = True
            mgl_ring_push(&self.flushes, <PyObject *>watcher)
        return 0

    cdef int flush(self) except -1:
        """Send all deferred writes, including those that resume_writing() adds."""
        cdef PyObject *item = NULL
        self.busy = False
        if self.forked():
            return self.drop_flushes()
        while mgl_ring_len(&self.flushes) > 0:
            try:
                while mgl_ring_len(&self.flushes) > 0:
                    item = mgl_ring_pop(&self.flushes)
                    (<Watcher>item).flush_queued = False
                    (<Watcher>item).on_flush()
                    Py_DECREF(<object>item)
            except BaseException as exc:
                held = <object>item
                Py_DECREF(held)
                self.caught(held, 0, exc)
        self.deferred = self.gathered = 0
        return 0

    cdef int drop_flushes(self) except -1:
        """Forget all deferred writes in the child of a fork, because the parent sends this data."""
        cdef PyObject *item
        while mgl_ring_len(&self.flushes) > 0:
            item = mgl_ring_pop(&self.flushes)
            (<Watcher>item).flush_queued = False
            Py_DECREF(<object>item)
        self.deferred = self.gathered = 0
        return 0

    # -------------------------------------------------------------- interest ----

    cdef int displace(self, Watcher watcher, int fd) except -1:
        """Have the current owner of descriptor *fd*, if any, give way to *watcher*.

        Raise RuntimeError if the owner refuses.
        """
        cdef PyObject *owner
        self.check_open()
        self.adopt()
        owner = mgl_poll_owner(self.poll, fd)
        if owner is not NULL and <void *>owner != <void *>watcher:
            (<Watcher>owner).give_way(watcher)
            mgl_poll_remove(self.poll, fd, True)
        return 0

    cdef int claim(self, Watcher watcher, int fd) except -1:
        cdef int rc
        self.displace(watcher, fd)
        rc = mgl_poll_claim(self.poll, fd, <PyObject *>watcher)
        if rc < 0:
            raise_errno(-rc)
        watcher.fd = fd
        return 0

    cdef int watch(self, Watcher watcher, int fd, uint32_t events) except -1:
        cdef int rc
        self.displace(watcher, fd)
        watcher.events = events
        rc = mgl_poll_add(self.poll, fd, all_events(watcher), <PyObject *>watcher)
        if rc < 0:
            raise_errno(-rc)
        watcher.fd = fd
        return 0

    cdef void unwatch(self, Watcher watcher) noexcept:
        cdef Watcher owner = self.owner_of(watcher.fd)
        cdef Watcher under = watcher.under
        watcher.ready = 0
        if owner is watcher:
            watcher.under = None
            mgl_poll_remove(self.poll, watcher.fd, True)
            if under is not None:
                mgl_poll_add(self.poll, watcher.fd, under.events, <PyObject *>under)
        elif owner is not None and owner.under is watcher:
            # Ignore an error of epoll_ctl(), because the descriptor is about to be closed.
            owner.under = None
            mgl_poll_modify(self.poll, watcher.fd, owner.events)

    cdef int rearm(self, Watcher watcher, uint32_t events) except -1:
        """Change the interest of a registered watcher to *events*.

        Raise OSError if that fails; the descriptor then keeps its owner.
        """
        cdef Watcher owner
        cdef int rc
        self.check_open()
        self.adopt()
        owner = self.owner_of(watcher.fd)
        if owner is not None and owner is not watcher and owner.under is not watcher:
            owner = None
        watcher.events = events
        rc = ENOENT if owner is None \
            else -mgl_poll_modify(self.poll, watcher.fd, all_events(owner))
        if rc > 0:
            raise_errno(rc)
        return 0

    cdef Watcher owner_of(self, int fd):
        """Return the watcher that owns the descriptor, or None."""
        cdef PyObject *owner = NULL
        if self.poll is not NULL:
            owner = mgl_poll_owner(self.poll, fd)
        return None if owner is NULL else <Watcher>owner

    cdef int watch_limit(self) noexcept:
        return 0 if self.poll is NULL else mgl_poll_limit(self.poll)

    cdef int mark_ready(self, Watcher watcher, uint32_t events) except -1:
        if self._closed:
            return 0
        watcher.ready |= events
        if not watcher.queued:
            mgl_ring_push(&self.ready, <PyObject *>watcher)
            watcher.queued = True
        return 0

    # -------------------------------------------------------------- scheduling ----

    cdef Handle make_handle(self, object callback, tuple args, object context):
        """Make a handle for a callback that is not scheduled on a hot path."""
        cdef PyObject *context_ptr = NULL
        cdef Handle h
        if context is not None:
            context_ptr = <PyObject *>context
        h = new_handle(self, <PyObject *>callback, (<PyTupleObject *>args).ob_item, len(args),
                       context_ptr, &self.snapshot)
        if h.shared:
            h.own_context()     # the callback may run more than once
        if self._debug:
            h.source_traceback = _stdlib.extract_stack()
        return h

    cdef Handle schedule(self, object callback, object context):
        cdef Handle h
        cdef PyObject *none = NULL
        self.check_open()
        h = new_handle(self, <PyObject *>callback, &none, 0, <PyObject *>context, NULL)
        queue(self, <PyObject *>h)
        return h

    cdef Handle schedule_with(self, object callback, object arg, object context):
        cdef Handle h
        cdef PyObject *arg_ptr = <PyObject *>arg
        self.check_open()
        h = new_handle(self, <PyObject *>callback, &arg_ptr, 1, <PyObject *>context, NULL)
        queue(self, <PyObject *>h)
        return h

    def _add_callback(self, handle):
        if not handle._cancelled:
            if not is_handle(<PyObject *>handle):
                # It is asyncio's own Handle, which inherited code has made.
                handle = self.make_handle(_stdlib.run_handle, (handle,), None)
            queue(self, <PyObject *>handle)

    def _add_callback_signalsafe(self, handle):
        self._add_callback(handle)
        self._write_to_self()

    cdef void wake(self) noexcept:
        """End the loop's wait if it is waiting; callable from any thread."""
        mgl_poll_wakeup(self.thread_queue)

    cdef int post(self, PostedHandle handle) except -1:
        """Submit a handle to the loop from another thread.

        Raise RuntimeError if the loop is closed, and MemoryError.
        """
        handle.posted = True
        if mgl_posted_add(&self.thread_queue.posted, &handle.node, <PyObject *>handle):
            mgl_poll_wakeup(self.thread_queue)
        else:
            raise RuntimeError("Event loop is closed")
        return 0

    cdef int collect_posted(self) except -1:
        cdef Py_ssize_t n = mgl_posted_take(&self.thread_queue.posted, &self.ready)
        mgl_count(&self.count.threadsafe_calls, n)
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

    cdef int check_thread(self) except -1:
        if mgl_thread_queue_elsewhere(self.thread_queue):
            self._check_thread()
        return 0

    def _write_to_self(self):
        self.wake()

    def create_future(self):
        """Return a new Future that is attached to this loop."""
        return self.new_future()

    cdef object new_future(self):
        cdef PyObject *kind = mgl_watched_value()
        cdef object future
        cdef PyObject *made
        if kind != <PyObject *>NativeFuture or self.future_keywords is None:
            return (<object>kind)(loop=self)
        made = mgl_make(<PyTypeObject *>kind, <PyObject *>NO_ARGS, <PyObject *>self.future_keywords)
        future = <object>made
        Py_DECREF(future)
        return future

    @property
    def _wakeup_enabled(self):
        return self.wakeup_enabled

    def _dispose(self):
        """Release every callback, timer and registration, and the Mongoose manager."""
        self.dispose()


cdef inline void note_levels(LoopCore loop) noexcept:
    """Store the queue lengths for stats() in other threads, which must not read the queues."""
    mgl_note(&loop.count.ready, mgl_ring_len(&loop.ready))
    mgl_note(&loop.count.timers_pending, loop.timers.len)
    mgl_note(&loop.count.timers_cancelled,
             loop.timers.sequence - loop.timers.len - loop.count.timers)


@cython.final
cdef class Spending:
    """Count the runs and the nanoseconds of one callback name or protocol type.

    The loop's thread writes the fields, and other threads may read them.
    """
    cdef int64_t times, ns


cdef object whose_turn(object item):
    """Return the key under which the running time of an item of the ready queue is counted.

    It is the name of the callback, or the type of a transport's protocol, or the watcher's type.
    """
    if is_handle(<PyObject *>item):
        item = (<Handle>item).seen()
        if (<Handle>item).callback is NULL:
            return "cancelled"
        return name_of_callback(<object>(<Handle>item).callback)
    get_protocol = getattr(item, "get_protocol", None)
    protocol = None if get_protocol is None else get_protocol()
    return type(item if protocol is None else protocol)


cdef object name_of_callback(object callback):
    """Return the name of the coroutine if the callback belongs to a task, else the function's.

    Of any other object only the type is read, because the object may be a proxy whose attributes
    run user code.
    """
    while type(callback) is functools.partial:
        callback = callback.func
    kind = type(callback)
    try:
        if kind not in NAMED and kind.__name__ != "TaskStepMethWrapper":
            return kind.__qualname__
        owner = getattr(callback, "__self__", None)
        if issubclass(type(owner), asyncio_tasks.Task):
            # get_coro() crashes before CPython 3.12.5 if an eager task has ended.
            coroutine = getattr(owner, "_coro", None)
            if coroutine is not None:
                callback = coroutine
        return str(callback.__qualname__)
    except Exception:
        pass
    return type(callback).__qualname__


cdef object histogram(const mgl_histogram *h):
    """Return a histogram as (counts per bucket, total seconds)."""
    cdef int i
    return (
        tuple([mgl_counted(&h.counts[i]) for i in range(MGL_BUCKETS)]),
        mgl_counted(&h.nanoseconds) * 1e-9)


cdef inline uint32_t all_events(Watcher owner) noexcept:
    return owner.events if owner.under is None else owner.events | owner.under.events


CLOSED = LoopCore.__new__(LoopCore, enable_wakeup=False)
CLOSED._closed = True
CLOSED.dispose()


def _flush_before_fork():
    """Send the deferred writes of the running loop before fork().

    Otherwise both parent and child would send them, or neither.
    """
    loop = asyncio_events._get_running_loop()
    if isinstance(loop, LoopCore):
        (<LoopCore>loop).flush()


os.register_at_fork(before=_flush_before_fork)

# Initialise the cache before other threads exist. A repeated call gives the same result.
patched_run()


cdef traverseproc loop_traverse_cython = (<PyTypeObject *>LoopCore).tp_traverse


cdef int loop_traverse(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef LoopCore loop = <LoopCore>o
    cdef int rc = loop_traverse_cython(o, visit, arg)
    cdef PyObject *owner
    cdef uintptr_t cursor = 0
    cdef Py_ssize_t i
    for i in range(<Py_ssize_t>mgl_ring_len(&loop.ready)):
        owner = mgl_ring_at(&loop.ready, i)
        if rc == 0:
            rc = visit(owner, arg)
        if rc == 0 and is_handle(owner) and not (<Handle>owner).lasting:
            rc = show_references(<Handle>owner, visit, arg)
    if loop.thread_queue is not NULL:
        owner = mgl_posted_next(&loop.thread_queue.posted, &cursor)
        while owner is not NULL and rc == 0:
            rc = visit(owner, arg)
            if rc == 0:
                rc = show_references(<Handle>owner, visit, arg)
            owner = mgl_posted_next(&loop.thread_queue.posted, &cursor)
    for i in range(loop.timers.len):
        if rc == 0:
            rc = show_references(<Handle>loop.timers.items[i].timer, visit, arg)
    if rc == 0 and loop.snapshot is not NULL:
        rc = visit(loop.snapshot, arg)
    if loop.poll is not NULL:
        for i in range(mgl_poll_limit(loop.poll)):
            owner = mgl_poll_owner(loop.poll, <int>i)
            if rc == 0 and owner is not NULL:
                rc = visit(owner, arg)
    return rc


(<PyTypeObject *>LoopCore).tp_traverse = loop_traverse
