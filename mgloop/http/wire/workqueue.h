/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The two queues between a loop and the threads that run WSGI applications.
 *
 * `jobs` leads from the loop to the threads, and `answers` leads back. One mutex protects everything
 * here. It is held for a few instructions, in which no Python code runs, so a thread may lock it with
 * or without the GIL. Each element of a queue owns one reference to its request.
 *
 * A thread that finds no job puts itself on the stack of idle threads and waits for its semaphore.
 * The thread that became idle last is woken first, because its stack and its caches are warm.
 *
 * At most one thread at a time is on its way to a job: it has been woken or started, and has not
 * checked the queue yet (`coming`). A thread that takes a job while others are queued wakes or starts
 * the next one. So a batch of fast requests needs one or two threads, which take jobs until none is left, and
 * not one wake-up per request. If a job blocks, the next thread continues with the queue as soon as
 * it gets the GIL. No job is forgotten: a job is queued, or a thread becomes idle, under the mutex.
 *
 * Neither side is woken while the other one holds the GIL, if that can be avoided. A thread that
 * starts to run and finds the GIL taken has to wait again, and a request would cost six context
 * switches instead of two. So the loop wakes the thread for its job when it polls
 * (LoopCore.post_semaphore()), and a thread wakes the loop for the last answer of a job immediately
 * before it waits for another job. If another job is queued already, it wakes the loop before it
 * starts that job: an answer never waits for the application. */
#ifndef MGLOOP_WORKQUEUE_H
#define MGLOOP_WORKQUEUE_H

#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"

/* An element of a queue. The objects in the queues contain it, so queueing allocates nothing. */
typedef struct mgl_link {
    struct mgl_link *next;
    PyObject *owner;
    int64_t since; /* of a job: mgl_clock_ns() when it was queued */
} mgl_link;

typedef struct {
    mgl_link *first, *last;
    Py_ssize_t count;
} mgl_links;

typedef struct mgl_worker {
    sem_t wake;
    struct mgl_worker *below;       /* on the stack of idle threads */
    struct mgl_worker *before, *after; /* in the list of all threads */
    unsigned long thread;           /* as threading.get_ident() returns it */
    int64_t began;                  /* mgl_clock_ns() at the start of its job; 0 without a job */
} mgl_worker;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t drained; /* the loop has sent output, for threads that wait with more of it */
    mgl_links jobs, answers;
    mgl_worker *idle, *all;
    int workers, most; /* threads, and the most that there may be */
    int64_t taken;     /* jobs that threads have taken from the queue */
    int64_t waited;    /* nanoseconds that these were in the queue */
    bool coming;
    bool notified; /* the loop has been notified of the answers that are queued */
    bool closed;   /* threads end when no job is left */
} mgl_work_queue;

static inline void mgl_work_init(mgl_work_queue *queue) {
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->drained, NULL);
}

static inline void mgl_work_destroy(mgl_work_queue *queue) {
    pthread_cond_destroy(&queue->drained);
    pthread_mutex_destroy(&queue->lock);
}

static inline void mgl_work_lock(mgl_work_queue *queue) { pthread_mutex_lock(&queue->lock); }
static inline void mgl_work_unlock(mgl_work_queue *queue) { pthread_mutex_unlock(&queue->lock); }

static inline void mgl_links_add(mgl_links *links, mgl_link *link) {
    link->next = NULL;
    if (links->first == NULL)
        links->first = link;
    else
        links->last->next = link;
    links->last = link;
    links->count++;
}

static inline mgl_link *mgl_links_take(mgl_links *links) {
    mgl_link *link = links->first;
    if (link != NULL) {
        links->first = link->next;
        links->count--;
    }
    return link;
}

/* Calls one more thread if there are jobs and none is coming. Returns the idle thread to wake after
 * the mutex is released, or NULL. *start: whether the caller must start a thread instead. */
static inline mgl_worker *mgl_work_call(mgl_work_queue *queue, int *start) {
    mgl_worker *worker = NULL;
    *start = false;
    if (queue->jobs.first == NULL || queue->coming) return NULL;
    if (queue->idle != NULL) {
        worker = queue->idle;
        queue->idle = worker->below;
        queue->coming = true;
    } else if (queue->workers < queue->most) {
        queue->workers++;
        queue->coming = true;
        *start = true;
    }
    return worker;
}

/* Queues a job. Returns whether the caller must start a thread. *wake: the semaphore that the caller
 * must post, or NULL. The thread that waits for it, and so the semaphore, exist until then. */
static inline bool mgl_work_add(mgl_work_queue *queue, mgl_link *job, sem_t **wake) {
    mgl_worker *worker;
    int start;
    job->since = mgl_clock_ns();
    mgl_work_lock(queue);
    mgl_links_add(&queue->jobs, job);
    worker = mgl_work_call(queue, &start);
    mgl_work_unlock(queue);
    *wake = worker != NULL ? &worker->wake : NULL;
    return start;
}

/* Returns whether the caller must notify the loop about the answers. The caller holds the mutex. */
static inline bool mgl_work_must_notify(mgl_work_queue *queue) {
    /* The loop may have been closed before it took the answers. */
    bool notify = queue->answers.first != NULL && (!queue->notified || queue->closed);
    if (notify) queue->notified = true;
    return notify;
}

/* Other threads read when the present job began. */
static inline void mgl_worker_busy(mgl_worker *self, int64_t since) {
    __atomic_store_n(&self->began, since, __ATOMIC_RELAXED);
}

static inline int64_t mgl_worker_began(mgl_worker *self) { return __atomic_load_n(&self->began, __ATOMIC_RELAXED); }

