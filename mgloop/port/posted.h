/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The queue of handles that other threads have posted to a loop, as a part of its cross-thread queue
 * (threadqueue.h).
 *
 * It has many producers and one consumer, the loop's thread, which moves all posted handles to the end
 * of its ready queue at once. The handles that one thread has posted keep their order.
 *
 * Without the GIL it is a lock-free linked list. Each handle contains the node that links it, so
 * posting allocates nothing. `newest` is the head, and each node points to the previous one. The loop
 * takes the whole list with one atomic exchange and reverses it.
 *
 * Under the GIL, which both sides hold, it is a ring buffer. A list would cost the loop one cache miss
 * per node, in sequence, because another core has written each node, and its address is only known
 * from the node before it. The slots of a ring are known in advance. The ring is separate from the
 * ready queue, whose capacity is reserved for the events of a poll while other threads hold the GIL.
 * If the ready queue is empty, the two are swapped and nothing is moved. */
#ifndef MGLOOP_POSTED_H
#define MGLOOP_POSTED_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "ring.h"

#ifdef Py_GIL_DISABLED

#include <stdatomic.h>

#define MGL_WITHOUT_GIL 1

typedef struct mgl_node {
    struct mgl_node *before;
    PyObject *handle; /* the handle that contains the node */
} mgl_node;

typedef struct {
    _Atomic(mgl_node *) newest; /* mgl_no_more if closed */
    mgl_node *rest;             /* after closing: the rest, oldest first, for the loop's thread */
} mgl_posted;

/* The value of `newest` in a closed queue. */
static mgl_node *const mgl_no_more = (mgl_node *) 1;

/* Creates a new reference that another thread will drop.
 *
 * Without the GIL, an object has a local reference count for its creating thread and a shared count
 * for all others. If a reference were added to the local count and dropped from the shared count, the
 * creating thread would have to merge the counts for each posted call, through a queue
 * (_Py_brc_queue_object). The reference is therefore added to the shared count, as Py_INCREF() does in
 * any other thread than the creating one. */
static inline PyObject *mgl_new_shared_reference(PyObject *o) {
    if (!_Py_IsImmortal(o)) _Py_atomic_add_ssize(&o->ob_ref_shared, 1 << _Py_REF_SHARED_SHIFT);
    return o;
}

/* Posts a handle with a new reference. Returns 1, 0 if the queue is closed, or -1 with MemoryError. */
static inline int mgl_posted_add(mgl_posted *p, mgl_node *node, PyObject *handle) {
    mgl_node *before = atomic_load_explicit(&p->newest, memory_order_relaxed);
    node->handle = mgl_new_shared_reference(handle);
    do {
        if (before == mgl_no_more) {
            Py_DECREF(handle);
            return 0;
        }
        node->before = before;
    } while (!atomic_compare_exchange_weak(&p->newest, &before, node));
    return 1;
}

/* Returns whether handles have been posted. For the loop's thread. */
static inline bool mgl_posted_any(mgl_posted *p) {
    mgl_node *newest = atomic_load(&p->newest);
    return newest != NULL && newest != mgl_no_more;
}

/* Returns the next posted handle (borrowed), or NULL at the end. The cursor starts at 0. For the
 * garbage collector, during which no thread posts. */
static inline PyObject *mgl_posted_next(mgl_posted *p, uintptr_t *cursor) {
    mgl_node *newest = atomic_load(&p->newest), *first = newest == mgl_no_more ? p->rest : newest;
    mgl_node *node = *cursor == 0 ? first : ((mgl_node *) *cursor)->before;
    *cursor = (uintptr_t) node;
    return node != NULL ? node->handle : NULL;
}

/* Moves all handles to the end of the queue and returns their number. On -1 with MemoryError, they stay
 * posted. */
static inline Py_ssize_t mgl_posted_take(mgl_posted *p, mgl_ring *queue) {
    size_t n = 0;
    /* A closed queue stays closed: only the loop's thread closes it. */
    if (!mgl_posted_any(p)) return 0;
    mgl_node *newest = atomic_exchange(&p->newest, NULL);
    for (mgl_node *node = newest; node != NULL; node = node->before, n++) {
        if (mgl_ring_reserve(queue, 1) == 0) {
            mgl_ring_put(queue, node->handle);
            continue;
        }
        /* Restore the list, after the handles that have been posted since. Only this thread
         * traverses or takes that part of the list. */
        mgl_ring_unput(queue, n);
        mgl_node *last = NULL;
        if (!atomic_compare_exchange_strong(&p->newest, &last, newest)) {
            while (last->before != NULL) last = last->before;
            last->before = newest;
        }
        return -1;
    }
    mgl_ring_turn(queue, n);
    return (Py_ssize_t) n;
}

/* Closes the queue: posting fails from now on. The posted handles can be popped without allocation. */
static inline void mgl_posted_close(mgl_posted *p) {
    mgl_node *node = atomic_exchange(&p->newest, mgl_no_more);
    if (node == mgl_no_more) return;
    while (node != NULL) {
        mgl_node *before = node->before;
        node->before = p->rest;
        p->rest = node;
        node = before;
    }
}

/* Returns the oldest handle of a closed queue, with its reference, or NULL if it is empty. */
static inline PyObject *mgl_posted_pop(mgl_posted *p) {
    mgl_node *node = p->rest;
    if (node == NULL) return NULL;
    p->rest = node->before;
    return node->handle;
}

#else /* under the GIL */

#define MGL_WITHOUT_GIL 0

typedef struct {
    char none[0]; /* takes no space in a handle */
} mgl_node;

typedef struct {
    mgl_ring ring;
    bool closed;
} mgl_posted;

static inline PyObject *mgl_new_shared_reference(PyObject *o) { return Py_NewRef(o); }

static inline int mgl_posted_add(mgl_posted *p, mgl_node *Py_UNUSED(node), PyObject *handle) {
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
