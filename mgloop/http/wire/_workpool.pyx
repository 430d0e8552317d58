# SPDX-License-Identifier: GPL-2.0-only
"""Threads that run jobs for one loop, and a queue of their answers to it.

workqueue.h describes both queues, and when a thread is woken or started. WorkPool is native
because each request of a WSGI application passes through it: neither way needs a future, a task or
a Python frame. One callback of the loop processes all answers that are queued.

Lifetime: the site keeps the pool alive, and so does each thread. The process does not wait for
these threads when it exits, because nothing can end one that is blocked in the application.

The threads are started by _thread.start_new_thread(). threading.Thread.start() would block the
loop until the new thread has reported that it runs, and for ever if that thread ends before,
because it finds no memory (CPython issue 140746).
"""

cimport cython

import _thread
import logging
import sys
import threading

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from mgloop._handle cimport PostedHandle, new_posted_handle
from mgloop._loop cimport LoopCore
from mgloop._port cimport sem_post, sem_t


cdef extern from "clock.h":
    int64_t mgl_clock_ns() noexcept nogil


cdef extern from "workqueue.h":
    ctypedef enum mgl_work:
        MGL_JOB
        MGL_IDLE
        MGL_NO_MORE
    void mgl_work_init(mgl_work_queue *queue)
    void mgl_work_destroy(mgl_work_queue *queue)
    bint mgl_work_add(mgl_work_queue *queue, mgl_link *job, sem_t **wake)
    mgl_work mgl_work_take(mgl_work_queue *queue, mgl_worker *worker, bint arrives,
                           mgl_link **taken, bint *start, bint *notify)
    void mgl_worker_init(mgl_worker *worker)
    void mgl_worker_destroy(mgl_worker *worker)
    void mgl_worker_enter(mgl_work_queue *queue, mgl_worker *worker)
    void mgl_worker_leave(mgl_work_queue *queue, mgl_worker *worker)
    void mgl_worker_wait(mgl_worker *worker) nogil
    void mgl_worker_busy(mgl_worker *worker, int64_t since)
    int64_t mgl_worker_began(mgl_worker *worker)
    bint mgl_work_recall(mgl_work_queue *queue)
    bint mgl_work_not_started(mgl_work_queue *queue)
    bint mgl_work_withdraw(mgl_work_queue *queue, mgl_link *job)
    void mgl_work_close(mgl_work_queue *queue)
    bint mgl_work_answer(mgl_work_queue *queue, mgl_link *answer, bint last)
    mgl_link *mgl_work_answers(mgl_work_queue *queue)


cdef extern from "unistd.h" nogil:
    int usleep(unsigned int microseconds)


cdef enum:
    RETRY = 10_000      # microseconds between two attempts after memory has run out

cdef object logger = logging.getLogger("mgloop.http")


cdef int log_exception(str message) noexcept:
    logger.exception(message)
    return 0


cdef int wait_for_memory() noexcept:
    with nogil:
        usleep(RETRY)
    return 0


cdef int introduce_thread(str name) except -1:
    """Name this thread, and trace it if threading.settrace() or setprofile() wants that."""
    cdef object trace = threading.gettrace()
    cdef object profile = threading.getprofile()
    threading.current_thread().name = name
    if trace is not None:
        sys.settrace(trace)
    if profile is not None:
        sys.setprofile(profile)
    return 0


# The garbage collector would clear `pool` before __dealloc__(), which needs it.
@cython.no_gc
cdef class Worker:
    """Hold the native state of one thread."""

    cdef mgl_worker native
    cdef WorkPool pool      # until the thread can take jobs

    def __cinit__(self):
        mgl_worker_init(&self.native)

    def __dealloc__(self):
        mgl_worker_destroy(&self.native)
        if self.pool is not None:
            self.pool.thread_lost()


