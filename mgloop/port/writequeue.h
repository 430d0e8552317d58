/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The unsent data of a transport: bytes objects, oldest first. The first may be partially sent.
 *
 * Native because it is used per packet. It holds only bytes objects (mutable data is copied into one
 * before it is queued), so sending does not use the buffer protocol, and queued data cannot change.
 * Two objects, such as the head and the body of a response, fit into the structure itself, so an idle
 * connection allocates no memory here. Only the loop's thread may use it. */
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
    uint32_t cap;  /* 0 if the objects are in store.near */
    uint32_t head;
    uint32_t len;
    size_t offset; /* bytes of the first object that have been sent */
    size_t size;   /* unsent bytes */
} mgl_queue;

static inline PyObject **mgl_queue_items(mgl_queue *q) {
    return q->cap != 0 ? q->store.far : q->store.near;
}

/* Reserves space for one more object at the end. -1 with MemoryError. */
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

/* Appends a non-empty bytes object with a new reference. `sent` bytes of it have already been sent,
 * which is possible only if the queue is empty. -1 with MemoryError. */
static inline int mgl_queue_push(mgl_queue *q, PyObject *bytes, size_t sent) {
    if (mgl_queue_reserve(q) != 0) return -1;
    Py_INCREF(bytes);
    if (q->len == 0) q->offset = sent;
    mgl_queue_items(q)[q->head + q->len++] = bytes;
    q->size += (size_t) PyBytes_GET_SIZE(bytes) - sent;
    return 0;
}

/* Fills at most `max` entries and returns their number. */
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

/* Removes n bytes that have been sent. Dropping a bytes object runs no Python code. */
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
