/* SPDX-License-Identifier: GPL-2.0-only
 *
 * What a transport has still to send: bytes objects, oldest first, the first one perhaps in part.
 *
 * Native because it is touched per packet. Holds bytes objects only (whatever can change is copied
 * into one before it is queued), so sending needs no buffer protocol and no snapshot can go stale.
 * Two objects fit inside the queue itself, the common head and body of a response: an idle
 * connection owns no memory here. For the loop's thread. */
#ifndef MGLOOP_WRITEQUEUE_H
#define MGLOOP_WRITEQUEUE_H

#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

enum { MGL_QUEUE_INLINE = 2 };

typedef struct {
    union {
        PyObject *near[MGL_QUEUE_INLINE];
        PyObject **far;
    } store;
    uint32_t cap;  /* 0 = the objects are in store.near */
    uint32_t head;
    uint32_t len;
    size_t offset; /* bytes of the first object that are sent already */
    size_t size;   /* bytes still to send */
} mgl_queue;

static inline PyObject **mgl_queue_items(mgl_queue *q) {
    return q->cap != 0 ? q->store.far : q->store.near;
}

/* Makes room for one more at the end. */
static int mgl_queue_reserve(mgl_queue *q) {
    uint32_t cap = q->cap != 0 ? q->cap : MGL_QUEUE_INLINE;
    if (q->head + q->len < cap) return 0;
    PyObject **items = mgl_queue_items(q);
    if (q->head > 0 && q->len <= cap / 2) {
        memmove(items, items + q->head, q->len * sizeof(*items));
        q->head = 0;
        return 0;
    }
    uint32_t bigger = cap * 2 < 8 ? 8 : cap * 2;
    PyObject **far = (PyObject **) PyMem_RawMalloc(bigger * sizeof(*far));
    if (far == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(far, items + q->head, q->len * sizeof(*far));
    if (q->cap != 0) PyMem_RawFree(q->store.far);
    q->store.far = far;
    q->cap = bigger;
    q->head = 0;
    return 0;
}

/* Takes a new reference to a non-empty bytes object, of which `sent` bytes are sent already
 * (only in an empty queue). */
static inline int mgl_queue_push(mgl_queue *q, PyObject *bytes, size_t sent) {
    if (mgl_queue_reserve(q) != 0) return -1;
    Py_INCREF(bytes);
    if (q->len == 0) q->offset = sent;
    mgl_queue_items(q)[q->head + q->len++] = bytes;
    q->size += (size_t) PyBytes_GET_SIZE(bytes) - sent;
    return 0;
}

/* Fills at most max entries; returns how many. */
static inline int mgl_queue_iov(mgl_queue *q, struct iovec *iov, int max) {
    PyObject **items = mgl_queue_items(q) + q->head;
    int n = q->len < (uint32_t) max ? (int) q->len : max;
    for (int i = 0; i < n; i++) {
        size_t skip = i == 0 ? q->offset : 0;
        iov[i].iov_base = PyBytes_AS_STRING(items[i]) + skip;
        iov[i].iov_len = (size_t) PyBytes_GET_SIZE(items[i]) - skip;
    }
    return n;
}

static inline void mgl_queue_empty(mgl_queue *q) {
    if (q->cap != 0) PyMem_RawFree(q->store.far);
    q->cap = q->head = 0;
    q->offset = q->size = 0;
}

/* n bytes have been sent. Dropping a bytes object runs no Python code. */
static inline void mgl_queue_consume(mgl_queue *q, size_t n) {
    PyObject **items = mgl_queue_items(q);
    q->size -= n;
    while (q->len > 0) {
        PyObject *first = items[q->head];
        size_t left = (size_t) PyBytes_GET_SIZE(first) - q->offset;
        if (n < left) {
            q->offset += n;
            return;
        }
        n -= left;
        q->offset = 0;
        q->head++;
        q->len--;
        Py_DECREF(first);
    }
    mgl_queue_empty(q);
}

static inline void mgl_queue_clear(mgl_queue *q) {
    PyObject **items = mgl_queue_items(q) + q->head;
    for (uint32_t i = 0; i < q->len; i++) Py_DECREF(items[i]);
    q->len = 0;
    mgl_queue_empty(q);
}

#endif
