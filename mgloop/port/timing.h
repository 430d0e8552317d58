/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The timing of a loop, if enabled: two histograms, and the time spent waiting.
 *
 * The delay of a callback is measured from the time at which it became ready. For a timer that is its
 * deadline, for an event the end of the poll that reported it, and for a call from another callback
 * the end of that callback. The clock is read once per callback, so these times are known for ranges
 * of the ready queue. A mark contains a time, and the position (counted since the creation of the
 * loop) up to which the queue was filled at that time.
 * The loop's thread writes these fields; other threads may read the numbers. */
#ifndef MGLOOP_TIMING_H
#define MGLOOP_TIMING_H

#include <stdint.h>
#include <stdlib.h>

#include "clock.h"
#include "counters.h"

/* Bucket i counts durations of less than 2^i microseconds, but at least half of that. The last bucket
 * is unbounded. */
enum { MGL_BUCKETS = 28 };

typedef struct {
    int64_t counts[MGL_BUCKETS];
    int64_t nanoseconds; /* sum */
} mgl_histogram;

static inline void mgl_histogram_add(mgl_histogram *h, int64_t ns) {
    if (ns < 0) ns = 0;
    uint64_t us = (uint64_t) ns / 1000;
    int i = us == 0 ? 0 : 64 - __builtin_clzll(us);
    mgl_count(&h->counts[i < MGL_BUCKETS ? i : MGL_BUCKETS - 1], 1);
    mgl_count(&h->nanoseconds, ns);
}

typedef struct {
    uint64_t upto;
    int64_t at;
} mgl_mark;

typedef struct {
    mgl_histogram lag, duration;
    int64_t run;     /* stopwatch of the time inside run_forever() */
    int64_t wait;    /* stopwatch of the part of it in polls */
    int64_t most_running, most_waiting; /* the largest values that readers have got */
    uint64_t taken;  /* callbacks taken from the ready queue so far */
    mgl_mark *marks; /* a ring buffer, oldest first */
    size_t mask, head, tail;
} mgl_timing;

/* A stopwatch is a single word, so that other threads never see a partial change. It holds the measured
 * nanoseconds, minus the start time while it is running. A running stopwatch is therefore negative,
 * because the clock started before all measurements. */
static inline void mgl_stopwatch_start(int64_t *watch, int64_t now) {
    if (*watch >= 0) mgl_count(watch, -now);
}

static inline void mgl_stopwatch_stop(int64_t *watch, int64_t now) {
    if (*watch < 0) mgl_count(watch, now);
}

/* Makes readings monotonic. The loop's thread reads the clock before it updates the stopwatch. If it is
 * preempted in between, a reader attributes that time to the wrong stopwatch. Readers keep getting that
 * larger value until the stopwatch has caught up. */
static inline int64_t mgl_monotonic(int64_t *most, int64_t reading) {
    int64_t last = __atomic_load_n(most, __ATOMIC_SEQ_CST);
    while (reading > last) {
        if (__atomic_compare_exchange_n(most, &last, reading, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            return reading;
        }
    }
    return last;
}

/* Returns the time in run_forever() outside polls, and in polls, at the same instant. Thread-safe, and
 * neither value ever decreases for a reader. */
static inline void mgl_timing_read(mgl_timing *t, int64_t *running, int64_t *waiting) {
    int64_t run, wait, now;
    do {
        run = __atomic_load_n(&t->run, __ATOMIC_SEQ_CST);
        wait = __atomic_load_n(&t->wait, __ATOMIC_SEQ_CST);
        now = mgl_clock_ns();
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    } while (run != mgl_counted(&t->run) || wait != mgl_counted(&t->wait));
    if (run < 0) run += now;
    if (wait < 0) wait += now;
    *running = mgl_monotonic(&t->most_running, run - wait);
    *waiting = mgl_monotonic(&t->most_waiting, wait);
}

static inline mgl_timing *mgl_timing_new(void) {
    mgl_timing *t = (mgl_timing *) calloc(1, sizeof(*t));
    if (t == NULL) return NULL;
    t->mask = 255;
    t->marks = (mgl_mark *) malloc((t->mask + 1) * sizeof(*t->marks));
    if (t->marks != NULL) return t;
    free(t);
    return NULL;
}

static inline void mgl_timing_free(mgl_timing *t) {
    if (t != NULL) free(t->marks);
    free(t);
}

/* Records that the ready queue has `length` entries at this time. */
static inline void mgl_timing_mark(mgl_timing *t, size_t length, int64_t now) {
    uint64_t upto = t->taken + length;
    size_t last = (t->tail - 1) & t->mask;
    if (t->tail != t->head && t->marks[last].upto >= upto) return;
    if (t->tail - t->head > t->mask) {
        /* The ring is full: merge the new range with the last one. */
        t->marks[last].upto = upto;
        return;
    }
    t->marks[t->tail++ & t->mask] = (mgl_mark){upto, now};
}

/* Records that the oldest entry is taken from the queue; returns the time since which it was ready. */
static inline int64_t mgl_timing_take(mgl_timing *t, int64_t now) {
    uint64_t place = t->taken++;
    while (t->head != t->tail && t->marks[t->head & t->mask].upto <= place) t->head++;
    return t->head != t->tail ? t->marks[t->head & t->mask].at : now;
}

#endif
