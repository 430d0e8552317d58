/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Time-outs of many connections, of a few kinds.
 *
 * All of a kind last equally long, so a queue for each kind is in order by itself: setting one and
 * taking it back are a few pointers, and only the first of each queue has to be looked at when the
 * loop's one timer rings. Nothing is allocated; the entries lie in the connections, which take
 * theirs out before they are freed. The queues' heads lie in the Site, which clears the queues before
 * it is freed: the garbage collector may free it before its connections. */
#ifndef MGLOOP_DEADLINES_H
#define MGLOOP_DEADLINES_H

#include <stddef.h>
#include <time.h>

/* The time of a client for a head, a body, and so on. MGL_TAIL: the keep-alive time is over, but the client still
 * receives the end of the last response; its progress is checked again and again. */
enum { MGL_HEAD, MGL_BODY, MGL_KEEP_ALIVE, MGL_TAIL, MGL_WRITE, MGL_LINGER, MGL_KINDS };

/* In seconds. A time-out of less would be due again in the same pass over the queues, for ever. */
#define MGL_SHORTEST 0.01

typedef struct mgl_deadline {
    struct mgl_deadline *before, *after; /* NULL = not set */
    double when;
    void *owner;
} mgl_deadline;

typedef struct mgl_deadlines {
    mgl_deadline queues[MGL_KINDS]; /* each the head of a ring */
    double lasts[MGL_KINDS];        /* in seconds; 0 = without end */
} mgl_deadlines;

/* Precise to some milliseconds, and a third of the price. */
static inline double mgl_coarse_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (double) now.tv_sec + (double) now.tv_nsec * 1e-9;
}

static inline void mgl_deadlines_init(mgl_deadlines *all) {
    int kind;
    for (kind = 0; kind < MGL_KINDS; kind++) all->queues[kind].before = all->queues[kind].after = &all->queues[kind];
}

static inline void mgl_deadline_unset(mgl_deadline *entry) {
    if (entry->before == NULL) return;
    entry->before->after = entry->after;
    entry->after->before = entry->before;
    entry->before = entry->after = NULL;
}

/* Takes all entries out of their queues. */
static inline void mgl_deadlines_clear(mgl_deadlines *all) {
    int kind;
    for (kind = 0; kind < MGL_KINDS; kind++)
        while (all->queues[kind].after != &all->queues[kind]) mgl_deadline_unset(all->queues[kind].after);
}

/* Counts from now, or not at all if this kind is without end. When it will be, 0 = never. */
static inline double mgl_deadline_set(mgl_deadlines *all, mgl_deadline *entry, int kind) {
    mgl_deadline *queue = &all->queues[kind];
    mgl_deadline_unset(entry);
    if (!(all->lasts[kind] > 0)) return 0;
    entry->when = mgl_coarse_time() + (all->lasts[kind] > MGL_SHORTEST ? all->lasts[kind] : MGL_SHORTEST);
    entry->before = queue->before;
    entry->after = queue;
    queue->before->after = entry;
    queue->before = entry;
    return entry->when;
}

/* The first of the kind, or NULL. */
static inline mgl_deadline *mgl_deadline_first(mgl_deadlines *all, int kind) {
    mgl_deadline *first = all->queues[kind].after;
    return first == &all->queues[kind] ? NULL : first;
}

#endif
