# SPDX-License-Identifier: GPL-2.0-only
"""Declare the C structures and functions of port/ that several native modules use.

A module that is the only user of a function declares it itself. Only mgloop._loop is linked with
port/poll.c; everything here is inline.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t


cdef extern from "poll.h":
    ctypedef struct mgl_poll:
        pass


cdef extern from "posted.h":
    ctypedef struct mgl_posted:
        pass

    bint mgl_posted_any(mgl_posted *p) noexcept
    const bint WITHOUT_GIL "MGL_WITHOUT_GIL"


cdef extern from "threadqueue.h":
    ctypedef struct mgl_thread_queue:
        mgl_posted posted
        int64_t wakeups

    bint mgl_thread_queue_here(mgl_thread_queue *queue) noexcept
    bint mgl_thread_queue_elsewhere(mgl_thread_queue *queue) noexcept


cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass

    int sem_post(sem_t *semaphore)


cdef extern from "ring.h":
    ctypedef struct mgl_ring:
        pass

    int mgl_ring_push(mgl_ring *r, PyObject *o) except -1
    size_t mgl_ring_len(const mgl_ring *r) noexcept
    PyObject *mgl_ring_pop(mgl_ring *r) noexcept
    PyObject *mgl_ring_at(const mgl_ring *r, size_t i) noexcept


cdef extern from "clock.h":
    int64_t mgl_clock_ns() noexcept nogil


# counters.h has the list of all counters. Cython requires a declaration of those that Cython code
# increments by their names.
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
        int64_t stalls
        mgl_connections connections[MGL_CONNECTION_KINDS]

    int64_t mgl_counted(const int64_t *counter) noexcept
    void mgl_count(int64_t *counter, int64_t n) noexcept
    void mgl_count_most(int64_t *counter, int64_t n) noexcept
    void mgl_store(int64_t *gauge, int64_t n) noexcept
    void mgl_count_read(mgl_counters *counters, ssize_t n) noexcept
    void mgl_count_write(mgl_counters *counters, ssize_t n) noexcept


cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject *o, void *arg) noexcept
    ctypedef int (*traverseproc)(PyObject *o, visitproc visit, void *arg) noexcept
    ctypedef struct PyTypeObject:
        PyObject *tp_dict
        traverseproc tp_traverse
    PyTypeObject *Py_TYPE(PyObject *o) noexcept


cdef extern from *:
    """
    /* Returns type(*args, **keywords) for a class whose metaclass is `type`. */
    static inline PyObject *mgl_make(PyTypeObject *type, PyObject *args, PyObject *keywords) {
        PyObject *made = type->tp_new(type, args, keywords);
        if (made != NULL && type->tp_init(made, args, keywords) < 0) Py_CLEAR(made);
        return made;
    }
    """
    PyObject *mgl_make(PyTypeObject *type, PyObject *args, PyObject *keywords) except NULL
