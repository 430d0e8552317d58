/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The ready queue: a ring buffer of owned PyObject pointers, oldest first. Its size is a power of two.
 *
 * Native because every callback of a loop passes through it. Only the loop's thread may use it. No push
 * or pop runs Python code in between. */
#ifndef MGLOOP_RING_H
#define MGLOOP_RING_H

#include <Python.h>
#include <stddef.h>

typedef struct {
    PyObject **items;
    size_t mask; /* size - 1; 0 while items is NULL */
    size_t head;
    size_t tail;
} mgl_ring;

static inline size_t mgl_ring_len(const mgl_ring *r) { return r->tail - r->head; }

static int mgl_ring_grow(mgl_ring *r) {
    size_t old = r->items != NULL ? r->mask + 1 : 0, size = old != 0 ? old * 2 : 64;
    PyObject **items = (PyObject **) PyMem_RawMalloc(size * sizeof(*items));
    if (items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    size_t n = mgl_ring_len(r);
    for (size_t i = 0; i < n; i++) items[i] = r->items[(r->head + i) & r->mask];
    PyMem_RawFree(r->items);
    r->items = items;
    r->mask = size - 1;
    __atomic_store_n(&r->head, 0, __ATOMIC_RELAXED);
    r->tail = n;
    return 0;
}

/* Reserves capacity for n more objects, so that pushing them cannot fail. */
static inline int mgl_ring_reserve(mgl_ring *r, size_t n) {
    while (r->items == NULL || mgl_ring_len(r) + n > r->mask + 1)
        if (mgl_ring_grow(r) != 0) return -1;
    return 0;
}

/* Appends an object and takes over the caller's reference. There must be free capacity. */
static inline void mgl_ring_put(mgl_ring *r, PyObject *o) { r->items[r->tail++ & r->mask] = o; }

/* Removes the n newest objects, whose references belong to the caller again. */
static inline void mgl_ring_unput(mgl_ring *r, size_t n) { r->tail -= n; }

/* Reverses the n newest objects. */
static inline void mgl_ring_turn(mgl_ring *r, size_t n) {
    size_t first = r->tail - n;
    for (size_t i = 0; i < n / 2; i++) {
        PyObject **early = &r->items[(first + i) & r->mask], **late = &r->items[(r->tail - 1 - i) & r->mask];
        PyObject *o = *early;
        *early = *late;
        *late = o;
    }
}

/* Moves the n newest objects in front of the m objects before them; each group keeps its order. */
static inline void mgl_ring_bring_forward(mgl_ring *r, size_t n, size_t m) {
    /* Reverse both groups together, and then each group separately. */
    mgl_ring_turn(r, n + m);
    mgl_ring_turn(r, m);
    r->tail -= m;
    mgl_ring_turn(r, n);
    r->tail += m;
}

/* Appends an object with a new reference. -1 with MemoryError. */
static inline int mgl_ring_push(mgl_ring *r, PyObject *o) {
    if (r->items == NULL || mgl_ring_len(r) > r->mask)
        if (mgl_ring_grow(r) != 0) return -1;
    Py_INCREF(o);
    mgl_ring_put(r, o);
    return 0;
}

/* Removes the oldest object; the caller owns the reference. The ring must not be empty. */
static inline PyObject *mgl_ring_pop(mgl_ring *r) {
    PyObject *o = r->items[r->head & r->mask];
    __atomic_store_n(&r->head, r->head + 1, __ATOMIC_RELAXED); /* observe/stalls.c reads it in another thread */
    return o;
}

/* Swaps the contents of two rings. */
static inline void mgl_ring_swap(mgl_ring *a, mgl_ring *b) {
    mgl_ring was = *a;
    a->items = b->items;
    a->mask = b->mask;
    a->tail = b->tail;
    __atomic_store_n(&a->head, b->head, __ATOMIC_RELAXED);
    b->items = was.items;
    b->mask = was.mask;
    b->tail = was.tail;
    __atomic_store_n(&b->head, was.head, __ATOMIC_RELAXED);
}

/* Returns the i-th oldest object, borrowed. */
static inline PyObject *mgl_ring_at(const mgl_ring *r, size_t i) {
    return r->items[(r->head + i) & r->mask];
}

/* Pops each object before dropping it, because a destructor may run Python code that pushes. */
static inline void mgl_ring_clear(mgl_ring *r) {
    while (mgl_ring_len(r) > 0) Py_DECREF(mgl_ring_pop(r));
    PyMem_RawFree(r->items);
    r->items = NULL;
    __atomic_store_n(&r->head, 0, __ATOMIC_RELAXED);
    r->mask = r->tail = 0;
}

#endif
