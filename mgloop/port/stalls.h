/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The detection of stalled loops by another thread, at almost no cost for the loops.
 *
 * A loop that is not stalled takes callbacks from its queue and begins iterations, and it counts both
 * anyway. The watcher's thread reads the two numbers periodically. If a loop is not waiting and both
 * numbers are unchanged, it has been in one callback all the time.
 *
 * While all loops of a watcher are waiting, the watcher sleeps as well, without a timeout, so that an
 * idle process uses no CPU time. A loop wakes it at the end of a wait, which costs one load of
 * `asleep` per wait and one system call per sleep of the watcher. No wake-up is lost. In the order of
 * sequentially consistent operations,
 *
 *     the watcher   W1  asleep = true           the loop   L1  waiting = false
 *                   W2  reads `waiting`                    L2  reads `asleep`
 *
 * if W2 sees that the loop is still waiting, then L1 follows W2, and L2 sees the store of W1.
 *
 * A watcher is never freed but reused, because a loop may be about to wake it.
 *
 * The threads that held locks do not exist in the child of a fork, so the child initializes all locks
 * again. The data that they protect is consistent, apart from an entry that was just being added. */
#ifndef MGLOOP_STALLS_H
#define MGLOOP_STALLS_H

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "counters.h"
#include "threadqueue.h"
#include "ring.h"

typedef struct {
    mgl_thread_queue *thread_queue;
    const mgl_ring *ready;
    mgl_counters *count;
    size_t head; /* head of the queue and iterations at the last check */
    int64_t iterations;
    int64_t since; /* when these values were first seen; 0 if the loop was waiting */
    int64_t next;  /* length of the stall, in nanoseconds, at which the next report is due */
    bool reported;
} mgl_watched;

enum { MGL_WATCHED = 256 }; /* maximum number of loops of a watcher */

typedef struct mgl_watcher {
    struct mgl_watcher *free;  /* the next unused watcher */
    struct mgl_watcher *older; /* the watcher created before this one */
    sem_t wake;
    pthread_mutex_t lock; /* protects the fields below against threads that add and remove loops */
    mgl_watched loops[MGL_WATCHED];
    int n;
    int64_t threshold, period; /* nanoseconds */
    mgl_thread_queue *resumed; /* of the loop whose stall has ended and has not been reported yet */
    int64_t stalled_for;      /* length of that stall in nanoseconds */
    atomic_bool asleep;
    atomic_bool called;
    atomic_bool stopped;
} mgl_watcher;

/* Prefer the monotonic clock: if the real-time clock is set back, the watcher would sleep too long. */
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 30)
#define MGL_WAKE_CLOCK CLOCK_MONOTONIC
#define mgl_wake_timedwait(wake, until) sem_clockwait(wake, CLOCK_MONOTONIC, until)
#else
#define MGL_WAKE_CLOCK CLOCK_REALTIME
#define mgl_wake_timedwait(wake, until) sem_timedwait(wake, until)
#endif

static mgl_watcher *mgl_free_watchers, *mgl_newest_watcher;
static pthread_mutex_t mgl_watchers_lock = PTHREAD_MUTEX_INITIALIZER; /* protects both lists */

static void mgl_watchers_in_child(void) {
    mgl_watcher *w;
    pthread_mutex_init(&mgl_watchers_lock, NULL);
    for (w = mgl_newest_watcher; w != NULL; w = w->older) pthread_mutex_init(&w->lock, NULL);
}

typedef enum { MGL_STOPPED, MGL_CALLED, MGL_STALLS, MGL_GOES_ON } mgl_stall_event;

static inline void mgl_watcher_wake(mgl_watcher *w) {
    if (atomic_load(&w->asleep) && atomic_exchange(&w->asleep, false)) sem_post(&w->wake);
}

/* Called by a loop at the end of a wait. */
static inline void mgl_wait_ended(mgl_thread_queue *queue) {
    mgl_watcher *w = atomic_load(&queue->watcher);
    if (w != NULL) mgl_watcher_wake(w);
}

