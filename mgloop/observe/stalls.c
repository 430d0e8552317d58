/* SPDX-License-Identifier: GPL-2.0-only
 *
 * stalls.h describes the detection of stalls.
 *
 * This file owns the lists of all detectors and the lock of the lists, for the whole process. meson.build
 * links it with one extension module, observe/_stalls. A second module would have lists of its own.
 *
 * The threads that held locks do not exist in the child of a fork, so the child initializes all locks
 * again. The data that they protect is consistent, apart from an entry that was just being added. */
#include "stalls.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"

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

enum { MAX_LOOPS = 256 }; /* of a detector */

struct mgl_detector {
    mgl_sleeper sleeper;
    mgl_detector *free;   /* the next unused detector */
    mgl_detector *older;  /* the detector created before this one */
    pthread_mutex_t lock; /* protects the fields below against threads that add and remove loops */
    mgl_watched loops[MAX_LOOPS];
    int n;
    int64_t threshold, period; /* nanoseconds */
    mgl_thread_queue *resumed; /* of the loop whose stall has ended and has not been reported yet */
    int64_t stalled_for;       /* length of that stall in nanoseconds */
    atomic_bool called;
    atomic_bool stopped;
};

/* Prefer the monotonic clock: if the real-time clock is set back, the detector would sleep too long. */
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 30)
#define WAKE_CLOCK CLOCK_MONOTONIC
#define wake_timedwait(wake, until) sem_clockwait(wake, CLOCK_MONOTONIC, until)
#else
#define WAKE_CLOCK CLOCK_REALTIME
#define wake_timedwait(wake, until) sem_timedwait(wake, until)
#endif

static mgl_detector *free_detectors, *newest_detector;
static pthread_mutex_t detectors_lock = PTHREAD_MUTEX_INITIALIZER; /* protects both lists */

static void renew_locks_in_child(void) {
    pthread_mutex_init(&detectors_lock, NULL);
    for (mgl_detector *d = newest_detector; d != NULL; d = d->older) pthread_mutex_init(&d->lock, NULL);
}

/* Must be called under the lock of the lists. Returns NULL if memory is exhausted. */
static mgl_detector *make_detector(void) {
    mgl_detector *d = (mgl_detector *) calloc(1, sizeof(*d));
    if (d == NULL) return NULL;
    if (newest_detector == NULL && pthread_atfork(NULL, NULL, renew_locks_in_child) != 0) {
        free(d);
        return NULL;
    }
    sem_init(&d->sleeper.wake, 0, 0);
    pthread_mutex_init(&d->lock, NULL);
    d->older = newest_detector;
    newest_detector = d;
    return d;
}

mgl_detector *mgl_detector_new(int64_t threshold, int64_t period) {
    mgl_detector *d;
    pthread_mutex_lock(&detectors_lock);
    d = free_detectors;
    if (d != NULL)
        free_detectors = d->free;
    else
        d = make_detector();
    pthread_mutex_unlock(&detectors_lock);
    if (d == NULL) return NULL;
    d->n = 0;
    d->resumed = NULL;
    d->threshold = threshold;
    d->period = period;
    atomic_store(&d->sleeper.asleep, false);
    atomic_store(&d->called, false);
    atomic_store(&d->stopped, false);
    return d;
}

void mgl_detector_release(mgl_detector *d) {
    pthread_mutex_lock(&detectors_lock);
    d->free = free_detectors;
    free_detectors = d;
    pthread_mutex_unlock(&detectors_lock);
}

/* ---------------------------------------------------------------- the loops ---- */

static bool is_idle(const mgl_watched *l) {
    return atomic_load(&l->thread_queue->waiting) || atomic_load(&l->thread_queue->thread) == 0;
}

/* Returns whether the loop has made progress since the last check, and stores its current position. */
static bool has_moved(mgl_watched *l) {
    size_t head = __atomic_load_n(&l->ready->head, __ATOMIC_RELAXED);
    int64_t iterations = mgl_counted(&l->count->iterations);
    bool moved = head != l->head || iterations != l->iterations;
    l->head = head;
    l->iterations = iterations;
    return moved;
}

mgl_add_result mgl_detector_add(mgl_detector *d, mgl_thread_queue *queue, const mgl_ring *ready, mgl_counters *count) {
    mgl_sleeper *none = NULL;
    mgl_add_result result = MGL_TOO_MANY;
    pthread_mutex_lock(&d->lock);
    if (d->n < MAX_LOOPS) {
        result = MGL_HAS_DETECTOR;
        if (atomic_compare_exchange_strong(&queue->sleeper, &none, &d->sleeper)) {
            result = MGL_ADDED;
            d->loops[d->n++] = (mgl_watched){
                .thread_queue = queue, .ready = ready, .count = count, .next = d->threshold};
        }
    }
    pthread_mutex_unlock(&d->lock);
    mgl_sleeper_wake(&d->sleeper);
    return result;
}

