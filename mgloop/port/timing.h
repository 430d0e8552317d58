/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Where a loop's time goes, if it was made to measure that: two histograms, and the time spent waiting.
 *
 * How late a callback runs is counted from when it could have run: a timer from its time, what a
 * poll has reported from that poll's end, what a callback has scheduled from that callback's end. The
 * clock is read once per callback, so these moments are known for stretches of the ready queue: a
 * mark says up to which place, counted since the loop was made, all was there at which time.
 * For the loop's thread; others may read the numbers. */
#ifndef MGLOOP_TIMING_H
#define MGLOOP_TIMING_H

#include <stdint.h>
#include <stdlib.h>

#include "clock.h"
#include "counters.h"

/* Bucket i counts what took less than 2^i microseconds, and not less than half of that; the last
 * one has no upper bound. */
enum { MGL_BUCKETS = 28 };

typedef struct {
    int64_t counts[MGL_BUCKETS];
    int64_t nanoseconds; /* all together */
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
    int64_t run;     /* stopwatches: inside run_forever(), */
    int64_t wait;    /* and in polls, of that */
    int64_t told_running, told_waiting; /* the most that anybody has read of these */
    uint64_t taken;  /* out of the ready queue */
    mgl_mark *marks; /* a ring, oldest first */
    size_t mask, head, tail;
} mgl_timing;

/* A stopwatch is one word, of which no thread ever sees half a change: the nanoseconds that were
 * measured, less, while it runs, the time at which it was started. That is below zero then, since
 * the clock is older than all that it has measured. */
static inline void mgl_stopwatch_start(int64_t *watch, int64_t now) {
    if (*watch >= 0) mgl_count(watch, -now);
}

static inline void mgl_stopwatch_stop(int64_t *watch, int64_t now) {
    if (*watch < 0) mgl_count(watch, now);
}

/* A reading that does not go back. The loop's thread reads the clock first and touches the stopwatch
 * afterwards: if it is kept from the processor in between, who has looked meanwhile has been told what
 * turns out to belong to the other account. That stands until the account has caught up. */
static inline int64_t mgl_told(int64_t *most, int64_t reading) {
    int64_t last = __atomic_load_n(most, __ATOMIC_SEQ_CST);
    while (reading > last) {
        if (__atomic_compare_exchange_n(most, &last, reading, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            return reading;
        }
    }
    return last;
}

/* Time in run_forever() outside polls, and in polls, both at one moment; from any thread. Who looks
 * again and again never sees one of them go back. */
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
    *running = mgl_told(&t->told_running, run - wait);
    *waiting = mgl_told(&t->told_waiting, wait);
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

/* The ready queue is `length` long at this time. */
static inline void mgl_timing_mark(mgl_timing *t, size_t length, int64_t now) {
    uint64_t upto = t->taken + length;
    size_t last = (t->tail - 1) & t->mask;
    if (t->tail != t->head && t->marks[last].upto >= upto) return;
    if (t->tail - t->head > t->mask) {
        /* More stretches than are kept apart: the last two are one. */
        t->marks[last].upto = upto;
        return;
    }
    t->marks[t->tail++ & t->mask] = (mgl_mark){upto, now};
}

/* The oldest of the queue is taken out: since when it has been there. */
static inline int64_t mgl_timing_take(mgl_timing *t, int64_t now) {
    uint64_t place = t->taken++;
    while (t->head != t->tail && t->marks[t->head & t->mask].upto <= place) t->head++;
    return t->head != t->tail ? t->marks[t->head & t->mask].at : now;
}

#endif
