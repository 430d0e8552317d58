/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Where other threads leave what a loop is to run, and how they end its wait.
 *
 * Many may post at a time, one takes: the loop's thread. A letter lies inside the handle that it
 * brings, so that posting allocates nothing and cannot fail but for a closed loop. `newest` is the
 * head of a list, each letter pointing to the one before; the loop takes the whole list by one
 * exchange and turns it round in its queue. So the letters of one thread stay in their order, and
 * those of several threads are in the order of their exchanges.
 *
 * No wake-up is lost. All of these are sequentially consistent, that is in one order for everybody:
 *
 *     who posts   P1  newest = letter         the loop   L1  waiting = true
 *                 P2  reads `waiting`                    L2  reads `newest`
 *                 P3  true: sends a wake-up              L3  nothing there: waits
 *
 * Were a letter left lying, P2 would have read false, so P2 is before L1; and L2 would have read
 * nothing, so L2 is before P1. But P1 is before P2 and L1 before L2: these four make a circle.
 * `woken` spares all but the first sender their system call. It is cleared before L1, and set
 * before a sending that nobody clears it again between: a second wake-up may be sent, never none.
 *
 * `lock` is held while somebody sends, and while the loop makes the means of sending anew or gives
 * them up: nobody sends into a descriptor that has become another file. No Python runs under it.
 *
 * It lies on cache lines of its own. Lifetime: the loop object's, which who posts has a reference
 * to; after mgl_inbox_close() nothing can be posted. Holds one reference to each handle. */
#ifndef MGLOOP_INBOX_H
#define MGLOOP_INBOX_H

#include <Python.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef Py_GIL_DISABLED
#define MGL_WITHOUT_GIL 1
#else
#define MGL_WITHOUT_GIL 0
#endif

typedef struct mgl_letter {
    struct mgl_letter *before;
    PyObject *handle; /* that it lies in; NULL = was never posted */
} mgl_letter;

struct mgl_poll;
struct mgl_watcher;

typedef struct mgl_inbox {
    _Alignas(64) _Atomic(mgl_letter *) newest; /* or mgl_no_more */
    atomic_bool waiting;                       /* the loop waits, or is about to */
    atomic_bool woken;                         /* a wake-up is on its way */
    pthread_mutex_t lock;
    struct mgl_poll *poll; /* NULL = cannot be woken */
    int64_t wakeups;       /* sent */
    _Atomic(struct mgl_watcher *) watcher; /* who looks whether the loop goes on (pulse.h), or NULL */
    unsigned fork_count;   /* as the port's: whose process it is */
    atomic_ulong thread;   /* that runs the loop, 0 = none */
    atomic_bool closing;   /* a thread is at it, or has been */
} mgl_inbox;

/* What `newest` is in a loop that is closed. */
static mgl_letter *const mgl_no_more = (mgl_letter *) 1;

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

/* MGL_MAY: from now on nobody else closes the loop, or runs it. */
static inline mgl_permit mgl_inbox_begin_close(mgl_inbox *box) {
    if (atomic_exchange(&box->closing, true)) return MGL_CLOSES;
    if (atomic_load(&box->thread) == 0) return MGL_MAY;
    atomic_store(&box->closing, false);
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

/* Takes a reference that another thread will let go of.
 *
 * Without the GIL an object counts the references of the thread that has made it apart from those of
 * all others. Counted here and let go of there, the two would have to be settled by the maker, in
 * a queue of its own, for each call that is posted (_Py_brc_queue_object). So it is counted at once
 * where the other thread will count it down, as Py_INCREF() does in any other thread. */
static inline PyObject *mgl_gift(PyObject *o) {
#ifdef Py_GIL_DISABLED
    if (!_Py_IsImmortal(o)) _Py_atomic_add_ssize(&o->ob_ref_shared, 1 << _Py_REF_SHARED_SHIFT);
#else
    Py_INCREF(o);
#endif
    return o;
}

/* Takes a new reference to the handle. False: the loop is closed. */
static inline bool mgl_inbox_post(mgl_inbox *box, mgl_letter *letter, PyObject *handle) {
    mgl_letter *before = atomic_load_explicit(&box->newest, memory_order_relaxed);
    letter->handle = mgl_gift(handle);
    do {
        if (before == mgl_no_more) {
            Py_DECREF(handle);
            return false;
        }
        letter->before = before;
    } while (!atomic_compare_exchange_weak(&box->newest, &before, letter));
    return true;
}

/* Whether there is anything to take; by the loop's thread. */
static inline bool mgl_inbox_any(mgl_inbox *box) {
    mgl_letter *newest = atomic_load(&box->newest);
    return newest != NULL && newest != mgl_no_more;
}

/* What lies there, linked by `before`; for the collector, which nobody posts beside. */
static inline mgl_letter *mgl_inbox_newest(mgl_inbox *box) {
    mgl_letter *newest = atomic_load(&box->newest);
    return newest == mgl_no_more ? NULL : newest;
}

/* Everything that has been posted, newest first and linked by `before`: who looks at each of many
 * handles waits for memory, so it is done once. The caller owns the references, and must read a
 * letter's link before it lets go of the handle. */
static inline mgl_letter *mgl_inbox_take(mgl_inbox *box) {
    mgl_letter *newest = atomic_load_explicit(&box->newest, memory_order_relaxed);
    /* One that is closed stays so: nobody but the loop's thread closes it. */
    if (newest == NULL || newest == mgl_no_more) return NULL;
    return atomic_exchange(&box->newest, NULL);
}

/* What was taken goes back, before what has been posted since: there was no memory for it. */
static inline void mgl_inbox_put_back(mgl_inbox *box, mgl_letter *newest) {
    mgl_letter *nothing = NULL;
    if (newest == NULL || atomic_compare_exchange_strong(&box->newest, &nothing, newest)) return;
    /* Something has: into the list behind it, which nobody but this thread follows or takes. */
    mgl_letter *last = atomic_load(&box->newest);
    while (last->before != NULL) last = last->before;
    last->before = newest;
}

/* As mgl_inbox_take(), and the last time: from now on posting fails. */
static inline mgl_letter *mgl_inbox_close(mgl_inbox *box) {
    mgl_letter *newest = atomic_exchange(&box->newest, mgl_no_more);
    return newest == mgl_no_more ? NULL : newest;
}

#endif
