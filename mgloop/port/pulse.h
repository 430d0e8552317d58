/* SPDX-License-Identifier: GPL-2.0-only
 *
 * How another thread sees whether a loop goes on, at next to no cost for the loop.
 *
 * A loop that goes on takes callbacks out of its queue and begins iterations; both are counted anyway.
 * Who watches looks at the two numbers now and then: a loop that is not in its wait and whose numbers
 * have stayed the same has been in one callback all the time between.
 *
 * While all the loops of a watcher wait, it sleeps as well, without a time-out, so that an idle
 * process stays idle. A loop whose wait has ended wakes it, which is one look at `asleep` per wait
 * and one system call per sleep of the watcher. No wake-up is lost: in one order for everybody,
 *
 *     the watcher   W1  asleep = true           the loop   L1  waiting = false
 *                   W2  reads `waiting`                    L2  reads `asleep`
 *
 * and if W2 still sees the loop waiting, L1 is after it, and L2 sees W1.
 *
 * A watcher is never freed, but used again: a loop may just be about to wake it.
 *
 * The child of a fork has none of the threads that may have held a lock just then: it makes all locks
 * anew. What the lock keeps in order is in order or is an entry that was just being added. */
#ifndef MGLOOP_PULSE_H
#define MGLOOP_PULSE_H

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
#include "inbox.h"
#include "ring.h"

typedef struct {
    mgl_inbox *inbox;
    const mgl_ring *ready;
    mgl_counters *count;
    size_t head; /* of the queue, and iterations, when last looked at */
    int64_t iterations;
    int64_t since; /* when they were first seen to be these; 0 = it waited */
    int64_t next;  /* nanoseconds of standing still after which the next report is due */
    bool reported;
} mgl_watched;

enum { MGL_WATCHED = 256 }; /* loops of one watcher */

typedef struct mgl_watcher {
    struct mgl_watcher *free;  /* the next that nobody uses */
    struct mgl_watcher *older; /* the one made before */
    sem_t wake;
    pthread_mutex_t lock; /* of all below, against who adds and takes away loops */
    mgl_watched loops[MGL_WATCHED];
    int n;
    int64_t threshold, period; /* nanoseconds */
    mgl_inbox *resumed; /* of the loop whose going on is still to be told */
    int64_t stood;      /* and for how long it stood still, nanoseconds */
    atomic_bool asleep;
    atomic_bool called;
    atomic_bool stopped;
} mgl_watcher;

/* Where the clock of the day can be done without it is: set back, it would have the watcher look away. */
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 30)
#define MGL_WAKE_CLOCK CLOCK_MONOTONIC
#define mgl_wake_timedwait(wake, until) sem_clockwait(wake, CLOCK_MONOTONIC, until)
#else
#define MGL_WAKE_CLOCK CLOCK_REALTIME
#define mgl_wake_timedwait(wake, until) sem_timedwait(wake, until)
#endif

static mgl_watcher *mgl_free_watchers, *mgl_newest_watcher;
static pthread_mutex_t mgl_watchers_lock = PTHREAD_MUTEX_INITIALIZER; /* of both lists */

static void mgl_watchers_in_child(void) {
    mgl_watcher *w;
    pthread_mutex_init(&mgl_watchers_lock, NULL);
    for (w = mgl_newest_watcher; w != NULL; w = w->older) pthread_mutex_init(&w->lock, NULL);
}

typedef enum { MGL_STOPPED, MGL_CALLED, MGL_STALLS, MGL_GOES_ON } mgl_pulse;

static inline void mgl_watcher_wake(mgl_watcher *w) {
    if (atomic_load(&w->asleep) && atomic_exchange(&w->asleep, false)) sem_post(&w->wake);
}

/* By a loop whose wait has ended. */
static inline void mgl_inbox_stirs(mgl_inbox *box) {
    mgl_watcher *w = atomic_load(&box->watcher);
    if (w != NULL) mgl_watcher_wake(w);
}

static inline bool mgl_is_idle(const mgl_watched *l) {
    return atomic_load(&l->inbox->waiting) || atomic_load(&l->inbox->thread) == 0;
}

