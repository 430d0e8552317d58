/* SPDX-License-Identifier: GPL-2.0-only
 *
 * From the heap of timers into the ready queue: what is due.
 *
 * One by one as long as they are few. Of thousands that are due together each would sink another
 * to the bottom of the heap, with a branch at every level that nobody can foresee: 77 ns each of
 * 10,000, half of what mgloop does for a timer at all. So they are taken out together, sorted by
 * the digits of their deadlines (21 ns), and what is left is made a heap anew.
 * For the loop's thread; runs no Python code. */
#ifndef MGLOOP_TIMERSORT_H
#define MGLOOP_TIMERSORT_H

#include <stdint.h>
#include <string.h>

#include "ring.h"
#include "timerheap.h"

enum {
    MGL_DUE_LOOK = 64,  /* after so many, and a 16th of all, it pays to look how many there are */
    MGL_DUE_MANY = 512, /* for fewer the counters of the digits are dearer than the heap */
    MGL_DUE_BITS = 11,  /* of a digit */
};

typedef struct {
    uint64_t keys[2]; /* deadline and sequence */
    PyObject *timer;
} mgl_due;

/* In the order of the deadlines. */
static inline uint64_t mgl_due_key(double when) {
    uint64_t bits;
    when += 0.0; /* of -0.0 too */
    memcpy(&bits, &when, sizeof(bits));
    return bits >> 63 ? ~bits : bits | (uint64_t) 1 << 63;
}

/* Sorts by keys[key], last digit first, those in which they differ; equals stay in their order.
 * Returns where they are then, `items` or `spare`. */
static inline mgl_due *mgl_due_sort(mgl_due *items, mgl_due *spare, Py_ssize_t n, int key) {
    uint64_t differ = 0;
    for (Py_ssize_t i = 1; i < n; i++) differ |= items[i].keys[key] ^ items[0].keys[key];
    for (int shift = 0; shift < 64 && differ >> shift != 0; shift += MGL_DUE_BITS) {
        enum { DIGITS = 1 << MGL_DUE_BITS };
        Py_ssize_t places[DIGITS] = {0}, place = 0;
        if ((differ >> shift & (DIGITS - 1)) == 0) continue;
        for (Py_ssize_t i = 0; i < n; i++) places[items[i].keys[key] >> shift & (DIGITS - 1)]++;
        for (int digit = 0; digit < DIGITS; digit++) {
            Py_ssize_t count = places[digit];
            places[digit] = place;
            place += count;
        }
        for (Py_ssize_t i = 0; i < n; i++) spare[places[items[i].keys[key] >> shift & (DIGITS - 1)]++] = items[i];
        mgl_due *sorted = spare;
        spare = items;
        items = sorted;
    }
    return items;
}

/* All that are due at once, if these are many and a good part of the heap. Returns how many; 0 also
 * where memory is short: one by one, then. The ready queue has room. */
static inline Py_ssize_t mgl_heap_take_many(mgl_heap *h, double now, mgl_ring *ready) {
    Py_ssize_t n = 0, left = 0;
    for (Py_ssize_t i = 0; i < h->len; i++) n += h->items[i].when <= now;
    if (n < MGL_DUE_MANY || n < h->len / 4) return 0;
    mgl_due *memory = (mgl_due *) PyMem_RawMalloc(2 * (size_t) n * sizeof(*memory));
    if (memory == NULL) return 0;
    if (mgl_ring_reserve(ready, (size_t) n) != 0) {
        PyErr_Clear();
        PyMem_RawFree(memory);
        return 0;
    }
    n = 0;
    for (Py_ssize_t i = 0; i < h->len; i++) {
        mgl_timer *t = &h->items[i];
        if (t->when <= now) {
            memory[n++] = (mgl_due){{mgl_due_key(t->when), t->sequence}, t->timer};
            *t->index = -1;
        } else {
            mgl_heap_put(h, left++, *t);
        }
    }
    h->len = left;
    for (Py_ssize_t i = left / MGL_HEAP_CHILDREN; i >= 0 && left > 0; i--) mgl_heap_down(h, i, h->items[i]);
    mgl_due *items = mgl_due_sort(memory, memory + n, n, 1);
    items = mgl_due_sort(items, items == memory ? memory + n : memory, n, 0);
    for (Py_ssize_t i = 0; i < n; i++) mgl_ring_put(ready, items[i].timer);
    PyMem_RawFree(memory);
    return n;
}

/* All that are due, earliest first, into the ready queue. Returns how many; -1 with MemoryError, and
 * the rest is still in the heap. */
static inline Py_ssize_t mgl_heap_take_due(mgl_heap *h, double now, mgl_ring *ready) {
    Py_ssize_t taken = 0, look = h->len / 16 > MGL_DUE_LOOK ? h->len / 16 : MGL_DUE_LOOK;
    while (h->len > 0 && h->items[0].when <= now) {
        if (taken == look) {
            Py_ssize_t many = mgl_heap_take_many(h, now, ready);
            if (many > 0) return taken + many;
        }
        if (mgl_ring_reserve(ready, 1) != 0) return -1;
        mgl_ring_put(ready, mgl_heap_remove(h, 0));
        taken++;
    }
    return taken;
}

#endif