typedef enum { MGL_JOB, MGL_IDLE, MGL_NO_MORE } mgl_work;

/* Takes the next job, or makes the thread idle. `arrives`: the thread has just been woken or started.
 * *start: whether the caller must start another thread. *notify: whether it must notify the loop.
 * MGL_NO_MORE: the thread has to end. */
static inline mgl_work mgl_work_take(mgl_work_queue *queue, mgl_worker *self, bool arrives, mgl_link **taken,
                                     int *start, int *notify) {
    mgl_worker *next = NULL;
    mgl_work work = MGL_JOB;
    mgl_link *job;
    *start = false;
    mgl_work_lock(queue);
    if (arrives) queue->coming = false;
    job = mgl_links_take(&queue->jobs);
    if (job != NULL) {
        int64_t now = mgl_clock_ns();
        queue->taken++;
        queue->waited += now - job->since;
        mgl_worker_busy(self, now);
        next = mgl_work_call(queue, start);
    } else if (queue->closed) {
        work = MGL_NO_MORE;
    } else {
        self->below = queue->idle;
        queue->idle = self;
        work = MGL_IDLE;
    }
    *notify = mgl_work_must_notify(queue);
    mgl_work_unlock(queue);
    if (next != NULL) sem_post(&next->wake);
    *taken = job;
    return work;
}

static inline void mgl_worker_init(mgl_worker *self) { sem_init(&self->wake, 0, 0); }
static inline void mgl_worker_destroy(mgl_worker *self) { sem_destroy(&self->wake); }

/* Waits until the thread is woken. Call it without the GIL. */
static inline void mgl_worker_wait(mgl_worker *self) {
    while (sem_wait(&self->wake) != 0 && errno == EINTR) {}
}

/* Adds a thread that has started. */
static inline void mgl_worker_enter(mgl_work_queue *queue, mgl_worker *self) {
    self->thread = PyThread_get_thread_ident();
    mgl_work_lock(queue);
    self->before = NULL;
    self->after = queue->all;
    if (queue->all != NULL) queue->all->before = self;
    queue->all = self;
    mgl_work_unlock(queue);
}

/* Removes a thread that ends. */
static inline void mgl_worker_leave(mgl_work_queue *queue, mgl_worker *self) {
    mgl_work_lock(queue);
    if (self->before != NULL)
        self->before->after = self->after;
    else
        queue->all = self->after;
    if (self->after != NULL) self->after->before = self->before;
    queue->workers--;
    mgl_work_unlock(queue);
}

/* Calls a thread if jobs are queued and none is coming. Returns whether the caller must start one. */
static inline bool mgl_work_recall(mgl_work_queue *queue) {
    mgl_worker *worker;
    int start;
    mgl_work_lock(queue);
    worker = mgl_work_call(queue, &start);
    mgl_work_unlock(queue);
    if (worker != NULL) sem_post(&worker->wake);
    return start;
}

/* Called if the thread that a caller had to start could not be started. Returns whether there is no
 * thread at all, so that the queue will not get any shorter. */
static inline bool mgl_work_not_started(mgl_work_queue *queue) {
    bool none;
    mgl_work_lock(queue);
    queue->coming = false;
    none = --queue->workers == 0;
    mgl_work_unlock(queue);
    return none;
}

/* Removes the job that was queued last. Returns false if a thread has taken it. */
static inline bool mgl_work_withdraw(mgl_work_queue *queue, mgl_link *job) {
    mgl_link **at, *last = NULL;
    bool found = false;
    mgl_work_lock(queue);
    for (at = &queue->jobs.first; *at != NULL && *at != job; at = &(*at)->next) last = *at;
    if (*at == job) {
        *at = job->next;
        if (queue->jobs.last == job) queue->jobs.last = last;
        queue->jobs.count--;
        found = true;
    }
    mgl_work_unlock(queue);
    return found;
}

/* Waits until the loop has sent output of any request. The caller holds the mutex, but not the GIL. */
static inline void mgl_work_wait_drained(mgl_work_queue *queue) { pthread_cond_wait(&queue->drained, &queue->lock); }

/* Wakes all threads in mgl_work_wait_drained(), which check the reason for themselves. */
static inline void mgl_work_drained(mgl_work_queue *queue) { pthread_cond_broadcast(&queue->drained); }

/* Makes the threads end as soon as no job is left. */
static inline void mgl_work_close(mgl_work_queue *queue) {
    mgl_worker *idle, *next;
    mgl_work_lock(queue);
    queue->closed = true;
    idle = queue->idle;
    queue->idle = NULL;
    pthread_cond_broadcast(&queue->drained);
    mgl_work_unlock(queue);
    for (; idle != NULL; idle = next) {
        next = idle->below; /* the thread frees itself after sem_post() */
        sem_post(&idle->wake);
    }
}

/* Queues an answer. Returns whether the caller must notify the loop. `last`: this thread calls
 * mgl_work_take() next, which returns that instead. */
static inline bool mgl_work_answer(mgl_work_queue *queue, mgl_link *answer, bool last) {
    bool notify;
    mgl_work_lock(queue);
    mgl_links_add(&queue->answers, answer);
    notify = !last && mgl_work_must_notify(queue);
    mgl_work_unlock(queue);
    return notify;
}

/* Returns all answers, as a list. */
static inline mgl_link *mgl_work_answers(mgl_work_queue *queue) {
    mgl_link *first;
    mgl_work_lock(queue);
    first = queue->answers.first;
    queue->answers.first = NULL;
    queue->answers.count = 0;
    queue->notified = false;
    mgl_work_unlock(queue);
    return first;
}

#endif