/* Has it moved since it was last looked at? Notes where it is now. */
static inline bool mgl_has_moved(mgl_watched *l) {
    size_t head = __atomic_load_n(&l->ready->head, __ATOMIC_RELAXED);
    int64_t iterations = mgl_counted(&l->count->iterations);
    bool moved = head != l->head || iterations != l->iterations;
    l->head = head;
    l->iterations = iterations;
    return moved;
}

/* One look at all: the first of which there is something to say, or -1; *busy: somebody is. */
static inline int mgl_watcher_look(mgl_watcher *w, int64_t now, bool *busy, mgl_pulse *what, int64_t *lasted) {
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
            w->resumed = l->inbox;
            w->stood = *lasted;
            *what = MGL_GOES_ON;
            return i;
        }
    }
    return -1;
}

/* Under the list's lock. NULL: no memory. */
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

/* For a new watcher, or one that was given back. NULL: no memory. */
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

/* Have mgl_watcher_wait() return MGL_CALLED. */
static inline void mgl_watcher_call(mgl_watcher *w) {
    atomic_store(&w->called, true);
    sem_post(&w->wake);
}

typedef enum { MGL_IS_WATCHED, MGL_WAS_WATCHED, MGL_TOO_MANY } mgl_watching;

static inline mgl_watching mgl_watcher_add(mgl_watcher *w, mgl_inbox *inbox, const mgl_ring *ready,
                                           mgl_counters *count) {
    struct mgl_watcher *nobody = NULL;
    mgl_watching done = MGL_TOO_MANY;
    pthread_mutex_lock(&w->lock);
    if (w->n < MGL_WATCHED) {
        done = MGL_WAS_WATCHED;
        if (atomic_compare_exchange_strong(&inbox->watcher, &nobody, w)) {
            done = MGL_IS_WATCHED;
            w->loops[w->n++] = (mgl_watched){.inbox = inbox, .ready = ready, .count = count, .next = w->threshold};
        }
    }
    pthread_mutex_unlock(&w->lock);
    mgl_watcher_wake(w);
    return done;
}

/* Whether the caller is to tell that the loop goes on: once of each, the watcher's thread, or who
 * removes the loop meanwhile. *stood: nanoseconds of standing still. */
static inline bool mgl_tells(mgl_watcher *w, mgl_inbox *inbox, int64_t *stood) {
    if (w->resumed != inbox) return false;
    w->resumed = NULL;
    *stood = w->stood;
    return true;
}

static inline bool mgl_watcher_tells(mgl_watcher *w, mgl_inbox *inbox, int64_t *stood) {
    pthread_mutex_lock(&w->lock);
    bool tells = mgl_tells(w, inbox, stood);
    pthread_mutex_unlock(&w->lock);
    return tells;
}

/* Nanoseconds that it stood still, if nobody has been told yet that it goes on; else 0. */
static inline int64_t mgl_watcher_remove(mgl_watcher *w, mgl_inbox *inbox) {
    int64_t stood = 0;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n; i++)
        if (w->loops[i].inbox == inbox) {
            if (!mgl_tells(w, inbox, &stood) && w->loops[i].reported) stood = mgl_clock_ns() - w->loops[i].since;
            w->loops[i] = w->loops[--w->n];
            atomic_store(&inbox->watcher, NULL);
            break;
        }
    pthread_mutex_unlock(&w->lock);
    return stood;
}

/* Whether the loop stands where it stood when it was last looked at. */
static inline bool mgl_watcher_stands(mgl_watcher *w, mgl_inbox *inbox) {
    bool stands = false;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n; i++)
        if (w->loops[i].inbox == inbox) {
            mgl_watched copy = w->loops[i];
            stands = !mgl_is_idle(&copy) && !mgl_has_moved(&copy);
        }
    pthread_mutex_unlock(&w->lock);
    return stands;
}

/* Blocks, detached from the interpreter, until there is something to say of the loop *which, or the
 * watcher is called or stopped. *lasted: nanoseconds of standing still. */
static inline mgl_pulse mgl_watcher_wait(mgl_watcher *w, mgl_inbox **which, int64_t *lasted) {
    for (;;) {
        bool busy;
        mgl_pulse what = MGL_STOPPED;
        pthread_mutex_lock(&w->lock);
        int i = mgl_watcher_look(w, mgl_clock_ns(), &busy, &what, lasted);
        if (i >= 0) *which = w->loops[i].inbox;
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
