/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The queue of calls from other threads to a loop (posted.h), and the wake-up of the loop.
 *
 * No wake-up is lost. Without the GIL, the following operations are sequentially consistent: all
 * threads observe them in the same order.
 *
 *     a poster   P1  posts a handle              the loop   L1  waiting = true
 *                P2  reads `waiting`                        L2  checks for posted handles
 *                P3  if true, sends a wake-up               L3  if there are none, waits
 *
 * A handle would be missed if P2 read false and L2 found nothing. Then P2 precedes L1, and L2
 * precedes P1. But P1 precedes P2 and L1 precedes L2, so these four would form a cycle.
 * (Under the GIL, P1 and P2 are one step, and L1 and L2 are another.)
 * `woken` saves the system call for all senders but the first. It is cleared before L1, and is set
 * before a wake-up is sent. The loop may receive a second wake-up, but never misses one.
 *
 * `lock` is held while a thread sends a wake-up, and while the loop recreates or closes the
 * descriptors for wake-ups. A thread therefore never sends to a descriptor that has been reused for
 * another file. No Python code runs under the lock.
 *
 * The structure has its own cache lines. It lives as long as the loop object, to which each posting
 * thread has a reference. After `posted` is closed, nothing can be posted. It holds one reference to
 * each handle. */
#ifndef MGLOOP_THREADQUEUE_H
#define MGLOOP_THREADQUEUE_H

#include <Python.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "posted.h"

struct mgl_poll;

/* A thread that sleeps until a wait of the loop ends: that of a stall detector (observe/stalls.h). */
typedef struct {
    sem_t wake;
    atomic_bool asleep;
} mgl_sleeper;

typedef struct mgl_thread_queue {
    _Alignas(64) mgl_posted posted;
    atomic_bool waiting; /* the loop is waiting in a poll, or about to */
    atomic_bool woken;   /* a wake-up has been sent */
    pthread_mutex_t lock;
    struct mgl_poll *poll; /* NULL if the loop cannot be woken up */
    int64_t wakeups;       /* number of wake-ups sent */
    _Atomic(mgl_sleeper *) sleeper; /* of the stall detector that watches the loop; NULL if there is none */
    unsigned fork_count;   /* identifies the process, as in the port */
    atomic_ulong thread;   /* the thread that runs the loop; 0 if it is not running */
    atomic_bool closing;   /* a thread is closing the loop, or has closed it */
} mgl_thread_queue;

static inline mgl_thread_queue *mgl_thread_queue_new(void) {
    mgl_thread_queue *queue = (mgl_thread_queue *) aligned_alloc(64, sizeof(*queue));
    if (queue == NULL) return (mgl_thread_queue *) PyErr_NoMemory();
    memset(queue, 0, sizeof(*queue));
    pthread_mutex_init(&queue->lock, NULL);
    return queue;
}

static inline void mgl_thread_queue_free(mgl_thread_queue *queue) {
    if (queue == NULL) return;
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

static inline void mgl_sleeper_wake(mgl_sleeper *sleeper) {
    if (atomic_load(&sleeper->asleep) && atomic_exchange(&sleeper->asleep, false)) sem_post(&sleeper->wake);
}

/* Called by a loop at the end of a wait. */
static inline void mgl_wait_ended(mgl_thread_queue *queue) {
    mgl_sleeper *sleeper = atomic_load(&queue->sleeper);
    if (sleeper != NULL) mgl_sleeper_wake(sleeper);
}

/* From here to mgl_thread_queue_end_wait(), a posted call sends a wake-up. */
static inline void mgl_thread_queue_begin_wait(mgl_thread_queue *queue) {
    /* An unnecessary wake-up is harmless, but a missing one is not. */
    atomic_store(&queue->woken, false);
    atomic_store(&queue->waiting, true);
}

static inline void mgl_thread_queue_end_wait(mgl_thread_queue *queue) {
    atomic_store(&queue->waiting, false);
    mgl_wait_ended(queue);
}

/* Returns whether the loop is waiting. Its own thread sees true only in another greenlet. */
static inline bool mgl_thread_queue_waits(mgl_thread_queue *queue) {
    return atomic_load_explicit(&queue->waiting, memory_order_relaxed);
}

typedef enum { MGL_MAY, MGL_RUNS, MGL_CLOSES } mgl_permit;

/* As in Dekker's algorithm, run() stores `thread` and then loads `closing`, and close() does the
 * reverse. With sequentially consistent order, at least one of two racing threads sees the other. */

static inline void mgl_thread_queue_leave(mgl_thread_queue *queue) { atomic_store(&queue->thread, 0); }

/* On MGL_MAY, this thread runs the loop from now on. */
static inline mgl_permit mgl_thread_queue_enter(mgl_thread_queue *queue) {
    unsigned long nobody = 0;
    if (!atomic_compare_exchange_strong(&queue->thread, &nobody, PyThread_get_thread_ident())) return MGL_RUNS;
    if (!atomic_load(&queue->closing)) return MGL_MAY;
    mgl_thread_queue_leave(queue);
    return MGL_CLOSES;
}

static inline void mgl_thread_queue_abandon_close(mgl_thread_queue *queue) { atomic_store(&queue->closing, false); }

/* On MGL_MAY, no other thread can close or run the loop from now on. */
static inline mgl_permit mgl_thread_queue_begin_close(mgl_thread_queue *queue) {
    if (atomic_exchange(&queue->closing, true)) return MGL_CLOSES;
    if (atomic_load(&queue->thread) == 0) return MGL_MAY;
    mgl_thread_queue_abandon_close(queue);
    return MGL_RUNS;
}

/* Returns whether the loop runs in this thread. */
static inline bool mgl_thread_queue_here(mgl_thread_queue *queue) {
    return atomic_load_explicit(&queue->thread, memory_order_relaxed) == PyThread_get_thread_ident();
}

/* Returns whether the loop runs in another thread. */
static inline bool mgl_thread_queue_elsewhere(mgl_thread_queue *queue) {
    unsigned long thread = atomic_load_explicit(&queue->thread, memory_order_relaxed);
    return thread != 0 && thread != PyThread_get_thread_ident();
}

#endif
