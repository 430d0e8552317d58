/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The run state of a handle that several threads can access: the loop, which runs it, and threads that
 * cancel it. Each needs to take the callback out of the handle, and only one of them may.
 *
 *     PENDING --begin()--> RUNNING --await()--> AWAITED
 *     |  |  ^                 \-----end()-----> OVER <----end()----/
 *     |  |  \--inspected()--\
 *     |  \----inspect()---> INSPECTED
 *     \--cancel()--> CANCELLED
 *
 * This requires no lock, because only the loop begins and ends a run. A thread that inspects the handle
 * takes references to its contents, and other threads wait until that is done, which takes about ten
 * instructions. */
#ifndef MGLOOP_RUNSTATE_H
#define MGLOOP_RUNSTATE_H

#include <Python.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct {
    atomic_int state;     /* zero (pending) in a new handle */
    atomic_ulong thread;  /* the thread that runs or has cancelled the handle; 0 until it is stored */
} mgl_run_state;

enum { MGL_PENDING, MGL_INSPECTED, MGL_RUNNING, MGL_AWAITED, MGL_OVER, MGL_CANCELLED };

/* Changes the state from pending to another one. False if another thread has already done so. */
static inline bool mgl_run_state_leave(mgl_run_state *run, int state) {
    int before = MGL_PENDING;
    while (!atomic_compare_exchange_strong(&run->state, &before, state)) {
        if (before != MGL_INSPECTED) return false;
        before = MGL_PENDING;
        sched_yield();
    }
    return true;
}

static inline bool mgl_run_state_take(mgl_run_state *run, int state) {
    if (!mgl_run_state_leave(run, state)) return false;
    atomic_store_explicit(&run->thread, PyThread_get_thread_ident(), memory_order_relaxed);
    return true;
}

/* Returns false if the handle has been cancelled, and thus belongs to another thread. */
static inline bool mgl_run_state_begin(mgl_run_state *run) { return mgl_run_state_take(run, MGL_RUNNING); }

/* Returns true if a thread waits for the end of the callback and must be notified. */
static inline bool mgl_run_state_end(mgl_run_state *run) {
    return atomic_exchange(&run->state, MGL_OVER) == MGL_AWAITED;
}

/* Returns true if the handle will not run, and its contents belong to the caller. */
static inline bool mgl_run_state_cancel(mgl_run_state *run) { return mgl_run_state_take(run, MGL_CANCELLED); }

/* Returns true if no other thread changes the handle until mgl_run_state_inspected(). */
static inline bool mgl_run_state_inspect(mgl_run_state *run) { return mgl_run_state_leave(run, MGL_INSPECTED); }
static inline void mgl_run_state_inspected(mgl_run_state *run) { atomic_store(&run->state, MGL_PENDING); }

static inline bool mgl_run_state_taken_here(mgl_run_state *run) {
    return atomic_load_explicit(&run->thread, memory_order_relaxed) == PyThread_get_thread_ident();
}

/* Returns true if this thread runs, has run or has cancelled the handle. */
static inline bool mgl_run_state_is_mine(mgl_run_state *run) {
    return atomic_load(&run->state) > MGL_INSPECTED && mgl_run_state_taken_here(run);
}

static inline bool mgl_run_state_runs(mgl_run_state *run, bool here) {
    int state = atomic_load(&run->state);
    return (state == MGL_RUNNING || state == MGL_AWAITED) && mgl_run_state_taken_here(run) == here;
}

/* Returns true if the callback is still running, and its end will be notified. */
static inline bool mgl_run_state_await(mgl_run_state *run) {
    int running = MGL_RUNNING;
    return atomic_compare_exchange_strong(&run->state, &running, MGL_AWAITED) || running == MGL_AWAITED;
}

/* The cancelled flag, which any thread may set and read. The run state determines its effect. */
static inline void mgl_flag_raise(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELAXED); }
static inline int mgl_flag_raised(const int *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }

#endif
