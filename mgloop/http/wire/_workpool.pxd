# SPDX-License-Identifier: GPL-2.0-only
"""Declare WorkPool, threads that run jobs of a loop; _workpool.pyx explains how it works."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from mgloop._loop cimport LoopCore


cdef extern from "workqueue.h":
    ctypedef struct mgl_link:
        mgl_link *next
        PyObject *owner

    ctypedef struct mgl_links:
        Py_ssize_t count

    ctypedef struct mgl_worker:
        mgl_worker *after
        unsigned long thread
        int64_t began

    ctypedef struct mgl_work_queue:
        mgl_links jobs
        mgl_links answers
        mgl_worker *all
        int64_t taken
        int64_t waited
        int workers
        int most
        bint closed

    void mgl_work_lock(mgl_work_queue *queue) nogil
    void mgl_work_unlock(mgl_work_queue *queue) nogil
    void mgl_work_drained(mgl_work_queue *queue) nogil
    void mgl_work_wait_drained(mgl_work_queue *queue) nogil


# Log the exception that is being handled, without raising another one if memory is exhausted.
cdef int log_exception(str message) noexcept
# Wait before another attempt, after memory has run out.
cdef int wait_for_memory() noexcept


cdef class WorkPool:
    cdef readonly object loop
    cdef LoopCore core                  # the same, or None if it is not a loop of mgloop
    cdef object context                 # the context of callbacks in the loop
    cdef mgl_work_queue queue
    cdef int started                    # the number of threads started so far
    cdef bint lost                      # a thread has ended before it took a job

    # For the loop: queue a job. The pool takes over the reference of `job.owner`. Raise an
    # exception, and leave the reference to the caller, if there is no thread and none can be
    # started.
    cdef int add_job(self, mgl_link *job) except -1
    # For the threads: queue an answer. The pool takes over the reference of `answer.owner`. The
    # loop is woken immediately, or with `last` after run_job(), which must do nothing else.
    cdef int answer(self, mgl_link *answer, bint last) noexcept

    # For subclasses. They take over the reference of `owner`.
    # Run a job, in a thread.
    cdef int run_job(self, mgl_link *job) noexcept
    # Process an answer, in the thread of the loop. `next`: the answer that follows, or NULL.
    cdef int take_answer(self, mgl_link *answer, mgl_link *next) noexcept
    # Release an answer, in any thread, because the loop is closed.
    cdef int drop_answer(self, mgl_link *answer) noexcept

    cdef int start_thread(self) except -1
    cdef int call_another(self) noexcept
    cdef int thread_lost(self) noexcept
    cdef bint notify(self) noexcept
    cdef int schedule_answers(self) except -1
    cdef int drop_answers(self) noexcept
