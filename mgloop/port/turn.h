/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The run state of a handle that several threads can access: the loop, which runs it, and threads that
 * cancel it. Each needs to take the callback out of the handle, and only one of them may.
 *
 *     PENDING --begin()--> RUNNING --await()--> AWAITED
 *     |  |  ^                 \-----end()-----> OVER <----end()----/
 *     |  |  \--looked()--\
 *     |  \----look()---> LOOKED_AT
 *     \--cancel()--> CANCELLED
 *
 * This requires no lock, because only the loop begins and ends a run. A thread that inspects the handle
 * takes references to its contents, and other threads wait until that is done, which takes about ten
 * instructions. */
#ifndef MGLOOP_TURN_H
#define MGLOOP_TURN_H

#include <Python.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct {
    atomic_int state;     /* zero (pending) in a new handle */
    atomic_ulong thread;  /* the thread that runs or has cancelled the handle; 0 until it is stored */
} mgl_turn;

enum { MGL_PENDING, MGL_LOOKED_AT, MGL_RUNNING, MGL_AWAITED, MGL_OVER, MGL_CANCELLED };

/* Changes the state from pending to another one. False if another thread has already done so. */
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

/* Returns false if the handle has been cancelled, and thus belongs to another thread. */
static inline bool mgl_turn_begin(mgl_turn *turn) { return mgl_turn_take(turn, MGL_RUNNING); }

/* Returns true if a thread waits for the end of the callback and must be notified. */
static inline bool mgl_turn_end(mgl_turn *turn) {
    return atomic_exchange(&turn->state, MGL_OVER) == MGL_AWAITED;
}

/* Returns true if the handle will not run, and its contents belong to the caller. */
static inline bool mgl_turn_cancel(mgl_turn *turn) { return mgl_turn_take(turn, MGL_CANCELLED); }

/* Returns true if no other thread changes the handle until mgl_turn_looked(). */
static inline bool mgl_turn_look(mgl_turn *turn) { return mgl_turn_leave(turn, MGL_LOOKED_AT); }
static inline void mgl_turn_looked(mgl_turn *turn) { atomic_store(&turn->state, MGL_PENDING); }

static inline bool mgl_turn_taken_here(mgl_turn *turn) {
    return atomic_load_explicit(&turn->thread, memory_order_relaxed) == PyThread_get_thread_ident();
}

/* Returns true if this thread runs, has run or has cancelled the handle. */
static inline bool mgl_turn_is_mine(mgl_turn *turn) {
    return atomic_load(&turn->state) > MGL_LOOKED_AT && mgl_turn_taken_here(turn);
}

static inline bool mgl_turn_runs(mgl_turn *turn, bool here) {
    int state = atomic_load(&turn->state);
    return (state == MGL_RUNNING || state == MGL_AWAITED) && mgl_turn_taken_here(turn) == here;
}

/* Returns true if the callback is still running, and its end will be notified. */
static inline bool mgl_turn_await(mgl_turn *turn) {
    int running = MGL_RUNNING;
    return atomic_compare_exchange_strong(&turn->state, &running, MGL_AWAITED) || running == MGL_AWAITED;
}

/* The cancelled flag, which any thread may set and read. The run state determines its effect. */
static inline void mgl_flag_raise(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELAXED); }
static inline int mgl_flag_raised(const int *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }

#endif
