# SPDX-License-Identifier: GPL-2.0-only
"""Declare what transports, socket methods and other native modules may use of mgloop._loop.

_loop.pyx describes the loop. All methods belong to the loop's thread unless their comment says
otherwise.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from mgloop._handle cimport Handle, PostedHandle
from mgloop._measured cimport Measured
# Other modules cimport these from here as well.
from mgloop._port cimport (
    MGL_DATAGRAM, MGL_OTHER, MGL_PIPE, MGL_TCP, MGL_TLS, MGL_UNIX, PyTypeObject, WITHOUT_GIL,
    mgl_connections, mgl_count, mgl_count_read, mgl_count_write, mgl_counters, mgl_make, mgl_poll,
    mgl_posted, mgl_posted_any, mgl_ring, mgl_ring_len, mgl_ring_push, mgl_store, mgl_thread_queue,
    mgl_thread_queue_here, sem_t, traverseproc, visitproc,
)
from mgloop._timers cimport TimerCore


cdef extern from "<sys/epoll.h>":
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLPRI
        EPOLLRDHUP
        EPOLLERR
        EPOLLHUP
        EPOLLET
        EPOLLMSG


# Handles the events of one descriptor. The poll table holds a reference to a registered watcher.
cdef class Watcher:
    cdef LoopCore loop
    cdef int fd
    cdef uint32_t ready         # events that the kernel reported and on_ready() has not handled
    cdef uint32_t events        # events that the descriptor is registered for
    cdef bint queued            # is in the ready queue
    cdef bint flush_queued      # is in the loop's `flushes`
    cdef Watcher displaced      # the previous owner, which also receives the events, or None
    cdef object __weakref__

    # Handle `events` when the loop runs the watcher from the ready queue. `ready` is 0 again.
    cdef int on_ready(self, uint32_t events) except -1
    # Do the work that the watcher has deferred, such as sending writes. The loop calls this once
    # per defer_flush(), at the end of the iteration.
    cdef int on_flush(self) except -1
    # Receive events inside the poll. Return True if on_ready() need not be called for them.
    cdef bint on_event(self, uint32_t events) except -1
    # Report an exception that on_ready() or on_flush() has raised.
    cdef int failed(self, object exc) except -1
    # Keep `events` for later, because SystemExit or KeyboardInterrupt from on_ready() is about to
    # leave run_forever().
    cdef int interrupted(self, uint32_t events) except -1
    # Give up the descriptor because `other` will watch it, or raise RuntimeError.
    cdef int relinquish(self, Watcher other) except -1
    # Return whether add_reader() and the other methods for users' descriptors must reject the
    # descriptor because it belongs to an open transport.
    cdef bint owns_descriptor(self) noexcept


cdef enum:
    SCRATCH = 64 * 1024         # size of the scratch buffer: the maximum of bytes per read


cdef class LoopCore(TimerCore):
    cdef mgl_poll *poll
    cdef mgl_thread_queue *thread_queue     # the cross-thread queue and the means to wake the loop
    cdef mgl_counters count     # the counters that stats() reports
    cdef Measured measured      # the timing, or None if the loop was created without it
    cdef int64_t made_at        # time of creation, in nanoseconds of the loop's clock
    cdef int64_t native_thread  # gettid() of the thread that runs the loop, or 0
    # Receives the data of one system call until it is copied. Freed with the loop object.
    cdef char *scratch
    # Receives data for a compiled protocol until its data_received() has returned. NULL before the
    # first use and while it is in use. Freed when the loop is closed. See _receiving.
    cdef char *compiled_buffer
    cdef Py_ssize_t sock_hint   # size of the data that recent sock_recv() calls returned; see _sock
    cdef object datagram_buffers    # buffers that all datagram transports share; see _datagram.pyx
    cdef object datagram_addresses  # cache of addresses that they share, too
    cdef object tls_buffers     # buffers that all TLS connections share; see tls/_buffers.pyx
    cdef mgl_ring ready         # the ready queue
    cdef dict future_keywords   # {"loop": this loop} while the loop runs, else None; immutable
    cdef dict eager_keywords    # future_keywords and "eager_start": True
    cdef mgl_ring flushes       # watchers whose on_flush() is called at the end of the iteration
    cdef Py_ssize_t deferred    # bytes in short writes that wait for the end of the iteration
    cdef Py_ssize_t deferred_long   # bytes in long writes that wait for the end of the iteration
    cdef bint wakeup_enabled    # other threads can wake the loop
    cdef object patched_run     # what replaces asyncio's Handle._run() and runs callbacks, or None
    cdef bint iterating         # _run_once() is running
    cdef bint busy              # this iteration's batch is large enough to defer small writes
    cdef public bint _debug
    cdef public bint _stopping
    cdef public bint _closed
    cdef public object _thread_id
    cdef public object _task_factory
    cdef public object _current_handle

    cdef int check_open(self) except -1
    cdef bint forked(self) noexcept
    # Return whether the process has inherited the cross-thread queue; callable from any thread.
    cdef bint queue_forked(self) noexcept
    cdef int adopt(self) except -1

    # Registrations. claim() makes a watcher the owner of a descriptor, and watch() also registers
    # the descriptor with epoll. Both hold a reference to the watcher until unwatch(), and both
    # displace the previous owner. They raise RuntimeError if the previous owner refuses, and
    # OSError if the registration fails.
    cdef int claim(self, Watcher watcher, int fd) except -1
    cdef int watch(self, Watcher watcher, int fd, uint32_t events) except -1
    cdef void unwatch(self, Watcher watcher) noexcept
    cdef int rearm(self, Watcher watcher, uint32_t events) except -1
    cdef Watcher owner_of(self, int fd)
    cdef int take_over(self, Watcher watcher, int fd) except -1
    cdef int watch_limit(self) noexcept
    # Append the watcher to the ready queue as if the kernel had reported `events`.
    cdef int mark_ready(self, Watcher watcher, uint32_t events) except -1
    # Schedule a call of on_flush() at the end of the iteration.
    cdef int defer_flush(self, Watcher watcher) except -1
    cdef bint may_defer(self, Py_ssize_t nbytes) noexcept
    cdef bint may_defer_long(self, Py_ssize_t nbytes) noexcept

    cdef Handle make_handle(self, object callback, tuple args, object context)
    cdef Handle schedule(self, object callback, object context)
    cdef Handle schedule_with(self, object callback, object arg, object context)
    cdef object new_future(self)
    # Any thread may call these. wake() ends the loop's wait. submit() puts a handle into the
    # cross-thread queue; it raises RuntimeError if the loop is closed. post() does both.
    cdef void wake(self) noexcept nogil
    cdef int submit(self, PostedHandle handle) except -1
    cdef int post(self, PostedHandle handle) except -1
    # Post a semaphore as soon as the loop has released the GIL: at the latest when this iteration
    # ends. Without the GIL, and while the loop does not iterate, post it immediately.
    cdef void post_semaphore(self, sem_t *semaphore) noexcept
    cdef void post_deferred(self) noexcept
    # Move the handles from other threads to the end of the ready queue.
    cdef int collect_posted(self) except -1
    # In debug mode, raise RuntimeError if the loop is running in another thread.
    cdef int check_thread(self) except -1

    # Wait until `deadline`, in nanoseconds of the port's clock, and append the ready watchers to
    # the ready queue. Return the number of events; it is 0 after a signal.
    cdef int poll_events(self, int64_t deadline) except -1
    # Return the descriptor that is readable while the poll has an event to report.
    cdef int poll_fd(self) except -1
    # Return whether the deadline may have passed, as far as the last poll shows.
    cdef bint may_have_passed(self, int64_t deadline) noexcept
    # Handle an exception of an entry of the batch or of on_flush().
    cdef int caught(self, object item, uint32_t events, object exc) except -1
    cdef int flush(self) except -1
    cdef int drop_flushes(self) except -1
    cdef void dispose(self) noexcept


# Check the thread at the beginning of a method that only the loop's thread may call.
cdef inline int own_thread(LoopCore loop) except -1:
    return loop.check_thread() if loop is not None and loop._debug else 0


# Append a handle to the ready queue, after all handles that other threads have submitted so far.
cdef inline int queue(LoopCore loop, PyObject *handle) except -1:
    if mgl_posted_any(&loop.thread_queue.posted):
        loop.collect_posted()
    return mgl_ring_push(&loop.ready, handle)


# Store the lengths of the queues for stats() in other threads, which must not read the queues.
cdef inline void store_gauges(LoopCore loop) noexcept:
    mgl_store(&loop.count.ready, mgl_ring_len(&loop.ready))
    mgl_store(&loop.count.timers_pending, loop.timers.len)
    mgl_store(&loop.count.timers_cancelled,
              loop.timers.sequence - loop.timers.len - loop.count.timers)


# Return the OSError, or its subclass, for an errno.
cdef object os_error(int error)