static inline bool mgl_is_idle(const mgl_watched *l) {
    return atomic_load(&l->thread_queue->waiting) || atomic_load(&l->thread_queue->thread) == 0;
}

/* Returns whether the loop has made progress since the last check, and stores its current position. */
static inline bool mgl_has_moved(mgl_watched *l) {
    size_t head = __atomic_load_n(&l->ready->head, __ATOMIC_RELAXED);
    int64_t iterations = mgl_counted(&l->count->iterations);
    bool moved = head != l->head || iterations != l->iterations;
    l->head = head;
    l->iterations = iterations;
    return moved;
}

/* Checks all loops. Returns the index of the first one with a result, or -1. *busy: one is not idle. */
static inline int mgl_watcher_check(mgl_watcher *w, int64_t now, bool *busy, mgl_stall_event *what, int64_t *lasted) {
    *busy = false;
    for (int i = 0; i < w->n; i++) {
        mgl_watched *l = &w->loops[i];
        bool idle = mgl_is_idle(l), moved = mgl_has_moved(l);
        if (!idle) *busy = true;
        if (!idle && !moved && l->since != 0) {
            if (now - l->since < l->next) continue;
            while (l->next <= now - l->since) l->next *= 2;
            l->reported = true;
            *what = MGL_STALLS;
            *lasted = now - l->since;
            return i;
        }
        bool reported = l->reported;
        *lasted = now - l->since;
        l->since = idle ? 0 : now;
        l->next = w->threshold;
        l->reported = false;
        if (reported) {
            w->resumed = l->thread_queue;
            w->stalled_for = *lasted;
            *what = MGL_GOES_ON;
            return i;
        }
    }
    return -1;
}

/* Must be called under the lock of the lists. Returns NULL if memory is exhausted. */
static inline mgl_watcher *mgl_watcher_make(void) {
    mgl_watcher *w = (mgl_watcher *) calloc(1, sizeof(*w));
    if (w == NULL) return NULL;
    if (mgl_newest_watcher == NULL && pthread_atfork(NULL, NULL, mgl_watchers_in_child) != 0) {
        free(w);
        return NULL;
    }
    sem_init(&w->wake, 0, 0);
    pthread_mutex_init(&w->lock, NULL);
    w->older = mgl_newest_watcher;
    mgl_newest_watcher = w;
    return w;
}

/* Returns a new or reused watcher, or NULL if memory is exhausted. Times are in nanoseconds. */
static inline mgl_watcher *mgl_watcher_new(int64_t threshold, int64_t period) {
    mgl_watcher *w;
    pthread_mutex_lock(&mgl_watchers_lock);
    w = mgl_free_watchers;
    if (w != NULL)
        mgl_free_watchers = w->free;
    else
        w = mgl_watcher_make();
    pthread_mutex_unlock(&mgl_watchers_lock);
    if (w == NULL) return NULL;
    w->n = 0;
    w->resumed = NULL;
    w->threshold = threshold;
    w->period = period;
    atomic_store(&w->asleep, false);
    atomic_store(&w->called, false);
    atomic_store(&w->stopped, false);
    return w;
}

static inline void mgl_watcher_give_back(mgl_watcher *w) {
    pthread_mutex_lock(&mgl_watchers_lock);
    w->free = mgl_free_watchers;
    mgl_free_watchers = w;
    pthread_mutex_unlock(&mgl_watchers_lock);
}

static inline void mgl_watcher_stop(mgl_watcher *w) {
    atomic_store(&w->stopped, true);
    sem_post(&w->wake);
}

/* Makes mgl_watcher_wait() return MGL_CALLED. */
static inline void mgl_watcher_call(mgl_watcher *w) {
    atomic_store(&w->called, true);
    sem_post(&w->wake);
}

typedef enum { MGL_IS_WATCHED, MGL_WAS_WATCHED, MGL_TOO_MANY } mgl_watching;

