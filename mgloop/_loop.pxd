# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop._loop: what the transports and the socket methods may ask of the poll loop."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from mgloop._handle cimport Handle, PostedHandle, mgl_heap


cdef extern from "poll.h":
    ctypedef struct mgl_poll:
        pass


cdef extern from "posted.h":
    ctypedef struct mgl_posted:
        pass

    bint mgl_posted_any(mgl_posted *p) noexcept
    const bint WITHOUT_GIL "MGL_WITHOUT_GIL"


cdef extern from "inbox.h":
    ctypedef struct mgl_inbox:
        mgl_posted posted
        int64_t wakeups

    bint mgl_inbox_here(mgl_inbox *box) noexcept


cdef extern from "counters.h":
    enum:
        MGL_TCP
        MGL_UNIX
        MGL_DATAGRAM
        MGL_PIPE
        MGL_TLS
        MGL_OTHER
        MGL_CONNECTION_KINDS

    ctypedef struct mgl_connections:
        int64_t accepted
        int64_t opened
        int64_t closed

    ctypedef struct mgl_counters:
        int64_t iterations
        int64_t polls
        int64_t events
        int64_t most_events
        int64_t callbacks
        int64_t timers
        int64_t ready
        int64_t timers_pending
        int64_t timers_cancelled
        int64_t most_ready
        int64_t threadsafe_calls
        int64_t bytes_received
        int64_t bytes_sent
        int64_t reads
        int64_t writes
        int64_t reads_blocked
        int64_t writes_blocked
        int64_t deferred_writes
        int64_t deferred_sends
        int64_t pauses
        int64_t handshakes
        int64_t handshakes_failed
        int64_t executor_jobs
        int64_t children
        int64_t stalls
        mgl_connections connections[MGL_CONNECTION_KINDS]

    int64_t mgl_counted(const int64_t *counter) noexcept
    void mgl_count(int64_t *counter, int64_t n) noexcept
    void mgl_count_most(int64_t *counter, int64_t n) noexcept
    void mgl_note(int64_t *level, int64_t n) noexcept
    void mgl_count_read(mgl_counters *counters, ssize_t n) noexcept
    void mgl_count_write(mgl_counters *counters, ssize_t n) noexcept


cdef extern from "timing.h":
    enum:
        MGL_BUCKETS

    ctypedef struct mgl_histogram:
        int64_t counts[MGL_BUCKETS]
        int64_t nanoseconds

    ctypedef struct mgl_timing:
        mgl_histogram lag
        mgl_histogram duration
        int64_t run
        int64_t wait


cdef extern from "ring.h":
    ctypedef struct mgl_ring:
        pass

    int mgl_ring_push(mgl_ring *r, PyObject *o) except -1


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


cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject *o, void *arg) noexcept
    ctypedef int (*traverseproc)(PyObject *o, visitproc visit, void *arg) noexcept
    ctypedef struct PyTypeObject:
        PyObject *tp_dict
        traverseproc tp_traverse


cdef extern from *:
    """
    /* type(*args, **keywords), for a class whose metaclass is `type`. */
    static inline PyObject *mgl_make(PyTypeObject *type, PyObject *args, PyObject *keywords) {
        PyObject *made = type->tp_new(type, args, keywords);
        if (made != NULL && type->tp_init(made, args, keywords) < 0) Py_CLEAR(made);
        return made;
    }
    """
    PyObject *mgl_make(PyTypeObject *type, PyObject *args, PyObject *keywords) except NULL


# What runs when a descriptor is ready. Registered, it is kept alive by the poll loop.
cdef class Watcher:
    cdef LoopCore loop
    cdef int fd
    cdef uint32_t ready         # events told by the kernel and not yet handled
    cdef uint32_t events        # what it is registered for
    cdef bint queued            # waits in the ready queue
    cdef bint flush_queued      # waits in the list of flushes
    cdef Watcher under          # who gave way to this one and is told of events as well, or None
    cdef object __weakref__

    # Called from the loop with `ready` taken.
    cdef int on_ready(self, uint32_t events) except -1
    # Called once per defer_flush(), at the end of the phase.
    cdef int on_flush(self) except -1
    # Called at once when the kernel reports; True = dealt with, on_ready() is not wanted.
    cdef bint on_event(self, uint32_t events) except -1
    # The net: an exception has come out of on_ready() or on_flush().
    cdef int failed(self, object exc) except -1
    # SystemExit or KeyboardInterrupt has, and leaves run_forever(): events not to be lost by it.
    cdef int interrupted(self, uint32_t events) except -1
    # Somebody else wants to watch the same descriptor. Raises RuntimeError, or lets go of it.
    cdef int give_way(self, Watcher other) except -1
    # The descriptor belongs to a transport: add_reader() and the like must keep off it.
    cdef bint owns_descriptor(self) noexcept


cdef enum:
    SCRATCH = 64 * 1024         # as much as one read brings


