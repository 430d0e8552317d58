# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop._loop: what the transports and the socket methods may ask of the poll loop."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from mgloop._handle cimport Handle, mgl_heap


cdef extern from "poll.h":
    ctypedef struct mgl_poll:
        pass


cdef extern from "ring.h":
    ctypedef struct mgl_ring:
        pass


cdef extern from "<sys/epoll.h>":
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLRDHUP
        EPOLLERR
        EPOLLHUP
        EPOLLET


# What runs when a descriptor is ready. Registered, it is kept alive by the poll loop.
cdef class Watcher:
    cdef LoopCore loop
    cdef int fd
    cdef uint32_t ready         # events told by the kernel and not yet handled
    cdef bint queued            # waits in the ready queue, or in the list of flushes
    cdef bint flush_queued
    cdef object __weakref__

    # Called from the loop with `ready` taken; raises SystemExit and KeyboardInterrupt only.
    cdef int on_ready(self, uint32_t events) except -1
    # Called once per defer_flush(), at the end of the phase.
    cdef int on_flush(self) except -1
    # Called at once when the kernel reports; True = dealt with, on_ready() is not wanted.
    cdef bint on_event(self, uint32_t events) except -1
    # The descriptor belongs to a transport: add_reader() and the like must keep off it.
    cdef bint owns_descriptor(self) noexcept


# A waiting sock_*() call; see FdWatch.
cdef class Waiter:
    cdef Waiter next

    # Try the call again; True = done, False = not yet.
    cdef bint attempt(self) except -1
    # The descriptor has been closed, and its number given away, under the waiting call.
    cdef int fail(self, object exc) except -1


# Interest in a descriptor that belongs to the user.
cdef class FdWatch(Watcher):
    cdef Handle reader
    cdef Handle writer
    cdef Waiter read_waiters
    cdef Waiter write_waiters
    cdef object sock            # weak reference to the socket of a lasting registration, or None
    cdef uint32_t mask          # as registered with the kernel

    cdef int sync(self) except -1
    cdef bint pop_attempt(self, bint write) except -1
    cdef int enlist(self, Waiter waiter, bint write, object sock) except -1
    cdef int delist(self, Waiter waiter, bint write) except -1
    cdef int fail_waiters(self) except -1


cdef class LoopCore:
    cdef mgl_poll *poll
    cdef mgl_ring ready
    cdef mgl_heap timers
    cdef mgl_ring flushes
    cdef Py_ssize_t deferred    # bytes that wait for the end of the phase
    cdef int64_t now_ns         # the clock's last reading
    cdef bint wakeup_enabled
    cdef bint iterating         # inside _run_once()
    cdef bint busy              # enough is ready in this iteration for small writes to be deferred
    cdef public bint _debug
    cdef public bint _stopping
    cdef public bint _closed
    cdef public bint _time_patched
    cdef public object _thread_id
    cdef public object _task_factory
    cdef public object _current_handle

    # Interest. watch() keeps the watcher alive until unwatch().
    cdef int watch(self, Watcher watcher, int fd, uint32_t events) except -1
    cdef void unwatch(self, Watcher watcher) noexcept
    cdef FdWatch fd_watch(self, int fd, bint create)
    # Put the watcher into the ready queue, as if the kernel had reported `events`.
    cdef int mark_ready(self, Watcher watcher, uint32_t events) except -1
    # Have on_flush() called at the end of the phase.
    cdef int defer_flush(self, Watcher watcher) except -1
    cdef bint can_defer(self, Py_ssize_t nbytes) noexcept

    cdef double read_clock(self) except? -1
    cdef Handle make_handle(self, object callback, tuple args, object context)
    cdef Handle schedule(self, object callback, object context)
    cdef Handle schedule_with(self, object callback, object arg, object context)
    cdef object new_future(self)

    cdef int run_until_stopped(self) except -1
    cdef int iterate(self) except -1
    cdef int run_batch(self, size_t n) except -1
    cdef int run_batch_debug(self, size_t n) except -1
    cdef int collect_timers(self) except -1
    cdef int flush(self) except -1
    cdef void dispose(self) noexcept