static inline mgl_watching mgl_watcher_add(mgl_watcher *w, mgl_thread_queue *queue, const mgl_ring *ready,
                                           mgl_counters *count) {
    struct mgl_watcher *nobody = NULL;
    mgl_watching done = MGL_TOO_MANY;
    pthread_mutex_lock(&w->lock);
    if (w->n < MGL_WATCHED) {
        done = MGL_WAS_WATCHED;
        if (atomic_compare_exchange_strong(&queue->watcher, &nobody, w)) {
            done = MGL_IS_WATCHED;
            w->loops[w->n++] = (mgl_watched){
                .thread_queue = queue, .ready = ready, .count = count, .next = w->threshold};
        }
    }
    pthread_mutex_unlock(&w->lock);
    mgl_watcher_wake(w);
    return done;
}

/* Returns whether the caller must report the end of the stall. Each end is reported once, either by the
 * watcher's thread or by a thread that removes the loop. *stalled_for: length of the stall in nanoseconds. */
static inline bool mgl_take_resumed(mgl_watcher *w, mgl_thread_queue *queue, int64_t *stalled_for) {
    if (w->resumed != queue) return false;
    w->resumed = NULL;
    *stalled_for = w->stalled_for;
    return true;
}

static inline bool mgl_watcher_take_resumed(mgl_watcher *w, mgl_thread_queue *queue, int64_t *stalled_for) {
    pthread_mutex_lock(&w->lock);
    bool taken = mgl_take_resumed(w, queue, stalled_for);
    pthread_mutex_unlock(&w->lock);
    return taken;
}

/* Removes a loop. Returns the length of its stall in nanoseconds if its end has not been reported,
 * otherwise 0. */
static inline int64_t mgl_watcher_remove(mgl_watcher *w, mgl_thread_queue *queue) {
    int64_t stalled_for = 0;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n; i++)
        if (w->loops[i].thread_queue == queue) {
            if (!mgl_take_resumed(w, queue, &stalled_for) && w->loops[i].reported)
                stalled_for = mgl_clock_ns() - w->loops[i].since;
            w->loops[i] = w->loops[--w->n];
            atomic_store(&queue->watcher, NULL);
            break;
        }
    pthread_mutex_unlock(&w->lock);
    return stalled_for;
}

/* Returns whether the loop has made no progress since the last check. */
static inline bool mgl_watcher_is_stalled(mgl_watcher *w, mgl_thread_queue *queue) {
    bool stalled = false;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n; i++)
        if (w->loops[i].thread_queue == queue) {
            mgl_watched copy = w->loops[i];
            stalled = !mgl_is_idle(&copy) && !mgl_has_moved(&copy);
        }
    pthread_mutex_unlock(&w->lock);
    return stalled;
}

/* Blocks until there is a result for the loop *which, or the watcher is called or stopped. The caller
 * is detached from the interpreter. *lasted: length of the stall in nanoseconds. */
static inline mgl_stall_event mgl_watcher_wait(mgl_watcher *w, mgl_thread_queue **which, int64_t *lasted) {
    for (;;) {
        bool busy;
        mgl_stall_event what = MGL_STOPPED;
        pthread_mutex_lock(&w->lock);
        int i = mgl_watcher_check(w, mgl_clock_ns(), &busy, &what, lasted);
        if (i >= 0) *which = w->loops[i].thread_queue;
        if (i < 0 && !busy) {
            atomic_store(&w->asleep, true);
            for (int j = 0; j < w->n; j++)
                if (!mgl_is_idle(&w->loops[j])) busy = true;
            if (busy) atomic_store(&w->asleep, false);
        }
        pthread_mutex_unlock(&w->lock);
        if (atomic_load(&w->stopped)) return MGL_STOPPED;
        if (i >= 0) return what;
        if (atomic_exchange(&w->called, false)) return MGL_CALLED;
        if (busy) {
            struct timespec until;
            clock_gettime(MGL_WAKE_CLOCK, &until);
            int64_t ns = until.tv_nsec + w->period;
            until.tv_sec += ns / 1000000000;
            until.tv_nsec = ns % 1000000000;
            while (mgl_wake_timedwait(&w->wake, &until) != 0 && errno == EINTR) {}
        } else {
            while (sem_wait(&w->wake) != 0 && errno == EINTR) {}
        }
    }
}

#endif
