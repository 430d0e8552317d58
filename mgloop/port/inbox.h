/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Where other threads leave what a loop is to run (posted.h), and how they end its wait.
 *
 * No wake-up is lost. Without the GIL all of these are sequentially consistent, that is in one order
 * for everybody:
 *
 *     who posts   P1  posts                   the loop   L1  waiting = true
 *                 P2  reads `waiting`                    L2  looks whether anything is posted
 *                 P3  true: sends a wake-up              L3  nothing there: waits
 *
 * Were a handle left lying, P2 would have read false, so P2 is before L1; and L2 would have seen
 * nothing, so L2 is before P1. But P1 is before P2 and L1 before L2: these four make a circle.
 * (Under the GIL P1 and P2 are one step, and L1 and L2 another.)
 * `woken` spares all but the first sender their system call. It is cleared before L1, and set
 * before a sending that nobody clears it again between: a second wake-up may be sent, never none.
 *
 * `lock` is held while somebody sends, and while the loop makes the means of sending anew or gives
 * them up: nobody sends into a descriptor that has become another file. No Python runs under it.
 *
 * It lies on cache lines of its own. Lifetime: the loop object's, which who posts has a reference
 * to; once `posted` is closed nothing can be posted. Holds one reference to each handle. */
#ifndef MGLOOP_INBOX_H
#define MGLOOP_INBOX_H

#include <Python.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "posted.h"

struct mgl_poll;
struct mgl_watcher;

typedef struct mgl_inbox {
    _Alignas(64) mgl_posted posted;
    atomic_bool waiting; /* the loop waits, or is about to */
    atomic_bool woken;   /* a wake-up is on its way */
    pthread_mutex_t lock;
    struct mgl_poll *poll; /* NULL = cannot be woken */
    int64_t wakeups;       /* sent */
    _Atomic(struct mgl_watcher *) watcher; /* who looks whether the loop goes on (pulse.h), or NULL */
    unsigned fork_count;   /* as the port's: whose process it is */
    atomic_ulong thread;   /* that runs the loop, 0 = none */
    atomic_bool closing;   /* a thread is at it, or has been */
} mgl_inbox;

static inline mgl_inbox *mgl_inbox_new(void) {
    mgl_inbox *box = (mgl_inbox *) aligned_alloc(64, sizeof(*box));
    if (box == NULL) return (mgl_inbox *) PyErr_NoMemory();
    memset(box, 0, sizeof(*box));
    pthread_mutex_init(&box->lock, NULL);
    return box;
}

static inline void mgl_inbox_free(mgl_inbox *box) {
    if (box == NULL) return;
    pthread_mutex_destroy(&box->lock);
    free(box);
}

typedef enum { MGL_MAY, MGL_RUNS, MGL_CLOSES } mgl_permit;

/* Who wants to run the loop says so and then looks whether anybody closes it, and the other way
 * round: of two threads that do both at once, one at least sees the other. */

static inline void mgl_inbox_leave(mgl_inbox *box) { atomic_store(&box->thread, 0); }

/* MGL_MAY: from now on this thread runs the loop. */
static inline mgl_permit mgl_inbox_enter(mgl_inbox *box) {
    unsigned long nobody = 0;
    if (!atomic_compare_exchange_strong(&box->thread, &nobody, PyThread_get_thread_ident())) return MGL_RUNS;
    if (!atomic_load(&box->closing)) return MGL_MAY;
    mgl_inbox_leave(box);
    return MGL_CLOSES;
}

static inline void mgl_inbox_abandon_close(mgl_inbox *box) { atomic_store(&box->closing, false); }

/* MGL_MAY: from now on nobody else closes the loop, or runs it. */
static inline mgl_permit mgl_inbox_begin_close(mgl_inbox *box) {
    if (atomic_exchange(&box->closing, true)) return MGL_CLOSES;
    if (atomic_load(&box->thread) == 0) return MGL_MAY;
    mgl_inbox_abandon_close(box);
    return MGL_RUNS;
}

/* Whether the loop runs in this thread. */
static inline bool mgl_inbox_here(mgl_inbox *box) {
    return atomic_load_explicit(&box->thread, memory_order_relaxed) == PyThread_get_thread_ident();
}

/* Whether it runs in another one. */
static inline bool mgl_inbox_elsewhere(mgl_inbox *box) {
    unsigned long thread = atomic_load_explicit(&box->thread, memory_order_relaxed);
    return thread != 0 && thread != PyThread_get_thread_ident();
}

#endif
