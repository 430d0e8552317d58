/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Whose turn it is with a handle that several threads may reach: the loop's, which runs it, or that
 * of who cancels it. Each wants to take its callback out, and one of them may.
 *
 *     PENDING --begin()--> RUNNING --await()--> AWAITED
 *     |  |  ^                 \-----end()-----> OVER <----end()----/
 *     |  |  \--looked()--\
 *     |  \----look()---> LOOKED_AT
 *     \--cancel()--> CANCELLED
 *
 * Needs no lock: the loop is the only one to begin and to end. But who looks at it takes references
 * to what it refers to, and all else waits until that is done, which takes some ten instructions. */
#ifndef MGLOOP_TURN_H
#define MGLOOP_TURN_H

#include <Python.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct {
    atomic_int state;     /* zero in a new handle: pending */
    atomic_ulong thread;  /* that runs the callback, or has cancelled it; 0 until that is written */
} mgl_turn;

enum { MGL_PENDING, MGL_LOOKED_AT, MGL_RUNNING, MGL_AWAITED, MGL_OVER, MGL_CANCELLED };

/* From pending to another state. False: it is somebody else's already. */
static inline bool mgl_turn_leave(mgl_turn *turn, int state) {
    int before = MGL_PENDING;
    while (!atomic_compare_exchange_strong(&turn->state, &before, state)) {
        if (before != MGL_LOOKED_AT) return false;
        before = MGL_PENDING;
        sched_yield();
    }
    return true;
}

static inline bool mgl_turn_take(mgl_turn *turn, int state) {
    if (!mgl_turn_leave(turn, state)) return false;
    atomic_store_explicit(&turn->thread, PyThread_get_thread_ident(), memory_order_relaxed);
    return true;
}

/* False: it was cancelled, and is somebody else's. */
static inline bool mgl_turn_begin(mgl_turn *turn) { return mgl_turn_take(turn, MGL_RUNNING); }

/* True: somebody waits to be told. */
static inline bool mgl_turn_end(mgl_turn *turn) {
    return atomic_exchange(&turn->state, MGL_OVER) == MGL_AWAITED;
}

/* True: it will not run, and is the caller's. */
static inline bool mgl_turn_cancel(mgl_turn *turn) { return mgl_turn_take(turn, MGL_CANCELLED); }

/* True: nobody else changes it until mgl_turn_looked(). */
static inline bool mgl_turn_look(mgl_turn *turn) { return mgl_turn_leave(turn, MGL_LOOKED_AT); }
static inline void mgl_turn_looked(mgl_turn *turn) { atomic_store(&turn->state, MGL_PENDING); }

static inline bool mgl_turn_taken_here(mgl_turn *turn) {
    return atomic_load_explicit(&turn->thread, memory_order_relaxed) == PyThread_get_thread_ident();
}

/* True: it is this thread that runs, has run or has cancelled it. */
static inline bool mgl_turn_is_mine(mgl_turn *turn) {
    return atomic_load(&turn->state) > MGL_LOOKED_AT && mgl_turn_taken_here(turn);
}

static inline bool mgl_turn_runs(mgl_turn *turn, bool here) {
    int state = atomic_load(&turn->state);
    return (state == MGL_RUNNING || state == MGL_AWAITED) && mgl_turn_taken_here(turn) == here;
}

/* True: it still runs, and its end will be told. */
static inline bool mgl_turn_await(mgl_turn *turn) {
    int running = MGL_RUNNING;
    return atomic_compare_exchange_strong(&turn->state, &running, MGL_AWAITED) || running == MGL_AWAITED;
}

/* That it is cancelled, which any thread may say and ask. What comes of it is a matter of turns. */
static inline void mgl_flag_raise(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELAXED); }
static inline int mgl_flag_raised(const int *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }

#endif