/* Must be called under the detector's lock, as mgl_detector_take_resumed() does. */
static bool take_resumed(mgl_detector *d, mgl_thread_queue *queue, int64_t *stalled_for) {
    if (d->resumed != queue) return false;
    d->resumed = NULL;
    *stalled_for = d->stalled_for;
    return true;
}

bool mgl_detector_take_resumed(mgl_detector *d, mgl_thread_queue *queue, int64_t *stalled_for) {
    pthread_mutex_lock(&d->lock);
    bool taken = take_resumed(d, queue, stalled_for);
    pthread_mutex_unlock(&d->lock);
    return taken;
}

int64_t mgl_detector_remove(mgl_detector *d, mgl_thread_queue *queue) {
    int64_t stalled_for = 0;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->n; i++)
        if (d->loops[i].thread_queue == queue) {
            if (!take_resumed(d, queue, &stalled_for) && d->loops[i].reported)
                stalled_for = mgl_clock_ns() - d->loops[i].since;
            d->loops[i] = d->loops[--d->n];
            atomic_store(&queue->sleeper, NULL);
            break;
        }
    pthread_mutex_unlock(&d->lock);
    return stalled_for;
}

bool mgl_detector_is_stalled(mgl_detector *d, mgl_thread_queue *queue) {
    bool stalled = false;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->n; i++)
        if (d->loops[i].thread_queue == queue) {
            mgl_watched copy = d->loops[i];
            stalled = !is_idle(&copy) && !has_moved(&copy);
        }
    pthread_mutex_unlock(&d->lock);
    return stalled;
}

/* ------------------------------------------------------- the detector's thread ---- */

/* Checks all loops. Returns the index of the first one with a result, or -1. *busy: one is not idle. */
static int check_loops(mgl_detector *d, int64_t now, bool *busy, mgl_stall_event *what, int64_t *lasted) {
    *busy = false;
    for (int i = 0; i < d->n; i++) {
        mgl_watched *l = &d->loops[i];
        bool idle = is_idle(l), moved = has_moved(l);
        if (!idle) *busy = true;
        if (!idle && !moved && l->since != 0) {
            if (now - l->since < l->next) continue;
            while (l->next <= now - l->since) l->next *= 2;
            l->reported = true;
            *what = MGL_STALLED;
            *lasted = now - l->since;
            return i;
        }
        bool reported = l->reported;
        *lasted = now - l->since;
        l->since = idle ? 0 : now;
        l->next = d->threshold;
        l->reported = false;
        if (reported) {
            d->resumed = l->thread_queue;
            d->stalled_for = *lasted;
            *what = MGL_CONTINUES;
            return i;
        }
    }
    return -1;
}

/* Sets `asleep` if all loops are idle, as the sequence in stalls.h requires. Returns whether one is not. */
static bool prepare_sleep(mgl_detector *d) {
    atomic_store(&d->sleeper.asleep, true);
    for (int i = 0; i < d->n; i++)
        if (!is_idle(&d->loops[i])) {
            atomic_store(&d->sleeper.asleep, false);
            return true;
        }
    return false;
}

/* Sleeps for one period, or until the detector is woken. */
static void sleep_period(mgl_detector *d) {
    struct timespec until;
    clock_gettime(WAKE_CLOCK, &until);
    int64_t ns = until.tv_nsec + d->period;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    while (wake_timedwait(&d->sleeper.wake, &until) != 0 && errno == EINTR) {}
}

mgl_stall_event mgl_detector_wait(mgl_detector *d, mgl_thread_queue **which, int64_t *lasted) {
    for (;;) {
        bool busy;
        mgl_stall_event what = MGL_STOPPED;
        pthread_mutex_lock(&d->lock);
        int i = check_loops(d, mgl_clock_ns(), &busy, &what, lasted);
        if (i >= 0)
            *which = d->loops[i].thread_queue;
        else if (!busy)
            busy = prepare_sleep(d);
        pthread_mutex_unlock(&d->lock);
        if (atomic_load(&d->stopped)) return MGL_STOPPED;
        if (i >= 0) return what;
        if (atomic_exchange(&d->called, false)) return MGL_CALLED;
        if (busy)
            sleep_period(d);
        else
            while (sem_wait(&d->sleeper.wake) != 0 && errno == EINTR) {}
    }
}

void mgl_detector_call(mgl_detector *d) {
    atomic_store(&d->called, true);
    sem_post(&d->sleeper.wake);
}

void mgl_detector_stop(mgl_detector *d) {
    atomic_store(&d->stopped, true);
    sem_post(&d->sleeper.wake);
}