cdef class LoopCore:
    cdef mgl_poll *poll
    cdef mgl_inbox *inbox       # what other threads have given us to run
    cdef mgl_counters count     # what the loop has done: see stats()
    cdef mgl_timing *timing     # where its time goes, or NULL: it was not asked to measure that
    cdef dict spent             # with timing, the Spending of each: see whose_turn()
    cdef int64_t made_at        # in nanoseconds of its clock
    cdef int64_t native_thread  # that runs it, as the kernel calls it; 0 = none
    # Used between a system call and the copy after it. There as long as the loop object.
    cdef char *scratch
    cdef Py_ssize_t sock_hint   # what the last sock_recv()s brought, see _sock
    cdef object datagram_room   # shared by the loop's datagram transports, see transports/_datagram
    cdef object tls_buffers     # shared by its TLS connections, see tls/_buffers
    cdef mgl_ring ready
    cdef mgl_heap timers
    cdef int64_t next_wake      # for the next timers, at the earliest; in nanoseconds of its clock
    cdef PyObject *snapshot     # the context that the handles made last share, or NULL
    cdef dict future_keywords   # {"loop": this loop} while it runs, else None; never changed
    cdef dict eager_keywords    # the same and "eager_start": True
    cdef mgl_ring flushes
    cdef Py_ssize_t deferred    # bytes of short writes that wait for the end of the phase
    cdef Py_ssize_t gathered    # ... of long ones
    cdef bint wakeup_enabled
    cdef bint iterating         # inside _run_once()
    cdef bint busy              # enough is ready in this iteration for small writes to be deferred
    cdef public int _unobserved  # registrations that nobody can tell from none; see iterate()
    cdef public bint _debug
    cdef public bint _stopping
    cdef public bint _closed
    cdef bint time_given        # somebody has given this loop a time() of its own
    cdef bint time_patched      # ... or its class
    cdef int64_t time_version   # of the class when that was looked at
    cdef public object _thread_id
    cdef public object _task_factory
    cdef public object _current_handle

    cdef int check_open(self) except -1
    cdef bint forked(self) noexcept
    cdef int keep_keywords(self) except -1
    cdef int adopt(self) except -1

    # Interest. claim() says whose the descriptor is, watch() has the kernel watch it as well; both
    # keep the watcher alive until unwatch(). Who has it gives way, or they raise RuntimeError.
    cdef int claim(self, Watcher watcher, int fd) except -1
    cdef int watch(self, Watcher watcher, int fd, uint32_t events) except -1
    cdef void unwatch(self, Watcher watcher) noexcept
    cdef int rearm(self, Watcher watcher, uint32_t events) except -1
    cdef Watcher owner_of(self, int fd)
    cdef int displace(self, Watcher watcher, int fd) except -1
    cdef int watch_limit(self) noexcept
    # Put the watcher into the ready queue, as if the kernel had reported `events`.
    cdef int mark_ready(self, Watcher watcher, uint32_t events) except -1
    # Have on_flush() called at the end of the phase.
    cdef int defer_flush(self, Watcher watcher) except -1
    cdef bint may_defer(self, Py_ssize_t nbytes) noexcept
    cdef bint may_gather(self, Py_ssize_t nbytes) noexcept

    cdef void spend(self, object whose, int64_t ns) noexcept
    cdef int look_at_clock(self) except -1
    cdef bint has_other_clock(self) except -1
    cdef double read_clock(self) except? -1
    cdef Handle make_handle(self, object callback, tuple args, object context)
    cdef Handle schedule(self, object callback, object context)
    cdef Handle schedule_with(self, object callback, object arg, object context)
    cdef object new_future(self)
    cdef void wake(self) noexcept
    # Have the handle run, from another thread. RuntimeError if the loop is closed.
    cdef int post(self, PostedHandle handle) except -1
    # Put what was posted into the queue.
    cdef int collect_posted(self) except -1
    # The same, before the events that a poll has just put at the end of the queue.
    cdef int collect_posted_before(self, size_t events) except -1
    # Debug mode: RuntimeError if the loop is running in another thread.
    cdef int check_thread(self) except -1

    cdef int run_until_stopped(self) except -1
    cdef int iterate(self) except -1
    cdef int run_batch(self, size_t n) except -1
    cdef void drop_snapshot(self) noexcept
    cdef int run_batch_slowly(self, size_t n, object patched) except -1
    cdef int poll_timed(self, int64_t deadline) noexcept
    cdef int64_t ready_since(self, PyObject *item, int64_t now) noexcept
    cdef int caught(self, object item, uint32_t events, object exc) except -1
    cdef int64_t first_deadline(self) except -1
    cdef int collect_timers(self, bint ask_clock) except -1
    cdef int flush(self) except -1
    cdef int drop_flushes(self) except -1
    cdef void dispose(self) noexcept


# At the beginning of what belongs to the loop's thread: see check_thread().
cdef inline int own_thread(LoopCore loop) except -1:
    return loop.check_thread() if loop is not None and loop._debug else 0


# Has the handle run, after what has been posted until now.
cdef inline int queue(LoopCore loop, PyObject *handle) except -1:
    if mgl_posted_any(&loop.inbox.posted):
        loop.collect_posted()
    return mgl_ring_push(&loop.ready, handle)


# The OSError, of the fitting subclass, for an errno.
cdef object os_error(int error)

# For tp_traverse of those who hold handles: shows what a handle refers to.
cdef int show_handle(PyObject *o, visitproc visit, void *arg) noexcept