cdef class WorkPool:
    """Run jobs of `loop` in at most `threads` threads.

    context: the context in which answers are processed.
    """

    def __cinit__(self, *args, **kwargs):
        mgl_work_init(&self.queue)

    def __init__(self, loop, context, int threads):
        self.loop = loop
        if isinstance(loop, LoopCore) and (<LoopCore>loop).wakeup_enabled:
            self.core = loop
        self.context = context
        self.queue.most = threads

    def __dealloc__(self):
        mgl_work_destroy(&self.queue)

    @property
    def threads(self):
        """The number of threads that have been started and have not ended."""
        return self.queue.workers

    @property
    def queued(self):
        """The number of jobs that wait for a thread."""
        return self.queue.jobs.count

    @property
    def queue_times(self):
        """Return (jobs, seconds): how many jobs threads have taken, and how long these waited."""
        cdef int64_t taken, waited
        mgl_work_lock(&self.queue)
        taken = self.queue.taken
        waited = self.queue.waited
        mgl_work_unlock(&self.queue)
        return taken, waited * 1e-9

    def running(self):
        """Return (thread identifier, seconds) for each job that runs in a thread."""
        cdef mgl_worker *worker
        cdef int64_t now = mgl_clock_ns()
        cdef int64_t began
        cdef int n = 0
        cdef unsigned long threads[256]
        cdef int64_t times[256]
        mgl_work_lock(&self.queue)
        worker = self.queue.all
        while worker is not NULL and n < 256:
            began = mgl_worker_began(worker)
            if began:
                threads[n] = worker.thread
                times[n] = now - began
                n += 1
            worker = worker.after
        mgl_work_unlock(&self.queue)
        return [(threads[i], times[i] * 1e-9) for i in range(n)]

    def close(self):
        """End the threads, each as soon as it has no job."""
        mgl_work_close(&self.queue)

    # -------------------------------------------------------------- for the loop ----

    cdef int add_job(self, mgl_link *job) except -1:
        cdef sem_t *wake = NULL
        cdef bint start = mgl_work_add(&self.queue, job, &wake)
        if wake is not NULL:
            if self.core is None:
                sem_post(wake)
            else:
                self.core.post_semaphore(wake)
        if start:
            try:
                self.start_thread()
            except BaseException:
                if mgl_work_not_started(&self.queue) and mgl_work_withdraw(&self.queue, job):
                    raise
                log_exception("Failed to start another thread for the application.")
        return 0

    cdef int start_thread(self) except -1:
        cdef Worker worker = Worker()
        self.started += 1
        # A thread that finds no memory may end before it takes a job.
        worker.pool = self
        try:
            _thread.start_new_thread(self._work, (worker, f"mgloop-wsgi-{self.started}"))
        except BaseException:
            worker.pool = None      # the caller notes it
            raise
        return 0

    cdef int thread_lost(self) noexcept:
        """Replace a thread that was started and has ended before it could take a job."""
        mgl_work_not_started(&self.queue)
        self.lost = True
        if self.notify():
            self.core.wake()
        return 0

    def _take_answers(self):
        """Process all answers that are queued, and replace threads that were lost."""
        cdef mgl_link *next = mgl_work_answers(&self.queue)
        cdef mgl_link *answer
        while next is not NULL:
            answer = next
            next = answer.next
            self.take_answer(answer, next)
        if self.lost:
            self.lost = False
            if mgl_work_recall(&self.queue):
                self.call_another()

    # ----------------------------------------------------------- for the threads ----

    def _work(self, Worker worker not None, str name):
        """Run jobs until the pool is closed: the function of each thread."""
        cdef mgl_work_queue *queue = &self.queue
        cdef mgl_worker *native = &worker.native
        cdef mgl_link *job = NULL
        cdef mgl_work work
        cdef LoopCore loop = self.core
        cdef bint start = False
        cdef bint notify = False
        cdef bint wake
        cdef bint arrives = True
        try:
            introduce_thread(name)
        except BaseException:
            # Without the GIL, the worker may be destroyed late, and by the thread of the loop.
            worker.pool = None
            self.thread_lost()
            raise
        worker.pool = None
        mgl_worker_enter(queue, native)
        while True:
            work = mgl_work_take(queue, native, arrives, &job, &start, &notify)
            arrives = False
            if start:
                self.call_another()
            wake = notify and self.notify()
            if work == MGL_IDLE:
                with nogil:
                    # The loop finds the GIL free when it has woken up.
                    if wake:
                        loop.wake()
                    mgl_worker_wait(native)
                arrives = True
                continue
            if wake:
                loop.wake()
            if work == MGL_NO_MORE:
                break
            self.run_job(job)
            mgl_worker_busy(native, 0)
        mgl_worker_leave(queue, native)

    cdef int call_another(self) noexcept:
        """Start another thread. The queue goes on with the present ones if that fails."""
        try:
            self.start_thread()
        except BaseException:
            mgl_work_not_started(&self.queue)
            log_exception("Failed to start another thread for the application.")
        return 0

    cdef int answer(self, mgl_link *answer, bint last) noexcept:
        if mgl_work_answer(&self.queue, answer, last) and self.notify():
            self.core.wake()
        return 0

    cdef bint notify(self) noexcept:
        """Schedule _take_answers() in the loop, or release the answers if the loop is closed.

        If memory runs out, try again until it succeeds. The requests would never end otherwise.
        Return whether the caller must wake the loop.
        """
        cdef bint pending = True
        while pending:
            pending = False
            try:
                self.schedule_answers()
            except MemoryError:
                pending = True
            except BaseException:
                self.drop_answers()
            if pending:
                wait_for_memory()
        return self.core is not None

    cdef int schedule_answers(self) except -1:
        cdef object callback = self._take_answers
        cdef object context = self.context.copy()
        cdef PyObject *none = NULL
        if self.core is None:
            self.loop.call_soon_threadsafe(callback, context=context)
            return 0
        return self.core.submit(<PostedHandle>new_posted_handle(
            self.core, <PyObject *>callback, &none, 0, <PyObject *>context, False))

    cdef int drop_answers(self) noexcept:
        cdef mgl_link *next = mgl_work_answers(&self.queue)
        cdef mgl_link *answer
        mgl_work_close(&self.queue)
        while next is not NULL:
            answer = next
            next = answer.next
            self.drop_answer(answer)
        return 0

    # ------------------------------------------------------------- for subclasses ----

    cdef int run_job(self, mgl_link *job) noexcept:
        return 0

    cdef int take_answer(self, mgl_link *answer, mgl_link *next) noexcept:
        return 0

    cdef int drop_answer(self, mgl_link *answer) noexcept:
        return 0
