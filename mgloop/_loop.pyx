# SPDX-License-Identifier: GPL-2.0-only
# cython: always_allow_keywords=False
# Cython then compiles methods without arguments as METH_NOARGS. By default each of them checks for
# keywords.
"""Own the queues, the poll and the registrations of a loop; the only module that calls the port.

LoopCore is the part of mgloop.Loop that handles, transports and socket methods use. It owns the
ready queue, the cross-thread queue, the wake-up, the registrations of descriptors and the deferred
writes, and inherits the timer heap. Watcher is the base class of the objects that handle the events
of a descriptor. _iteration.pyx describes how the loop runs them. The module is native because this
code runs once per callback or per packet. Private attributes of asyncio.BaseEventLoop (_debug,
_stopping, _thread_id ...) are C fields of LoopCore under the same names.

User code runs only outside mg_mgr_poll(), and nothing is freed inside it.

The loop catches every exception that a watcher raises, in run_batch() and flush(), and passes it to
the watcher's failed(). That method reports the exception and ensures that the descriptor does not
stay registered. SystemExit and KeyboardInterrupt leave run_forever(); the watcher then keeps the
events that it was called for and handles them when the loop runs again. Handle.run() catches the
exceptions of callbacks.

One thread runs a loop. Other threads submit handles to the cross-thread queue
(port/threadqueue.h). The ready queue, the timers and the registrations live as long as the loop is
open, the cross-thread queue as long as the loop object. docs/architecture.md lists the owner of
each piece of state.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.errno cimport EINTR, ENOENT
from libc.stdint cimport int64_t, uint32_t

from mgloop._entries cimport is_handle
from mgloop._handle cimport (
    Handle, PostedHandle, mgl_heap_clear, mgl_heap_remove, mgl_node, new_handle,
)
from mgloop._port cimport (
    mgl_clock_ns, mgl_ring_len, mgl_ring_pop, mgl_thread_queue_elsewhere, sem_post,
)
from mgloop._traverse cimport visit_posted, visit_ready, visit_timers

import os
from asyncio import events as asyncio_events, futures

from . import _stdlib


cdef extern from "poll.h":
    ctypedef void (*mgl_record_fn)(PyObject *loop, PyObject *owner, uint32_t events) noexcept
    mgl_poll *mgl_poll_new(PyObject *loop, mgl_record_fn record, mgl_thread_queue *thread_queue,
                           mgl_counters *count, bint enable_wakeup) except NULL
    void mgl_poll_free(mgl_poll *poll)
    int mgl_poll_run(mgl_poll *poll, int64_t deadline)
    bint mgl_poll_may_have_passed(const mgl_poll *poll, int64_t deadline)
    int mgl_poll_batch(const mgl_poll *poll)
    int mgl_poll_fd(const mgl_poll *poll)
    int mgl_poll_claim(mgl_poll *poll, int fd, PyObject *owner)
    int mgl_poll_add(mgl_poll *poll, int fd, uint32_t events, PyObject *owner)
    int mgl_poll_modify(mgl_poll *poll, int fd, uint32_t events)
    void mgl_poll_remove(mgl_poll *poll, int fd, bint in_kernel)
    PyObject *mgl_poll_owner(const mgl_poll *poll, int fd)
    int mgl_poll_limit(const mgl_poll *poll)
    void mgl_poll_wakeup(mgl_thread_queue *thread_queue) nogil
    void mgl_poll_post_later(mgl_poll *poll, sem_t *semaphore)
    void mgl_poll_post_now(mgl_poll *poll)
    bint mgl_poll_forked(const mgl_poll *poll)
    bint mgl_thread_queue_forked(const mgl_thread_queue *thread_queue)
    int mgl_poll_adopt(mgl_poll *poll)
    const char *mgl_mongoose_version()
    const char *mgl_version()


cdef extern from "threadqueue.h":
    mgl_thread_queue *mgl_thread_queue_new() except NULL
    void mgl_thread_queue_free(mgl_thread_queue *queue)


cdef extern from "posted.h":
    int mgl_posted_add(mgl_posted *p, mgl_node *node, PyObject *handle) except -1
    Py_ssize_t mgl_posted_take(mgl_posted *p, mgl_ring *queue) except -1
    void mgl_posted_close(mgl_posted *p) noexcept
    PyObject *mgl_posted_pop(mgl_posted *p) noexcept


cdef extern from "ring.h":
    int mgl_ring_reserve(mgl_ring *r, size_t n) except -1
    void mgl_ring_clear(mgl_ring *r)


cdef extern from "Python.h":
    ctypedef struct PyTupleObject:
        PyObject *ob_item[1]


cdef enum:
    # Entries that one event can add to the ready queue: the reader, the writer, the watcher, and
    # the watcher that the watcher displaced.
    PUSHES_PER_EVENT = 4
    # Limit of the bytes in short writes that the whole loop defers, because more no longer fits
    # into the cache.
    DEFER_BYTES = 64 * 1024
    DEFER_LONG_BYTES = 256 * 1024   # the same limit for long writes

MONGOOSE_VERSION = mgl_mongoose_version().decode()
VERSION = mgl_version().decode()

cdef object futures_module = futures
cdef object NativeFuture = _stdlib.NativeFuture
cdef tuple NO_ARGS = ()
INHERITED = (
    "this event loop was running when the process forked and belongs to the parent; "
    "create a new one in the child, for example with asyncio.run()")

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
        """Call on_ready() as the callback of a handle; see IterationCore.run_entry()."""
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

    cdef int relinquish(self, Watcher other) except -1:
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
    # Nothing here can fail, because poll_events() has reserved space in the queue for all events
    # that one poll can return.
    if (<Watcher>owner).displaced is not None:
        (<LoopCore>loop).mark_ready((<Watcher>owner).displaced, events)
    if (<Watcher>owner).on_event(events):
        return
    (<Watcher>owner).ready |= events
    if not (<Watcher>owner).queued:
        (<Watcher>owner).queued = True
        mgl_ring_push(&(<LoopCore>loop).ready, owner)


# ------------------------------------------------------------------ the loop ----

cdef class LoopCore(TimerCore):
    """Own the queues, the poll and the registrations of descriptors."""

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
            self.measured = Measured()
        self._closed = False

    def __dealloc__(self):
        self.dispose()
        mgl_thread_queue_free(self.thread_queue)
        PyMem_RawFree(self.scratch)

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
        mgl_ring_clear(&self.flushes)
        mgl_ring_clear(&self.ready)
        mgl_heap_clear(&self.timers)
        PyMem_RawFree(self.compiled_buffer)
        self.compiled_buffer = NULL
        poll = self.poll
        self.poll = NULL
        if poll is not NULL:
            mgl_poll_free(poll)

    # -------------------------------------------------------------- polling ----

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
            raise RuntimeError(INHERITED)
        rc = mgl_poll_adopt(self.poll)
        if rc < 0:
            raise_errno(-rc)
        self._adopted()
        return 0

    cdef bint queue_forked(self) noexcept:
        return mgl_thread_queue_forked(self.thread_queue)

    cdef int poll_events(self, int64_t deadline) except -1:
        cdef int n
        if mgl_poll_forked(self.poll):
            self.adopt()
        # Nothing may fail inside the poll, so reserve space for all events that it can return.
        mgl_ring_reserve(&self.ready, PUSHES_PER_EVENT * mgl_poll_batch(self.poll))
        if self.measured is None:
            n = mgl_poll_run(self.poll, deadline)
        else:
            self.measured.start_waiting(mgl_ring_len(&self.ready))
            n = mgl_poll_run(self.poll, deadline)
            self.measured.stop_waiting(mgl_ring_len(&self.ready))
        if n >= 0:
            return n
        if n != -EINTR:
            raise_errno(-n)
        return 0

    cdef int poll_fd(self) except -1:
        if mgl_poll_forked(self.poll):
            self.adopt()
        return mgl_poll_fd(self.poll)

    cdef bint may_have_passed(self, int64_t deadline) noexcept:
        return mgl_poll_may_have_passed(self.poll, deadline)

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

    # -------------------------------------------------------------- deferred writes ----

    cdef bint may_defer(self, Py_ssize_t nbytes) noexcept:
        """Return whether a short write of *nbytes* may wait for flush(), and count it if so."""
        if not (self.iterating and self.busy and self.deferred + nbytes <= DEFER_BYTES):
            return False
        self.deferred += nbytes
        return True

    cdef bint may_defer_long(self, Py_ssize_t nbytes) noexcept:
        """Return whether a long write may wait for flush(), and count it if so.

        A transport asks this when it has already written in this iteration.
        """
        if not (self.iterating and self.deferred_long + nbytes <= DEFER_LONG_BYTES):
            return False
        self.deferred_long += nbytes
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
        self.deferred = self.deferred_long = 0
        return 0

    cdef int drop_flushes(self) except -1:
        """Forget all deferred writes in the child of a fork, because the parent sends this data."""
        cdef PyObject *item
        while mgl_ring_len(&self.flushes) > 0:
            item = mgl_ring_pop(&self.flushes)
            (<Watcher>item).flush_queued = False
            Py_DECREF(<object>item)
        self.deferred = self.deferred_long = 0
        return 0

    # -------------------------------------------------------------- interest ----

    cdef int take_over(self, Watcher watcher, int fd) except -1:
        """Have the current owner of descriptor *fd*, if any, relinquish it to *watcher*.

        Raise RuntimeError if the owner refuses.
        """
        cdef PyObject *owner
        self.check_open()
        self.adopt()
        owner = mgl_poll_owner(self.poll, fd)
        if owner is not NULL and <void *>owner != <void *>watcher:
            (<Watcher>owner).relinquish(watcher)
            mgl_poll_remove(self.poll, fd, True)
        return 0

    cdef int claim(self, Watcher watcher, int fd) except -1:
        cdef int rc
        self.take_over(watcher, fd)
        rc = mgl_poll_claim(self.poll, fd, <PyObject *>watcher)
        if rc < 0:
            raise_errno(-rc)
        watcher.fd = fd
        return 0

    cdef int watch(self, Watcher watcher, int fd, uint32_t events) except -1:
        cdef int rc
        self.take_over(watcher, fd)
        watcher.events = events
        rc = mgl_poll_add(self.poll, fd, all_events(watcher), <PyObject *>watcher)
        if rc < 0:
            raise_errno(-rc)
        watcher.fd = fd
        return 0

    cdef void unwatch(self, Watcher watcher) noexcept:
        cdef Watcher owner = self.owner_of(watcher.fd)
        cdef Watcher displaced = watcher.displaced
        watcher.ready = 0
        if owner is watcher:
            watcher.displaced = None
            mgl_poll_remove(self.poll, watcher.fd, True)
            if displaced is not None:
                mgl_poll_add(self.poll, watcher.fd, displaced.events, <PyObject *>displaced)
        elif owner is not None and owner.displaced is watcher:
            # Ignore an error of epoll_ctl(), because the descriptor is about to be closed.
            owner.displaced = None
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
        if owner is not None and owner is not watcher and owner.displaced is not watcher:
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
                       context_ptr)
        if self._debug:
            h.source_traceback = _stdlib.extract_stack()
        return h

    cdef Handle schedule(self, object callback, object context):
        cdef Handle h
        cdef PyObject *none = NULL
        self.check_open()
        h = new_handle(self, <PyObject *>callback, &none, 0, <PyObject *>context)
        queue(self, <PyObject *>h)
        return h

    cdef Handle schedule_with(self, object callback, object arg, object context):
        cdef Handle h
        cdef PyObject *arg_ptr = <PyObject *>arg
        self.check_open()
        h = new_handle(self, <PyObject *>callback, &arg_ptr, 1, <PyObject *>context)
        queue(self, <PyObject *>h)
        return h

    cdef void wake(self) noexcept nogil:
        """End the loop's wait if it is waiting; callable from any thread."""
        mgl_poll_wakeup(self.thread_queue)

    cdef int submit(self, PostedHandle handle) except -1:
        """Submit a handle to the loop from another thread, without waking the loop.

        Raise RuntimeError if the loop is closed, and MemoryError.
        """
        handle.posted = True
        if not mgl_posted_add(&self.thread_queue.posted, &handle.node, <PyObject *>handle):
            raise RuntimeError("Event loop is closed")
        return 0

    cdef int post(self, PostedHandle handle) except -1:
        """Submit a handle to the loop from another thread, and wake the loop."""
        self.submit(handle)
        mgl_poll_wakeup(self.thread_queue)
        return 0

    cdef void post_semaphore(self, sem_t *semaphore) noexcept:
        if WITHOUT_GIL or not self.iterating or self.poll is NULL:
            sem_post(semaphore)
        else:
            mgl_poll_post_later(self.poll, semaphore)

    cdef void post_deferred(self) noexcept:
        """Post the semaphore that the next poll would post."""
        if self.poll is not NULL:
            mgl_poll_post_now(self.poll)

    cdef int collect_posted(self) except -1:
        cdef Py_ssize_t n = mgl_posted_take(&self.thread_queue.posted, &self.ready)
        mgl_count(&self.count.threadsafe_calls, n)
        return 0

    cdef int check_thread(self) except -1:
        if mgl_thread_queue_elsewhere(self.thread_queue):
            self._check_thread()
        return 0

    cdef object new_future(self):
        # Look the class up at each use, as asyncio does, because programs and tests replace it.
        cdef object future_class = futures_module.Future
        cdef object future
        cdef PyObject *made
        if future_class is not NativeFuture or self.future_keywords is None:
            return future_class(loop=self)
        made = mgl_make(<PyTypeObject *>future_class, <PyObject *>NO_ARGS,
                        <PyObject *>self.future_keywords)
        future = <object>made
        Py_DECREF(future)
        return future


cdef inline uint32_t all_events(Watcher owner) noexcept:
    return owner.events if owner.displaced is None else owner.events | owner.displaced.events


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


cdef traverseproc loop_traverse_cython = (<PyTypeObject *>LoopCore).tp_traverse


cdef int loop_traverse(PyObject *o, visitproc visit, void *arg) noexcept:
    """Visit the references in C structures, of which Cython's traversal does not know."""
    cdef LoopCore loop = <LoopCore>o
    cdef PyObject *owner
    cdef Py_ssize_t fd
    cdef int rc = loop_traverse_cython(o, visit, arg)
    if rc == 0:
        rc = visit_ready(&loop.ready, visit, arg)
    if rc == 0 and loop.thread_queue is not NULL:
        rc = visit_posted(&loop.thread_queue.posted, visit, arg)
    if rc == 0:
        rc = visit_timers(&loop.timers, visit, arg)
    if loop.poll is not NULL:
        for fd in range(mgl_poll_limit(loop.poll)):
            owner = mgl_poll_owner(loop.poll, <int>fd)
            if rc == 0 and owner is not NULL:
                rc = visit(owner, arg)
    return rc


(<PyTypeObject *>LoopCore).tp_traverse = loop_traverse
