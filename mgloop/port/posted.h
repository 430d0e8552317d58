/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The handles that other threads have posted and their loop has not taken: what an inbox holds.
 *
 * Many post at a time, one takes: the loop's thread. It moves all that lies there to the end of its
 * queue, in one go. What one thread has posted stays in its order.
 *
 * Without the GIL it is a list that needs no lock. Each handle brings the letter that links it, so
 * that posting allocates nothing. `newest` is the head, each letter points to the one before; the
 * loop takes the whole list by one exchange and turns it round.
 *
 * Under the GIL, which both sides hold, it is a ring. A list costs the loop a wait for memory per
 * letter, one after the other, since each was written by another core and tells where the next is;
 * the ring's places are known beforehand. It is not the loop's queue, which keeps room for what a wait
 * brings, while others have the GIL; but an empty queue is exchanged for it, and nothing moved. */
#ifndef MGLOOP_POSTED_H
#define MGLOOP_POSTED_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "ring.h"

#ifdef Py_GIL_DISABLED

#include <stdatomic.h>

#define MGL_WITHOUT_GIL 1

typedef struct mgl_letter {
    struct mgl_letter *before;
    PyObject *handle; /* that it lies in */
} mgl_letter;

typedef struct {
    _Atomic(mgl_letter *) newest; /* or mgl_no_more */
    mgl_letter *rest;             /* of one that is closed, oldest first: the loop's thread's */
} mgl_posted;

/* What `newest` is once it is closed. */
static mgl_letter *const mgl_no_more = (mgl_letter *) 1;

/* Takes a reference that another thread will let go of.
 *
 * Without the GIL an object counts the references of the thread that has made it apart from those of
 * all others. Counted here and let go of there, the two would have to be settled by the maker, in
 * a queue of its own, for each call that is posted (_Py_brc_queue_object). So it is counted at once
 * where the other thread will count it down, as Py_INCREF() does in any other thread. */
static inline PyObject *mgl_gift(PyObject *o) {
    if (!_Py_IsImmortal(o)) _Py_atomic_add_ssize(&o->ob_ref_shared, 1 << _Py_REF_SHARED_SHIFT);
    return o;
}

/* Takes a new reference to the handle. 0: it is closed; -1: no memory. */
static inline int mgl_posted_add(mgl_posted *p, mgl_letter *letter, PyObject *handle) {
    mgl_letter *before = atomic_load_explicit(&p->newest, memory_order_relaxed);
    letter->handle = mgl_gift(handle);
    do {
        if (before == mgl_no_more) {
            Py_DECREF(handle);
            return 0;
        }
        letter->before = before;
    } while (!atomic_compare_exchange_weak(&p->newest, &before, letter));
    return 1;
}

/* Whether there is anything to take; by the loop's thread. */
static inline bool mgl_posted_any(mgl_posted *p) {
    mgl_letter *newest = atomic_load(&p->newest);
    return newest != NULL && newest != mgl_no_more;
}

/* The next of those that lie there, borrowed; NULL at the end. The cursor begins at 0. For the
 * collector, which nobody posts beside. */
static inline PyObject *mgl_posted_next(mgl_posted *p, uintptr_t *cursor) {
    mgl_letter *newest = atomic_load(&p->newest), *first = newest == mgl_no_more ? p->rest : newest;
    mgl_letter *letter = *cursor == 0 ? first : ((mgl_letter *) *cursor)->before;
    *cursor = (uintptr_t) letter;
    return letter != NULL ? letter->handle : NULL;
}

/* Moves all to the end of the queue; how many, or -1: no memory, and they lie where they lay. */
static inline Py_ssize_t mgl_posted_take(mgl_posted *p, mgl_ring *queue) {
    size_t n = 0;
    /* One that is closed stays so: nobody but the loop's thread closes it. */
    if (!mgl_posted_any(p)) return 0;
    mgl_letter *newest = atomic_exchange(&p->newest, NULL);
    for (mgl_letter *letter = newest; letter != NULL; letter = letter->before, n++) {
        if (mgl_ring_reserve(queue, 1) == 0) {
            mgl_ring_put(queue, letter->handle);
            continue;
        }
        /* Back, before what has been posted since: into the list behind that, which nobody but this
         * thread follows or takes. */
        mgl_ring_unput(queue, n);
        mgl_letter *last = NULL;
        if (!atomic_compare_exchange_strong(&p->newest, &last, newest)) {
            while (last->before != NULL) last = last->before;
            last->before = newest;
        }
        return -1;
    }
    mgl_ring_turn(queue, n);
    return (Py_ssize_t) n;
}

/* From now on posting fails. What lies there can be popped, and needs no memory to be. */
static inline void mgl_posted_close(mgl_posted *p) {
    mgl_letter *letter = atomic_exchange(&p->newest, mgl_no_more);
    if (letter == mgl_no_more) return;
    while (letter != NULL) {
        mgl_letter *before = letter->before;
        letter->before = p->rest;
        p->rest = letter;
        letter = before;
    }
}

/* The oldest of one that is closed, which is the caller's; NULL: no more. */
static inline PyObject *mgl_posted_pop(mgl_posted *p) {
    mgl_letter *letter = p->rest;
    if (letter == NULL) return NULL;
    p->rest = letter->before;
    return letter->handle;
}

#else /* under the GIL */

#define MGL_WITHOUT_GIL 0

typedef struct {
    char none[0]; /* a handle is to be no larger for it */
} mgl_letter;

typedef struct {
    mgl_ring ring;
    bool closed;
} mgl_posted;

static inline PyObject *mgl_gift(PyObject *o) { return Py_NewRef(o); }

static inline int mgl_posted_add(mgl_posted *p, mgl_letter *Py_UNUSED(letter), PyObject *handle) {
    if (p->closed) return 0;
    return mgl_ring_push(&p->ring, handle) == 0 ? 1 : -1;
}

static inline bool mgl_posted_any(mgl_posted *p) { return mgl_ring_len(&p->ring) > 0 && !p->closed; }

static inline PyObject *mgl_posted_next(mgl_posted *p, uintptr_t *cursor) {
    return *cursor < mgl_ring_len(&p->ring) ? mgl_ring_at(&p->ring, (*cursor)++) : NULL;
}

static inline Py_ssize_t mgl_posted_take(mgl_posted *p, mgl_ring *queue) {
    if (!mgl_posted_any(p)) return 0;
    size_t n = mgl_ring_len(&p->ring);
    if (mgl_ring_len(queue) == 0) {
        mgl_ring_swap(&p->ring, queue);
        return (Py_ssize_t) n;
    }
    if (mgl_ring_reserve(queue, n) != 0) return -1;
    for (size_t i = 0; i < n; i++) mgl_ring_put(queue, mgl_ring_pop(&p->ring));
    return (Py_ssize_t) n;
}

static inline void mgl_posted_close(mgl_posted *p) { p->closed = true; }

static inline PyObject *mgl_posted_pop(mgl_posted *p) {
    if (mgl_ring_len(&p->ring) > 0) return mgl_ring_pop(&p->ring);
    mgl_ring_clear(&p->ring);
    return NULL;
}

#endif
#endif
