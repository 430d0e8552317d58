/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Timeouts of many connections, of a few kinds.
 *
 * All timeouts of a kind have the same length, so a queue per kind is always sorted. Setting and
 * unsetting a timeout changes a few pointers, and when the loop's only timer expires, only the first
 * entry of each queue has to be checked. Nothing is allocated: the entries are part of the
 * connections, which unset theirs before they are freed. The heads of the queues are part of the
 * Site, which clears the queues before it is freed, because the garbage collector may free it before
 * its connections. */
#ifndef MGLOOP_DEADLINES_H
#define MGLOOP_DEADLINES_H

#include <stddef.h>
#include <time.h>

/* The kinds: the time that a client has for a request head, for a body, and so on. MGL_TAIL: the keep-alive
 * timeout has expired, but the client is still receiving the end of the last response, and its progress is
 * checked periodically. */
enum { MGL_HEAD, MGL_BODY, MGL_KEEP_ALIVE, MGL_TAIL, MGL_WRITE, MGL_LINGER, MGL_KINDS };

/* Minimum in seconds. A shorter timeout could expire again in the same pass over the queues, endlessly. */
#define MGL_SHORTEST 0.01

typedef struct mgl_deadline {
    struct mgl_deadline *before, *after; /* NULL if not set */
    double when;
    void *owner;
} mgl_deadline;

typedef struct mgl_deadlines {
    mgl_deadline queues[MGL_KINDS]; /* each is the head of a circular list */
    double lasts[MGL_KINDS];        /* length in seconds; 0 for no timeout */
} mgl_deadlines;

/* Returns the time with a resolution of some milliseconds, at a third of the cost of the precise clock. */
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

/* Unsets all entries. */
static inline void mgl_deadlines_clear(mgl_deadlines *all) {
    int kind;
    for (kind = 0; kind < MGL_KINDS; kind++)
        while (all->queues[kind].after != &all->queues[kind]) mgl_deadline_unset(all->queues[kind].after);
}

/* Starts the timeout now and returns when it expires, or returns 0 if this kind has no timeout. */
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

/* Returns the first entry of the kind, or NULL. */
static inline mgl_deadline *mgl_deadline_first(mgl_deadlines *all, int kind) {
    mgl_deadline *first = all->queues[kind].after;
    return first == &all->queues[kind] ? NULL : first;
}

#endif
